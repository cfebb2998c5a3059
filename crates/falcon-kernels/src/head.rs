//! One head of one sequence: the pairs that it writes, and where their keys and values are found in the inputs and the
//! state.

use std::ops::Range;

use crate::Real;
use crate::call::Call;
use crate::coefficients::{Coefficients, Purpose};
use crate::rule::{Align, Rule};
use crate::segment::Segment;
use crate::simd::{Vectorised, copy_row, dispatch, prefetch};
use crate::state::{State, row};

/// Where the key or the value of a pair comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A slot of the incoming tail.
    Tail(usize),
    /// The incoming last key.
    LastKey,
    /// A token of this call, counted from the start of its sequence.
    Token(usize),
}

/// The pairs of one sequence, indexed by the time of their first write. Pairs of the tail have negative times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pairs {
    align: Align,
    started: bool,
    tail_len: usize,
    window: usize,
    pub tokens: usize,
}

impl Pairs {
    pub fn new<F>(rule: &Rule, state: &State<F>, sequence: usize, tokens: usize) -> Self {
        Self {
            align: rule.align,
            started: state.started[sequence],
            tail_len: state.tail_len[sequence],
            window: rule.window,
            tokens,
        }
    }

    /// Whether the first token has no pair, as in a fresh sequence with next-latent alignment.
    fn boundary(&self) -> bool {
        self.align == Align::Next && !self.started
    }

    fn first(&self) -> isize {
        if self.boundary() { 1 } else { -(self.tail_len as isize) }
    }

    /// How many pairs from before `time` a segment that starts there needs.
    pub fn tail(&self, time: usize) -> usize {
        let written = (time as isize - self.first()).max(0) as usize;
        written.min(self.window - 1)
    }

    /// Where the key and the value of the pair at `time` are. A first token without a pair has no key.
    pub fn places(&self, time: isize) -> (Option<Place>, Place) {
        if time < 0 {
            let slot = Place::Tail((self.tail_len as isize + time) as usize);
            return (Some(slot), slot);
        }
        let time = time as usize;
        let key = match (self.align, time) {
            (Align::Same, _) => Some(Place::Token(time)),
            (Align::Next, 0) => self.started.then_some(Place::LastKey),
            (Align::Next, _) => Some(Place::Token(time - 1)),
        };
        (key, Place::Token(time))
    }

    /// The times of the pairs that the outgoing tail holds, oldest first.
    pub fn outgoing(&self) -> Range<isize> {
        let end = self.tokens as isize;
        end - self.tail(self.tokens) as isize..end
    }
}

/// One head of one sequence in a call, or a block of its columns.
#[derive(Clone)]
pub(crate) struct Head<'a, F> {
    pub call: &'a Call<'a, F>,
    pub state: &'a State<F>,
    pub sequence: usize,
    pub head: usize,
    /// The head of its queries and keys.
    pub key_head: usize,
    /// Columns of its values.
    pub values: Range<usize>,
}

impl<'a, F: Real> Head<'a, F> {
    /// All columns of a head.
    pub fn new(call: &'a Call<'a, F>, state: &'a State<F>, sequence: usize, head: usize) -> Self {
        let key_head = head / call.sizes.group();
        Self { call, state, sequence, head, key_head, values: 0..call.sizes.dim_v }
    }

    /// One of `blocks` equal blocks of columns.
    pub fn block(&self, index: usize, blocks: usize) -> Self {
        Self { values: row(index, self.values.len() / blocks), ..self.clone() }
    }

    /// The head with all its columns.
    pub fn whole(&self) -> Self {
        Self { values: 0..self.call.sizes.dim_v, ..self.clone() }
    }

    /// The tokens of this sequence.
    pub fn tokens(&self) -> Range<usize> {
        self.call.inputs.offsets[self.sequence]..self.call.inputs.offsets[self.sequence + 1]
    }

    pub fn pairs(&self) -> Pairs {
        Pairs::new(&self.call.rule, self.state, self.sequence, self.tokens().len())
    }

    /// Packs the steps `steps` of this sequence, and computes their coefficients.
    pub fn pack(
        &self,
        steps: Range<usize>,
        segment: &mut Segment<F>,
        coefficients: &mut Coefficients<F>,
        purpose: Purpose,
    ) {
        dispatch(Pack { head: self, steps, segment, coefficients, purpose });
    }

