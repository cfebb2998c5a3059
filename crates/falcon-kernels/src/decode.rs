//! Decoding: one token at a time, with a memory that does not grow.
//!
//! With next-latent alignment a step is a single pass over the memory. The value of the next token will be paired with
//! the key of this one, so the prediction for that key can be computed while the memory is written:
//!
//! ```text
//! z_j = w v_j − e p_j          p_j from the step before
//! S ← γ S + Σ_j x_j z_jᵀ       o = Sᵀq       p = Sᵀk        row by row, in one pass
//! p_j ← γ p_j + Σ_l (x_j·x_l) z_l                           for pairs that stay in the window
//! ```
//!
//! With same-step alignment the next key is not known yet, and a rule that erases needs one more pass for the
//! prediction. Each older pair of a window needs a pass of its own.

use crate::call::Call;
use crate::coefficients::{Coefficients, Purpose};
use crate::error::Error;
use crate::form::Form;
use crate::head::{Head, advance};
use crate::inputs::Inputs;
use crate::real::{axpy, combine, dot, mul_add, multiply};
use crate::rule::{Align, Rule};
use crate::scratch::Scratch;
use crate::segment::Segment;
use crate::simd::{Vectorised, dispatch};
use crate::state::{State, row};
use crate::step::{outer, residual, scale_columns};
use crate::{Real, normaliser};

/// Decodes a batch of sequences with one rule, one token of each sequence at a time.
#[derive(Clone, Debug)]
pub struct Decoder<F> {
    rule: Rule,
    state: State<F>,
    /// The predictions for the keys that the next step writes, `[sequences, heads, window, columns]`: one for each pair
    /// of the next window, except for the newest pair with same-step alignment. Empty before the first step.
    ahead: Vec<F>,
    segment: Segment<F>,
    coefficients: Coefficients<F>,
    scratch: Scratch<F>,
}

impl<F: Real> Decoder<F> {
    /// Continues from `state`, which may be fresh or the state after prompts that [`Call::forward`] has run. A state of
    /// another rule is refused.
    pub fn new(rule: &Rule, state: State<F>) -> Result<Self, Error> {
        rule.validate()?;
        state.check(rule, &state.sizes())?;
        let (segment, coefficients) = (Segment::new(rule, 0, 0), Coefficients::default());
        Ok(Self { rule: *rule, state, ahead: Vec::new(), segment, coefficients, scratch: Scratch::default() })
    }

    /// The state after the tokens so far.
    pub fn state(&self) -> &State<F> {
        &self.state
    }

    /// The state after the tokens so far, to be stored or continued in another form.
    pub fn into_state(self) -> State<F> {
        self.state
    }
}

/// What [`Decoder::step`] does.
pub(crate) fn step<F: Real>(decoder: &mut Decoder<F>, inputs: &Inputs<'_, F>, out: &mut [F]) -> Result<(), Error> {
    let call = Call::new(&decoder.rule, Form::Recurrent, *inputs)?;
    call.check(&decoder.state, "out", out)?;
    let sizes = call.sizes;
    if let Some(sequence) = (0..sizes.sequences).find(|i| inputs.offsets[i + 1] != i + 1) {
        let got = inputs.offsets[sequence + 1] - inputs.offsets[sequence];
        return Err(Error::OneToken { sequence, got });
    }
    decoder.segment.dim_k = sizes.dim_k;
    decoder.segment.values = sizes.dim_v;
    decoder.segment.columns = decoder.rule.state_columns(sizes.dim_v);
    dispatch(Step { decoder, call: &call, out });
    advance(&call, &mut decoder.state);
    Ok(())
}

/// One step of every head.
struct Step<'a, F> {
    decoder: &'a mut Decoder<F>,
    call: &'a Call<'a, F>,
    out: &'a mut [F],
}

