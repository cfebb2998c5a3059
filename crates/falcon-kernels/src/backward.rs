//! The backward call: the adjoint of [`crate::forward`], in the same form.

use std::ops::Range;

use rayon::prelude::*;

use crate::call::{check, check_out, heads, run};
use crate::coefficients::Coefficients;
use crate::error::Error;
use crate::form::Form;
use crate::head::{Head, Pairs, Place};
use crate::inputs::{Inputs, Sizes};
use crate::real::add;
use crate::rule::Rule;
use crate::segment::{Segment, SegmentGrad};
use crate::state::{State, row};
use crate::{Real, normaliser};

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
    /// `[tokens, heads, 1 or dim_v]`, token by token also where the input was one number a head; empty without
    /// decay.
    pub decay: Vec<F>,
    /// Of the incoming state: memory, last key and tail.
    pub state: State<F>,
}

/// Adjoint of [`crate::forward`]: `state` is the incoming one, `grad_out` is `[tokens, heads, dim_v]`, and `grad_state`
/// the gradient of the outgoing state, if anything depends on it.
///
/// Passing `Grads::state` on as the `grad_state` of the segment before gives exactly the gradients of the undivided
/// sequence.
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
    if let Some(grad_state) = grad_state {
        grad_state.check(rule, &sizes)?;
    }
    let zeros = |heads: usize, width: usize| vec![F::zero(); sizes.tokens * heads * width];
    let mut grads = Grads {
        q: zeros(sizes.key_heads, sizes.dim_k),
        k: zeros(sizes.key_heads, sizes.dim_k),
        v: zeros(sizes.heads, sizes.dim_v),
        gain: zeros(sizes.heads, inputs.gain.map_or(0, |gain| gain.shape()[2])),
        decay: zeros(sizes.heads, inputs.decay.map_or(0, |decay| decay.shape()[2])),
        state: state.zeros_like(),
    };
    if let Some(grad_state) = grad_state {
        pass_through(rule, inputs, &sizes, state, grad_state, &mut grads);
    }
    let heads = heads(rule, inputs, state, sizes);
    let results: Vec<_> = heads.par_iter().map(|head| HeadGrad::new(head, form, grad_out, grad_state)).collect();
    // In order of heads, so that the sums over a group do not depend on the threads.
    for (head, found) in heads.iter().zip(results) {
        found.add_to(head, &mut grads);
    }
    Ok(grads)
}

/// The gradients of one head of one sequence, `[its tokens, width]` each.
struct HeadGrad<F> {
    q: Vec<F>,
    k: Vec<F>,
    v: Vec<F>,
    gain: Vec<F>,
    decay: Vec<F>,
    memory: Vec<F>,
    last_key: Vec<F>,
    /// `[tail capacity, width]`.
    tail_x: Vec<F>,
    tail_v: Vec<F>,
}

impl<F: Real> HeadGrad<F> {
    fn new(head: &Head<'_, F>, form: Form, grad_out: &[F], grad_state: Option<&State<F>>) -> Self {
        let Head { rule, sizes: Sizes { dim_k, dim_v, .. }, .. } = *head;
        let tokens = head.tokens().len();
        let mut found = Self::zeros(head);
        if let Some(grad) = grad_state {
            found.memory.copy_from_slice(grad.memory_of(head.sequence, head.head));
        }
        // The memory before each segment, and, where it is divided, what the segment read. The rest is computed again.
        let (mut memories, mut reads) = (Vec::new(), Vec::new());
        run(head, form, |_, memory, raw| {
            memories.push(memory.to_vec());
            if rule.normaliser.is_some() {
                reads.push(raw.to_vec());
            }
        });
        let (mut segment, mut coefficients) = (Segment::new(rule, dim_k, dim_v), Coefficients::default());
        let (mut grad, mut grad_gain, mut grad_decay) = (SegmentGrad::default(), Vec::new(), Vec::new());
        for (steps, memory) in form.segments(tokens).zip(memories).rev() {
            head.pack(steps.clone(), &mut segment, &mut coefficients, false);
            let upstream = upstream(head, &steps, grad_out, reads.pop());
            grad.reset(&segment);
            form.backward(&segment, &memory, &upstream, &mut found.memory, &mut grad);
            coefficients.backward(rule, &segment, &mut grad, &mut grad_gain, &mut grad_decay);
            for (to, from) in
                [(&mut found.q, &grad.q), (&mut found.gain, &grad_gain), (&mut found.decay, &grad_decay)]
            {
                let width = from.len() / steps.len();
                to[steps.start * width..steps.end * width].copy_from_slice(from);
            }
            found.add_pairs(&head.pairs(), &segment, steps.start, &grad);
        }
        found
    }

    fn zeros(head: &Head<'_, F>) -> Self {
        let Head { rule, inputs, sizes: Sizes { dim_k, dim_v, .. }, .. } = *head;
        let zeros = |rows: usize, width: usize| vec![F::zero(); rows * width];
        let (tokens, tail) = (head.tokens().len(), rule.tail_capacity());
        Self {
            q: zeros(tokens, dim_k),
            k: zeros(tokens, dim_k),
            v: zeros(tokens, dim_v),
            gain: zeros(tokens, inputs.gain.map_or(0, |gain| gain.shape()[2])),
            decay: zeros(tokens, inputs.decay.map_or(0, |decay| decay.shape()[2])),
            memory: zeros(dim_k, rule.state_columns(dim_v)),
            last_key: zeros(1, dim_k),
            tail_x: zeros(tail, dim_k),
            tail_v: zeros(tail, dim_v),
        }
    }

