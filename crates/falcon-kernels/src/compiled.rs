//! The number types that calls are compiled for, here and only here.
//!
//! A generic function is compiled again in every crate that calls it. These three are nearly all of the code, so this
//! crate compiles them once for each type, and the public methods go through the trait.

use crate::Real;
use crate::backward::{GradsMut, backward};
use crate::call::Call;
use crate::decode::{Decoder, step};
use crate::error::Error;
use crate::forward::forward;
use crate::inputs::Inputs;
use crate::state::State;
use crate::view::View;

/// A number type that calls can run in: `f32` or `f64`. Generic code that runs a [`Call`] or a [`Decoder`] asks for it.
pub trait Compiled: Real {
    /// [`Call::forward`] and [`Call::record_into`] without the checks; nothing is saved if `saved` is empty.
    #[doc(hidden)]
    fn forward(call: &Call<'_, Self>, state: &mut State<Self>, out: &mut [Self], saved: &mut [Self]);

    /// [`Call::backward_into`] without the checks.
    #[doc(hidden)]
    fn backward(
        call: &Call<'_, Self>,
        state: &State<Self>,
        saved: &[Self],
        grad_out: View<'_, Self>,
        grad_state: Option<&State<Self>>,
        grads: GradsMut<'_, Self>,
    ) -> State<Self>;

    /// [`Decoder::step`].
    #[doc(hidden)]
    fn step(decoder: &mut Decoder<Self>, inputs: &Inputs<'_, Self>, out: &mut [Self]) -> Result<(), Error>;
}

macro_rules! compiled {
    ($($number:ty),*) => {$(
        impl Compiled for $number {
            fn forward(call: &Call<'_, Self>, state: &mut State<Self>, out: &mut [Self], saved: &mut [Self]) {
                forward(call, state, out, saved);
            }

            fn backward(
                call: &Call<'_, Self>,
                state: &State<Self>,
                saved: &[Self],
                grad_out: View<'_, Self>,
                grad_state: Option<&State<Self>>,
                grads: GradsMut<'_, Self>,
            ) -> State<Self> {
                backward(call, state, saved, grad_out, grad_state, grads)
            }

            fn step(decoder: &mut Decoder<Self>, inputs: &Inputs<'_, Self>, out: &mut [Self]) -> Result<(), Error> {
                step(decoder, inputs, out)
            }
        }
    )*};
}

compiled!(f32, f64);

impl<F: Compiled> Call<'_, F> {
    /// Runs the rule from `state` to the state after the last token.
    ///
    /// `out` is `[tokens, heads, dim_v]`, row-major. Sequences and heads run in parallel on the current `rayon` pool;
    /// the number of threads does not change the result.
    pub fn forward(&self, state: &mut State<F>, out: &mut [F]) -> Result<(), Error> {
        self.check(state, "out", out)?;
        F::forward(self, state, out, &mut []);
        Ok(())
    }
}

impl<F: Compiled> Decoder<F> {
    /// One token of each sequence: `inputs` has as many tokens as sequences, `out` is `[sequences, heads, dim_v]`.
    /// The result is that of [`Call::forward`] on the same inputs.
    pub fn step(&mut self, inputs: &Inputs<'_, F>, out: &mut [F]) -> Result<(), Error> {
        F::step(self, inputs, out)
    }
}
