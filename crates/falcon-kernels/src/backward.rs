//! The backward pass over a batch of sequences: the adjoint of the forward pass, in the same form.

use std::ops::Range;

use rayon::prelude::*;

use crate::aligned::Aligned;
use crate::call::Call;
use crate::coefficients::{Coefficients, Purpose};
use crate::forward::{heads, heads_per_task};
use crate::head::{Head, Pairs, Place};
use crate::inputs::Sizes;
use crate::real::add;
use crate::rule::Rule;
use crate::scratch::Scratch;
use crate::segment::{Segment, SegmentGrad};
use crate::shared::{HeadRows, SharedHeads};
use crate::simd::{Vectorised, copy_row, dispatch, prefetch, vectorised};
use crate::state::{State, row};
use crate::{Real, View, normaliser};

/// The gradients of the inputs of a call, and of its incoming state.
#[derive(Clone, Debug, PartialEq)]
pub struct Grads<F> {
    /// `[tokens, key_heads, dim_k]`, summed over the value heads of a group.
    pub q: Vec<F>,
    /// `[tokens, key_heads, dim_k]`, summed over the value heads of a group.
    pub k: Vec<F>,
    /// `[tokens, heads, dim_v]`.
    pub v: Vec<F>,
    /// `[tokens, heads, 1 or dim_v]`; empty for unit gains.
    pub gain: Vec<F>,
    /// `[tokens, heads, 1 or dim_v]`, with a gradient for every token even if the input is one number per head;
    /// empty without decay.
    pub decay: Vec<F>,
    /// The gradient of the incoming state: memory, last key and tail.
    pub state: State<F>,
}

/// Where [`Call::backward_into`] writes the gradients of the inputs, in the shapes of [`Grads`]. All numbers are
/// overwritten.
#[derive(Debug)]
pub struct GradsMut<'a, F> {
    /// `[tokens, key_heads, dim_k]`.
    pub q: &'a mut [F],
    /// `[tokens, key_heads, dim_k]`.
    pub k: &'a mut [F],
    /// `[tokens, heads, dim_v]`.
    pub v: &'a mut [F],
    /// `[tokens, heads, 1 or dim_v]`; empty for unit gains.
    pub gain: &'a mut [F],
    /// `[tokens, heads, 1 or dim_v]`; empty without decay.
    pub decay: &'a mut [F],
}

