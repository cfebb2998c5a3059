//! The forward pass over a batch of sequences, and how threads share its heads.

use rayon::prelude::*;

use crate::Real;
use crate::call::Call;
use crate::coefficients::{Coefficients, Purpose};
use crate::error::Error;
use crate::form::Form;
use crate::head::{Head, advance};
use crate::inputs::Sizes;
use crate::pipeline::{self, threads_per_head};
use crate::rule::Rule;
use crate::run::{Run, run};
use crate::segment::Segment;
use crate::shared::SharedHeads;
use crate::state::{State, row};

/// [`Call::forward`] without the checks. Unless it is empty, `saved` receives the memory before each segment, head
/// after head.
pub(crate) fn forward<F: Real>(call: &Call<'_, F>, state: &mut State<F>, out: &mut [F], saved: &mut [F]) {
    let Call { rule, form, inputs, sizes } = call;
    let blocks = value_blocks(rule, *form, sizes);
    let (size, columns) = (call.memory_len(), rule.state_columns(sizes.dim_v));
    let out = SharedHeads::new(out, inputs.offsets, sizes.heads * blocks, sizes.dim_v / blocks);
    // The saved memories are rows, too: those of each head of each sequence follow each other.
    let saved_rows = saved_rows(call);
    let saved = (!saved.is_empty()).then(|| SharedHeads::new(saved, &saved_rows, blocks, columns / blocks));
    let mut memories = std::mem::take(&mut state.memory);
    let mut parts = if blocks > 1 { columns_apart(&memories, size, sizes.dim_v, blocks) } else { Vec::new() };
    let target: &mut [F] = if blocks > 1 { &mut parts } else { &mut memories };
    // Each head, or block of columns of a head, with its memory.
    let mut runs: Vec<_> = heads(call, state)
        .into_iter()
        .enumerate()
        .flat_map(|(index, head)| (0..blocks).map(move |block| (index, head.block(block, blocks), block)))
        .zip(target.chunks_exact_mut(size / blocks))
        .map(|((index, head, block), memory)| {
            let saved = saved.as_ref().map(|saved| saved.claim(index, block));
            let out = out.claim(head.sequence, head.head * blocks + block);
            Run { head, memory, saved, out }
        })
        .collect();
    let prepared = threads_per_head(sizes) > 1 && pipeline::serves(rule, *form);
    if prepared {
        runs.par_chunks_mut(blocks).for_each(pipeline::run);
    } else {
        // A task takes heads of one sequence only.
        let share = heads_per_task(sizes.sequences, sizes.heads * blocks);
        runs.chunks_mut(sizes.heads * blocks)
            .flat_map(|sequence| sequence.chunks_mut(share))
            .collect::<Vec<_>>()
            .into_par_iter()
            .for_each(run);
    }
    drop(runs);
    if blocks > 1 {
        columns_together(&parts, &mut memories, size, sizes.dim_v, blocks);
    }
    state.memory = memories;
    advance(call, state);
}

