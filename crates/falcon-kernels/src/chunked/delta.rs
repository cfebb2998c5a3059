//! Rules that erase and have one gain for all columns: regression.
//!
//! The memory is a combination of the incoming memory and the pairs,
//!
//! ```text
//! S at time t = c_t S₀ + Σ_r x_r ω_r(t)ᵀ
//! ```
//!
//! Pair `r` is *open* during the `window` steps that write it, and *closed* afterwards: from its closing time `t_r` on,
//! `ω_r(t) = D[t][t_r] Ω_r`. A step therefore computes the prediction `p = Sᵀx` in full only for the pair that enters
//! its window; for pairs that stay, it follows from the step before:
//!
//! ```text
//! p_r(i) = c_i S₀ᵀx_r + Σ_{l closed} G_rl D[i][t_l] Ω_l + Σ_{l open} G_rl ω_l(i)    r enters at step i
//! p_r(i+1) = γ_i p_r(i) + Σ_{l in window} G_rl z_l(i)                                r stays
//! z_r(i) = w_i v_r − e_i p_r(i)        ω_r(i+1) = γ_i ω_r(i) + z_r(i)
//! ```
//!
//! with the Gram matrix `G = XXᵀ`. The cost per token is O((chunk + window²) · columns). With window 1 this is the
//! usual unit-triangular system, and no pair is ever open.
//!
//! Used by Falcon-1, Falcon-3, DeltaNet and Gated DeltaNet. The adjoint is in [`super::delta_backward`].

use std::ops::Range;

use super::rows::scale_rows;
use crate::Real;
use crate::mat::{Mat, MatMut, lower_matmul, matmul, matmul_memory, product_lower};
use crate::real::{axpy, combine, scale};
use crate::scratch::{room, split, split_shared};
use crate::segment::Segment;
use crate::state::row;

/// Steps of the triangular system that are substituted one by one; all earlier steps enter as one matrix product.
pub(super) const BLOCK: usize = 16;

/// The part of the forward pass that does not depend on the memory; see [`Chunk`].
#[inline(always)]
pub(super) fn prepare<F: Real>(segment: &Segment<F>, prepared: &mut [F]) {
    Chunk::prepare(segment, prepared);
}

pub(super) fn prepared_len<F: Real>(segment: &Segment<F>) -> usize {
    room::<F>(&chunk_lengths(segment))
}

/// The rest of the forward pass.
#[inline(always)]
pub(super) fn finish<F: Real>(
    segment: &Segment<F>,
    prepared: &[F],
    memory: &mut [F],
    out: &mut [F],
    scratch: &mut [F],
) {
    let (columns, steps, rows) = (segment.columns, segment.steps, segment.rows());
    let [prior, p, z, omega, closed, last] = split(scratch, sweep_lengths(segment));
    let chunk = Chunk::new(segment, prepared, memory, prior);
    let mut sweep = Sweep { p, z, omega, closed };
    sweep.run(&chunk);

    matmul_memory(out, F::zero(), Mat::new(segment.q(), segment.dim_k), Mat::new(memory, columns));
    scale_rows(out, columns, |step| chunk.decay(segment.read_time(step), 0));
    let bound = |step| chunk.closed_by(segment.read_time(step));
    lower_matmul(out, Mat::new(chunk.masked, rows), Mat::new(sweep.closed, columns), bound);
    for step in 0..steps {
        let time = segment.read_time(step);
        for r in chunk.open_rows(time) {
            let (scale, omega) = sweep.omega(&chunk, r, time);
            axpy(&mut out[row(step, columns)], chunk.attention(step)[r] * scale, omega);
        }
    }
    sweep.last(&chunk, last);
    let x = Mat::new(segment.x(), segment.dim_k);
    matmul(MatMut::new(memory, columns), chunk.decay(steps, 0), x.t(), Mat::new(last, columns));
}

/// Lengths of the arrays that [`Chunk::prepare`] fills.
fn chunk_lengths<F: Real>(segment: &Segment<F>) -> [usize; 4] {
    let (steps, rows) = (segment.steps, segment.rows());
    [(steps + 1) * (steps + 1), (steps + rows) * rows, steps * rows, steps * rows]
}

