//! The backward call: the adjoint of [`crate::forward`], in the same form.

use std::ops::Range;

use rayon::prelude::*;

use crate::call::{check, check_out, heads, heads_per_task};
use crate::coefficients::{Coefficients, Purpose};
use crate::error::Error;
use crate::form::Form;
use crate::head::{Head, Pairs, Place};
use crate::inputs::{Inputs, Sizes, shape};
use crate::real::add;
use crate::rule::Rule;
use crate::scratch::Scratch;
use crate::segment::{Segment, SegmentGrad};
use crate::shared::{HeadRows, SharedHeads};
use crate::simd::{Vectorised, dispatch};
use crate::state::{State, row};
use crate::{Real, View, normaliser};

/// `d loss / d` every input of a call.
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
    /// `[tokens, heads, 1 or dim_v]`, token by token also where the input was one number per head; empty without
    /// decay.
    pub decay: Vec<F>,
    /// Of the incoming state: memory, last key and tail.
    pub state: State<F>,
}

/// Adjoint of [`crate::forward`]: `state` is the incoming one, `grad_out` is `[tokens, heads, dim_v]`, and `grad_state`
/// the gradient of the outgoing state, if anything depends on it.
///
/// Passing `Grads::state` on as the `grad_state` of the segment before gives the gradients of the undivided
/// sequence. This runs the forward pass again; [`record`] saves that.
pub fn backward<F: Real>(
    rule: &Rule,
    form: Form,
    inputs: &Inputs<'_, F>,
    state: &State<F>,
    grad_out: &[F],
    grad_state: Option<&State<F>>,
) -> Result<Grads<F>, Error> {
    let sizes = check(rule, form, inputs, state)?;
    check_out("grad_out", grad_out, &sizes)?;
    check_grad_state(rule, &sizes, grad_state)?;
    let mut out = vec![F::zero(); grad_out.len()];
    record(rule, form, inputs, &mut state.clone(), &mut out)?.backward(inputs, grad_out, grad_state)
}

fn check_grad_state<F: Real>(rule: &Rule, sizes: &Sizes, grad_state: Option<&State<F>>) -> Result<(), Error> {
    let check = |state: &State<F>| state.check(rule, sizes).map_err(|error| Error::GradState(Box::new(error)));
    grad_state.map_or(Ok(()), check)
}

/// [`crate::forward`], keeping what the backward pass needs: the incoming state, and the memory before each segment.
///
/// ```
/// use falcon_kernels::{Form, Inputs, Rule, View, record};
///
/// let (q, k, v) = ([1.0, 2.0], [1.0, 0.5], [3.0, 4.0]);
/// let view = |data| View::new(data, [2, 1, 1]);
/// let inputs = Inputs { q: view(&q)?, k: view(&k)?, v: view(&v)?, gain: None, decay: None, offsets: &[0, 2] };
/// let rule = Rule::LINEAR_ATTENTION;
/// let (mut state, mut out) = (inputs.fresh_state(&rule)?, [0.0; 2]);
/// let tape = record(&rule, Form::CHUNKED, &inputs, &mut state, &mut out)?;
/// assert_eq!(out, [3.0, 10.0]);
/// // The gradients of the sum of the outputs; nothing depends on the outgoing state.
/// let grads = tape.backward(&inputs, &[1.0, 1.0], None)?;
/// assert_eq!(grads.q, [3.0, 5.0]);
/// assert_eq!(grads.v, [3.0, 1.0]);
/// # Ok::<(), falcon_kernels::Error>(())
/// ```
pub fn record<F: Real>(
    rule: &Rule,
    form: Form,
    inputs: &Inputs<'_, F>,
    state: &mut State<F>,
    out: &mut [F],
) -> Result<Tape<F>, Error> {
    let mut memories = vec![F::zero(); saved_len(rule, form, inputs)?];
    let incoming = state.clone();
    record_into(rule, form, inputs, state, out, &mut memories)?;
    Ok(Tape { rule: *rule, form, offsets: inputs.offsets.to_vec(), state: incoming, memories })
}

/// How many numbers [`record_into`] saves: the memories before each segment of each sequence.
pub fn saved_len<F: Real>(rule: &Rule, form: Form, inputs: &Inputs<'_, F>) -> Result<usize, Error> {
    let sizes = inputs.check(rule)?;
    form.check(rule, inputs)?;
    Ok(saved_numbers(rule, form, inputs, &sizes))
}

fn saved_numbers<F: Real>(rule: &Rule, form: Form, inputs: &Inputs<'_, F>, sizes: &Sizes) -> usize {
    let segments: usize = inputs.offsets.windows(2).map(|w| form.segments(rule, w[1] - w[0]).len()).sum();
    segments * sizes.heads * sizes.dim_k * rule.state_columns(sizes.dim_v)
}

