//! Many steps at once. In a chunk of `C` steps that starts from `S_0`, with `D_is = Π_{s < r ≤ i} γ_r` and `d_i = γ_0
//! D_i0`,
//!
//! ```text
//! S_i = d_i S_0 + Σ_{s ≤ i} D_is Σ_{j ∈ window(s)} x_j z_{j,s}ᵀ        z_{j,s} = w_s v_j − e_s S_{s−1}ᵀ x_j
//! o_i = d_i S_0ᵀ q_i + Σ_{s ≤ i} D_is Σ_j (q_i·x_j) z_{j,s}            (row i − 1 of d and D for a read before the write)
//! ```
//!
//! Without erasing, `z_{j,s} = w_s v_j`, and the sum over `s` collapses to one weight for each row `j`. With erasing,
//! the writes of a chunk solve a unit lower triangular system over (step, pair in its window),
//!
//! ```text
//! z_{j,i} + e_i Σ_{s < i} D_{i−1,s} Σ_l (x_j·x_l) z_{l,s} = w_i v_j − e_i d_{i−1} S_0ᵀ x_j
//! ```
//!
//! whose matrix does not depend on `S_0`. So all chunks are prepared at once, only the memory is passed from chunk to
//! chunk, and all outputs are computed at once again. With a gain for each column, each column is a *lane* that has
//! its own `D` and its own system but shares the products of keys.

use burn::tensor::{Tensor, TensorData};

use super::coefficients::Coefficients;
use super::pairs::take;
use super::triangle::{inverse, ones, options, pieces, products, spread, zeros};

/// The largest chunk if every column has its own system.
const CHUNK_OF_COLUMNS: usize = 16;

/// The steps of a batch of heads.
pub(super) struct Steps {
    /// `[batch, time, dim_k]`.
    pub q: Tensor<3>,
    /// `[batch, window − 1 + time, dim_k]`: step `i` writes the rows `i..i + window`.
    pub x: Tensor<3>,
    /// `[batch, window − 1 + time, columns]`.
    pub v: Tensor<3>,
    pub window: usize,
    pub coefficients: Coefficients,
    pub each_column: bool,
    pub read_before: bool,
}

/// How time is divided: `count` chunks of `steps` steps (a power of two), the last padded with steps that change
/// nothing.
#[derive(Clone, Copy)]
struct Chunks {
    batch: usize,
    time: usize,
    count: usize,
    steps: usize,
}

impl Chunks {
    fn new(steps: &Steps, chunk: usize) -> Self {
        let [batch, time, _] = steps.q.dims();
        let chunk = match (steps.each_column, &steps.coefficients.erase) {
            (true, _) => chunk.min(CHUNK_OF_COLUMNS),
            (false, Some(_)) => chunk / steps.window,
            (false, None) => chunk,
        };
        let longest = 1 << chunk.max(1).ilog2();
        let steps = time.next_power_of_two().min(longest);
        Self { batch, time, count: time.div_ceil(steps), steps }
    }

    /// Appends rows of `value` up to the end of the last chunk.
    fn fill(&self, x: Tensor<3>, value: f64) -> Tensor<3> {
        let missing = self.count * self.steps - self.time;
        if missing == 0 {
            return x;
        }
        let [batch, _, dim] = x.dims();
        let rest = Tensor::full([batch, missing, dim], value, options(&x));
        Tensor::cat(vec![x, rest], 1)
    }

    /// `[batch, count · rows, dim]` to `[count · batch, rows, dim]`: the first `batch` are those of the first chunk.
    fn cut(&self, x: Tensor<3>) -> Tensor<3> {
        let [_, rows, dim] = x.dims();
        let rows = rows / self.count;
        if self.count == 1 {
            return x;
        }
        let x = x.reshape([self.batch, self.count, rows, dim]).swap_dims(0, 1);
        x.reshape([self.count * self.batch, rows, dim])
    }

    /// `[batch, time, lanes]` to `[count · batch, lanes, steps, 1]`.
    fn lanes(&self, x: Tensor<3>, filler: f64) -> Tensor<4> {
        self.cut(self.fill(x, filler)).swap_dims(1, 2).unsqueeze_dim::<4>(3)
    }

