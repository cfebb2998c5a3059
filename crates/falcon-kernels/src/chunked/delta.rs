//! Every write erases what the memory already says: the regression rules, one gain for all columns.
//!
//! The memory stays in the span of the incoming one and the pairs,
//!
//! ```text
//! S at time t = c_t S₀ + Σ_r x_r ω_r(t)ᵀ
//! ```
//!
//! Pair `r` is *open* while steps still write it (`window` of them), and then *closed*: from its closing time `t_r` on,
//! `ω_r(t) = D[t][t_r] Ω_r`. So a step computes the prediction `p = Sᵀx` in full only for the pair that enters its
//! window; for those that stay it follows from the step before:
//!
//! ```text
//! p_r(i) = c_i S₀ᵀx_r + Σ_{l closed} G_rl D[i][t_l] Ω_l + Σ_{l open} G_rl ω_l(i)    r enters at step i
//! p_r(i+1) = γ_i p_r(i) + Σ_{l in window} G_rl z_l(i)                                r stays
//! z_r(i) = w_i v_r − e_i p_r(i)        ω_r(i+1) = γ_i ω_r(i) + z_r(i)
//! ```
//!
//! with the Gram matrix `G = XXᵀ`. Cost per token: O((chunk + window²) · columns), whatever the window.
//! With window 1 this is the usual unit-triangular system, and nothing is ever open.
//!
//! Serves Falcon-1, Falcon-3, DeltaNet and Gated DeltaNet.

use super::{scale_rows, scaled_rows};
use crate::Real;
use crate::mat::{Mat, matmul, product};
use crate::real::{axpy, dot};
use crate::segment::{Segment, SegmentGrad};
use crate::state::row;

pub(super) fn forward<F: Real>(segment: &Segment<F>, memory: &mut [F], out: &mut [F]) {
    let (columns, steps) = (segment.columns, segment.steps);
    let chunk = Chunk::new(segment, memory);
    let sweep = Sweep::forward(&chunk);
    let decay = &chunk.decay;

    out.copy_from_slice(&chunk.prior_q);
    scale_rows(out, columns, |i| decay.at(segment.read_time(i), 0));
    matmul(out, F::one(), Mat::new(&chunk.closed_attention(), segment.rows()), Mat::new(&sweep.closed, columns));
    for step in 0..steps {
        let time = segment.read_time(step);
        for r in chunk.open_rows(time) {
            let (scale, omega) = sweep.omega(&chunk, r, time);
            axpy(&mut out[row(step, columns)], chunk.attention(step, r) * scale, omega);
        }
    }
    let last = sweep.last(&chunk);
    matmul(memory, decay.at(steps, 0), Mat::new(&segment.x, segment.dim_k).t(), Mat::new(&last, columns));
}

