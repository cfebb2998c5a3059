//! The adjoint of [`super::delta`]. The adjoint of the memory is a combination of the outgoing adjoint, the queries and
//! the pairs,
//!
//! ```text
//! Λ at time t = D[T][t] Λ_T + Σ_s D[τ_s][t] q_s do_sᵀ + Σ_r x_r y_r(t)ᵀ
//! ```
//!
//! and `y` is found by a substitution that mirrors the forward one. Backwards in time, a pair enters at the step that
//! closes it and leaves at the step that added it. With `a_r(i) = Λᵀx_r` after step `i`,
//!
//! ```text
//! a_r(i) in full where r enters, and for pairs that stay
//! a_r(i−1) = γ_i a_r(i) − e_i Σ_{l in window of i} G_rl a_l(i) + (x_r·q) do    (q, do: the read at time i)
//! y_r(i) = γ_i y_r(i+1) − e_i a_r(i)        y_r(t) = D[t_r′][t] Y_r  from its first time t_r′ down
//! ```
//!
//! The other gradients are products of the two expansions, such as `dx = Σ Λ z − S (e a)`: matrix products where both
//! pairs are closed, and a band as wide as the window where one is open.

use std::ops::Range;

use super::delta::{BLOCK, Chunk, Sweep, prepared_len, sweep_lengths};
use super::rows::{copy_scaled, scale_rows};
use crate::Real;
use crate::mat::{Mat, MatMut, lower_matmul, lower_matmul_t, matmul, matmul_memory, product_lower};
use crate::real::{axpy, combine, dot, scale};
use crate::scratch::{Scratch, room, split};
use crate::segment::{Segment, SegmentGrad};
use crate::state::row;

#[inline(always)]
pub(super) fn backward<F: Real>(
    segment: &Segment<F>,
    memory: &[F],
    grad_out: &[F],
    adjoint: &mut [F],
    grad: &mut SegmentGrad<F>,
    scratch: &mut Scratch<F>,
) {
    let (columns, dim_k, rows, steps) = (segment.columns, segment.dim_k, segment.rows(), segment.steps);
    let sweep = room::<F>(&sweep_lengths(segment));
    let [prepared, sweep, rest] = scratch.split([prepared_len(segment), sweep, reverse_length(segment)]);
    let [prior, p, z, omega, closed, last] = split(sweep, sweep_lengths(segment));
    Chunk::prepare(segment, prepared);
    let chunk = Chunk::new(segment, prepared, memory, prior);
    let mut sweep = Sweep { p, z, omega, closed };
    sweep.run(&chunk);

    let mut reverse = Reverse::new(segment, rest);
    grad.v.fill(F::zero());
    reverse.run(&chunk, &sweep, adjoint, grad_out, grad);
    reverse.products(&chunk, &sweep);
    matmul_memory(reverse.through, F::zero(), Mat::new(reverse.oy, columns), Mat::new(memory, columns).t());
    reverse.decays(&chunk, &sweep, dot(memory, adjoint), grad);

    let Reverse { oy, pairs, band, through, .. } = reverse;
    let (qx, x) = (Mat::new(&segment.qx, dim_k), Mat::new(segment.x(), dim_k));
    // Gradients of both factors of QXᵀ and of XXᵀ.
    let (read, predicted) = pairs.split_at(steps * rows);
    // Decayed to time 0, the reads and y give the gradients through the incoming memory, and its adjoint.
    let decay = |i: usize| match i.checked_sub(steps) {
        None => chunk.decay(segment.read_time(i), 0),
        Some(r) => chunk.decay(r.saturating_sub(segment.tail), 0),
    };
    copy_scaled(&mut grad.qx, through, dim_k, decay);
    let (grad_q, grad_x) = grad.qx.split_at_mut(steps * dim_k);
    let (read, predicted, q) = (Mat::new(read, rows), Mat::new(predicted, rows), Mat::new(segment.q(), dim_k));
    let written = |step: usize| segment.tail + segment.read_time(step);
    lower_matmul(grad_q, read, x, written);
    lower_matmul(grad_x, predicted, x, |r| r);
    lower_matmul_t(grad_x, read, q, written);
    lower_matmul_t(grad_x, predicted, x, |r| r);
    for r in segment.first..rows {
        for l in band_rows(segment, r) {
            let weight = band[band_index(segment, l, r)];
            axpy(&mut grad_x[row(r, dim_k)], weight, segment.x_row(l));
        }
    }
    sweep.last(&chunk, last);
    matmul_memory(grad_x, F::one(), Mat::new(last, columns), Mat::new(adjoint, columns).t());

    scale_rows(oy, columns, decay);
    matmul(MatMut::new(adjoint, columns), chunk.decay(steps, 0), qx.t(), Mat::new(oy, columns));
}

