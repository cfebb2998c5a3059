//! Rules with a gain and a decay factor for every column of the values: Falcon-2, which erases, and Falcon-2A, which does not.
//!
//! Each column has its own triangular system and its own mask, but neither is stored. The substitution runs over rows,
//! for all columns at once, and keeps the earlier rows decayed to the current time, `B̃_s(t) = D[t][s+1] ⊙ b_s`:
//!
//! ```text
//! p_i = c_i ⊙ S₀ᵀx_i + Σ_{s<i} (x_i·x_s) B̃_s(i)      b_i = w_i ⊙ v_i − e_i ⊙ p_i
//! o_i = c_τ ⊙ S₀ᵀq_i + Σ_{s<τ} (q_i·x_s) B̃_s(τ)      S_T = S₀ diag(c_T) + Xᵀ B̃(T)
//! ```
//!
//! Only rows of the same block of [`BLOCK`] steps are decayed and added at every step. Those of earlier blocks are
//! decayed to the start `I` of a block once, and enter all its sums as one matrix product:
//!
//! ```text
//! p_i = D[i][I] ⊙ (c_I ⊙ S₀ᵀx_i + Σ_{s<I} (x_i·x_s) B̃_s(I)) + Σ_{I≤s<i} (x_i·x_s) B̃_s(i)
//! ```
//!
//! All decays are products of decay factors, so none exceeds 1. The adjoint is in [`super::columns_backward`].

use std::ops::Range;

use super::delta::BLOCK;
use crate::Real;
use crate::mat::{Mat, MatMut, matmul, product_lower};
use crate::real::{axpy, decay_combine, multiply};
use crate::scratch::Scratch;
use crate::segment::Segment;
use crate::state::row;
use crate::step::scale_columns;

#[inline(always)]
pub(super) fn forward<F: Real>(segment: &Segment<F>, memory: &mut [F], out: &mut [F], scratch: &mut Scratch<F>) {
    let mut sweep = Sweep::new(scratch.split(lengths(segment)));
    sweep.run(segment, memory, out);
    sweep.finish(segment, memory);
}

pub(super) fn lengths<F: Real>(segment: &Segment<F>) -> [usize; 6] {
    let (steps, values) = (segment.steps, segment.steps * segment.columns);
    [2 * steps * steps, values, values, values, segment.columns, segment.columns]
}

/// The forward pass inside a chunk, and the arrays that its adjoint needs.
pub(super) struct Sweep<'a, F> {
    /// `QXᵀ`, and below it `XXᵀ` if the rule erases; `[steps, steps]` each. Only products of a step with the writes
    /// that it can see are computed.
    pub products: &'a mut [F],
    /// `p_i`, `[steps, columns]`.
    pub p: &'a mut [F],
    /// `b_i`, `[steps, columns]`.
    pub b: &'a mut [F],
    /// `b_s` decayed to the current time, and finally to the end of the chunk.
    pub decayed: &'a mut [F],
    /// `c_I` of the current block, and finally `c_T`.
    since_start: &'a mut [F],
    /// `D[t][I]` at the current time.
    local: &'a mut [F],
}

