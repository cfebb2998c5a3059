//! The forward call: a rule in a form over a batch of sequences.

use std::ops::Range;

use rayon::prelude::*;

use crate::coefficients::Coefficients;
use crate::error::Error;
use crate::form::Form;
use crate::head::{Head, advance};
use crate::inputs::{Inputs, Sizes};
use crate::rule::Rule;
use crate::segment::Segment;
use crate::state::{State, row};
use crate::{Real, normaliser};

/// Runs `rule` over `inputs`, from `state` to the state after the last token.
///
/// `out` is `[tokens, heads, dim_v]`, row-major. Sequences and heads run in parallel on the current `rayon` pool;
/// the number of threads does not change the result.
pub fn forward<F: Real>(
    rule: &Rule,
    form: Form,
    inputs: &Inputs<'_, F>,
    state: &mut State<F>,
    out: &mut [F],
) -> Result<(), Error> {
    let sizes = check(rule, form, inputs, state)?;
    check_out("out", out, &sizes)?;
    let heads = heads(rule, inputs, state, sizes);
    let results: Vec<_> = heads
        .par_iter()
        .map(|head| {
            let mut outputs = vec![F::zero(); head.tokens().len() * sizes.dim_v];
            let columns = rule.state_columns(sizes.dim_v);
            let memory = run(head, form, |steps, _, raw| {
                let out = &mut outputs[steps.start * sizes.dim_v..steps.end * sizes.dim_v];
                match rule.normaliser {
                    None => out.copy_from_slice(raw),
                    Some(n) => {
                        for (out, raw) in out.chunks_exact_mut(sizes.dim_v).zip(raw.chunks_exact(columns)) {
                            normaliser::divide(raw, F::of(n.eps), out);
                        }
                    }
                }
            });
            (head.tokens(), head.sequence, head.head, memory, outputs)
        })
        .collect();
    drop(heads);
    for (tokens, sequence, head, memory, outputs) in results {
        scatter(out, &outputs, &tokens, (sizes.heads, head), sizes.dim_v);
        state.memory_of_mut(sequence, head).copy_from_slice(&memory);
    }
    advance(rule, inputs, &sizes, state);
    Ok(())
}

/// What the gains of a call came to; see [`coefficients`].
#[derive(Clone, Debug, PartialEq)]
pub struct Realised<F> {
    /// Step size, in the shape of the gain: `[tokens, heads]`, or `[tokens, heads, dim_v]`.
    pub eta: Vec<F>,
    /// Carry, in the shape of the gain.
    pub gamma: Vec<F>,
    /// Ridge `[tokens, heads]`.
    pub lambda: Vec<F>,
    /// Energy of the window `[tokens, heads]`.
    pub energy: Vec<F>,
}

/// The step sizes, carries, ridges and energies that [`forward`] would use: for looking at, and for statistics.
pub fn coefficients<F: Real>(rule: &Rule, inputs: &Inputs<'_, F>, state: &State<F>) -> Result<Realised<F>, Error> {
    let sizes = check(rule, Form::Recurrent, inputs, state)?;
    let width = sizes.gain_width(rule);
    let zeros = |width: usize| vec![F::zero(); sizes.tokens * sizes.heads * width];
    let mut realised = Realised { eta: zeros(width), gamma: zeros(width), lambda: zeros(1), energy: zeros(1) };
    for head in heads(rule, inputs, state, sizes) {
        let (mut segment, mut found) = (Segment::new(rule, sizes.dim_k, sizes.dim_v), Coefficients::default());
        for steps in Form::Recurrent.segments(head.tokens().len()) {
            let start = head.tokens().start;
            let tokens = start + steps.start..start + steps.end;
            head.pack(steps, &mut segment, &mut found, true);
            for (to, from, width) in [
                (&mut realised.eta, &found.eta, width),
                (&mut realised.gamma, &segment.gamma, width),
                (&mut realised.lambda, &found.lambda, 1),
                (&mut realised.energy, &found.energy, 1),
            ] {
                scatter(to, from, &tokens, (sizes.heads, head.head), width);
            }
        }
    }
    Ok(realised)
}

/// Everything a call can be refused for, before anything is computed.
pub(crate) fn check<F: Real>(
    rule: &Rule,
    form: Form,
    inputs: &Inputs<'_, F>,
    state: &State<F>,
) -> Result<Sizes, Error> {
    let sizes = inputs.check(rule)?;
    form.check(rule, inputs)?;
    state.check(rule, &sizes)?;
    Ok(sizes)
}

pub(crate) fn check_out<F>(tensor: &'static str, out: &[F], sizes: &Sizes) -> Result<(), Error> {
    let needed = sizes.tokens * sizes.heads * sizes.dim_v;
    if out.len() == needed { Ok(()) } else { Err(Error::Length { tensor, got: out.len(), needed }) }
}

/// Every head of every sequence that has tokens.
pub(crate) fn heads<'a, F: Real>(
    rule: &'a Rule,
    inputs: &'a Inputs<'a, F>,
    state: &'a State<F>,
    sizes: Sizes,
) -> Vec<Head<'a, F>> {
    (0..sizes.sequences)
        .flat_map(|sequence| (0..sizes.heads).map(move |head| (sequence, head)))
        .map(|(sequence, head)| Head { rule, inputs, state, sizes, sequence, head })
        .filter(|head| !head.tokens().is_empty())
        .collect()
}

/// Runs one head from its incoming memory to its outgoing one, which is returned. `each` sees, for every segment, its
/// steps, the memory before it, and what it read (`[steps, columns]`).
pub(crate) fn run<F: Real>(
    head: &Head<'_, F>,
    form: Form,
    mut each: impl FnMut(Range<usize>, &[F], &[F]),
) -> Vec<F> {
    let Sizes { dim_k, dim_v, .. } = head.sizes;
    let (mut segment, mut coefficients) = (Segment::new(head.rule, dim_k, dim_v), Coefficients::default());
    let mut memory = head.state.memory_of(head.sequence, head.head).to_vec();
    let mut before = memory.clone();
    let mut raw = Vec::new();
    for steps in form.segments(head.tokens().len()) {
        head.pack(steps.clone(), &mut segment, &mut coefficients, false);
        raw.resize(steps.len() * segment.columns, F::zero());
        before.copy_from_slice(&memory);
        form.forward(&segment, &mut memory, &mut raw);
        each(steps, &before, &raw);
    }
    memory
}

/// Copies the rows of one head, `[tokens, width]`, into `[all tokens, heads, width]`.
pub(crate) fn scatter<F: Copy>(
    to: &mut [F],
    from: &[F],
    tokens: &Range<usize>,
    (heads, head): (usize, usize),
    width: usize,
) {
    for (t, from) in tokens.clone().zip(from.chunks_exact(width)) {
        to[row(t * heads + head, width)].copy_from_slice(from);
    }
}
