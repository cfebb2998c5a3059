//! Fast-weight attention rules on slices: every rule, every form, forward and backward.
//!
//! A fast-weight layer remembers in a fixed-size matrix that learns while it reads. At every token it takes one
//! normalised gradient step, which pairs a key with the value just revealed, and answers a query:
//!
//! ```text
//! S_t = γ_t S_{t−1} + (1/B_t) Σ_{j ∈ window} x_j (w_t v_j − e_t S_{t−1}ᵀ x_j)ᵀ        o_t = S_tᵀ q_t
//! ```
//!
//! [`Rule`] says where `x`, `w`, `e` and `γ` come from; the six Falcon rules, linear attention, RetNet, Mamba-2, DeltaNet
//! and Gated DeltaNet are constants of that type. [`forward`] and [`backward`] run any rule in any [`Form`] over packed
//! sequences ([`Inputs`]), from one [`State`] to the next, so that a sequence may come in pieces. [`Decoder`] takes one
//! token at a time.
//!
//! ```
//! use falcon_kernels::{Form, Inputs, Rule, View, forward};
//!
//! // One sequence of 3 tokens, 1 head, keys of width 2, values of width 1.
//! let (q, k) = ([1.0, 0.0, 0.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
//! let (v, beta, ridge) = ([1.0, 2.0, 3.0], [1.0; 3], [0.0; 3]);
//! let inputs = Inputs {
//!     q: View::new(&q, [3, 1, 2])?,
//!     k: View::new(&k, [3, 1, 2])?,
//!     v: View::new(&v, [3, 1, 1])?,
//!     gain: Some(View::new(&beta, [3, 1, 1])?),
//!     decay: Some(View::new(&ridge, [3, 1, 1])?),
//!     offsets: &[0, 3],
//! };
//! let rule = Rule { eps: 0.0, ..Rule::FALCON_1 };
//! let mut state = inputs.fresh_state(&rule)?;
//! let mut out = [0.0; 3];
//! forward(&rule, Form::CHUNKED, &inputs, &mut state, &mut out)?;
//! // The first key learnt the second value, the second key the third.
//! assert_eq!(out, [0.0, 0.0, 5.0]);
//! # Ok::<(), falcon_kernels::Error>(())
//! ```
//!
//! Arithmetic is in the type of the inputs, `f32` or `f64`. Forms, chunk sizes and splits of a sequence change results
//! by rounding only, thread counts not at all. Non-finite gains are always refused, non-finite `q`, `k`, `v` by
//! [`Inputs::check_finite`].

mod backward;
mod call;
mod chunked;
mod coefficients;
mod decode;
mod eigen;
mod error;
mod form;
mod head;
mod inputs;
mod masked;
pub mod mat;
pub mod normaliser;
mod real;
mod recurrent;
pub mod rule;
mod scratch;
mod segment;
mod shared;
mod simd;
pub mod solvers;
mod state;
mod step;
mod view;

pub use backward::{Grads, Tape, backward, record};
pub use call::{Realised, coefficients, forward};
pub use decode::Decoder;
pub use error::{Error, RuleError};
pub use form::Form;
pub use inputs::{Inputs, Sizes};
pub use real::Real;
pub use rule::Rule;
#[doc(hidden)]
pub use scratch::poison_scratch;
pub use state::State;
pub use view::View;