/// Lengths of the predictions of the incoming memory, of the arrays of [`Sweep`], and of the last `ω`.
pub(super) fn sweep_lengths<F: Real>(segment: &Segment<F>) -> [usize; 6] {
    let (rows, columns) = (segment.rows(), segment.columns);
    let history = rows * depth(segment) * columns;
    // With window 1 a row is closed by its first write, and no row is ever open.
    let open = if segment.window > 1 { history } else { 0 };
    [rows * columns, history, history, open, rows * columns, rows * columns]
}

/// The most steps of a chunk that write one row.
#[inline(always)]
fn depth<F: Real>(segment: &Segment<F>) -> usize {
    segment.window.min(segment.steps)
}

/// The products of the inputs of a chunk, which both directions need.
pub(super) struct Chunk<'a, F> {
    pub segment: &'a Segment<F>,
    /// `D[t][s]` for `s ≤ t`, `[steps + 1, steps + 1]`.
    decay: &'a [F],
    /// `QXᵀ`, `[steps, rows]`, and below it `XXᵀ`, `[rows, rows]`.
    products: &'a [F],
    /// `G_rl D[i][t_l]` for the row `r` that step `i` adds and the rows `l` that are closed by then, `[steps, rows]`.
    pub far: &'a [F],
    /// `A_ir D[τ_i][t_r]` with `A = QXᵀ`, for the rows that are closed when step `i` reads, and 0 for all others,
    /// `[steps, rows]`.
    pub masked: &'a [F],
    /// `X S₀`, `[rows, columns]`.
    pub prior: &'a [F],
}

impl<'a, F: Real> Chunk<'a, F> {
    /// Computes all that does not depend on the memory.
    #[inline(always)]
    pub fn prepare(segment: &Segment<F>, prepared: &mut [F]) {
        let (steps, rows, times) = (segment.steps, segment.rows(), segment.steps + 1);
        let [decay, products, far, masked] = split(prepared, chunk_lengths(segment));
        let [q, x] = [segment.q(), segment.x()].map(|rows| Mat::new(rows, segment.dim_k));
        // A query needs the pairs written before it reads; a pair needs those before it and those in a common window.
        let (attention, gram) = products.split_at_mut(steps * rows);
        product_lower(attention, q, x.t(), |step| segment.tail + segment.read_time(step));
        product_lower(gram, x, x.t(), |r| r + segment.window);
        // As products, because exponentials of differences would cancel.
        decay[0] = F::one();
        for t in 1..times {
            let (before, here) = decay[(t - 1) * times..].split_at_mut(times);
            for (here, before) in here[..t].iter_mut().zip(before) {
                *here = segment.gamma[t - 1] * *before;
            }
            here[t] = F::one();
        }
        let chunk = Chunk { segment, decay, products, far: &[], masked: &[], prior: &[] };
        for step in 0..steps {
            let gram = chunk.gram(segment.tail + step);
            chunk.decayed(step, &mut far[row(step, rows)], gram);
            chunk.decayed(segment.read_time(step), &mut masked[row(step, rows)], chunk.attention(step));
        }
    }

    /// What [`Chunk::prepare`] has computed, and the predictions of the incoming memory.
    #[inline(always)]
    pub fn new(segment: &'a Segment<F>, prepared: &'a [F], memory: &[F], prior: &'a mut [F]) -> Self {
        let [decay, products, far, masked] = split_shared(prepared, chunk_lengths(segment));
        let x = Mat::new(segment.x(), segment.dim_k);
        matmul_memory(prior, F::zero(), x, Mat::new(memory, segment.columns));
        Self { segment, decay, products, far, masked, prior }
    }

    /// `to[r] = from[r] D[t][t_r]` for the rows closed by `time`, 0 for the others.
    #[inline(always)]
    pub fn decayed(&self, time: usize, to: &mut [F], from: &[F]) {
        let closed = self.closed_by(time);
        for ((to, from), decay) in to[..closed].iter_mut().zip(from).zip(self.closed_decays(time)) {
            *to = *from * *decay;
        }
        to[closed..].fill(F::zero());
    }