    /// Sends the gradient of each pair of a segment to where the pair came from.
    fn add_pairs(&mut self, pairs: &Pairs, segment: &Segment<F>, start: usize, grad: &SegmentGrad<F>) {
        let (dim_k, columns) = (segment.dim_k, segment.columns);
        let dim_v = self.v.len() / pairs.tokens;
        for r in 0..segment.rows() {
            let (key, value) = pairs.places((start + r) as isize - segment.tail as isize);
            let x = &grad.x[row(r, dim_k)];
            match key {
                None => {}
                Some(Place::Tail(slot)) => add(&mut self.tail_x[row(slot, dim_k)], x),
                Some(Place::LastKey) => add(&mut self.last_key, x),
                Some(Place::Token(t)) => add(&mut self.k[row(t, dim_k)], x),
            }
            let v = &grad.v[row(r, columns)][..dim_v];
            match value {
                Place::Tail(slot) => add(&mut self.tail_v[row(slot, dim_v)], v),
                Place::Token(t) => add(&mut self.v[row(t, dim_v)], v),
                Place::LastKey => unreachable!("a value is never the last key"),
            }
        }
    }

    /// Adds to the gradients of the call.
    fn add_to(&self, head: &Head<'_, F>, grads: &mut Grads<F>) {
        let (tokens, sequence, key_head) = (head.tokens(), head.sequence, head.key_head());
        let Sizes { heads, key_heads, dim_k, dim_v, .. } = head.sizes;
        let gain_width = self.gain.len() / tokens.len();
        let decay_width = self.decay.len() / tokens.len();
        for (to, from, heads, head, width) in [
            (&mut grads.q, &self.q, key_heads, key_head, dim_k),
            (&mut grads.k, &self.k, key_heads, key_head, dim_k),
            (&mut grads.v, &self.v, heads, head.head, dim_v),
            (&mut grads.gain, &self.gain, heads, head.head, gain_width),
            (&mut grads.decay, &self.decay, heads, head.head, decay_width),
        ] {
            for (i, t) in tokens.clone().enumerate() {
                add(&mut to[row(t * heads + head, width)], &from[row(i, width)]);
            }
        }
        add(grads.state.memory_of_mut(sequence, head.head), &self.memory);
        add(grads.state.last_key_of_mut(sequence, key_head), &self.last_key);
        for slot in 0..head.rule.tail_capacity() {
            add(grads.state.tail_x_of_mut(sequence, slot, key_head), &self.tail_x[row(slot, dim_k)]);
            add(grads.state.tail_v_of_mut(sequence, slot, head.head), &self.tail_v[row(slot, dim_v)]);
        }
    }
}

/// `grad_out` of one head and segment, taken through the division of a normalised read if there was one.
fn upstream<F: Real>(head: &Head<'_, F>, steps: &Range<usize>, grad_out: &[F], read: Option<Vec<F>>) -> Vec<F> {
    let Sizes { heads, dim_v, .. } = head.sizes;
    let start = head.tokens().start;
    let rows = steps.clone().map(|t| &grad_out[row((start + t) * heads + head.head, dim_v)]);
    match (head.rule.normaliser, read) {
        (Some(n), Some(mut read)) => {
            for (read, grad) in read.chunks_exact_mut(dim_v + 1).zip(rows) {
                normaliser::divide_backward(read, F::of(n.eps), grad);
            }
            read
        }
        _ => rows.flatten().copied().collect(),
    }
}

/// The outgoing last key and tail are copies of inputs or of the incoming state; so are their gradients. A sequence
/// without tokens passes its whole state through.
fn pass_through<F: Real>(
    rule: &Rule,
    inputs: &Inputs<'_, F>,
    sizes: &Sizes,
    state: &State<F>,
    upstream: &State<F>,
    grads: &mut Grads<F>,
) {
    let &Sizes { heads, key_heads, dim_k, dim_v, .. } = sizes;
    for sequence in 0..sizes.sequences {
        let tokens = inputs.offsets[sequence]..inputs.offsets[sequence + 1];
        let pairs = Pairs::new(rule, state, sequence, tokens.len());
        for key_head in 0..key_heads {
            let last = upstream.last_key_of(sequence, key_head);
            match tokens.clone().next_back() {
                Some(t) => add(&mut grads.k[row(t * key_heads + key_head, dim_k)], last),
                None => add(grads.state.last_key_of_mut(sequence, key_head), last),
            }
        }
        if tokens.is_empty() {
            for head in 0..heads {
                add(grads.state.memory_of_mut(sequence, head), upstream.memory_of(sequence, head));
            }
        }
        for (slot, time) in pairs.outgoing().enumerate() {
            let (key, value) = pairs.places(time);
            for key_head in 0..key_heads {
                let x = upstream.tail_x_of(sequence, slot, key_head);
                match key {
                    None => {}
                    Some(Place::Tail(to)) => add(grads.state.tail_x_of_mut(sequence, to, key_head), x),
                    Some(Place::LastKey) => add(grads.state.last_key_of_mut(sequence, key_head), x),
                    Some(Place::Token(t)) => {
                        add(&mut grads.k[row((tokens.start + t) * key_heads + key_head, dim_k)], x);
                    }
                }
            }
            for head in 0..heads {
                let v = upstream.tail_v_of(sequence, slot, head);
                match value {
                    Place::Tail(to) => add(grads.state.tail_v_of_mut(sequence, to, head), v),
                    Place::Token(t) => {
                        add(&mut grads.v[row((tokens.start + t) * heads + head, dim_v)], v);
                    }
                    Place::LastKey => unreachable!("a value is never the last key"),
                }
            }
        }
    }
}