    /// The inverse of [`Chunks::cut`] and [`Chunks::fill`].
    fn uncut(&self, x: Tensor<3>) -> Tensor<3> {
        let [_, rows, dim] = x.dims();
        let x = x.reshape([self.count, self.batch, rows, dim]).swap_dims(0, 1);
        x.reshape([self.batch, self.count * rows, dim]).slice_dim(1, 0..self.time)
    }
}

/// Outputs `[batch, time, columns]` and the outgoing memory, from `memory` `[batch, dim_k, columns]`.
pub(super) fn forward(steps: Steps, memory: Tensor<3>, chunk: usize) -> (Tensor<3>, Tensor<3>) {
    let chunks = Chunks::new(&steps, chunk);
    let Steps { q, x, v, window, coefficients, each_column, read_before } = steps;
    let Coefficients { write, erase, gamma } = coefficients;
    let [_, _, columns] = v.dims();
    let lanes = if each_column { columns } else { 1 };
    let (n, c) = (chunks.count * chunks.batch, chunks.steps);

    let q = chunks.cut(chunks.fill(q, 0.0));
    let rows = chunk_rows(&chunks, window, erase.is_some());
    let (x, v) = (chunks.fill(x, 0.0), chunks.fill(v, 0.0));
    let (x, v) = match rows {
        Some(rows) => (take(x, rows.clone()), take(v, rows)),
        None => (x, v),
    };
    let (x, v) = (chunks.cut(x), to_lanes(chunks.cut(v), lanes));
    let [_, p, _] = x.dims();
    let write = chunks.lanes(write, 0.0);
    let gamma = chunks.lanes(gamma, 1.0);

    // D and d after each step, and before it.
    let after = products(gamma.clone().reshape([n * lanes, c])).reshape([n, lanes, c, c]);
    let decay_after = after.clone().slice_dim(3, 0..1) * gamma.slice_dim(2, 0..1);
    let before = || delayed(after.clone(), zeros([n, lanes, 1, c], &after));
    let decay_before = || delayed(decay_after.clone(), ones([n, lanes, 1, 1], &after));

    // The weights of rows, from the weights of steps.
    let writes = if erase.is_some() { None } else { Some(row_weights(&write, window)) };
    let to_rows = |weights: Tensor<4>| match &writes {
        None => spread(weights, 3, window),
        Some(writes) if window == 1 => weights * writes.clone().swap_dims(2, 3),
        Some(writes) => weights.matmul(writes.clone()),
    };
    let last = to_rows(after.clone().slice_dim(2, c - 1..c)).swap_dims(2, 3);
    let decay_last = decay_after.clone().slice_dim(2, c - 1..c).reshape([n, 1, lanes]);

    let (z, memories, memory) = match erase {
        None => {
            let added = x.clone().swap_dims(1, 2).matmul(from_lanes(last * v.clone()));
            let (memories, memory) = pass_memory(memory, &chunks, decay_last, added);
            (v, memories, memory)
        }
        Some(erase) => {
            let erase = chunks.lanes(erase, 0.0);
            let gram = x.clone().matmul(x.clone().swap_dims(1, 2)).unsqueeze_dim::<4>(1);
            let strict = spread(spread(before() * erase.clone(), 2, window), 3, window) * gram;
            let solve = inverse(strict.reshape([n * lanes, p, p])).reshape([n, lanes, p, p]);
            let from_values = solve.clone().matmul(spread(write, 2, window) * v);
            let from_memory = solve * spread(decay_before() * erase, 2, window).swap_dims(2, 3);
            correct(memory, &chunks, decay_last, Corrections { x: x.clone(), last, from_values, from_memory })
        }
    };

    let (weights, decay_read) = if read_before { (before(), decay_before()) } else { (after, decay_after) };
    let scores = q.clone().matmul(x.swap_dims(1, 2)).unsqueeze_dim::<4>(1) * to_rows(weights);
    let out = decay_read * to_lanes(q.matmul(memories), lanes) + scores.matmul(z);
    (chunks.uncut(from_lanes(out)), memory)
}

/// Passes the memory from chunk to chunk, `S ← d S + A`. Returns the memories that the chunks start from,
/// `[count · batch, dim_k, columns]`, and the one after the last chunk.
fn pass_memory(memory: Tensor<3>, chunks: &Chunks, decay: Tensor<3>, added: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
    let mut memories = vec![memory];
    for (decay, added) in pieces(decay, chunks.count).into_iter().zip(pieces(added, chunks.count)) {
        let before = memories[memories.len() - 1].clone();
        memories.push(before * decay + added);
    }
    split_last(memories)
}