/// The substitution backwards in time, and its results.
struct Reverse<'a, F> {
    /// `do_s`, `[steps, columns]`, and below it `y_r`, `[rows, columns]`: at the current time while the pair is open,
    /// and `Y_r` once it has left.
    oy: &'a mut [F],
    /// `a_r` of the rows in the window, `[rows, columns]`.
    a: &'a mut [F],
    /// `Λ_Tᵀ x_r`, `[rows, columns]`.
    final_x: &'a mut [F],
    /// The part of `a_r` at its closing time that comes from reads and from the outgoing memory, `[rows, columns]`.
    /// Later used as working memory.
    entry: &'a mut [F],
    /// Gradient of `QXᵀ`, `[steps, rows]`, and below it that of `XXᵀ` where the pair of the column was closed,
    /// `[rows, rows]`.
    pairs: &'a mut [F],
    /// Gradient of the Gram matrix where a pair was open; see [`band_index`].
    band: &'a mut [F],
    /// `S₀ do` and `S₀ y`, `[steps + rows, dim_k]`.
    through: &'a mut [F],
    /// Gradients of the decays of closed rows from reads and predictions at each time, `[steps + 1, rows]`.
    uses: &'a mut [F],
}

#[inline(always)]
fn reverse_lengths<F: Real>(segment: &Segment<F>) -> [usize; 8] {
    let (steps, rows, columns) = (segment.steps, segment.rows(), segment.columns);
    let band = if segment.window > 1 { rows * band_width(segment) } else { 0 };
    [
        (steps + rows) * columns,
        rows * columns,
        rows * columns,
        rows * columns,
        (steps + rows) * rows,
        band,
        (steps + rows) * segment.dim_k,
        (steps + 1) * rows,
    ]
}

fn reverse_length<F: Real>(segment: &Segment<F>) -> usize {
    room::<F>(&reverse_lengths(segment))
}

/// The rows within a window to both sides of a row.
#[inline(always)]
fn band_width<F: Real>(segment: &Segment<F>) -> usize {
    2 * segment.window.min(segment.rows())
}

/// The rows `l` so near to `r` that one of the two is open when the other is used.
#[inline(always)]
fn band_rows<F: Real>(segment: &Segment<F>, r: usize) -> Range<usize> {
    if segment.window == 1 {
        return 0..0;
    }
    let reach = segment.window - 1;
    r.saturating_sub(reach).max(segment.first)..(r + reach + 1).min(segment.rows())
}

/// The place in the band of the factor with which `x_l` enters `dx_r`.
#[inline(always)]
fn band_index<F: Real>(segment: &Segment<F>, l: usize, r: usize) -> usize {
    r * band_width(segment) + l + segment.window.min(segment.rows()) - 1 - r
}

impl<'a, F: Real> Reverse<'a, F> {
    #[inline(always)]
    fn new(segment: &Segment<F>, buffer: &'a mut [F]) -> Self {
        let [oy, a, final_x, entry, pairs, band, through, uses] = split(buffer, reverse_lengths(segment));
        oy[segment.steps * segment.columns..].fill(F::zero());
        band.fill(F::zero());
        Self { oy, a, final_x, entry, pairs, band, through, uses }
    }