/// [`Call::backward_into`] without the checks.
pub(crate) fn backward<F: Real>(
    call: &Call<'_, F>,
    state: &State<F>,
    saved: &[F],
    grad_out: View<'_, F>,
    grad_state: Option<&State<F>>,
    mut grads: GradsMut<'_, F>,
) -> State<F> {
    let Call { rule, inputs, sizes, .. } = call;
    let [gain_width, decay_width] = inputs.gate_widths();
    let mut incoming = state.zeros_like();
    clear_copied(call, state, &mut grads);
    if let Some(grad_state) = grad_state {
        incoming.memory.copy_from_slice(&grad_state.memory);
        pass_through(call, state, grad_state, &mut grads, &mut incoming);
    }
    let share = |data, heads, width| SharedHeads::new(data, inputs.offsets, heads, width);
    let q = share(grads.q, sizes.key_heads, sizes.dim_k);
    let k = share(grads.k, sizes.key_heads, sizes.dim_k);
    let v = share(grads.v, sizes.heads, sizes.dim_v);
    let gain = share(grads.gain, sizes.heads, gain_width);
    let decay = share(grads.decay, sizes.heads, decay_width);
    let size = call.memory_len();
    let heads = heads(call, state);
    // The saved memories of each head.
    let mut rest = saved;
    let saved: Vec<&[F]> = heads
        .iter()
        .map(|head| {
            let (saved, after) = rest.split_at(call.segments(head.sequence) * size);
            rest = after;
            saved
        })
        .collect();
    let mut runs: Vec<_> = heads
        .chunks(sizes.group())
        .zip(saved.chunks(sizes.group()))
        .zip(incoming.memory.chunks_exact_mut(sizes.group() * size))
        .map(|((heads, saved), memories)| {
            let (sequence, key_head) = (heads[0].sequence, heads[0].key_head);
            let heads = heads.iter().zip(saved).zip(memories.chunks_exact_mut(size));
            let heads = heads.map(|((head, saved), memory)| HeadGrad {
                head,
                saved,
                v: v.claim(sequence, head.head),
                gain: gain.claim(sequence, head.head),
                decay: decay.claim(sequence, head.head),
                memory,
                tail_v: vec![F::zero(); rule.tail_capacity() * sizes.dim_v],
            });
            KeyGrad {
                q: q.claim(sequence, key_head),
                k: k.claim(sequence, key_head),
                last_key: vec![F::zero(); sizes.dim_k],
                tail_x: vec![F::zero(); rule.tail_capacity() * sizes.dim_k],
                heads: heads.collect(),
            }
        })
        .collect();
    // The heads of a group add to the gradients of one key, so one task takes a whole group.
    let share = heads_per_task(sizes.sequences, sizes.key_heads);
    runs.chunks_mut(sizes.key_heads)
        .flat_map(|sequence| sequence.chunks_mut(share))
        .collect::<Vec<_>>()
        .into_par_iter()
        .for_each(|groups| run(grad_out, groups));
    let of_state: Vec<_> = runs
        .into_iter()
        .map(|group| {
            let tails: Vec<_> = group.heads.into_iter().map(|head| head.tail_v).collect();
            (group.last_key, group.tail_x, tails)
        })
        .collect();
    for ((last_key, tail_x, tails), heads) in of_state.into_iter().zip(heads.chunks(sizes.group())) {
        let (sequence, key_head) = (heads[0].sequence, heads[0].key_head);
        add(incoming.last_key_of_mut(sequence, key_head), &last_key);
        for slot in 0..rule.tail_capacity() {
            let x = &tail_x[row(slot, sizes.dim_k)];
            add(incoming.tail_x_of_mut(sequence, slot, key_head), x);
            for (head, tail_v) in heads.iter().zip(&tails) {
                let v = &tail_v[row(slot, sizes.dim_v)];
                add(incoming.tail_v_of_mut(sequence, slot, head.head), v);
            }
        }
    }
    incoming
}

/// A key head during a backward pass, with the value heads that share it.
struct KeyGrad<'a, F> {
    q: HeadRows<'a, F>,
    k: HeadRows<'a, F>,
    last_key: Vec<F>,
    /// `[tail capacity, dim_k]`.
    tail_x: Vec<F>,
    heads: Vec<HeadGrad<'a, F>>,
}

/// One value head during a backward pass.
struct HeadGrad<'a, F> {
    head: &'a Head<'a, F>,
    /// The memory before each segment.
    saved: &'a [F],
    v: HeadRows<'a, F>,
    gain: HeadRows<'a, F>,
    decay: HeadRows<'a, F>,
    /// The gradient of the outgoing memory, which becomes that of the incoming one.
    memory: &'a mut [F],
    /// `[tail capacity, dim_v]`.
    tail_v: Vec<F>,
}

/// Runs the backward pass of some key heads of one sequence, from the last segment to the first.
fn run<F: Real>(grad_out: View<'_, F>, groups: &mut [KeyGrad<'_, F>]) {
    let Call { rule, form, sizes: Sizes { dim_k, dim_v, .. }, .. } = groups[0].heads[0].head.call;
    let (dim_k, dim_v) = (*dim_k, *dim_v);
    let (mut segment, mut coefficients) = (Segment::new(rule, dim_k, dim_v), Coefficients::default());
    let (mut grad, mut scratch, mut upstream) = (SegmentGrad::default(), Scratch::default(), Aligned::default());
    let (mut grad_gain, mut grad_decay) = (Vec::new(), Vec::new());
    let tokens = groups[0].heads[0].head.tokens().len();
    for (index, steps) in form.segments(rule, tokens).enumerate().rev() {
        for KeyGrad { q, k, last_key, tail_x, heads } in &mut *groups {
            for (member, head) in heads.iter_mut().enumerate() {
                let memory = &head.saved[row(index, head.memory.len())];
                head.head.pack(steps.clone(), &mut segment, &mut coefficients, Purpose::Backward);
                vectorised(|| gather_upstream(head.head, &steps, grad_out, &mut upstream));
                if let Some(n) = rule.normaliser {
                    // The reads were not saved, so they are computed again.
                    let mut read = Aligned::default();
                    read.resize(steps.len() * segment.columns);
                    form.forward(&segment, &mut memory.to_vec(), &mut read, &mut scratch);
                    for (read, grad) in read.chunks_exact_mut(segment.columns).zip(upstream.chunks_exact(dim_v)) {
                        normaliser::divide_backward(read, F::of(n.eps), grad);
                    }
                    upstream = read;
                }
                grad.reset(&segment);
                form.backward(&segment, memory, &upstream, head.memory, &mut grad, &mut scratch);
                let (gain, decay) = (&mut grad_gain, &mut grad_decay);
                dispatch(GateGrads {
                    coefficients: &mut coefficients,
                    rule,
                    segment: &segment,
                    grad: &mut grad,
                    gain,
                    decay,
                });
                dispatch(Scatter {
                    segment: &segment,
                    steps: steps.clone(),
                    grad: &grad,
                    gain: &grad_gain,
                    decay: &grad_decay,
                    first_of_group: member == 0,
                    head,
                    q,
                    k,
                    last_key,
                    tail_x,
                });
            }
        }
    }
}

