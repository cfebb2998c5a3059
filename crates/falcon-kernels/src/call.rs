//! A call: a rule, a form and inputs that fit each other. Everything that can be checked is checked here, once.

use crate::Real;
use crate::error::Error;
use crate::form::Form;
use crate::inputs::{Inputs, Sizes};
use crate::rule::Rule;
use crate::state::State;

/// A rule, a form and inputs that fit each other, ready to run.
///
/// [`Call::new`] checks them; the methods only compare the lengths of the arrays they are given.
///
/// ```
/// use falcon_kernels::{Call, Form, Inputs, Rule, View};
///
/// let (q, k, v) = ([1.0, 2.0], [1.0, 0.5], [3.0, 4.0]);
/// let view = |data| View::new(data, [2, 1, 1]);
/// let inputs = Inputs { q: view(&q)?, k: view(&k)?, v: view(&v)?, gain: None, decay: None, offsets: &[0, 2] };
/// let call = Call::new(&Rule::LINEAR_ATTENTION, Form::CHUNKED, inputs)?;
/// let (mut state, mut out) = (call.fresh_state(), [0.0; 2]);
/// let tape = call.record(&mut state, &mut out)?;
/// assert_eq!(out, [3.0, 10.0]);
/// // The gradients of the sum of the outputs. The loss does not depend on the outgoing state.
/// let grads = tape.backward(&call, &[1.0, 1.0], None)?;
/// assert_eq!(grads.q, [3.0, 5.0]);
/// assert_eq!(grads.v, [3.0, 1.0]);
/// # Ok::<(), falcon_kernels::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Call<'a, F> {
    pub(crate) rule: Rule,
    pub(crate) form: Form,
    pub(crate) inputs: Inputs<'a, F>,
    pub(crate) sizes: Sizes,
}

impl<'a, F: Real> Call<'a, F> {
    /// Checks that the rule is possible, that all shapes fit each other, that the offsets cut the tokens into
    /// sequences, that gains and decays are in the range the rule needs, and that the form can run sequences of these
    /// lengths.
    ///
    /// This reads every gain and decay, but not `q`, `k` and `v`; see [`Inputs::check_finite`] for those.
    pub fn new(rule: &Rule, form: Form, inputs: Inputs<'a, F>) -> Result<Self, Error> {
        rule.validate()?;
        let sizes = inputs.check(rule)?;
        let longest = inputs.offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
        form.check(rule, longest)?;
        Ok(Self { rule: *rule, form, inputs, sizes })
    }

    /// The sizes of the inputs.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// A state before any token, in the sizes of this call.
    pub fn fresh_state(&self) -> State<F> {
        State::fresh(&self.rule, &self.sizes)
    }

    /// Checks an incoming state and the array `[tokens, heads, dim_v]` of the outputs or of their gradient.
    pub(crate) fn check(&self, state: &State<F>, tensor: &'static str, out: &[F]) -> Result<(), Error> {
        state.check(&self.rule, &self.sizes)?;
        check_len(tensor, out.len(), self.sizes.tokens * self.sizes.heads * self.sizes.dim_v)
    }

    /// Numbers in the memory of one head.
    pub(crate) fn memory_len(&self) -> usize {
        self.sizes.dim_k * self.rule.state_columns(self.sizes.dim_v)
    }

    /// Into how many segments the form cuts a sequence.
    pub(crate) fn segments(&self, sequence: usize) -> usize {
        let tokens = self.inputs.offsets[sequence + 1] - self.inputs.offsets[sequence];
        self.form.segments(&self.rule, tokens).len()
    }
}

pub(crate) fn check_len(tensor: &'static str, got: usize, needed: usize) -> Result<(), Error> {
    if got == needed { Ok(()) } else { Err(Error::Length { tensor, got, needed }) }
}