/// Adjoint of [`forward`]. The adjoint of the memory lies in the same span,
///
/// ```text
/// Λ at time t = D[T][t] Λ_T + Σ_s D[τ_s][t] q_s do_sᵀ + Σ_r x_r y_r(t)ᵀ
/// ```
///
/// and the sweep that finds `y` mirrors the forward one; see [`Reverse`]. What is left are products of the
/// two expansions, `dx = Σ Λ z − S (e a)`, pair by pair: matrix products where both are closed, a band of
/// `window` where one is open.
pub(super) fn backward<F: Real>(
    segment: &Segment<F>,
    memory: &[F],
    grad_out: &[F],
    adjoint: &mut [F],
    grad: &mut SegmentGrad<F>,
) {
    let (columns, dim_k, rows, steps) = (segment.columns, segment.dim_k, segment.rows(), segment.steps);
    let chunk = Chunk::new(segment, memory);
    let sweep = Sweep::forward(&chunk);
    let decay = &chunk.decay;
    let x = Mat::new(&segment.x, dim_k);
    let final_x = product(x, Mat::new(adjoint, columns));
    let reverse = Reverse::run(&chunk, &sweep, &final_x, grad_out, grad);

    // A = QXᵀ: every read of every pair, closed or open.
    let read_closed = product(Mat::new(grad_out, columns), Mat::new(&sweep.closed, columns).t());
    let mut grad_attention = read_closed.clone();
    for step in 0..steps {
        let time = segment.read_time(step);
        for r in 0..rows {
            let entry = &mut grad_attention[step * rows + r];
            *entry = match chunk.closes(r) {
                closed if closed <= time => *entry * decay.at(time, closed),
                _ => F::zero(),
            };
        }
        for r in chunk.open_rows(time) {
            let (scale, omega) = sweep.omega(&chunk, r, time);
            grad_attention[step * rows + r] = scale * dot(&grad_out[row(step, columns)], omega);
        }
    }
    let reads = scaled_rows(grad_out, columns, |i| decay.at(segment.read_time(i), 0));
    matmul(&mut grad.q, F::one(), Mat::new(&grad_attention, rows), x);
    matmul(&mut grad.q, F::one(), Mat::new(&reads, columns), Mat::new(memory, columns).t());
    matmul(&mut grad.x, F::one(), Mat::new(&grad_attention, rows).t(), Mat::new(&segment.q, dim_k));

    // G = XXᵀ: Y_l · Ω_r where pair r has closed before pair l enters, the band elsewhere.
    let predicted_closed = product(Mat::new(&reverse.closed, columns), Mat::new(&sweep.closed, columns).t());
    let mut grad_gram = reverse.band;
    for l in segment.tail..rows {
        let enters = l - segment.tail;
        for r in 0..rows {
            let closed = chunk.closes(r);
            if closed <= enters {
                let product = decay.at(enters, closed) * predicted_closed[l * rows + r];
                grad_gram[l * rows + r] += product;
                grad_gram[r * rows + l] += product;
            }
        }
    }
    matmul(&mut grad.x, F::one(), Mat::new(&grad_gram, rows).t(), x);
    matmul(&mut grad.x, F::one(), Mat::new(&sweep.last(&chunk), columns), Mat::new(adjoint, columns).t());
    matmul(&mut grad.x, F::one(), Mat::new(&reverse.first, columns), Mat::new(memory, columns).t());

    // γ between closing and being read: through the products D, by their own recursion.
    let mut grad_decay = DecayGrad::new(&chunk);
    for step in 0..steps {
        let time = segment.read_time(step);
        let prior = dot(&grad_out[row(step, columns)], &chunk.prior_q[row(step, columns)]);
        let closed = (0..rows).map(|r| chunk.attention(step, r) * read_closed[step * rows + r]);
        grad_decay.add(&chunk, time, prior, closed);
    }
    for l in segment.tail..rows {
        let prior = dot(&reverse.closed[row(l, columns)], &chunk.prior_x[row(l, columns)]);
        let closed = (0..rows).map(|r| chunk.gram(l, r) * predicted_closed[l * rows + r]);
        grad_decay.add(&chunk, l - segment.tail, prior, closed);
    }
    let closed = (0..rows).map(|r| dot(&final_x[row(r, columns)], &sweep.closed[row(r, columns)]));
    grad_decay.add(&chunk, steps, dot(memory, adjoint), closed);
    grad_decay.into_gamma(&chunk, &mut grad.gamma);

    matmul(adjoint, decay.at(steps, 0), Mat::new(&segment.q, dim_k).t(), Mat::new(&reads, columns));
    matmul(adjoint, F::one(), x.t(), Mat::new(&reverse.first, columns));
}

/// What both directions share: the products of the chunk's inputs.
struct Chunk<'a, F> {
    segment: &'a Segment<F>,
    decay: Decays<F>,
    /// `XXᵀ`, `[rows, rows]`.
    gram: Vec<F>,
    /// `QXᵀ`, `[steps, rows]`.
    attention: Vec<F>,
    /// `X S₀`, `[rows, columns]`.
    prior_x: Vec<F>,
    /// `Q S₀`, `[steps, columns]`.
    prior_q: Vec<F>,
}

impl<'a, F: Real> Chunk<'a, F> {
    fn new(segment: &'a Segment<F>, memory: &[F]) -> Self {
        let (q, x) = (Mat::new(&segment.q, segment.dim_k), Mat::new(&segment.x, segment.dim_k));
        let memory = Mat::new(memory, segment.columns);
        Self {
            segment,
            decay: Decays::new(segment),
            gram: product(x, x.t()),
            attention: product(q, x.t()),
            prior_x: product(x, memory),
            prior_q: product(q, memory),
        }
    }