    #[inline(always)]
    fn run(
        &mut self,
        chunk: &Chunk<'_, F>,
        sweep: &Sweep<'_, F>,
        adjoint: &[F],
        grad_out: &[F],
        grad: &mut SegmentGrad<F>,
    ) {
        let segment = chunk.segment;
        let (columns, steps) = (segment.columns, segment.steps);
        let x = Mat::new(segment.x(), segment.dim_k);
        matmul_memory(self.final_x, F::zero(), x, Mat::new(adjoint, columns));
        self.oy[..steps * columns].copy_from_slice(grad_out);
        self.entries(chunk, grad_out);
        for start in (0..steps).step_by(BLOCK).rev() {
            let block = start..(start + BLOCK).min(steps);
            self.enter(chunk, block.clone());
            for step in block.clone().rev() {
                self.complete(chunk, block.end, step);
                self.gather(chunk, sweep, step, grad);
                self.leave(chunk, step);
                if segment.window > 1 {
                    self.stay(chunk, step, grad_out);
                }
            }
        }
    }

    /// The part of `a_r` that comes from reads and from the outgoing memory, at the time the row closes or at the end.
    #[inline(always)]
    fn entries(&mut self, chunk: &Chunk<'_, F>, grad_out: &[F]) {
        let segment = chunk.segment;
        let (columns, steps, rows) = (segment.columns, segment.steps, segment.rows());
        let closed = chunk.closed_by(steps);
        for r in 0..rows {
            let decay = if r < closed { chunk.closed_decays(steps)[r] } else { F::one() };
            for (entry, x) in self.entry[row(r, columns)].iter_mut().zip(&self.final_x[row(r, columns)]) {
                *entry = decay * *x;
            }
        }
        let bound = |step| chunk.closed_by(segment.read_time(step));
        lower_matmul_t(self.entry, Mat::new(chunk.masked, rows), Mat::new(grad_out, columns), bound);
        if let Some(reader) = segment.reader(steps) {
            for r in closed..rows {
                let weight = chunk.attention(reader)[r];
                axpy(&mut self.entry[row(r, columns)], weight, &grad_out[row(reader, columns)]);
            }
        }
    }

    /// Adds the part of `a_r` that comes from pairs that have left after a block of steps, for the rows that enter in
    /// it.
    #[inline(always)]
    fn enter(&mut self, chunk: &Chunk<'_, F>, block: Range<usize>) {
        let segment = chunk.segment;
        let (columns, rows) = (segment.columns, segment.rows());
        let entering = chunk.closed_by(block.start)..chunk.closed_by(block.end);
        if block.end < segment.steps && !entering.is_empty() {
            let later = Mat::new(chunk.far, rows).rows(block.end..segment.steps).cols(entering.clone());
            let y =
                Mat::new(self.oy, columns).rows(segment.steps + segment.tail + block.end..segment.steps + rows);
            matmul(MatMut::new(self.entry, columns).block(entering, 0..columns), F::one(), later.t(), y);
        }
    }

    /// `a_r` after `step` for the rows that enter there, in the block that ends at `end`.
    #[inline(always)]
    fn complete(&mut self, chunk: &Chunk<'_, F>, end: usize, step: usize) {
        let segment = chunk.segment;
        let (columns, rows, tail) = (segment.columns, segment.rows(), segment.tail);
        let window = segment.window(step);
        let last = step + 1 == segment.steps;
        for r in window.filter(|r| last || chunk.closes(*r) == step + 1) {
            let a = &mut self.a[row(r, columns)];
            a.copy_from_slice(&self.entry[row(r, columns)]);
            if last {
                continue;
            }
            let y = &self.oy[segment.steps * columns..];
            let mut weights = [F::zero(); BLOCK];
            for l in step + 1..end {
                weights[l - step - 1] = chunk.far[l * rows + r];
            }
            combine(a, &weights[..end - step - 1], &y[(tail + step + 1).min(rows) * columns..], columns);
            for l in chunk.open_rows(step + 1) {
                axpy(a, chunk.gram(r)[l], &y[row(l, columns)]);
            }
        }
    }

    /// `y_l(t)` as a scalar and a vector: the final `Y_l` if `l` was added at `t` or later, else the current one.
    #[inline(always)]
    fn y(&self, chunk: &Chunk<'_, F>, l: usize, time: usize) -> (F, &[F]) {
        let Segment { tail, columns, .. } = *chunk.segment;
        let scale = if l >= tail + time { chunk.decay(l - tail, time) } else { F::one() };
        (scale, &self.oy[row(chunk.segment.steps + l, columns)])
    }