impl<'a, F: Real> Sweep<'a, F> {
    pub fn new([products, p, b, decayed, since_start, local]: [&'a mut [F]; 6]) -> Self {
        Self { products, p, b, decayed, since_start, local }
    }

    /// Fills `out` from the incoming memory.
    #[inline(always)]
    pub fn run(&mut self, segment: &Segment<F>, memory: &[F], out: &mut [F]) {
        let (columns, dim_k, steps) = (segment.columns, segment.dim_k, segment.steps);
        let (q, x, s0) = (Mat::new(segment.q(), dim_k), Mat::new(segment.x(), dim_k), Mat::new(memory, columns));
        let (attention, gram) = self.products.split_at_mut(steps * steps);
        product_lower(attention, q, x.t(), |step| segment.read_time(step));
        matmul(MatMut::new(out, columns), F::zero(), q, s0);
        if segment.erases() {
            product_lower(gram, x, x.t(), |step| step);
            matmul(MatMut::new(self.p, columns), F::zero(), x, s0);
        }
        self.since_start.fill(F::one());
        for block in blocks(steps) {
            self.enter(segment, block.clone(), out);
            self.local.fill(F::one());
            for step in block.clone() {
                self.write(segment, step);
                self.advance(segment, block.clone(), step, out);
            }
            scale_columns(&mut self.decayed[..block.start * columns], columns, self.local);
            multiply(self.since_start, self.local);
        }
    }

    /// What reads and predictions of a block get from the memory at its start.
    #[inline(always)]
    fn enter(&mut self, segment: &Segment<F>, block: Range<usize>, out: &mut [F]) {
        let (columns, steps) = (segment.columns, segment.steps);
        let (attention, gram) = self.products.split_at(steps * steps);
        let earlier = Mat::new(self.decayed, columns).rows(0..block.start);
        let add = |to: &mut [F], products| {
            scale_columns(&mut to[block.start * columns..block.end * columns], columns, self.since_start);
            if block.start > 0 {
                let to = MatMut::new(to, columns).block(block.clone(), 0..columns);
                matmul(to, F::one(), Mat::new(products, steps).rows(block.clone()).cols(0..block.start), earlier);
            }
        };
        add(out, attention);
        if segment.erases() {
            add(self.p, gram);
        }
    }

    /// `b = w ⊙ v − e ⊙ p`.
    #[inline(always)]
    fn write(&mut self, segment: &Segment<F>, step: usize) {
        let here = row(step, segment.columns);
        let (b, p) = (&mut self.b[here.clone()], &self.p[here.clone()]);
        for ((b, write), v) in b.iter_mut().zip(&segment.write[here.clone()]).zip(&segment.v[here.clone()]) {
            *b = *write * *v;
        }
        if segment.erases() {
            for ((b, erase), p) in b.iter_mut().zip(&segment.erase[here]).zip(p) {
                *b -= *erase * *p;
            }
        }
    }

    /// Advances from before `step` to after it: decays the rows of its block, and in the same pass adds them to the
    /// read at that time and to the prediction of the next step, if they belong to the block too.
    #[inline(always)]
    fn advance(&mut self, segment: &Segment<F>, block: Range<usize>, step: usize, out: &mut [F]) {
        let (columns, steps) = (segment.columns, segment.steps);
        let (gamma, time) = (&segment.gamma[row(step, columns)], step + 1);
        multiply(self.local, gamma);
        let local = &*self.local;
        let (decayed, b) = (&mut self.decayed[block.start * columns..step * columns], &self.b[row(step, columns)]);
        let reader = segment.reader(time).filter(|reader| *reader < block.end);
        let read = reader.map(|reader| (reader, &mut out[row(reader, columns)]));
        let predict = (segment.erases() && time < block.end).then(|| &mut self.p[row(time, columns)]);
        let attention = |reader: usize| &self.products[reader * steps + block.start..];
        let gram = || &self.products[(steps + time) * steps + block.start..];
        let newest = step - block.start;
        match (read, predict) {
            (Some((reader, out)), Some(p)) => {
                multiply(out, local);
                multiply(p, local);
                decay_combine(decayed, gamma, [attention(reader), gram()], [&mut *out, &mut *p]);
                axpy(out, attention(reader)[newest], b);
                axpy(p, gram()[newest], b);
            }
            (Some((reader, out)), None) => {
                multiply(out, local);
                decay_combine(decayed, gamma, [attention(reader)], [&mut *out]);
                axpy(out, attention(reader)[newest], b);
            }
            // With reads before the write, the last step of a block has neither a read nor a prediction left.
            (None, _) => decay_combine(decayed, gamma, [], []),
        }
        self.decayed[row(step, columns)].copy_from_slice(b);
    }

    /// Turns the memory before the chunk into that after it.
    #[inline(always)]
    pub fn finish(&self, segment: &Segment<F>, memory: &mut [F]) {
        scale_columns(memory, segment.columns, self.since_start);
        let x = Mat::new(segment.x(), segment.dim_k);
        matmul(MatMut::new(memory, segment.columns), F::one(), x.t(), Mat::new(self.decayed, segment.columns));
    }
}

/// The blocks of [`BLOCK`] steps, the last of which may have fewer.
#[inline(always)]
pub(super) fn blocks(steps: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    (0..steps.div_ceil(BLOCK)).map(move |index| index * BLOCK..((index + 1) * BLOCK).min(steps))
}