    fn gram(&self, a: usize, b: usize) -> F {
        self.gram[a * self.segment.rows() + b]
    }

    fn attention(&self, step: usize, r: usize) -> F {
        self.attention[step * self.segment.rows() + r]
    }

    /// The time from which row `r` is written no more.
    fn closes(&self, r: usize) -> usize {
        // A tail never reaches further back than the window, so this cannot be negative.
        r + self.segment.window - self.segment.tail
    }

    /// The rows written before `time` and not yet closed.
    fn open_rows(&self, time: usize) -> std::ops::Range<usize> {
        let newest = self.segment.tail + time;
        (newest + 1).saturating_sub(self.segment.window).max(self.segment.first).min(newest)..newest
    }

    /// `A_ir D[τ_i][t_r]` for closed rows, 0 for all others.
    fn closed_attention(&self) -> Vec<F> {
        let rows = self.segment.rows();
        let mut masked = self.attention.clone();
        for step in 0..self.segment.steps {
            let time = self.segment.read_time(step);
            for r in 0..rows {
                let closed = self.closes(r);
                let entry = &mut masked[step * rows + r];
                *entry = if closed <= time { *entry * self.decay.at(time, closed) } else { F::zero() };
            }
        }
        masked
    }
}

/// `D[t][s]` for `s ≤ t`, by products: exact where exponentials of differences would cancel.
struct Decays<F> {
    times: usize,
    product: Vec<F>,
}

impl<F: Real> Decays<F> {
    fn new(segment: &Segment<F>) -> Self {
        let times = segment.steps + 1;
        let mut product = vec![F::zero(); times * times];
        for t in 0..times {
            product[t * times + t] = F::one();
            for s in 0..t {
                product[t * times + s] = segment.gamma[t - 1] * product[(t - 1) * times + s];
            }
        }
        Self { times, product }
    }

    fn at(&self, t: usize, s: usize) -> F {
        debug_assert!(s <= t);
        self.product[t * self.times + s]
    }
}

/// The forward sweep and its history. A row and a step of its window address one slot.
struct Sweep<F> {
    /// `p_r(i)`, `z_r(i)` and `ω_r(i + 1)`, each `[rows, depth, columns]`.
    p: Vec<F>,
    z: Vec<F>,
    omega: Vec<F>,
    /// `Ω_r` of rows that close within the chunk, 0 for the others, `[rows, columns]`.
    closed: Vec<F>,
}

impl<F: Real> Sweep<F> {
    fn forward(chunk: &Chunk<'_, F>) -> Self {
        let Chunk { segment, ref decay, .. } = *chunk;
        let (columns, steps, tail) = (segment.columns, segment.steps, segment.tail);
        let size = segment.rows() * chunk.depth() * columns;
        let mut sweep = Self {
            p: vec![F::zero(); size],
            z: vec![F::zero(); size],
            omega: vec![F::zero(); size],
            closed: vec![F::zero(); segment.rows() * columns],
        };
        let mut next = vec![F::zero(); columns];
        for r in segment.window(0).start..tail {
            sweep.p[chunk.slot(r, 0)].copy_from_slice(&chunk.prior_x[row(r, columns)]);
        }
        for step in 0..steps {
            let window = segment.window(step);
            let newest = tail + step;
            if window.contains(&newest) {
                next.copy_from_slice(&chunk.prior_x[row(newest, columns)]);
                next.iter_mut().for_each(|p| *p *= decay.at(step, 0));
                for l in segment.first..newest {
                    let (scale, omega) = sweep.omega(chunk, l, step);
                    axpy(&mut next, chunk.gram(newest, l) * scale, omega);
                }
                sweep.p[chunk.slot(newest, step)].copy_from_slice(&next);
            }
            for r in window.clone() {
                let slot = chunk.slot(r, step);
                for c in 0..columns {
                    let p = sweep.p[slot.start + c];
                    sweep.z[slot.start + c] = segment.write[step] * segment.v_row(r)[c] - segment.erase[step] * p;
                }
                sweep.grow(chunk, r, step);
            }
            if step + 1 < steps {
                for r in window.clone().filter(|r| chunk.closes(*r) > step + 1) {
                    next.copy_from_slice(&sweep.p[chunk.slot(r, step)]);
                    next.iter_mut().for_each(|p| *p *= segment.gamma[step]);
                    for l in window.clone() {
                        axpy(&mut next, chunk.gram(r, l), &sweep.z[chunk.slot(l, step)]);
                    }
                    sweep.p[chunk.slot(r, step + 1)].copy_from_slice(&next);
                }
            }
        }
        sweep
    }

