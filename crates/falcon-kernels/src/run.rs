//! A head, or a block of its columns, on the way from its incoming memory to its outgoing one.

use std::ops::Range;

use crate::aligned::Aligned;
use crate::call::Call;
use crate::coefficients::{Coefficients, Purpose};
use crate::head::Head;
use crate::rule::Rule;
use crate::scratch::{self, Scratch};
use crate::segment::Segment;
use crate::shared::HeadRows;
use crate::simd::{Vectorised, copy_row, dispatch};
use crate::{Real, normaliser};

/// One head, or block of its columns, during a forward pass.
pub(crate) struct Run<'a, F> {
    pub head: Head<'a, F>,
    pub memory: &'a mut [F],
    /// Where to save the memory before each segment, if it is needed.
    pub saved: Option<HeadRows<'a, F>>,
    pub out: HeadRows<'a, F>,
}

impl<F: Real> Run<'_, F> {
    /// Runs a segment by `form`, which advances the memory and sets `raw` to the reads. `index` counts the segments.
    pub fn segment(
        &mut self,
        index: usize,
        steps: Range<usize>,
        raw: &mut Aligned<F>,
        columns: usize,
        form: impl FnOnce(&mut [F], &mut [F]),
    ) {
        raw.resize(steps.len() * columns);
        scratch::poison(raw);
        if let Some(saved) = &mut self.saved {
            let dim_k = self.memory.len() / columns;
            for (row, line) in self.memory.chunks_exact(columns).enumerate() {
                copy_row(saved.row(index * dim_k + row), line);
            }
        }
        self.out.prefetch(steps.clone());
        form(self.memory, raw);
        dispatch(Output { rule: &self.head.call.rule, steps, raw, out: &mut self.out });
    }
}

/// Runs heads of one sequence from their incoming memories to their outgoing ones.
pub(crate) fn run<F: Real>(runs: &mut [Run<'_, F>]) {
    let Head { call: Call { rule, form, sizes, .. }, ref values, .. } = runs[0].head;
    let (mut segment, mut coefficients) = (Segment::new(rule, sizes.dim_k, values.len()), Coefficients::default());
    let (mut raw, mut scratch) = (Aligned::default(), Scratch::default());
    for (index, steps) in form.segments(rule, runs[0].head.tokens().len()).enumerate() {
        for run in &mut *runs {
            run.head.pack(steps.clone(), &mut segment, &mut coefficients, Purpose::Forward);
            run.segment(index, steps.clone(), &mut raw, segment.columns, |memory, raw| {
                form.forward(&segment, memory, raw, &mut scratch);
            });
        }
    }
}

/// Writes the reads of a segment to the outputs.
struct Output<'s, 'a, F> {
    rule: &'s Rule,
    steps: Range<usize>,
    raw: &'s [F],
    out: &'s mut HeadRows<'a, F>,
}

impl<F: Real> Vectorised for Output<'_, '_, F> {
    #[inline(always)]
    fn run(self) {
        let Self { rule, steps, raw, out } = self;
        let columns = raw.len() / steps.len();
        for (step, raw) in steps.zip(raw.chunks_exact(columns)) {
            match rule.normaliser {
                None => copy_row(out.row(step), raw),
                Some(n) => normaliser::divide(raw, F::of(n.eps), out.row(step)),
            }
        }
    }
}