/// The first row of the saved memories of every head of every sequence, and the number of all rows.
fn saved_rows<F: Real>(call: &Call<'_, F>) -> Vec<usize> {
    let Sizes { sequences, heads, dim_k, .. } = call.sizes;
    let lengths = (0..sequences).flat_map(|sequence| std::iter::repeat_n(call.segments(sequence) * dim_k, heads));
    let ends = lengths.scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

/// Into how many blocks of columns the values of a head are divided. The columns of a memory are independent, so
/// threads that would have no head of their own can share one. The results of a column are the same in any block.
fn value_blocks(rule: &Rule, form: Form, sizes: &Sizes) -> usize {
    // Narrower blocks would make the matrix products slower.
    const NARROWEST: usize = 32;
    // The matrix library splits longer sums at places that depend on the width of the product, so that the bits of the
    // result would depend on the number of threads.
    const DEEPEST: usize = 512;
    let stretch = form.stretch(rule).unwrap_or(sizes.tokens);
    if sizes.dim_k.max(stretch.saturating_add(rule.window)) > DEEPEST {
        return 1;
    }
    let threads = threads_per_head(sizes);
    // Half of the threads prepare what the blocks share.
    let threads = if pipeline::serves(rule, form) { threads / 2 } else { threads };
    let most = threads.min(sizes.dim_v / NARROWEST);
    // All columns are divided by that of the normaliser, so they cannot be separated.
    let most = if rule.normaliser.is_some() { 1 } else { most };
    (2..=most).rev().find(|blocks| sizes.dim_v.is_multiple_of(*blocks)).unwrap_or(1)
}

/// Rearranges memories `[dim_k, columns]` as `[blocks, dim_k, columns / blocks]`.
fn columns_apart<F: Real>(memories: &[F], size: usize, columns: usize, blocks: usize) -> Vec<F> {
    let mut parts = Vec::with_capacity(memories.len());
    for memory in memories.chunks_exact(size) {
        for block in 0..blocks {
            for line in memory.chunks_exact(columns) {
                parts.extend_from_slice(&line[row(block, columns / blocks)]);
            }
        }
    }
    parts
}

/// The inverse of [`columns_apart`].
fn columns_together<F: Real>(parts: &[F], memories: &mut [F], size: usize, columns: usize, blocks: usize) {
    let width = columns / blocks;
    let mut parts = parts.chunks_exact(width);
    for memory in memories.chunks_exact_mut(size) {
        for block in 0..blocks {
            for (line, part) in memory.chunks_exact_mut(columns).zip(&mut parts) {
                line[row(block, width)].copy_from_slice(part);
            }
        }
    }
}

/// How many heads of a sequence one task takes. The heads of a token are adjacent in memory, so a task that runs
/// several heads chunk by chunk reads memory in order, but every thread needs a task. Heads are independent, so this
/// does not change the result.
pub(crate) fn heads_per_task(sequences: usize, heads: usize) -> usize {
    let threads = rayon::current_num_threads();
    // Twice as many tasks as threads, so that a slow task does not keep the other threads waiting for long.
    let wanted = if threads == 1 { 1 } else { 2 * threads };
    (sequences * heads).div_ceil(wanted).clamp(1, heads)
}

/// The coefficients of every step; see [`Call::coefficients`].
#[derive(Clone, Debug, PartialEq)]
pub struct Realised<F> {
    /// Step sizes, in the shape of the gain: `[tokens, heads]`, or `[tokens, heads, dim_v]`.
    pub eta: Vec<F>,
    /// Decay factors, in the shape of the gain.
    pub gamma: Vec<F>,
    /// Ridges `[tokens, heads]`.
    pub lambda: Vec<F>,
    /// Energies of the windows `[tokens, heads]`.
    pub energy: Vec<F>,
}

impl<F: Real> Call<'_, F> {
    /// The step sizes, decay factors, ridges and energies that [`Call::forward`] uses from `state` on: for inspection and
    /// statistics.
    pub fn coefficients(&self, state: &State<F>) -> Result<Realised<F>, Error> {
        state.check(&self.rule, &self.sizes)?;
        let Self { rule, inputs, sizes, .. } = self;
        let width = sizes.gain_width(rule);
        let zeros = |width: usize| vec![F::zero(); sizes.tokens * sizes.heads * width];
        let mut realised = Realised { eta: zeros(width), gamma: zeros(width), lambda: zeros(1), energy: zeros(1) };
        let share = |data, width| SharedHeads::new(data, inputs.offsets, sizes.heads, width);
        let shared = [
            (share(&mut realised.eta, width), width),
            (share(&mut realised.gamma, width), width),
            (share(&mut realised.lambda, 1), 1),
            (share(&mut realised.energy, 1), 1),
        ];
        for head in heads(self, state) {
            let (mut segment, mut found) = (Segment::new(rule, sizes.dim_k, sizes.dim_v), Coefficients::default());
            let mut rows =
                shared.each_ref().map(|(shared, width)| (shared.claim(head.sequence, head.head), *width));
            for steps in Form::Recurrent.segments(rule, head.tokens().len()) {
                head.pack(steps.clone(), &mut segment, &mut found, Purpose::Show);
                let found = [&found.eta, &segment.gamma, &found.lambda, &found.energy];
                for ((rows, width), found) in rows.iter_mut().zip(found) {
                    for (step, found) in steps.clone().zip(found.chunks_exact(*width)) {
                        rows.row(step).copy_from_slice(found);
                    }
                }
            }
        }
        drop(shared);
        Ok(realised)
    }
}

/// Every head of every sequence, in the order of the memories.
pub(crate) fn heads<'a, F: Real>(call: &'a Call<'a, F>, state: &'a State<F>) -> Vec<Head<'a, F>> {
    let Sizes { sequences, heads, .. } = call.sizes;
    (0..sequences)
        .flat_map(|sequence| (0..heads).map(move |head| Head::new(call, state, sequence, head)))
        .collect()
}