/// [`record`] into memory of the caller's: `saved` has [`saved_len`] numbers. For frameworks that have an allocator of
/// their own.
pub fn record_into<F: Real>(
    rule: &Rule,
    form: Form,
    inputs: &Inputs<'_, F>,
    state: &mut State<F>,
    out: &mut [F],
    saved: &mut [F],
) -> Result<(), Error> {
    let sizes = check(rule, form, inputs, state)?;
    check_out("out", out, &sizes)?;
    check_saved(saved, saved_numbers(rule, form, inputs, &sizes))?;
    F::forward(rule, form, inputs, &sizes, state, out, saved);
    Ok(())
}

fn check_saved<F>(saved: &[F], needed: usize) -> Result<(), Error> {
    let (tensor, got) = ("saved", saved.len());
    if got == needed { Ok(()) } else { Err(Error::Length { tensor, got, needed }) }
}

/// What [`record`] keeps of a forward pass.
#[derive(Clone, Debug)]
pub struct Tape<F> {
    rule: Rule,
    form: Form,
    offsets: Vec<usize>,
    state: State<F>,
    /// Head after head, segment after segment.
    memories: Vec<F>,
}

impl<F: Real> Tape<F> {
    /// As [`backward`], from the `inputs` that were recorded.
    pub fn backward(
        &self,
        inputs: &Inputs<'_, F>,
        grad_out: &[F],
        grad_state: Option<&State<F>>,
    ) -> Result<Grads<F>, Error> {
        let sizes = inputs.check(&self.rule)?;
        if inputs.offsets != self.offsets {
            return Err(Error::OtherTape { recorded: self.offsets.clone(), got: inputs.offsets.to_vec() });
        }
        check_out("grad_out", grad_out, &sizes)?;
        let zeros = |heads: usize, width: usize| vec![F::zero(); sizes.tokens * heads * width];
        let (mut q, mut k) = (zeros(sizes.key_heads, sizes.dim_k), zeros(sizes.key_heads, sizes.dim_k));
        let mut v = zeros(sizes.heads, sizes.dim_v);
        let mut gain = zeros(sizes.heads, inputs.gain.map_or(0, |gain| gain.shape()[2]));
        let mut decay = zeros(sizes.heads, inputs.decay.map_or(0, |decay| decay.shape()[2]));
        let recorded =
            Recorded { rule: &self.rule, form: self.form, state: &self.state, memories: &self.memories };
        let grads = GradsMut { q: &mut q, k: &mut k, v: &mut v, gain: &mut gain, decay: &mut decay };
        let grad_out = View::new(grad_out, [sizes.tokens, sizes.heads, sizes.dim_v])?;
        let state = backward_into(recorded, inputs, grad_out, grad_state, grads)?;
        Ok(Grads { q, k, v, gain, decay, state })
    }
}

/// A forward pass that [`record_into`] recorded, where the caller keeps it.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a, F> {
    /// Its rule.
    pub rule: &'a Rule,
    /// Its form.
    pub form: Form,
    /// The state it began with.
    pub state: &'a State<F>,
    /// What it saved.
    pub memories: &'a [F],
}