    /// `D[t][t_r]` of the rows closed by `time`.
    #[inline(always)]
    pub fn closed_decays(&self, time: usize) -> &[F] {
        let times = self.segment.steps + 1;
        let first = self.closes(0).min(times);
        &self.decay[row(time, times)][first..first + self.closed_by(time)]
    }

    #[inline(always)]
    pub fn decay(&self, t: usize, s: usize) -> F {
        debug_assert!(s <= t);
        self.decay[t * (self.segment.steps + 1) + s]
    }

    /// Row `r` of `XXᵀ`.
    #[inline(always)]
    pub fn gram(&self, r: usize) -> &[F] {
        &self.products[row(self.segment.steps + r, self.segment.rows())]
    }

    /// Row `step` of `QXᵀ`.
    #[inline(always)]
    pub fn attention(&self, step: usize) -> &[F] {
        &self.products[row(step, self.segment.rows())]
    }

    /// The time from which on row `r` is no longer written.
    #[inline(always)]
    pub fn closes(&self, r: usize) -> usize {
        // This cannot be negative, because a tail has fewer pairs than the window.
        r + self.segment.window - self.segment.tail
    }

    /// How many rows, from the first, are closed by `time`.
    #[inline(always)]
    pub fn closed_by(&self, time: usize) -> usize {
        (self.segment.tail + time + 1).saturating_sub(self.segment.window)
    }

    /// The rows that steps of this chunk wrote before `time` and that are not closed yet.
    #[inline(always)]
    pub fn open_rows(&self, time: usize) -> Range<usize> {
        let newest = self.segment.tail + time;
        let oldest = if time == 0 { newest } else { self.closed_by(time) };
        oldest.max(self.segment.first).min(newest)..newest
    }

    /// The place of row `r` at `step`, one of the steps that write it, in the history.
    #[inline(always)]
    pub fn slot(&self, r: usize, step: usize) -> Range<usize> {
        let tail = self.segment.tail;
        debug_assert!(tail + step - r < self.segment.window, "row {r} is not written at step {step}");
        // Steps are counted from the first step of this chunk that writes the row.
        row(r * depth(self.segment) + step - r.saturating_sub(tail), self.segment.columns)
    }
}

/// The forward substitution and its history. A row and one of the steps that write it have one slot.
pub(super) struct Sweep<'a, F> {
    /// `p_r(i)`, `[rows, depth, columns]`.
    pub p: &'a mut [F],
    /// `z_r(i)`, likewise.
    pub z: &'a mut [F],
    /// `ω_r(i + 1)`, likewise; empty with window 1.
    pub omega: &'a mut [F],
    /// `Ω_r` of rows that close within the chunk, 0 for the others, `[rows, columns]`.
    pub closed: &'a mut [F],
}