    /// The gradients of one step, from `a` and `y` at the time after it.
    #[inline(always)]
    fn gather(&mut self, chunk: &Chunk<'_, F>, sweep: &Sweep<'_, F>, step: usize, grad: &mut SegmentGrad<F>) {
        let segment = chunk.segment;
        let columns = segment.columns;
        for r in segment.window(step) {
            let a = &self.a[row(r, columns)];
            axpy(&mut grad.v[row(r, columns)], segment.write[step], a);
            grad.write[step] += dot(a, segment.v_row(r));
            grad.erase[step] -= dot(a, &sweep.p[chunk.slot(r, step)]);
        }
        if segment.window > 1 {
            self.gather_open(chunk, sweep, step, grad);
        }
    }

    /// The part of the gradients in which one of the pairs is open.
    #[inline(always)]
    fn gather_open(&mut self, chunk: &Chunk<'_, F>, sweep: &Sweep<'_, F>, step: usize, grad: &mut SegmentGrad<F>) {
        let segment = chunk.segment;
        let (columns, rows, newest) = (segment.columns, segment.rows(), segment.tail + step);
        let window = segment.window(step);
        for r in window.clone() {
            let slot = chunk.slot(r, step);
            // The part of Λ z_r along x_l; beyond r + window it is Y_l · Ω_r.
            for l in chunk.open_rows(step + 1).start..rows.min(r + segment.window) {
                let (scale, y) = self.y(chunk, l, step + 1);
                let value = scale * dot(y, &sweep.z[slot.clone()]);
                self.band[band_index(segment, l, r)] += value;
            }
            let a = &self.a[row(r, columns)];
            // The part of −S e a_r along x_l; before r − window it is Ω_l · Y_r.
            for l in (r + 1).saturating_sub(segment.window).max(segment.first)..newest {
                let (scale, omega) = sweep.omega(chunk, l, step);
                self.band[band_index(segment, l, r)] -= segment.erase[step] * scale * dot(omega, a);
            }
            // ⟨Λ, S⟩ before the step.
            if r < newest {
                let (scale, omega) = sweep.omega(chunk, r, step);
                grad.gamma[step] += scale * dot(omega, a);
            }
            if chunk.closes(r) > step + 1 {
                let y = &self.oy[row(segment.steps + r, columns)];
                let mut rest = dot(y, &sweep.p[slot]);
                for l in window.start..newest {
                    let (scale, omega) = sweep.omega(chunk, l, step);
                    rest -= chunk.gram(r)[l] * scale * dot(y, omega);
                }
                grad.gamma[step] += rest;
            }
        }
    }

    /// `y ← γ y − e a`, which goes from after `step` to before it.
    #[inline(always)]
    fn leave(&mut self, chunk: &Chunk<'_, F>, step: usize) {
        let segment = chunk.segment;
        let (gamma, erase, columns) = (segment.gamma[step], segment.erase[step], segment.columns);
        for r in segment.window(step) {
            for (y, a) in self.oy[row(segment.steps + r, columns)].iter_mut().zip(&self.a[row(r, columns)]) {
                *y = gamma * *y - erase * *a;
            }
        }
    }

    /// `a_r` of the rows that stay in the window, from after `step` to before it.
    #[inline(always)]
    fn stay(&mut self, chunk: &Chunk<'_, F>, step: usize, grad_out: &[F]) {
        let segment = chunk.segment;
        let columns = segment.columns;
        let window = segment.window(step);
        let stays = window.start..window.end.saturating_sub(1).max(window.start);
        // The new values go to `entry`, whose rows of this window are no longer needed.
        for r in stays.clone() {
            let next = &mut self.entry[row(r, columns)];
            next.copy_from_slice(&self.a[row(r, columns)]);
            scale(next, segment.gamma[step]);
            for l in window.clone() {
                axpy(next, -segment.erase[step] * chunk.gram(r)[l], &self.a[row(l, columns)]);
            }
            if let Some(reader) = segment.reader(step) {
                axpy(next, chunk.attention(reader)[r], &grad_out[row(reader, columns)]);
            }
        }
        let stays = stays.start * columns..stays.end * columns;
        self.a[stays.clone()].copy_from_slice(&self.entry[stays]);
    }