impl<'a, F: Real> Recorded<'a, F> {
    /// The saved memories of each head of each sequence.
    fn saved(&self, inputs: &Inputs<'_, F>, sizes: &Sizes) -> Vec<&'a [F]> {
        let size = sizes.dim_k * self.rule.state_columns(sizes.dim_v);
        let mut rest = self.memories;
        (0..sizes.sequences * sizes.heads)
            .map(|index| {
                let sequence = index / sizes.heads;
                let tokens = inputs.offsets[sequence + 1] - inputs.offsets[sequence];
                let (saved, after) = rest.split_at(self.form.segments(self.rule, tokens).len() * size);
                rest = after;
                saved
            })
            .collect()
    }
}

/// Where [`backward_into`] puts the gradients of the inputs, shaped as in [`Grads`]. Those of `q`, `k` and `v` are
/// added to what is there, so start with zeros; those of `gain` and `decay` replace it.
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

/// [`Tape::backward`] into memory of the caller's. Returns the gradient of the incoming state.
pub fn backward_into<F: Real>(
    recorded: Recorded<'_, F>,
    inputs: &Inputs<'_, F>,
    grad_out: View<'_, F>,
    grad_state: Option<&State<F>>,
    grads: GradsMut<'_, F>,
) -> Result<State<F>, Error> {
    let Recorded { rule, form, state, memories } = recorded;
    let sizes = check(rule, form, inputs, state)?;
    let Sizes { tokens, heads, key_heads, dim_k, dim_v, .. } = sizes;
    shape("grad_out", &grad_out, [tokens, heads, dim_v], "tokens, heads, dim_v")?;
    check_grad_state(rule, &sizes, grad_state)?;
    check_saved(memories, saved_numbers(rule, form, inputs, &sizes))?;
    let width = |view: Option<View<'_, F>>| view.map_or(0, |view| view.shape()[2]);
    for (tensor, got, needed) in [
        ("gradient of q", grads.q.len(), tokens * key_heads * dim_k),
        ("gradient of k", grads.k.len(), tokens * key_heads * dim_k),
        ("gradient of v", grads.v.len(), tokens * heads * dim_v),
        ("gradient of gain", grads.gain.len(), tokens * heads * width(inputs.gain)),
        ("gradient of decay", grads.decay.len(), tokens * heads * width(inputs.decay)),
    ] {
        if got != needed {
            return Err(Error::Length { tensor, got, needed });
        }
    }
    Ok(F::backward(recorded, inputs, &sizes, grad_out, grad_state, grads))
}

/// [`backward_into`] without the checks, compiled once for each number.
pub(crate) fn backward_checked<F: Real>(
    recorded: Recorded<'_, F>,
    inputs: &Inputs<'_, F>,
    sizes: &Sizes,
    grad_out: View<'_, F>,
    grad_state: Option<&State<F>>,
    mut grads: GradsMut<'_, F>,
) -> State<F> {
    let Recorded { rule, form, state, .. } = recorded;
    let sizes = *sizes;
    let gain_width = inputs.gain.map_or(0, |gain| gain.shape()[2]);
    let decay_width = inputs.decay.map_or(0, |decay| decay.shape()[2]);
    let mut incoming = state.zeros_like();
    if let Some(grad_state) = grad_state {
        incoming.memory.copy_from_slice(&grad_state.memory);
        pass_through(rule, inputs, &sizes, state, grad_state, &mut grads, &mut incoming);
    }
    let share = |data, heads, width| SharedHeads::new(data, inputs.offsets, heads, width);
    let q = share(grads.q, sizes.key_heads, sizes.dim_k);
    let k = share(grads.k, sizes.key_heads, sizes.dim_k);
    let v = share(grads.v, sizes.heads, sizes.dim_v);
    let gain = share(grads.gain, sizes.heads, gain_width);
    let decay = share(grads.decay, sizes.heads, decay_width);
    let size = sizes.dim_k * rule.state_columns(sizes.dim_v);
    let saved = recorded.saved(inputs, &sizes);
    let heads = heads(rule, inputs, state, sizes);
    let mut runs: Vec<_> = heads
        .chunks(sizes.group())
        .zip(saved.chunks(sizes.group()))
        .zip(incoming.memory.chunks_exact_mut(sizes.group() * size))
        .map(|((heads, saved), memories)| {
            let (sequence, key_head) = (heads[0].sequence, heads[0].key_head());
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
    // The heads of a group share the gradients of their key, so a group is never divided.
    let share = heads_per_task(sizes.sequences, sizes.key_heads);
    runs.chunks_mut(sizes.key_heads)
        .flat_map(|sequence| sequence.chunks_mut(share))
        .collect::<Vec<_>>()
        .into_par_iter()
        .for_each(|groups| run(form, grad_out, groups));
    let of_state: Vec<_> = runs
        .into_iter()
        .map(|group| {
            let tails: Vec<_> = group.heads.into_iter().map(|head| head.tail_v).collect();
            (group.last_key, group.tail_x, tails)
        })
        .collect();
    for ((last_key, tail_x, tails), heads) in of_state.into_iter().zip(heads.chunks(sizes.group())) {
        let (sequence, key_head) = (heads[0].sequence, heads[0].key_head());
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

/// A key head on its way back through a sequence, with the value heads that share it.
struct KeyGrad<'a, F> {
    q: HeadRows<'a, F>,
    k: HeadRows<'a, F>,
    last_key: Vec<F>,
    /// `[tail capacity, dim_k]`.
    tail_x: Vec<F>,
    heads: Vec<HeadGrad<'a, F>>,
}

/// One value head.
struct HeadGrad<'a, F> {
    head: &'a Head<'a, F>,
    /// The memory before each segment.
    saved: &'a [F],
    v: HeadRows<'a, F>,
    gain: HeadRows<'a, F>,
    decay: HeadRows<'a, F>,
    /// Of the outgoing memory, and in the end of the incoming one.
    memory: &'a mut [F],
    /// `[tail capacity, dim_v]`.
    tail_v: Vec<F>,
}

/// Takes key heads of one sequence back, segments last to first.
fn run<F: Real>(form: Form, grad_out: View<'_, F>, groups: &mut [KeyGrad<'_, F>]) {
    let Head { rule, sizes: Sizes { dim_k, dim_v, .. }, .. } = *groups[0].heads[0].head;
    let (mut segment, mut coefficients) = (Segment::new(rule, dim_k, dim_v), Coefficients::default());
    let (mut grad, mut scratch, mut upstream) = (SegmentGrad::default(), Scratch::default(), Vec::new());
    let (mut grad_gain, mut grad_decay) = (Vec::new(), Vec::new());
    let tokens = groups[0].heads[0].head.tokens().len();
    for (index, steps) in form.segments(rule, tokens).enumerate().rev() {
        for KeyGrad { q, k, last_key, tail_x, heads } in &mut *groups {
            for head in heads {
                let memory = &head.saved[row(index, head.memory.len())];
                head.head.pack(steps.clone(), &mut segment, &mut coefficients, Purpose::Backward);
                gather_upstream(head.head, &steps, grad_out, &mut upstream);
                if let Some(n) = rule.normaliser {
                    // What was read is not kept: it is read again.
                    let mut read = vec![F::zero(); steps.len() * segment.columns];
                    form.forward(&segment, &mut memory.to_vec(), &mut read, &mut scratch);
                    for (read, grad) in read.chunks_exact_mut(segment.columns).zip(upstream.chunks_exact(dim_v)) {
                        normaliser::divide_backward(read, F::of(n.eps), grad);
                    }
                    upstream = read;
                }
                grad.reset(&segment);
                form.backward(&segment, memory, &upstream, head.memory, &mut grad, &mut scratch);
                let (gain, decay) = (&mut grad_gain, &mut grad_decay);
                dispatch(GainGrads {
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
struct GainGrads<'a, F> {
    coefficients: &'a mut Coefficients<F>,
    rule: &'a Rule,
    segment: &'a Segment<F>,
    grad: &'a mut SegmentGrad<F>,
    gain: &'a mut Vec<F>,
    decay: &'a mut Vec<F>,
}

impl<F: Real> Vectorised for GainGrads<'_, F> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        self.coefficients.backward(self.rule, self.segment, self.grad, self.gain, self.decay);
    }
}

/// Adds the gradients of a segment to those of the call.
struct Scatter<'s, 'a, F> {
    segment: &'s Segment<F>,
    steps: Range<usize>,
    grad: &'s SegmentGrad<F>,
    gain: &'s [F],
    decay: &'s [F],
    head: &'s mut HeadGrad<'a, F>,
    q: &'s mut HeadRows<'a, F>,
    k: &'s mut HeadRows<'a, F>,
    last_key: &'s mut [F],
    tail_x: &'s mut [F],
}

impl<F: Real> Vectorised for Scatter<'_, '_, F> {
    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let Self { segment, steps, grad, gain, decay, head, q, k, last_key, tail_x } = self;
        let (dim_k, dim_v, pairs) = (segment.dim_k, segment.values, head.head.pairs());
        for (rows, found) in [(&mut head.gain, gain), (&mut head.decay, decay)] {
            let width = (found.len() / steps.len()).max(1);
            for (step, found) in steps.clone().zip(found.chunks_exact(width)) {
                rows.row(step).copy_from_slice(found);
            }
        }
        for (step, found) in steps.clone().zip(grad.qx.chunks_exact(dim_k)) {
            add(q.row(step), found);
        }
        // The gradient of each pair goes to where the pair came from.
        for r in 0..segment.rows() {
            let (key, value) = pairs.places((steps.start + r) as isize - segment.tail as isize);
            let x = &grad.qx[row(segment.steps + r, dim_k)];
            match key {
                None => {}
                Some(Place::Tail(slot)) => add(&mut tail_x[row(slot, dim_k)], x),
                Some(Place::LastKey) => add(last_key, x),
                Some(Place::Token(t)) => add(k.row(t), x),
            }
            let v = &grad.v[row(r, segment.columns)][..dim_v];
            match value {
                Place::Tail(slot) => add(&mut head.tail_v[row(slot, dim_v)], v),
                Place::Token(t) => add(head.v.row(t), v),
                Place::LastKey => unreachable!("a value is never the last key"),
            }
        }
    }
}

/// `grad_out` of one head and segment, `[steps, dim_v]`.
fn gather_upstream<F: Real>(
    head: &Head<'_, F>,
    steps: &Range<usize>,
    grad_out: View<'_, F>,
    upstream: &mut Vec<F>,
) {
    let start = head.tokens().start;
    upstream.clear();
    for t in steps.clone() {
        upstream.extend_from_slice(grad_out.row(start + t, head.head));
    }
}

/// The outgoing last key and tail are copies of inputs or of the incoming state; so are their gradients. A sequence
/// without tokens passes its state through.
fn pass_through<F: Real>(
    rule: &Rule,
    inputs: &Inputs<'_, F>,
    sizes: &Sizes,
    state: &State<F>,
    upstream: &State<F>,
    grads: &mut GradsMut<'_, F>,
    incoming: &mut State<F>,
) {
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
