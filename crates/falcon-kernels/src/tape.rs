//! Forward passes that keep what the backward pass needs, and the backward passes themselves.

use crate::View;
use crate::backward::{Grads, GradsMut};
use crate::call::{Call, check_len};
use crate::compiled::Compiled;
use crate::error::Error;
use crate::form::Form;
use crate::inputs::{Sizes, shape};
use crate::rule::Rule;
use crate::state::State;

/// What [`Call::record`] keeps of a forward pass: the incoming state, and the memory before each segment.
#[derive(Clone, Debug)]
pub struct Tape<F> {
    rule: Rule,
    form: Form,
    offsets: Vec<usize>,
    state: State<F>,
    /// Head after head, segment after segment.
    saved: Vec<F>,
}

impl<F: Compiled> Tape<F> {
    /// The gradients of the pass that was recorded, as [`Call::backward`] gives them, without running it again.
    ///
    /// `call` must be the recorded one, with the same inputs. Its rule, form, sizes and offsets are compared with those
    /// recorded; its numbers are not.
    pub fn backward(
        &self,
        call: &Call<'_, F>,
        grad_out: &[F],
        grad_state: Option<&State<F>>,
    ) -> Result<Grads<F>, Error> {
        let Call { rule, form, inputs: now, .. } = call;
        if *rule != self.rule {
            return Err(other("rule", &self.rule, rule));
        }
        if *form != self.form {
            return Err(other("form", &self.form, form));
        }
        if now.offsets != self.offsets {
            return Err(other("sequence offsets", &self.offsets, &now.offsets));
        }
        call.check(&self.state, "grad_out", grad_out)?;
        call.check_grad_state(grad_state)?;
        call.grads(&self.state, &self.saved, grad_out, grad_state)
    }
}

fn other(what: &'static str, recorded: &impl std::fmt::Debug, got: &impl std::fmt::Debug) -> Error {
    Error::OtherCall { what, recorded: format!("{recorded:?}"), got: format!("{got:?}") }
}

impl<F: Compiled> Call<'_, F> {
    /// [`Call::forward`] that keeps what the backward pass needs.
    pub fn record(&self, state: &mut State<F>, out: &mut [F]) -> Result<Tape<F>, Error> {
        self.check(state, "out", out)?;
        let mut saved = vec![F::zero(); self.saved_len()];
        let incoming = state.clone();
        F::forward(self, state, out, &mut saved);
        Ok(Tape {
            rule: self.rule,
            form: self.form,
            offsets: self.inputs.offsets.to_vec(),
            state: incoming,
            saved,
        })
    }

    /// How many numbers [`Call::record_into`] saves: the memories before each segment of each sequence.
    pub fn saved_len(&self) -> usize {
        let segments: usize = (0..self.sizes.sequences).map(|sequence| self.segments(sequence)).sum();
        segments * self.sizes.heads * self.memory_len()
    }

    /// [`Call::record`] into memory of the caller, for frameworks with an allocator of their own: `saved` has
    /// [`Call::saved_len`] numbers. The caller has to keep the incoming state, too.
    pub fn record_into(&self, state: &mut State<F>, out: &mut [F], saved: &mut [F]) -> Result<(), Error> {
        self.check(state, "out", out)?;
        check_len("saved", saved.len(), self.saved_len())?;
        F::forward(self, state, out, saved);
        Ok(())
    }

    /// The adjoint of [`Call::forward`]: the gradients of all inputs and of the incoming `state`.
    ///
    /// `grad_out` is the gradient `[tokens, heads, dim_v]` of the outputs, and `grad_state` that of the outgoing state,
    /// if the loss depends on it. Where a sequence is run in pieces, pass [`Grads::state`] on as the `grad_state` of
    /// the piece before: the gradients are then those of the undivided sequence.
    ///
    /// This runs the forward pass again. Where the outputs are needed too, [`Call::record`] saves that.
    pub fn backward(
        &self,
        state: &State<F>,
        grad_out: &[F],
        grad_state: Option<&State<F>>,
    ) -> Result<Grads<F>, Error> {
        self.check(state, "grad_out", grad_out)?;
        self.check_grad_state(grad_state)?;
        let (mut out, mut saved) = (vec![F::zero(); grad_out.len()], vec![F::zero(); self.saved_len()]);
        F::forward(self, &mut state.clone(), &mut out, &mut saved);
        self.grads(state, &saved, grad_out, grad_state)
    }

    /// [`Tape::backward`] into memory of the caller: `state` is the incoming state of the pass that was recorded, and
    /// `saved` what [`Call::record_into`] saved of it. Returns the gradient of the incoming state.
    pub fn backward_into(
        &self,
        state: &State<F>,
        saved: &[F],
        grad_out: View<'_, F>,
        grad_state: Option<&State<F>>,
        grads: GradsMut<'_, F>,
    ) -> Result<State<F>, Error> {
        let Sizes { tokens, heads, key_heads, dim_k, dim_v, .. } = self.sizes;
        state.check(&self.rule, &self.sizes)?;
        shape("grad_out", &grad_out, [tokens, heads, dim_v], "tokens, heads, dim_v")?;
        self.check_grad_state(grad_state)?;
        check_len("saved", saved.len(), self.saved_len())?;
        let [gain, decay] = self.inputs.gate_widths();
        check_len("gradient of q", grads.q.len(), tokens * key_heads * dim_k)?;
        check_len("gradient of k", grads.k.len(), tokens * key_heads * dim_k)?;
        check_len("gradient of v", grads.v.len(), tokens * heads * dim_v)?;
        check_len("gradient of gain", grads.gain.len(), tokens * heads * gain)?;
        check_len("gradient of decay", grads.decay.len(), tokens * heads * decay)?;
        Ok(F::backward(self, state, saved, grad_out, grad_state, grads))
    }

    fn check_grad_state(&self, grad_state: Option<&State<F>>) -> Result<(), Error> {
        let check = |state: &State<F>| state.check(&self.rule, &self.sizes);
        grad_state.map_or(Ok(()), check).map_err(|error| Error::GradState(Box::new(error)))
    }

    /// [`Call::backward_into`] into new arrays, for arguments that have been checked.
    fn grads(
        &self,
        state: &State<F>,
        saved: &[F],
        grad_out: &[F],
        grad_state: Option<&State<F>>,
    ) -> Result<Grads<F>, Error> {
        let Sizes { tokens, heads, key_heads, dim_k, dim_v, .. } = self.sizes;
        let zeros = |heads: usize, width: usize| vec![F::zero(); tokens * heads * width];
        let (mut q, mut k, mut v) = (zeros(key_heads, dim_k), zeros(key_heads, dim_k), zeros(heads, dim_v));
        let [mut gain, mut decay] = self.inputs.gate_widths().map(|width| zeros(heads, width));
        let into = GradsMut { q: &mut q, k: &mut k, v: &mut v, gain: &mut gain, decay: &mut decay };
        let grad_out = View::new(grad_out, [tokens, heads, dim_v])?;
        let state = F::backward(self, state, saved, grad_out, grad_state, into);
        Ok(Grads { q, k, v, gain, decay, state })
    }
}