/// What [`correct`] needs of all chunks.
struct Corrections {
    /// The keys `X`.
    x: Tensor<3>,
    /// The weights of the writes in the memory after their chunk.
    last: Tensor<4>,
    /// `U`.
    from_values: Tensor<4>,
    /// `K`.
    from_memory: Tensor<4>,
}

/// Passes the memory from chunk to chunk for rules that erase: the writes are `Z = U − K (X S)`, then
/// `S ← d S + Xᵀ (last ⊙ Z)`. Returns the writes of all chunks, the memories that the chunks start from, and the one
/// after the last chunk.
fn correct(
    memory: Tensor<3>,
    chunks: &Chunks,
    decay: Tensor<3>,
    parts: Corrections,
) -> (Tensor<4>, Tensor<3>, Tensor<3>) {
    let lanes = parts.last.dims()[1];
    let (mut memories, mut writes) = (vec![memory], Vec::new());
    let decays = pieces(decay, chunks.count).into_iter();
    let keys = pieces(parts.x, chunks.count).into_iter().zip(pieces(parts.last, chunks.count));
    let terms = pieces(parts.from_values, chunks.count).into_iter().zip(pieces(parts.from_memory, chunks.count));
    for ((decay, (x, last)), (from_values, from_memory)) in decays.zip(keys).zip(terms) {
        let before = memories[memories.len() - 1].clone();
        let predicted = to_lanes(x.clone().matmul(before.clone()), lanes);
        let z = from_values - from_memory.matmul(predicted);
        memories.push(before * decay + x.swap_dims(1, 2).matmul(from_lanes(last * z.clone())));
        writes.push(z);
    }
    let (memories, memory) = split_last(memories);
    (Tensor::cat(writes, 0), memories, memory)
}

fn split_last(mut memories: Vec<Tensor<3>>) -> (Tensor<3>, Tensor<3>) {
    let last = memories.remove(memories.len() - 1);
    (Tensor::cat(memories, 0), last)
}

/// The rows of pairs that each chunk uses; none for window 1, where they are the rows of its own steps. For rules that
/// erase, whose writes depend on the step, these are the rows of the window of every step, one window after the other;
/// for all others, each row once.
fn chunk_rows(chunks: &Chunks, window: usize, erases: bool) -> Option<Vec<usize>> {
    let starts = (0..chunks.count).map(|chunk| chunk * chunks.steps);
    match (window, erases) {
        (1, _) => None,
        (_, true) => Some((0..chunks.count * chunks.steps).flat_map(|step| step..step + window).collect()),
        (_, false) => Some(starts.flat_map(|start| start..start + chunks.steps + window - 1).collect()),
    }
}

/// What each step adds to the weight of each row: `[…, steps, 1]` to `[…, steps, rows]`, or unchanged for window 1.
fn row_weights(write: &Tensor<4>, window: usize) -> Tensor<4> {
    if window == 1 {
        return write.clone();
    }
    let steps = write.dims()[2];
    let rows = steps + window - 1;
    let inside = |step: usize, row: usize| f32::from(u8::from((step..step + window).contains(&row)));
    let band = (0..steps).flat_map(|step| (0..rows).map(move |row| inside(step, row))).collect::<Vec<f32>>();
    let band = Tensor::<4>::from_data(TensorData::new(band, [1, 1, steps, rows]), options(write));
    write.clone() * band
}

/// Shifts rows by one, with `first` as the first row.
fn delayed(x: Tensor<4>, first: Tensor<4>) -> Tensor<4> {
    match x.dims()[2] {
        1 => first,
        rows => Tensor::cat(vec![first, x.slice_dim(2, 0..rows - 1)], 2),
    }
}

/// `[n, rows, columns]` to `[n, 1, rows, columns]`, or `[n, columns, rows, 1]`.
fn to_lanes(x: Tensor<3>, lanes: usize) -> Tensor<4> {
    if lanes == 1 { x.unsqueeze_dim(1) } else { x.swap_dims(1, 2).unsqueeze_dim(3) }
}

/// The inverse of [`to_lanes`].
fn from_lanes(x: Tensor<4>) -> Tensor<3> {
    let [n, lanes, rows, columns] = x.dims();
    if lanes == 1 { x.reshape([n, rows, columns]) } else { x.swap_dims(1, 2).reshape([n, rows, lanes]) }
}
