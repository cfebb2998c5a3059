//! One head on several threads. What the columns of the memory have in common is computed ahead, for several chunks side by
//! side, while the memory passes through the chunks that are ready, divided into blocks of columns.
//!
//! The chunks could also be composed as affine maps `S ← M S + b` of the memory, by a scan over the length. That needs
//! about twice the arithmetic (`M` is as large as the memory, and its columns cost as much as those of the values), so it
//! loses with few threads, and its rounding differs. Here no product is computed twice, and every bit is that of one
//! thread.

use std::ops::Range;

use rayon::prelude::*;

use crate::Real;
use crate::aligned::Aligned;
use crate::chunked;
use crate::coefficients::{Coefficients, Purpose};
use crate::form::Form;
use crate::head::Head;
use crate::inputs::Sizes;
use crate::rule::{Columns, Rule};
use crate::run::Run;
use crate::scratch::Scratch;
use crate::segment::Segment;

/// The longest chunks of which several are prepared at once: memory grows with the square of the length.
const LONGEST: usize = 256;

/// Whether a form of a rule can be divided this way. Gains of each column leave little that columns share.
pub(crate) fn serves(rule: &Rule, form: Form) -> bool {
    matches!(form, Form::Chunked { chunk: ..=LONGEST }) && rule.columns == Columns::Shared
}

/// How many threads each head may have.
pub(crate) fn threads_per_head(sizes: &Sizes) -> usize {
    rayon::current_num_threads() / (sizes.sequences * sizes.heads).max(1)
}

/// Runs one head from its incoming memory to its outgoing one, given as blocks of its columns.
pub(crate) fn run<F: Real>(runs: &mut [Run<'_, F>]) {
    let head = runs[0].head.whole();
    let call = head.call;
    let steps: Vec<_> = call.form.segments(&call.rule, head.tokens().len()).enumerate().collect();
    // Enough chunks that threads rarely wait for each other, few enough that they stay in the cache and that there are
    // at least two waves.
    let ahead = (4 * threads_per_head(&call.sizes)).clamp(1, steps.len().div_ceil(2).max(1));
    let fresh = || (0..ahead).map(|_| Prepared::new(&head)).collect::<Vec<_>>();
    let (mut ready, mut next) = (fresh(), fresh());
    let mut lanes: Vec<_> = runs.iter_mut().map(Lane::new).collect();
    let mut waves = steps.chunks(ahead);
    let mut wave = waves.next().unwrap_or(&[]);
    prepare(&head, wave, &mut ready);
    while !wave.is_empty() {
        let after = waves.next().unwrap_or(&[]);
        // The memory stays with this thread, if there is one block; idle threads take the second part.
        rayon::join(
            || lanes.par_iter_mut().for_each(|lane| lane.run(wave, &ready)),
            || prepare(&head, after, &mut next),
        );
        std::mem::swap(&mut ready, &mut next);
        wave = after;
    }
}

/// A chunk with all that does not depend on the memory.
struct Prepared<F> {
    segment: Segment<F>,
    coefficients: Coefficients<F>,
    products: Aligned<F>,
}

impl<F: Real> Prepared<F> {
    fn new(head: &Head<'_, F>) -> Self {
        let segment = Segment::new(&head.call.rule, head.call.sizes.dim_k, head.call.sizes.dim_v);
        Self { segment, coefficients: Coefficients::default(), products: Aligned::default() }
    }
}

fn prepare<F: Real>(head: &Head<'_, F>, wave: &[(usize, Range<usize>)], to: &mut [Prepared<F>]) {
    to.par_iter_mut().zip(wave).for_each(|(to, (_, steps))| {
        let Prepared { segment, coefficients, products } = to;
        head.pack(steps.clone(), segment, coefficients, Purpose::Forward);
        chunked::prepare(segment, products);
    });
}

/// A block of columns, with its working memory.
struct Lane<'r, 'a, F> {
    run: &'r mut Run<'a, F>,
    segment: Segment<F>,
    raw: Aligned<F>,
    scratch: Scratch<F>,
}

impl<'r, 'a, F: Real> Lane<'r, 'a, F> {
    fn new(run: &'r mut Run<'a, F>) -> Self {
        let call = run.head.call;
        let segment = Segment::new(&call.rule, call.sizes.dim_k, run.head.values.len());
        Self { run, segment, raw: Aligned::default(), scratch: Scratch::default() }
    }

    fn run(&mut self, wave: &[(usize, Range<usize>)], ready: &[Prepared<F>]) {
        let Self { run, segment, raw, scratch } = self;
        for ((index, steps), Prepared { segment: whole, products, .. }) in wave.iter().zip(ready) {
            let mut finish = |segment: &Segment<F>, run: &mut Run<'_, F>| {
                run.segment(*index, steps.clone(), raw, segment.columns, |memory, raw| {
                    chunked::finish(segment, products, memory, raw, scratch);
                });
            };
            if run.head.values.len() == whole.values {
                finish(whole, run);
            } else {
                segment.copy_columns(whole, run.head.values.clone());
                finish(segment, run);
            }
        }
    }
}