    /// `ω_r(i + 1) = γ_i ω_r(i) + z_r(i)`, and `Ω_r` if that was the last write.
    fn grow(&mut self, chunk: &Chunk<'_, F>, r: usize, step: usize) {
        let slot = chunk.slot(r, step);
        let begun = step > 0 && r < chunk.segment.tail + step;
        for c in 0..slot.len() {
            let before = if begun { self.omega[chunk.slot(r, step - 1).start + c] } else { F::zero() };
            self.omega[slot.start + c] = chunk.segment.gamma[step] * before + self.z[slot.start + c];
        }
        if chunk.closes(r) == step + 1 {
            self.closed[row(r, slot.len())].copy_from_slice(&self.omega[slot]);
        }
    }

    /// `ω_r(t)` as a number times a vector.
    fn omega(&self, chunk: &Chunk<'_, F>, r: usize, time: usize) -> (F, &[F]) {
        let closed = chunk.closes(r);
        if closed <= time {
            (chunk.decay.at(time, closed), &self.closed[row(r, chunk.segment.columns)])
        } else if time == 0 {
            (F::zero(), &self.closed[row(r, chunk.segment.columns)])
        } else {
            (F::one(), &self.omega[chunk.slot(r, time - 1)])
        }
    }

    /// `ω_r` after the last step, `[rows, columns]`.
    fn last(&self, chunk: &Chunk<'_, F>) -> Vec<F> {
        let segment = chunk.segment;
        let mut last = vec![F::zero(); self.closed.len()];
        for r in segment.first..segment.rows() {
            let (scale, omega) = self.omega(chunk, r, segment.steps);
            axpy(&mut last[row(r, segment.columns)], scale, omega);
        }
        last
    }
}

impl<F: Real> Chunk<'_, F> {
    /// Where the history keeps row `r` at `step`, one of the steps that write it.
    fn slot(&self, r: usize, step: usize) -> std::ops::Range<usize> {
        let Segment { tail, window, columns, .. } = *self.segment;
        debug_assert!(tail + step - r < window, "row {r} is not written at step {step}");
        // Counted from the first step of this chunk that writes the row.
        row(r * self.depth() + step - r.saturating_sub(tail), columns)
    }

    /// Steps of this chunk that write one row, at most.
    fn depth(&self) -> usize {
        self.segment.window.min(self.segment.steps)
    }
}

/// The reverse sweep. Seen from the end, a pair enters at the step that closes it and leaves at the step that
/// brought it; with `a_r(i) = Λᵀx_r` after step `i`,
///
/// ```text
/// a_r(i) in full where r enters, and for those that stay
/// a_r(i−1) = γ_i a_r(i) − e_i Σ_{l in window of i} G_rl a_l(i) + (x_r·q) do    (q, do: the read at time i)
/// y_r(i) = γ_i y_r(i+1) − e_i a_r(i)        y_r(t) = D[t_r′][t] Y_r  from its first time t_r′ down
/// ```
struct Reverse<F> {
    /// `Y_r`, `[rows, columns]`; 0 for tail rows, which were brought before the chunk.
    closed: Vec<F>,
    /// `y_r` at time 0, `[rows, columns]`.
    first: Vec<F>,
    /// The part of the Gram matrix's gradient where a pair is open, `[rows, rows]`: entry `(l, r)` is what `dx_r`
    /// gets of `x_l`.
    band: Vec<F>,
}