impl<F: Real> Vectorised for Step<'_, F> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { decoder, call, out } = self;
        let (sizes, inputs) = (&call.sizes, &call.inputs);
        let Decoder { rule, state, ahead, segment, coefficients, scratch } = decoder;
        let columns = segment.columns;
        // Predictions of one head. The working memory holds its writes, decay factors, reads and sums.
        let predictions = if segment.erases() { rule.window * columns } else { 0 };
        let fresh = ahead.is_empty();
        ahead.resize(sizes.sequences * sizes.heads * predictions, F::zero());
        for sequence in 0..sizes.sequences {
            for head in 0..sizes.heads {
                let place = Head::new(call, state, sequence, head);
                place.gather(0..1, 1, segment, coefficients);
                coefficients.forward(rule, segment, Purpose::Forward);
                let key = inputs.k.row(place.tokens().start, place.key_head());
                let ahead = &mut ahead[row(sequence * sizes.heads + head, predictions)];
                let known = match (fresh, rule.align) {
                    (true, _) => 0,
                    (false, Align::Next) => segment.window(0).len(),
                    (false, Align::Same) => segment.window(0).len() - 1,
                };
                let next = (rule.align == Align::Next).then_some(key);
                let memory = state.memory_of_mut(sequence, head);
                let read = head_step::<F, FUSED>(segment, next, memory, ahead, known, scratch);
                let out = &mut out[row(sequence * sizes.heads + head, sizes.dim_v)];
                match rule.normaliser {
                    None => out.copy_from_slice(read),
                    Some(n) => normaliser::divide(read, F::of(n.eps), out),
                }
            }
        }
    }
}

/// One step of one head, as in the [module](self); returns the read. The first `known` of `predictions` were computed
/// by the step before. `next` is the key of the pair that the next step adds, if it is known already.
#[inline(always)]
fn head_step<'s, F: Real, const FUSED: bool>(
    segment: &Segment<F>,
    next: Option<&[F]>,
    memory: &mut [F],
    predictions: &mut [F],
    known: usize,
    scratch: &'s mut Scratch<F>,
) -> &'s [F] {
    let (columns, q, window) = (segment.columns, segment.q_row(0), segment.window(0));
    // The first token of a fresh sequence has no pair, and writes a zero value to a zero key.
    let pairs = window.len().max(1);
    let [read, spare, gamma, tiles, z] = scratch.split([columns, columns, columns, 2 * columns, pairs * columns]);
    z.fill(F::zero());
    if segment.erases() {
        for slot in known..window.len() {
            product(memory, segment.x_row(window.start + slot), &mut predictions[row(slot, columns)]);
        }
    }
    for (slot, j) in window.clone().enumerate() {
        let p = if segment.erases() { &predictions[row(slot, columns)] } else { &[][..] };
        residual(segment, 0, segment.v_row(j), p, &mut z[row(slot, columns)]);
    }
    gamma.fill(F::one());
    scale_columns(gamma, columns, segment.gains(&segment.gamma, 0));

    let stay = if window.len() == segment.window { 1..window.len() } else { 0..window.len() };
    if segment.erases() {
        // Pairs that stay move to the front, over the pair that leaves.
        for (to, slot) in stay.clone().enumerate() {
            predictions.copy_within(row(slot, columns), to * columns);
            let p = &mut predictions[row(to, columns)];
            multiply(p, gamma);
            for (l, z) in window.clone().zip(z.chunks_exact(columns)) {
                axpy(p, dot(segment.x_row(window.start + slot), segment.x_row(l)), z);
            }
        }
    }
    if segment.read_before {
        product(memory, q, read);
    }
    let write = Write { gamma, x: &segment.x()[(segment.rows() - pairs) * segment.dim_k..], z };
    match (next.filter(|_| segment.erases()), segment.read_before) {
        (Some(next), false) => {
            write.pass::<FUSED, _>(memory, [q, next], [read, &mut predictions[row(stay.len(), columns)]], tiles);
        }
        (Some(next), true) => {
            write.pass::<FUSED, _>(memory, [next], [&mut predictions[row(stay.len(), columns)]], tiles);
        }
        (None, false) => write.pass::<FUSED, _>(memory, [q], [read], tiles),
        // Nothing is read from the memory after the write; the sum is not used.
        (None, true) => write.pass::<FUSED, _>(memory, [q], [spare], tiles),
    }
    read
}

/// `Sᵀa`.
#[inline(always)]
fn product<F: Real>(memory: &[F], a: &[F], with_a: &mut [F]) {
    with_a.fill(F::zero());
    let columns = with_a.len();
    combine(with_a, a, memory, columns);
}

/// `S ← S diag(gamma) + Σ_j x_j z_jᵀ`.
struct Write<'a, F> {
    gamma: &'a mut [F],
    x: &'a [F],
    z: &'a [F],
}

/// Columns that are computed together.
const TILE: usize = 8;
/// Rows that are computed together, so that sums are loaded and stored once for all of them.
const ROWS: usize = 4;

