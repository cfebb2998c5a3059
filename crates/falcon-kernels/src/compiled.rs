//! The work, compiled here for both numbers. A generic function is compiled again in every crate that calls it; these are nearly all of the
//! code.

use crate::backward::{GradsMut, Recorded};
use crate::decode::Decoder;
use crate::error::Error;
use crate::form::Form;
use crate::inputs::{Inputs, Sizes};
use crate::rule::Rule;
use crate::state::State;
use crate::view::View;
use crate::{backward, call, decode};

/// What [`crate::Real`] is sealed by.
pub trait Compiled: Sized {
    /// [`call::forward_checked`].
    fn forward(
        rule: &Rule,
        form: Form,
        inputs: &Inputs<'_, Self>,
        sizes: &Sizes,
        state: &mut State<Self>,
        out: &mut [Self],
        saved: &mut [Self],
    );

    /// [`backward::backward_checked`].
    fn backward(
        recorded: Recorded<'_, Self>,
        inputs: &Inputs<'_, Self>,
        sizes: &Sizes,
        grad_out: View<'_, Self>,
        grad_state: Option<&State<Self>>,
        grads: GradsMut<'_, Self>,
    ) -> State<Self>;

    /// [`Decoder::step`].
    fn step(decoder: &mut Decoder<Self>, inputs: &Inputs<'_, Self>, out: &mut [Self]) -> Result<(), Error>;
}

macro_rules! compiled {
    ($($number:ty),*) => {$(
        impl Compiled for $number {
            fn forward(
                rule: &Rule,
                form: Form,
                inputs: &Inputs<'_, Self>,
                sizes: &Sizes,
                state: &mut State<Self>,
                out: &mut [Self],
                saved: &mut [Self],
            ) {
                call::forward_checked(rule, form, inputs, sizes, state, out, saved);
            }

            fn backward(
                recorded: Recorded<'_, Self>,
                inputs: &Inputs<'_, Self>,
                sizes: &Sizes,
                grad_out: View<'_, Self>,
                grad_state: Option<&State<Self>>,
                grads: GradsMut<'_, Self>,
            ) -> State<Self> {
                backward::backward_checked(recorded, inputs, sizes, grad_out, grad_state, grads)
            }

            fn step(decoder: &mut Decoder<Self>, inputs: &Inputs<'_, Self>, out: &mut [Self]) -> Result<(), Error> {
                decode::step_of(decoder, inputs, out)
            }
        }
    )*};
}

compiled!(f32, f64);