    /// Packs the steps `steps` of this sequence, with the gains and decays as they are given. `next` is how many tokens
    /// after them the next segment is; it is negative in a backward pass.
    #[inline(always)]
    pub fn gather(
        &self,
        steps: Range<usize>,
        next: isize,
        segment: &mut Segment<F>,
        coefficients: &mut Coefficients<F>,
    ) {
        let (pairs, base, key_head) = (self.pairs(), self.tokens().start, self.key_head);
        let inputs = &self.call.inputs;
        segment.steps = steps.len();
        segment.tail = pairs.tail(steps.start);
        segment.first = usize::from(steps.start == 0 && pairs.boundary());
        coefficients.gain.clear();
        coefficients.decay.clear();
        for t in steps.clone().map(|t| base + t) {
            if let Some(gain) = &inputs.gain {
                coefficients.gain.extend_from_slice(self.gains(gain.row(t, self.head)));
            }
            if let Some(decay) = &inputs.decay {
                coefficients.decay.extend_from_slice(self.gains(decay.row(t, self.head)));
            }
        }
        let (dim_k, columns, rows) = (self.call.sizes.dim_k, segment.columns, segment.rows());
        segment.qx.resize((steps.len() + rows) * dim_k);
        segment.v.resize(rows * columns);
        let (q, x) = segment.qx.split_at_mut(steps.len() * dim_k);
        // The rows of a head are far apart in memory, and the processor does not guess which ones come next. Asking for
        // one with every row that is copied is faster than asking for all of them at once.
        let later = |t: usize| t.checked_add_signed(next).filter(|t| *t < pairs.tokens).map(|t| base + t);
        for (t, q) in steps.clone().zip(q.chunks_exact_mut(dim_k)) {
            if let Some(later) = later(t) {
                prefetch(inputs.q.row(later, key_head));
            }
            copy_row(q, inputs.q.row(base + t, key_head));
        }
        let times = steps.start as isize - segment.tail as isize..steps.end as isize;
        for ((time, x), v) in times.zip(x.chunks_exact_mut(dim_k)).zip(segment.v.chunks_exact_mut(columns)) {
            let (key, value) = pairs.places(time);
            match key {
                None => x.fill(F::zero()),
                Some(place) => copy_row(x, self.key(place, base, key_head)),
            }
            let values = match value {
                Place::Tail(slot) => self.state.tail_v_of(self.sequence, slot, self.head),
                Place::Token(t) => {
                    if let Some(later) = later(t) {
                        prefetch(inputs.k.row(later, key_head));
                        prefetch(&inputs.v.row(later, self.head)[self.values.clone()]);
                    }
                    inputs.v.row(base + t, self.head)
                }
                Place::LastKey => unreachable!("a value is never the last key"),
            };
            let (v, normaliser) = v.split_at_mut(self.values.len());
            copy_row(v, &values[self.values.clone()]);
            normaliser.fill(F::one());
        }
    }

    /// The gains of this block of columns: the only one, or one for each column.
    fn gains<'g>(&self, gains: &'g [F]) -> &'g [F] {
        if gains.len() > 1 { &gains[self.values.clone()] } else { gains }
    }

    fn key(&self, place: Place, base: usize, key_head: usize) -> &[F] {
        match place {
            Place::Tail(slot) => self.state.tail_x_of(self.sequence, slot, key_head),
            Place::LastKey => self.state.last_key_of(self.sequence, key_head),
            Place::Token(t) => self.call.inputs.k.row(base + t, key_head),
        }
    }
}

/// Updates the last key and the tail of every sequence to the end of the call. The memory does not change.
pub(crate) fn advance<F: Real>(call: &Call<'_, F>, state: &mut State<F>) {
    let Call { rule, inputs, sizes, .. } = call;
    for sequence in 0..sizes.sequences {
        let tokens = inputs.offsets[sequence]..inputs.offsets[sequence + 1];
        if tokens.is_empty() {
            continue;
        }
        let pairs = Pairs::new(rule, state, sequence, tokens.len());
        let outgoing = pairs.outgoing();
        state.tail_len[sequence] = outgoing.len();
        // Slots only move towards 0, so filling them in order never overwrites one that is still needed.
        let first_slot = sequence * rule.tail_capacity();
        for (slot, time) in outgoing.enumerate() {
            let (key, value) = pairs.places(time);
            if let Place::Tail(from) = value {
                for (tail, width) in [
                    (&mut state.tail_x, sizes.key_heads * sizes.dim_k),
                    (&mut state.tail_v, sizes.heads * sizes.dim_v),
                ] {
                    tail.copy_within(row(first_slot + from, width), (first_slot + slot) * width);
                }
                continue;
            }
            for key_head in 0..sizes.key_heads {
                match key.expect("a pair in the tail has a key") {
                    Place::Token(t) => {
                        let from = inputs.k.row(tokens.start + t, key_head);
                        state.tail_x_of_mut(sequence, slot, key_head).copy_from_slice(from);
                    }
                    _ => state.keep_last_key(sequence, slot, key_head),
                }
            }
            for head in 0..sizes.heads {
                if let Place::Token(t) = value {
                    let from = inputs.v.row(tokens.start + t, head);
                    state.tail_v_of_mut(sequence, slot, head).copy_from_slice(from);
                }
            }
        }
        for key_head in 0..sizes.key_heads {
            let last = inputs.k.row(tokens.end - 1, key_head);
            state.last_key_of_mut(sequence, key_head).copy_from_slice(last);
        }
        state.started[sequence] = true;
    }
}

/// [`Head::pack`], compiled for the vector instructions of the machine.
struct Pack<'s, 'a, F> {
    head: &'s Head<'a, F>,
    steps: Range<usize>,
    segment: &'s mut Segment<F>,
    coefficients: &'s mut Coefficients<F>,
    purpose: Purpose,
}

impl<F: Real> Vectorised for Pack<'_, '_, F> {
    #[inline(always)]
    fn run(self) {
        let Self { head, steps, segment, coefficients, purpose } = self;
        let length = steps.len() as isize;
        let next = if purpose == Purpose::Backward { -length } else { length };
        head.gather(steps, next, segment, coefficients);
        coefficients.forward(&head.call.rule, segment, purpose);
    }
}