impl<F: Real> Write<'_, F> {
    /// Writes, and sets `sums[n] = Sᵀ with[n]` for the memory after the write, in one pass. `tiles` has room for the
    /// sums.
    #[inline(always)]
    fn pass<const FUSED: bool, const N: usize>(
        self,
        memory: &mut [F],
        with: [&[F]; N],
        mut sums: [&mut [F]; N],
        tiles: &mut [F],
    ) {
        let Self { gamma, x, z } = self;
        let (columns, dim_k) = (gamma.len(), memory.len() / gamma.len());
        let (older_z, z) = z.split_at(z.len() - columns);
        let (older_x, x) = x.split_at(x.len() - dim_k);
        if !older_z.is_empty() {
            // Only for windows: one outer product for each older pair, so that one pair is left to write below.
            scale_columns(memory, columns, gamma);
            gamma.fill(F::one());
            for (x, z) in older_x.chunks_exact(dim_k).zip(older_z.chunks_exact(columns)) {
                outer(memory, F::one(), x, z);
            }
        }
        sums.iter_mut().for_each(|sum| sum.fill(F::zero()));
        let full = dim_k - dim_k % ROWS;
        let (blocks, rest) = memory.split_at_mut(full * columns);
        let tiled = columns - columns % TILE;
        let (tiles, _) = tiles[..N * tiled].as_chunks_mut::<TILE>();
        tiles.fill([F::zero(); TILE]);
        let (tiles, _) = tiles.as_chunks_mut::<N>();
        for (block, lines) in blocks.chunks_exact_mut(ROWS * columns).enumerate() {
            let first = block * ROWS;
            let mut numbers = [[F::zero(); ROWS]; N];
            for n in 0..N {
                numbers[n].copy_from_slice(&with[n][first..][..ROWS]);
            }
            rows::<F, FUSED, N>(lines, gamma, &x[first..], z, &numbers, tiles);
        }
        for (tile, sum) in tiles.iter().zip((0..tiled).step_by(TILE)) {
            for n in 0..N {
                sums[n][sum..sum + TILE].copy_from_slice(&tile[n]);
            }
        }
        // Columns that do not fill a tile, and rows that do not fill a block.
        let blocks = blocks.chunks_exact_mut(columns).map(|line| (line, tiled));
        for (k, (line, start)) in blocks.chain(rest.chunks_exact_mut(columns).map(|line| (line, 0))).enumerate() {
            for c in start..columns {
                line[c] = mul_add::<F, FUSED>(x[k], z[c], gamma[c] * line[c]);
            }
            for (with, sum) in with.iter().zip(&mut sums) {
                axpy(&mut sum[start..], with[k], &line[start..]);
            }
        }
    }
}

/// [`Write::pass`] for one pair and [`ROWS`] rows, for all columns that fill tiles. Arrays over columns go through
/// iterators, and everything else is held by value: with indices and references this was half as fast, because the
/// compiler had to check bounds and to assume that a store changes what it had loaded.
#[inline(always)]
fn rows<F: Real, const FUSED: bool, const N: usize>(
    lines: &mut [F],
    gamma: &[F],
    x: &[F],
    z: &[F],
    with: &[[F; ROWS]; N],
    sums: &mut [[[F; TILE]; N]],
) {
    let columns = gamma.len();
    let (a, b) = lines.split_at_mut(2 * columns);
    let ((a, b), (c, d)) = (a.split_at_mut(columns), b.split_at_mut(columns));
    let x: [F; ROWS] = *x.first_chunk().expect("a key");
    let with = *with;
    let lines = a.as_chunks_mut::<TILE>().0.iter_mut().zip(b.as_chunks_mut::<TILE>().0);
    let lines = lines.zip(c.as_chunks_mut::<TILE>().0).zip(d.as_chunks_mut::<TILE>().0);
    let others = gamma.as_chunks::<TILE>().0.iter().zip(z.as_chunks::<TILE>().0).zip(sums);
    for ((((a, b), c), d), ((gamma, z), sum)) in lines.zip(others) {
        let (gamma, z, mut totals) = (*gamma, *z, *sum);
        for (i, line) in [a, b, c, d].into_iter().enumerate() {
            let mut s = *line;
            for lane in 0..TILE {
                s[lane] = mul_add::<F, FUSED>(x[i], z[lane], gamma[lane] * s[lane]);
            }
            for n in 0..N {
                for lane in 0..TILE {
                    totals[n][lane] = mul_add::<F, FUSED>(with[n][i], s[lane], totals[n][lane]);
                }
            }
            *line = s;
        }
        *sum = totals;
    }
}