/// The gradients of a segment's gains and decays.
struct GateGrads<'a, F> {
    coefficients: &'a mut Coefficients<F>,
    rule: &'a Rule,
    segment: &'a Segment<F>,
    grad: &'a mut SegmentGrad<F>,
    gain: &'a mut Vec<F>,
    decay: &'a mut Vec<F>,
}

impl<F: Real> Vectorised for GateGrads<'_, F> {
    #[inline(always)]
    fn run(self) {
        self.coefficients.backward(self.rule, self.segment, self.grad, self.gain, self.decay);
    }
}

/// Writes the gradients of a segment to those of the call, or adds them where others have been written.
struct Scatter<'s, 'a, F> {
    segment: &'s Segment<F>,
    steps: Range<usize>,
    grad: &'s SegmentGrad<F>,
    gain: &'s [F],
    decay: &'s [F],
    /// Whether no other head has written to the gradients of these queries and keys.
    first_of_group: bool,
    head: &'s mut HeadGrad<'a, F>,
    q: &'s mut HeadRows<'a, F>,
    k: &'s mut HeadRows<'a, F>,
    last_key: &'s mut [F],
    tail_x: &'s mut [F],
}

impl<F: Real> Vectorised for Scatter<'_, '_, F> {
    #[inline(always)]
    fn run(self) {
        let Self { segment, steps, grad, gain, decay, first_of_group, head, q, k, last_key, tail_x } = self;
        let (dim_k, dim_v, pairs) = (segment.dim_k, segment.values, head.head.pairs());
        for (rows, found) in [(&mut head.gain, gain), (&mut head.decay, decay)] {
            let width = (found.len() / steps.len()).max(1);
            for (step, found) in steps.clone().zip(found.chunks_exact(width)) {
                rows.row(step).copy_from_slice(found);
            }
        }
        for (step, found) in steps.clone().zip(grad.qx.chunks_exact(dim_k)) {
            write(q.row(step), found, first_of_group);
        }
        // Segments come in reverse order: the pairs that the next one needs have been written by it, or by
        // `clear_copied` if this is the last.
        let written = (steps.end - pairs.tail(steps.end)) as isize;
        // The gradient of each pair goes to the token or slot that the pair came from.
        for r in 0..segment.rows() {
            let time = (steps.start + r) as isize - segment.tail as isize;
            let (key, value) = pairs.places(time);
            let x = &grad.qx[row(segment.steps + r, dim_k)];
            match key {
                None => {}
                Some(Place::Tail(slot)) => add(&mut tail_x[row(slot, dim_k)], x),
                Some(Place::LastKey) => add(last_key, x),
                Some(Place::Token(t)) => {
                    let is_last_key = t + 1 == pairs.tokens;
                    write(k.row(t), x, first_of_group && time < written && !is_last_key);
                }
            }
            let v = &grad.v[row(r, segment.columns)][..dim_v];
            match value {
                Place::Tail(slot) => add(&mut head.tail_v[row(slot, dim_v)], v),
                Place::Token(t) => write(head.v.row(t), v, time < written),
                Place::LastKey => unreachable!("a value is never the last key"),
            }
        }
    }
}

