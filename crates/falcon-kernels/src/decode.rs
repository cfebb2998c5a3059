//! One token at a time, for streams: the memory is all there is, and it does not grow.

use crate::call::{check, check_out};
use crate::coefficients::{Coefficients, Purpose};
use crate::error::Error;
use crate::form::Form;
use crate::head::{Head, advance};
use crate::inputs::Inputs;
use crate::real::{axpy, combine, dot};
use crate::rule::Rule;
use crate::segment::Segment;
use crate::simd::{Vectorised, dispatch};
use crate::state::{State, row};
use crate::step::{self, scale_columns};
use crate::{Real, normaliser};

/// Runs single tokens, keeping its buffers between them.
pub struct Decoder<F> {
    rule: Rule,
    segment: Segment<F>,
    coefficients: Coefficients<F>,
    read: Vec<F>,
    writes: Vec<F>,
}

impl<F: Real> Decoder<F> {
    /// A decoder for `rule`, which must be valid.
    pub fn new(rule: &Rule) -> Result<Self, Error> {
        rule.validate()?;
        let (segment, coefficients) = (Segment::new(rule, 0, 0), Coefficients::default());
        Ok(Self { rule: *rule, segment, coefficients, read: Vec::new(), writes: Vec::new() })
    }

    /// One token of each sequence: `inputs` has as many tokens as sequences, `out` is `[sequences, heads, dim_v]`.
    /// The result is that of [`crate::forward`] on the same inputs.
    pub fn step(&mut self, inputs: &Inputs<'_, F>, state: &mut State<F>, out: &mut [F]) -> Result<(), Error> {
        let sizes = check(&self.rule, Form::Recurrent, inputs, state)?;
        check_out("out", out, &sizes)?;
        if let Some(sequence) = (0..sizes.sequences).find(|i| inputs.offsets[i + 1] != i + 1) {
            let got = inputs.offsets[sequence + 1] - inputs.offsets[sequence];
            return Err(Error::OneToken { sequence, got });
        }
        self.segment.dim_k = sizes.dim_k;
        self.segment.values = sizes.dim_v;
        self.segment.columns = self.rule.state_columns(sizes.dim_v);
        self.read.resize(self.segment.columns, F::zero());
        self.writes.resize(self.rule.window * self.segment.columns, F::zero());
        for sequence in 0..sizes.sequences {
            for head in 0..sizes.heads {
                let place = Head { rule: &self.rule, inputs, state, sizes, sequence, head };
                place.pack(0..1, &mut self.segment, &mut self.coefficients, Purpose::Forward);
                let memory = state.memory_of_mut(sequence, head);
                dispatch(Step { segment: &self.segment, memory, read: &mut self.read, writes: &mut self.writes });
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
}

/// The write and the read of one head.
///
/// ```text
/// p_j = Sᵀx_j    z_j = w v_j − e p_j    S ← γ S + Σ_j x_j z_jᵀ    o = γ Sᵀq + Σ_j (q·x_j) z_j
/// ```
///
/// The query reads the old memory together with the newest pair's prediction, so with window 1 the memory is gone through
/// twice, row after row: once to read, once to write.
struct Step<'a, F> {
    segment: &'a Segment<F>,
    memory: &'a mut [F],
    read: &'a mut [F],
    /// `p_j`, and then `z_j`, of the window, `[window, columns]`.
    writes: &'a mut [F],
}

impl<F: Real> Vectorised for Step<'_, F> {
    #[inline(always)]
    fn run(self) {
        let Self { segment, memory, read, writes } = self;
        let (columns, q, window) = (segment.columns, segment.q_row(0), segment.window(0));
        let Some(newest) = window.clone().next_back() else {
            // The boundary of a fresh sequence writes nothing and forgets nothing.
            return product(memory, q, read);
        };
        let (older, p) = writes[..window.len() * columns].split_at_mut((window.len() - 1) * columns);
        if segment.erases {
            product_pair(memory, [q, segment.x_row(newest)], [&mut *read, p]);
            for (j, p) in window.clone().zip(older.chunks_exact_mut(columns)) {
                product(memory, segment.x_row(j), p);
            }
        } else {
            product(memory, q, read);
        }
        let (write, erase, gamma) =
            (segment.gains(&segment.write, 0), segment.gains(&segment.erase, 0), segment.gains(&segment.gamma, 0));
        if !segment.read_before {
            scale_columns(read, columns, gamma);
        }
        for (slot, j) in window.enumerate() {
            let z = &mut writes[row(slot, columns)];
            let v = segment.v_row(j);
            match (segment.erases, segment.each_column) {
                (false, false) => each(z, v, |_, v| write[0] * v),
                (false, true) => z.iter_mut().zip(v).zip(write).for_each(|((z, v), w)| *z = *w * *v),
                (true, false) => each(z, v, |p, v| write[0] * v - erase[0] * p),
                (true, true) => {
                    for (((z, v), w), e) in z.iter_mut().zip(v).zip(write).zip(erase) {
                        *z = *w * *v - *e * *z;
                    }
                }
            }
            if !segment.read_before {
                axpy(read, dot(q, segment.x_row(j)), z);
            }
            match (slot, gamma) {
                (0, [gamma]) => {
                    for (line, x) in memory.chunks_exact_mut(columns).zip(segment.x_row(j)) {
                        each(line, z, |s, z| *gamma * s + *x * z);
                    }
                }
                (0, _) => {
                    for (line, x) in memory.chunks_exact_mut(columns).zip(segment.x_row(j)) {
                        for ((s, z), gamma) in line.iter_mut().zip(&*z).zip(gamma) {
                            *s = *gamma * *s + *x * *z;
                        }
                    }
                }
                _ => step::outer(memory, F::one(), segment.x_row(j), z),
            }
        }
    }
}

/// `Sᵀa`.
#[inline(always)]
fn product<F: Real>(memory: &[F], a: &[F], with_a: &mut [F]) {
    with_a.fill(F::zero());
    let columns = with_a.len();
    combine(with_a, a, memory, columns);
}

/// `y = f(y, x)`.
#[inline(always)]
fn each<F: Real>(y: &mut [F], x: &[F], f: impl Fn(F, F) -> F) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = f(*y, *x);
    }
}

/// `Sᵀa` and `Sᵀb`, the sums of some columns in registers while the rows go by.
#[inline(always)]
fn product_pair<F: Real>(memory: &[F], [a, b]: [&[F]; 2], [with_a, with_b]: [&mut [F]; 2]) {
    const TILE: usize = 32;
    let columns = with_a.len();
    let mut start = 0;
    while start + TILE <= columns {
        let (mut sum_a, mut sum_b) = ([F::zero(); TILE], [F::zero(); TILE]);
        for ((row, a), b) in memory.chunks_exact(columns).zip(a).zip(b) {
            let row: &[F; TILE] = row[start..].first_chunk().expect("a tile of the memory");
            for lane in 0..TILE {
                sum_a[lane] += *a * row[lane];
                sum_b[lane] += *b * row[lane];
            }
        }
        with_a[start..start + TILE].copy_from_slice(&sum_a);
        with_b[start..start + TILE].copy_from_slice(&sum_b);
        start += TILE;
    }
    with_a[start..].fill(F::zero());
    with_b[start..].fill(F::zero());
    for ((row, a), b) in memory.chunks_exact(columns).zip(a).zip(b) {
        axpy(&mut with_a[start..], *a, &row[start..]);
        axpy(&mut with_b[start..], *b, &row[start..]);
    }
}