impl<F: Real> Reverse<F> {
    fn run(
        chunk: &Chunk<'_, F>,
        sweep: &Sweep<F>,
        final_x: &[F],
        grad_out: &[F],
        grad: &mut SegmentGrad<F>,
    ) -> Self {
        let Chunk { segment, ref decay, .. } = *chunk;
        let (columns, steps, rows, tail) = (segment.columns, segment.steps, segment.rows(), segment.tail);
        // What reads and the final memory say to each row at the time it closes.
        let closed_attention = chunk.closed_attention();
        let mut entry = product(Mat::new(&closed_attention, rows).t(), Mat::new(grad_out, columns));
        for r in 0..rows {
            let closed = chunk.closes(r);
            let scale = if closed <= steps { decay.at(steps, closed) } else { F::one() };
            axpy(&mut entry[row(r, columns)], scale, &final_x[row(r, columns)]);
            if let (true, Some(reader)) = (closed > steps, segment.reader(steps)) {
                axpy(&mut entry[row(r, columns)], chunk.attention(reader, r), &grad_out[row(reader, columns)]);
            }
        }
        let mut reverse = Self {
            closed: vec![F::zero(); rows * columns],
            first: vec![F::zero(); rows * columns],
            band: vec![F::zero(); rows * rows],
        };
        // a_r and y_r of the rows in the window, as of the current time.
        let mut a = vec![F::zero(); rows * columns];
        let mut y = vec![F::zero(); rows * columns];
        for step in (0..steps).rev() {
            let window = segment.window(step);
            for r in window.clone() {
                if chunk.closes(r) == step + 1 || step + 1 == steps {
                    let full = reverse.enter(chunk, &y, &entry[row(r, columns)], r, step);
                    a[row(r, columns)].copy_from_slice(&full);
                }
            }
            reverse.gather(chunk, sweep, step, &a, &y, grad);
            for r in window.clone() {
                let (y, a) = (&mut y[row(r, columns)], &a[row(r, columns)]);
                for c in 0..columns {
                    y[c] = segment.gamma[step] * y[c] - segment.erase[step] * a[c];
                }
            }
            if window.contains(&(tail + step)) {
                let newest = row(tail + step, columns);
                reverse.closed[newest.clone()].copy_from_slice(&y[newest]);
            }
            stay(chunk, step, grad_out, &mut a);
        }
        for r in segment.first..rows {
            let (scale, y) = reverse.y(chunk, &y, r, 0);
            let y = y.to_vec();
            axpy(&mut reverse.first[row(r, columns)], scale, &y);
        }
        reverse
    }

    /// `y_l(t)` as a number times a vector: settled if `l` was brought at `t` or later, else the current one.
    fn y<'a>(&'a self, chunk: &Chunk<'_, F>, current: &'a [F], l: usize, time: usize) -> (F, &'a [F]) {
        let Segment { tail, columns, .. } = *chunk.segment;
        if l >= tail + time {
            (chunk.decay.at(l - tail, time), &self.closed[row(l, columns)])
        } else {
            (F::one(), &current[row(l, columns)])
        }
    }

    /// `a_r` after `step`, in full: `entry` and all of `Σ_l G_rl y_l`.
    fn enter(&self, chunk: &Chunk<'_, F>, y: &[F], entry: &[F], r: usize, step: usize) -> Vec<F> {
        let segment = chunk.segment;
        let mut a = entry.to_vec();
        // Older rows have not entered yet: their y is 0.
        let oldest = chunk.open_rows(step + 1).start;
        for l in oldest..segment.rows() {
            let (scale, y) = self.y(chunk, y, l, step + 1);
            axpy(&mut a, chunk.gram(r, l) * scale, y);
        }
        a
    }

    /// The gradients that one step gives, with `a` and `y` as of the time after it.
    fn gather(
        &mut self,
        chunk: &Chunk<'_, F>,
        sweep: &Sweep<F>,
        step: usize,
        a: &[F],
        y: &[F],
        grad: &mut SegmentGrad<F>,
    ) {
        let segment = chunk.segment;
        let (columns, rows, newest) = (segment.columns, segment.rows(), segment.tail + step);
        let window = segment.window(step);
        for r in window.clone() {
            let slot = chunk.slot(r, step);
            let a = &a[row(r, columns)];
            axpy(&mut grad.v[row(r, columns)], segment.write[step], a);
            grad.write[step] += dot(a, segment.v_row(r));
            grad.erase[step] -= dot(a, &sweep.p[slot.clone()]);
            // Λ z_r, the part along x_l; beyond r + window it is Y_l · Ω_r.
            for l in chunk.open_rows(step + 1).start..rows.min(r + segment.window) {
                let (scale, y) = self.y(chunk, y, l, step + 1);
                let value = scale * dot(y, &sweep.z[slot.clone()]);
                self.band[l * rows + r] += value;
            }
            // −S e a_r, the part along x_l; before r − window it is Ω_l · Y_r.
            for l in (r + 1).saturating_sub(segment.window).max(segment.first)..newest {
                let (scale, omega) = sweep.omega(chunk, l, step);
                self.band[l * rows + r] -= segment.erase[step] * scale * dot(omega, a);
            }
            // ⟨Λ, S⟩ before the step, the part in which a pair is open.
            if r < newest {
                let (scale, omega) = sweep.omega(chunk, r, step);
                grad.gamma[step] += scale * dot(omega, a);
            }
            if chunk.closes(r) > step + 1 {
                let y = &y[row(r, columns)];
                let mut rest = dot(y, &sweep.p[slot]);
                for l in window.start..newest {
                    let (scale, omega) = sweep.omega(chunk, l, step);
                    rest -= chunk.gram(r, l) * scale * dot(y, omega);
                }
                grad.gamma[step] += rest;
            }
        }
    }
}

