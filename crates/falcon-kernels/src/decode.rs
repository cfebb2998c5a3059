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
//! prediction.

use pulp::{Arch, Simd, WithSimd};

use crate::call::Call;
use crate::coefficients::{Coefficients, Purpose};
use crate::error::Error;
use crate::form::Form;
use crate::head::{Head, advance};
use crate::inputs::Inputs;
use crate::real::{axpy, combine, dot, multiply};
use crate::rule::{Align, Rule};
use crate::scratch::Scratch;
use crate::segment::Segment;
use crate::simd::{Vectorised, dispatch};
use crate::state::{State, row};
use crate::step::residual;
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
    fn run(self) {
        let Self { decoder, call, out } = self;
        let (sizes, inputs) = (&call.sizes, &call.inputs);
        let Decoder { rule, state, ahead, segment, coefficients, scratch } = decoder;
        let columns = segment.columns;
        // Numbers of the predictions of one head.
        let predictions = if segment.erases() { rule.window * columns } else { 0 };
        let fresh = ahead.is_empty();
        ahead.resize(sizes.sequences * sizes.heads * predictions, F::zero());
        for sequence in 0..sizes.sequences {
            for head in 0..sizes.heads {
                let place = Head::new(call, state, sequence, head);
                place.gather(0..1, 1, segment, coefficients);
                coefficients.forward(rule, segment, Purpose::Forward);
                let key = inputs.k.row(place.tokens().start, place.key_head);
                let ahead = &mut ahead[row(sequence * sizes.heads + head, predictions)];
                let known = match (fresh, rule.align) {
                    (true, _) => 0,
                    (false, Align::Next) => segment.window(0).len(),
                    (false, Align::Same) => segment.window(0).len() - 1,
                };
                let next = (rule.align == Align::Next).then_some(key);
                let memory = state.memory_of_mut(sequence, head);
                let read = head_step(segment, next, memory, ahead, known, scratch);
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
fn head_step<'s, F: Real>(
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
    let [read, gamma, z] = scratch.split([columns, columns, pairs * columns]);
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
    match segment.gains(&segment.gamma, 0) {
        [one] => gamma.fill(*one),
        each => gamma.copy_from_slice(each),
    }

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
    let dim_k = segment.dim_k;
    let x = &segment.x()[(segment.rows() - pairs) * dim_k..];
    let write = Write { memory, gamma, x, z, dim_k, pairs };
    match (next.filter(|_| segment.erases()), segment.read_before) {
        (Some(next), false) => {
            write.pass([q, next], [read, &mut predictions[row(stay.len(), columns)]]);
        }
        (Some(next), true) => write.pass([next], [&mut predictions[row(stay.len(), columns)]]),
        (None, false) => write.pass([q], [read]),
        (None, true) => write.pass([], []),
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

/// `S ← S diag(γ) + Σ_j x_j z_jᵀ`, for a memory `[dim_k, columns]`.
struct Write<'a, F> {
    memory: &'a mut [F],
    /// `[columns]`
    gamma: &'a [F],
    /// `[pairs, dim_k]`, oldest first.
    x: &'a [F],
    /// `[pairs, columns]`
    z: &'a [F],
    dim_k: usize,
    pairs: usize,
}

impl<F: Real> Write<'_, F> {
    /// Writes, and sets `sums[n] = Sᵀ with[n]` for the memory after the write, in one pass over the memory.
    #[inline(always)]
    fn pass<const N: usize>(self, with: [&[F]; N], sums: [&mut [F]; N]) {
        let (columns, dim_k, pairs) = (self.gamma.len(), self.dim_k, self.pairs);
        // What the pointers below rely on.
        assert!(pairs > 0 && self.memory.len() == dim_k * columns);
        assert!(self.z.len() == pairs * columns && self.x.len() == pairs * dim_k);
        assert!(with.iter().all(|with| with.len() == dim_k) && sums.iter().all(|sums| sums.len() == columns));
        Arch::new().dispatch(Pass { write: self, with, sums });
    }
}

/// A [`Write`] with `N` sums, after its sizes have been checked.
struct Pass<'a, F, const N: usize> {
    write: Write<'a, F>,
    with: [&'a [F]; N],
    sums: [&'a mut [F]; N],
}

impl<F: Real, const N: usize> WithSimd for Pass<'_, F, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // As wide as registers allow: for each vector of a row there are a decay, a write and `N` sums.
        if S::REGISTER_COUNT >= 32 { self.columns::<S, 4>(simd) } else { self.columns::<S, 2>(simd) }
    }
}

impl<F: Real, const N: usize> Pass<'_, F, N> {
    /// All columns, by panels of up to `V` vectors.
    #[inline(always)]
    fn columns<S: Simd, const V: usize>(&mut self, simd: S) {
        let (columns, lanes) = (self.write.gamma.len(), F::lanes::<S>());
        let mut column = 0;
        // SAFETY: `Write::pass` has checked all sizes, and every panel ends at `columns`.
        unsafe {
            while columns - column >= V * lanes {
                self.panel::<S, V, false>(simd, column);
                column += V * lanes;
            }
            // Fewer sums would have to wait for each other.
            while columns - column >= 2 * lanes {
                self.panel::<S, 2, false>(simd, column);
                column += 2 * lanes;
            }
            while columns - column >= lanes {
                self.panel::<S, 1, false>(simd, column);
                column += lanes;
            }
            if column < columns {
                self.panel::<S, 1, true>(simd, column);
            }
        }
    }

    /// The columns of `V` vectors from `column` on; if `CUT`, those of one vector that are left. Decays, the newest
    /// write and the sums stay in registers while the loop runs over the rows.
    ///
    /// SAFETY: the columns must exist, and the lengths of all arrays must be those of [`Write::pass`].
    #[inline(always)]
    unsafe fn panel<S: Simd, const V: usize, const CUT: bool>(&mut self, simd: S, column: usize) {
        let Self { write: Write { memory, gamma, x, z, dim_k, pairs }, with, sums } = self;
        let (columns, lanes, dim_k, older) = (gamma.len(), F::lanes::<S>(), *dim_k, *pairs - 1);
        let mask = F::mask::<S>(simd, if CUT { columns - column } else { 0 });
        // SAFETY: this is called with rows of at least `columns` numbers, from `column` on.
        let load = |from: *const F, v: usize| unsafe {
            let from = from.add(v * lanes);
            if CUT { F::load_masked(simd, mask, from) } else { F::load(simd, from) }
        };
        // SAFETY: likewise.
        let store = |to: *mut F, v: usize, vector| unsafe {
            let to = to.add(v * lanes);
            if CUT { F::store_masked(simd, mask, to, vector) } else { F::store(simd, to, vector) }
        };
        let zero = F::splat(simd, F::zero());
        let (mut gammas, mut newest, mut totals) = ([zero; V], [zero; V], [[zero; V]; N]);
        // SAFETY: rows and columns are inside of the arrays.
        unsafe {
            let (x, z) = (x.as_ptr(), z.as_ptr().add(column));
            for v in 0..V {
                gammas[v] = load(gamma.as_ptr().add(column), v);
                newest[v] = load(z.add(older * columns), v);
            }
            for k in 0..dim_k {
                let line = memory.as_mut_ptr().add(k * columns + column);
                let mut s = [zero; V];
                for v in 0..V {
                    s[v] = F::product(simd, gammas[v], load(line, v));
                }
                for pair in 0..older {
                    let x = F::splat(simd, *x.add(pair * dim_k + k));
                    for v in 0..V {
                        s[v] = F::product_sum(simd, x, load(z.add(pair * columns), v), s[v]);
                    }
                }
                let x = F::splat(simd, *x.add(older * dim_k + k));
                for v in 0..V {
                    s[v] = F::product_sum(simd, x, newest[v], s[v]);
                    store(line, v, s[v]);
                }
                for n in 0..N {
                    let with = F::splat(simd, *with[n].as_ptr().add(k));
                    for v in 0..V {
                        totals[n][v] = F::product_sum(simd, with, s[v], totals[n][v]);
                    }
                }
            }
            for n in 0..N {
                for v in 0..V {
                    store(sums[n].as_mut_ptr().add(column), v, totals[n][v]);
                }
            }
        }
    }
}