    /// `do · Ω` and `Y · Ω` of every closed pair, which give the gradients of `QXᵀ`, `XXᵀ` and the decays.
    #[inline(always)]
    fn products(&mut self, chunk: &Chunk<'_, F>, sweep: &Sweep<'_, F>) {
        let segment = chunk.segment;
        let (columns, rows, steps) = (segment.columns, segment.rows(), segment.steps);
        let closed = Mat::new(sweep.closed, columns).t();
        let (read, predicted) = self.pairs.split_at_mut(steps * rows);
        let (o, y) = self.oy.split_at(steps * columns);
        product_lower(read, Mat::new(o, columns), closed, |step| chunk.closed_by(segment.read_time(step)));
        product_lower(predicted, Mat::new(y, columns), closed, |r| r);
        // Pairs of the tail were added before the chunk, when none of its rows was closed.
        predicted[..segment.tail * rows].fill(F::zero());
        self.uses.fill(F::zero());
        for step in 0..steps {
            let newest = segment.tail + step;
            let uses = &mut self.uses[row(step, rows)];
            chunk.use_closed(step, &mut predicted[row(newest, rows)], chunk.gram(newest), uses);
            let time = segment.read_time(step);
            let (read, uses) = (&mut read[row(step, rows)], &mut self.uses[row(time, rows)]);
            chunk.use_closed(time, read, chunk.attention(step), uses);
            for r in chunk.open_rows(time) {
                let (scale, omega) = sweep.omega(chunk, r, time);
                read[r] = scale * dot(&self.oy[row(step, columns)], omega);
            }
        }
    }

    /// Adjoint of `D[t+1][s] = γ_t D[t][s]`, for the incoming memory and all closed rows at once. `prior` is
    /// `⟨S₀, Λ_T⟩`.
    #[inline(always)]
    fn decays(&mut self, chunk: &Chunk<'_, F>, sweep: &Sweep<'_, F>, prior: F, grad: &mut SegmentGrad<F>) {
        let segment = chunk.segment;
        let (columns, rows, steps, dim_k) = (segment.columns, segment.rows(), segment.steps, segment.dim_k);
        let through = |i: usize| dot(&segment.qx[row(i, dim_k)], &self.through[row(i, dim_k)]);
        let read = |time: usize| segment.reader(time).map_or(F::zero(), through);
        let mut prior = prior + read(steps);
        let (uses, sum) = self.uses.split_at_mut(steps * rows);
        for r in 0..chunk.closed_by(steps) {
            sum[r] += dot(&self.final_x[row(r, columns)], &sweep.closed[row(r, columns)]);
        }
        for step in (0..steps).rev() {
            let (gamma, closed) = (segment.gamma[step], chunk.closed_by(step));
            let sum = &mut sum[..closed];
            grad.gamma[step] += prior * chunk.decay(step, 0) + dot(sum, chunk.closed_decays(step));
            for (sum, uses) in sum.iter_mut().zip(&uses[row(step, rows)]) {
                *sum = gamma * *sum + *uses;
            }
            prior = gamma * prior + read(step) + through(steps + segment.tail + step);
        }
    }
}

impl<F: Real> Chunk<'_, F> {
    /// Gradients of closed rows at `time` from `products` (`do · Ω` or `Y · Ω`): those of the decays, which are
    /// weighted by `with` (`QXᵀ` or `XXᵀ`), and those of `with` itself, which are decayed.
    #[inline(always)]
    fn use_closed(&self, time: usize, products: &mut [F], with: &[F], uses: &mut [F]) {
        let (products, rest) = products.split_at_mut(self.closed_by(time));
        for (((product, decay), with), used) in
            products.iter_mut().zip(self.closed_decays(time)).zip(with).zip(uses)
        {
            *used += *with * *product;
            *product *= *decay;
        }
        rest.fill(F::zero());
    }
}