impl<F: Real> Sweep<'_, F> {
    #[inline(always)]
    pub fn run(&mut self, chunk: &Chunk<'_, F>) {
        let segment = chunk.segment;
        let (columns, steps, tail) = (segment.columns, segment.steps, segment.tail);
        self.closed.fill(F::zero());
        for r in segment.window(0).start..tail {
            self.p[chunk.slot(r, 0)].copy_from_slice(&chunk.prior[row(r, columns)]);
        }
        for start in (0..steps).step_by(BLOCK) {
            let block = start..(start + BLOCK).min(steps);
            self.enter(chunk, block.clone());
            for step in block {
                self.predict(chunk, start, step);
                self.write(chunk, step);
                if segment.window > 1 && step + 1 < steps {
                    self.stay(chunk, step);
                }
            }
        }
    }

    /// The predictions of the pairs that a block of steps adds, as far as they are known at its start.
    #[inline(always)]
    fn enter(&mut self, chunk: &Chunk<'_, F>, block: Range<usize>) {
        let segment = chunk.segment;
        let (columns, tail) = (segment.columns, segment.tail);
        for step in block.clone() {
            let decay = chunk.decay(step, 0);
            let prior = &chunk.prior[row(tail + step, columns)];
            for (p, prior) in self.p[chunk.slot(tail + step, step)].iter_mut().zip(prior) {
                *p = decay * *prior;
            }
        }
        let known = chunk.closed_by(block.start);
        if known > 0 {
            let rows = tail + block.start..tail + block.end;
            let p = MatMut::new(self.p, depth(segment) * columns).block(rows, 0..columns);
            let far = Mat::new(chunk.far, segment.rows()).rows(block).cols(0..known);
            matmul(p, F::one(), far, Mat::new(self.closed, columns).rows(0..known));
        }
    }

    /// Completes the prediction of the pair that `step` adds, in the block that began at `start`.
    #[inline(always)]
    fn predict(&mut self, chunk: &Chunk<'_, F>, start: usize, step: usize) {
        let (segment, newest) = (chunk.segment, chunk.segment.tail + step);
        let columns = segment.columns;
        let (known, closed) = (chunk.closed_by(start), chunk.closed_by(step));
        let p = &mut self.p[chunk.slot(newest, step)];
        combine(p, &chunk.far[row(step, segment.rows())][known..closed], &self.closed[known * columns..], columns);
        for l in chunk.open_rows(step) {
            axpy(p, chunk.gram(newest)[l], &self.omega[chunk.slot(l, step - 1)]);
        }
    }

    /// `z = w v − e p` and `ω ← γ ω + z` for the pairs of the window; `Ω` for the one that closes.
    #[inline(always)]
    fn write(&mut self, chunk: &Chunk<'_, F>, step: usize) {
        let segment = chunk.segment;
        let (write, erase, gamma) = (segment.write[step], segment.erase[step], segment.gamma[step]);
        for r in segment.window(step) {
            let slot = chunk.slot(r, step);
            let z = &mut self.z[slot.clone()];
            for ((z, v), p) in z.iter_mut().zip(segment.v_row(r)).zip(&self.p[slot.clone()]) {
                *z = write * *v - erase * *p;
            }
            if segment.window == 1 {
                self.closed[row(r, segment.columns)].copy_from_slice(z);
                continue;
            }
            if step > 0 && r < segment.tail + step {
                let before = chunk.slot(r, step - 1).start;
                let (before, omega) = self.omega[before..slot.end].split_at_mut(slot.start - before);
                for ((omega, before), z) in omega.iter_mut().zip(before).zip(z) {
                    *omega = gamma * *before + *z;
                }
            } else {
                self.omega[slot.clone()].copy_from_slice(z);
            }
            if chunk.closes(r) == step + 1 {
                self.closed[row(r, segment.columns)].copy_from_slice(&self.omega[slot]);
            }
        }
    }

    /// The predictions of the pairs that stay in the window.
    #[inline(always)]
    fn stay(&mut self, chunk: &Chunk<'_, F>, step: usize) {
        let segment = chunk.segment;
        let window = segment.window(step);
        for r in chunk.open_rows(step + 1) {
            let (before, next) = (chunk.slot(r, step), chunk.slot(r, step + 1));
            let (before, p) = self.p[before.start..next.end].split_at_mut(next.start - before.start);
            p.copy_from_slice(before);
            scale(p, segment.gamma[step]);
            for l in window.clone() {
                axpy(p, chunk.gram(r)[l], &self.z[chunk.slot(l, step)]);
            }
        }
    }

    /// `ω_r(t)` as a scalar and a vector.
    #[inline(always)]
    pub fn omega(&self, chunk: &Chunk<'_, F>, r: usize, time: usize) -> (F, &[F]) {
        let closed = chunk.closes(r);
        if closed <= time {
            (chunk.decay(time, closed), &self.closed[row(r, chunk.segment.columns)])
        } else if time == 0 {
            (F::zero(), &self.closed[row(r, chunk.segment.columns)])
        } else {
            (F::one(), &self.omega[chunk.slot(r, time - 1)])
        }
    }

    /// `ω_r` after the last step, `[rows, columns]`.
    #[inline(always)]
    pub fn last(&self, chunk: &Chunk<'_, F>, last: &mut [F]) {
        let segment = chunk.segment;
        let columns = segment.columns;
        last[..segment.first * columns].fill(F::zero());
        for r in segment.first..segment.rows() {
            let (scale, omega) = self.omega(chunk, r, segment.steps);
            for (last, omega) in last[row(r, columns)].iter_mut().zip(omega) {
                *last = scale * *omega;
            }
        }
    }
}
