//! One token at a time, for streams: the memory is all there is, and it does not grow.

use crate::call::{check, check_out};
use crate::coefficients::{Coefficients, Purpose};
use crate::error::Error;
use crate::form::Form;
use crate::head::{Head, advance};
use crate::inputs::Inputs;
use crate::real::{axpy, dot};
use crate::rule::Rule;
use crate::segment::Segment;
use crate::state::{State, row};
use crate::step::{predict, write};
use crate::{Real, normaliser};

/// Runs single tokens, keeping its buffers between them.
pub struct Decoder<F> {
    rule: Rule,
    segment: Segment<F>,
    coefficients: Coefficients<F>,
    p: Vec<F>,
    z: Vec<F>,
    read: Vec<F>,
}

impl<F: Real> Decoder<F> {
    /// A decoder for `rule`, which must be valid.
    pub fn new(rule: &Rule) -> Result<Self, Error> {
        rule.validate()?;
        let (segment, coefficients) = (Segment::new(rule, 0, 0), Coefficients::default());
        Ok(Self { rule: *rule, segment, coefficients, p: Vec::new(), z: Vec::new(), read: Vec::new() })
    }

    /// One token of each sequence: `inputs` has as many tokens as sequences, `out` is `[sequences, heads, dim_v]`.
    /// The result is that of [`crate::forward`] on the same inputs.
    pub fn step(&mut self, inputs: &Inputs<'_, F>, state: &mut State<F>, out: &mut [F]) -> Result<(), Error> {
        let sizes = check(&self.rule, Form::Recurrent, inputs, state)?;
        check_out("out", out, &sizes)?;
        if let Some(position) = (0..sizes.sequences).find(|i| inputs.offsets[i + 1] != i + 1) {
            let got = inputs.offsets[position + 1];
            return Err(Error::OneToken { sequence: position, got: got - inputs.offsets[position] });
        }
        let columns = self.rule.state_columns(sizes.dim_v);
        self.segment.dim_k = sizes.dim_k;
        self.segment.values = sizes.dim_v;
        self.segment.columns = columns;
        for buffer in [&mut self.p, &mut self.z] {
            buffer.resize(self.rule.window * columns, F::zero());
        }
        self.read.resize(columns, F::zero());
        for sequence in 0..sizes.sequences {
            for head in 0..sizes.heads {
                let place = Head { rule: &self.rule, inputs, state, sizes, sequence, head };
                place.pack(0..1, &mut self.segment, &mut self.coefficients, Purpose::Forward);
                self.step_head(state.memory_of_mut(sequence, head));
                let out = &mut out[row(sequence * sizes.heads + head, sizes.dim_v)];
                match self.rule.normaliser {
                    None => out.copy_from_slice(&self.read),
                    Some(n) => normaliser::divide(&self.read, F::of(n.eps), out),
                }
            }
        }
        advance(&self.rule, inputs, &sizes, state);
        Ok(())
    }

    /// `o = γ ⊙ Sᵀq + Σ_j (q·x_j) z_j` reads the memory while it is in cache for the predictions; then it is written.
    fn step_head(&mut self, memory: &mut [F]) {
        let Self { segment, p, z, read, .. } = self;
        let q = segment.q_row(0);
        predict(segment, 0, memory, p, z);
        crate::step::read(memory, q, read);
        if !segment.read_before {
            for c in 0..segment.columns {
                read[c] *= segment.gain(&segment.gamma, 0, c);
            }
            for (slot, j) in segment.window(0).enumerate() {
                axpy(read, dot(q, segment.x_row(j)), &z[row(slot, segment.columns)]);
            }
        }
        write(segment, 0, z, memory);
    }
}