/// `a_r` of the rows that stay in the window, from after `step` to before it.
fn stay<F: Real>(chunk: &Chunk<'_, F>, step: usize, grad_out: &[F], a: &mut [F]) {
    let segment = chunk.segment;
    let columns = segment.columns;
    let window = segment.window(step);
    let stays = window.start..window.end.saturating_sub(1).max(window.start);
    let next: Vec<Vec<F>> = stays
        .clone()
        .map(|r| {
            let mut next = a[row(r, columns)].to_vec();
            next.iter_mut().for_each(|a| *a *= segment.gamma[step]);
            for l in window.clone() {
                axpy(&mut next, -segment.erase[step] * chunk.gram(r, l), &a[row(l, columns)]);
            }
            if let Some(reader) = segment.reader(step) {
                axpy(&mut next, chunk.attention(reader, r), &grad_out[row(reader, columns)]);
            }
            next
        })
        .collect();
    for (r, next) in stays.zip(next) {
        a[row(r, columns)].copy_from_slice(&next);
    }
}

/// Gradients of the products `D[t][t_r]` and `D[t][0]`, by the time they are used at.
struct DecayGrad<F> {
    /// `[times, rows]`.
    closed: Vec<F>,
    /// `[times]`.
    prior: Vec<F>,
}

impl<F: Real> DecayGrad<F> {
    fn new(chunk: &Chunk<'_, F>) -> Self {
        let times = chunk.segment.steps + 1;
        Self { closed: vec![F::zero(); times * chunk.segment.rows()], prior: vec![F::zero(); times] }
    }

    /// Uses at `time`: of the incoming memory, and of every row that has closed by then.
    fn add(&mut self, chunk: &Chunk<'_, F>, time: usize, prior: F, closed: impl Iterator<Item = F>) {
        self.prior[time] += prior;
        for (r, value) in closed.enumerate() {
            if chunk.closes(r) <= time {
                self.closed[time * chunk.segment.rows() + r] += value;
            }
        }
    }

    /// `D[t+1][s] = γ_t D[t][s]` backwards.
    fn into_gamma(mut self, chunk: &Chunk<'_, F>, grad_gamma: &mut [F]) {
        let Chunk { segment, ref decay, .. } = *chunk;
        let rows = segment.rows();
        for step in (0..segment.steps).rev() {
            let gamma = segment.gamma[step];
            let mut sum = self.prior[step + 1] * decay.at(step, 0);
            let carried = self.prior[step + 1] * gamma;
            self.prior[step] += carried;
            let (before, after) = self.closed[step * rows..].split_at_mut(rows);
            for r in (0..rows).take_while(|r| chunk.closes(*r) <= step) {
                sum += after[r] * decay.at(step, chunk.closes(r));
                before[r] += after[r] * gamma;
            }
            grad_gamma[step] += sum;
        }
    }
}