/// Writes a row, if it is the first to be written there, or else adds it.
#[inline(always)]
fn write<F: Real>(to: &mut [F], row: &[F], first: bool) {
    if first { copy_row(to, row) } else { add(to, row) }
}

/// Copies `grad_out` of one head and segment, `[steps, dim_v]`.
#[inline(always)]
fn gather_upstream<F: Real>(
    head: &Head<'_, F>,
    steps: &Range<usize>,
    grad_out: View<'_, F>,
    upstream: &mut Aligned<F>,
) {
    let (start, width) = (head.tokens().start, head.values.len());
    upstream.resize(steps.len() * width);
    for (t, to) in steps.clone().zip(upstream.chunks_exact_mut(width)) {
        if let Some(before) = t.checked_sub(steps.len()) {
            prefetch(grad_out.row(start + before, head.head));
        }
        copy_row(to, grad_out.row(start + t, head.head));
    }
}

/// Sets the gradients of the tokens that the outgoing last key and tail are copies of to 0. All others are written
/// before anything is added to them.
fn clear_copied<F: Real>(call: &Call<'_, F>, state: &State<F>, grads: &mut GradsMut<'_, F>) {
    let Call { rule, inputs, sizes, .. } = call;
    let (keys, values) = (sizes.key_heads * sizes.dim_k, sizes.heads * sizes.dim_v);
    for sequence in 0..sizes.sequences {
        let tokens = inputs.offsets[sequence]..inputs.offsets[sequence + 1];
        let pairs = Pairs::new(rule, state, sequence, tokens.len());
        if let Some(last) = tokens.clone().next_back() {
            grads.k[row(last, keys)].fill(F::zero());
        }
        for (key, value) in pairs.outgoing().map(|time| pairs.places(time)) {
            if let Some(Place::Token(t)) = key {
                grads.k[row(tokens.start + t, keys)].fill(F::zero());
            }
            if let Place::Token(t) = value {
                grads.v[row(tokens.start + t, values)].fill(F::zero());
            }
        }
    }
}

/// The outgoing last key and tail are copies of inputs or, in short sequences, of the incoming state. Adds their
/// gradients to the gradients of what they were copied from. A sequence without tokens passes its state through.
fn pass_through<F: Real>(
    call: &Call<'_, F>,
    state: &State<F>,
    upstream: &State<F>,
    grads: &mut GradsMut<'_, F>,
    incoming: &mut State<F>,
) {
    let Call { rule, inputs, sizes, .. } = call;
    let &Sizes { heads, key_heads, dim_k, dim_v, .. } = sizes;
    for sequence in 0..sizes.sequences {
        let tokens = inputs.offsets[sequence]..inputs.offsets[sequence + 1];
        let pairs = Pairs::new(rule, state, sequence, tokens.len());
        for key_head in 0..key_heads {
            let last = upstream.last_key_of(sequence, key_head);
            match tokens.clone().next_back() {
                Some(t) => add(&mut grads.k[row(t * key_heads + key_head, dim_k)], last),
                None => add(incoming.last_key_of_mut(sequence, key_head), last),
            }
        }
        for (slot, time) in pairs.outgoing().enumerate() {
            let (key, value) = pairs.places(time);
            for key_head in 0..key_heads {
                let x = upstream.tail_x_of(sequence, slot, key_head);
                match key {
                    None => {}
                    Some(Place::Tail(to)) => add(incoming.tail_x_of_mut(sequence, to, key_head), x),
                    Some(Place::LastKey) => add(incoming.last_key_of_mut(sequence, key_head), x),
                    Some(Place::Token(t)) => {
                        add(&mut grads.k[row((tokens.start + t) * key_heads + key_head, dim_k)], x);
                    }
                }
            }
            for head in 0..heads {
                let v = upstream.tail_v_of(sequence, slot, head);
                match value {
                    Place::Tail(to) => add(incoming.tail_v_of_mut(sequence, to, head), v),
                    Place::Token(t) => {
                        add(&mut grads.v[row((tokens.start + t) * heads + head, dim_v)], v);
                    }
                    Place::LastKey => unreachable!("a value is never the last key"),
                }
            }
        }
    }
}
