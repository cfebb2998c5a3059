//! Fast-weight attention rules on slices: every rule, every form, forward and backward.
//!
//! A fast-weight layer stores what it has read in a matrix of fixed size, its memory, which is trained while the
//! sequence is read. Each token takes one normalised gradient step, which writes a pair of a key and a value, and then
//! reads the memory with a query:
//!
//! ```text
//! S_t = γ_t S_{t−1} + (1/B_t) Σ_{j ∈ window} x_j (w_t v_j − e_t S_{t−1}ᵀ x_j)ᵀ        o_t = S_tᵀ q_t
//! ```
//!
//! A [`Rule`] says where `x`, `w`, `e` and `γ` come from. The six Falcon rules, linear attention, RetNet, Mamba-2,
//! DeltaNet and Gated DeltaNet are constants of that type. A [`Call`] is a rule, a [`Form`] and packed sequences
//! ([`Inputs`]) that fit each other; it runs forward and backward, from one [`State`] to the next, so that a sequence
//! may be processed in pieces. A [`Decoder`] takes one token at a time.
//!
//! ```
//! use falcon_kernels::{Call, Form, Inputs, Rule, View};
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
//! let call = Call::new(&rule, Form::CHUNKED, inputs)?;
//! let (mut state, mut out) = (call.fresh_state(), [0.0; 3]);
//! call.forward(&mut state, &mut out)?;
//! // The first key was paired with the second value, the second key with the third.
//! assert_eq!(out, [0.0, 0.0, 5.0]);
//! # Ok::<(), falcon_kernels::Error>(())
//! ```
//!
//! # Rules
//!
//! With `x = k_{t−1}`, a gain `β ∈ [0, 2]` and a ridge `λ = λ̄E`, given by `λ̄ ≥ 0`, the step size is
//! `η = β / (E + λ + ε)`, and the step keeps `γ = max(1 − ηλ, 10⁻³)` of the memory. For regression, `E` is the
//! curvature of the loss along the keys, so a step with `β < 2` lowers the loss, unless `γ` is clamped. For the inner
//! product, `E` only limits the size of a write.
//!
//! | rule | one step | `E` |
//! |---|---|---|
//! | [`Rule::FALCON_1`] | `S ← γS + η x (v − Sᵀx)ᵀ` | `‖x‖²` |
//! | [`Rule::FALCON_2`] | the same with `η`, `γ` for every column of `v` | `‖x‖²` |
//! | [`Rule::FALCON_3`] | `S ← γS + (η/B) Σ x_j (v_j − Sᵀx_j)ᵀ` over the last `B` pairs | `λ_max` of the mean `x xᵀ` |
//! | [`Rule::FALCON_1A`] | `S ← γS + η x vᵀ` | `‖x‖²` |
//! | [`Rule::FALCON_2A`] | the same with `η`, `γ` for every column of `v` | `‖x‖²` |
//! | [`Rule::FALCON_3A`] | `S ← γS + (η/B) Σ x_j v_jᵀ` over the last `B` pairs | mean `‖x_j‖²` |
//!
//! **Choosing a rule.** Regression rules (1, 2, 3) subtract what the memory already predicts for a key before they
//! write, so that a key can be given a new value. Forward and backward together they cost 1.4 to 2.8 times as much as
//! the inner-product rules (1A, 2A, 3A), which only add and rely on the ridge to forget. A window (3, 3A) writes each
//! pair several times; per-column gains (2, 2A) let the columns of a value be kept for different times. Start with
//! Falcon-1A, or with Falcon-1 where keys recur. Everything else about a rule is a field of [`Rule`]:
//!
//! ```
//! use falcon_kernels::Rule;
//! use falcon_kernels::rule::Align;
//!
//! const MINE: Rule = Rule { window: 8, align: Align::Same, ..Rule::FALCON_3A };
//! assert!(MINE.validate().is_ok());
//! ```
//!
//! # Forms
//!
//! [`Form::Recurrent`] is the definition, step by step. [`Form::Masked`] computes the sequence as one masked product in
//! `O(T²)`; it is meant for reading and testing. [`Form::CHUNKED`] is the form for training: matrix products inside
//! chunks of 64 tokens, and the memory between them. All forms give the same outputs, states and gradients up to
//! rounding, for any rule.
//!
//! # Continuation
//!
//! A [`State`] is all that a continuation needs: the memory, the last key, and the last `B − 1` pairs. A sequence may
//! be cut anywhere, and each piece may be run in a form of its own:
//!
//! ```
//! # use falcon_kernels::{Call, Decoder, Error, Form, Inputs, Rule, View};
//! # let (q, k, v) = ([1.0, 0.5, 0.0, 1.0], [1.0, 0.5, 0.0, 1.0], [1.0, 2.0, 3.0, 4.0]);
//! # let (beta, ridge) = ([1.0; 4], [0.1; 4]);
//! # fn piece<'a>(data: &'a [f64], offsets: &'a [usize]) -> Result<View<'a, f64>, Error> {
//! #     View::new(data, [offsets[1], 1, data.len() / offsets[1]])
//! # }
//! # fn inputs<'a>(all: [&'a [f64]; 5], offsets: &'a [usize]) -> Result<Inputs<'a, f64>, Error> {
//! #     let [q, k, v, beta, ridge] = all;
//! #     Ok(Inputs { q: piece(q, offsets)?, k: piece(k, offsets)?, v: piece(v, offsets)?,
//! #         gain: Some(piece(beta, offsets)?), decay: Some(piece(ridge, offsets)?), offsets })
//! # }
//! # let whole = inputs([&q, &k, &v, &beta, &ridge], &[0, 4])?;
//! # let first = inputs([&q[..3], &k[..3], &v[..3], &beta[..3], &ridge[..3]], &[0, 3])?;
//! # let last = inputs([&q[3..], &k[3..], &v[3..], &beta[3..], &ridge[3..]], &[0, 1])?;
//! # let rule = Rule::FALCON_1;
//! # let mut expected = [0.0; 4];
//! # let whole = Call::new(&rule, Form::CHUNKED, whole)?;
//! # whole.forward(&mut whole.fresh_state(), &mut expected)?;
//! # let mut out = [0.0; 4];
//! let prompt = Call::new(&rule, Form::CHUNKED, first)?;
//! let mut state = prompt.fresh_state();
//! prompt.forward(&mut state, &mut out[..3])?;
//! let mut stream = Decoder::new(&rule, state)?;
//! stream.step(&last, &mut out[3..])?; // one more token
//! # assert!(out.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-12));
//! # Ok::<(), Error>(())
//! ```
//!
//! # Gradients
//!
//! [`Call::record`] runs forward and keeps a [`Tape`], and [`Tape::backward`] gives the gradients of every input and of
//! the incoming state. [`Call::backward`] gives them without a tape, and runs forward again to do so. The gradient of a
//! state is a [`State`]: pass that of one piece on to the piece before it, and the gradients are those of the undivided
//! sequence.
//!
//! # Numerics
//!
//! Arithmetic is in the type of the inputs, `f32` or `f64`. Forms, chunk sizes and cuts of a sequence change results by
//! rounding only; the number of threads does not change those of finite inputs at all. Gains and decays that are not finite are always
//! refused; `q`, `k` and `v` that are not finite are refused by [`Inputs::check_finite`].

mod aligned;
mod backward;
mod call;
mod chunked;
mod coefficients;
mod compiled;
mod decode;
pub mod dots;
mod eigen;
mod error;
mod form;
mod forward;
mod head;
mod inputs;
mod masked;
pub mod mat;
mod narrow;
pub mod normaliser;
mod pipeline;
mod real;
mod recurrent;
pub mod rule;
mod run;
mod scratch;
mod segment;
mod shared;
mod simd;
mod simd_number;
mod small;
pub mod solvers;
mod state;
mod step;
mod tape;
mod view;

pub use aligned::Aligned;
pub use backward::{Grads, GradsMut};
pub use call::Call;
pub use compiled::Compiled;
pub use decode::Decoder;
pub use error::{Constant, Error, RuleError};
pub use form::Form;
pub use forward::Realised;
pub use inputs::{Inputs, Sizes, check_offsets};
pub use real::Real;
pub use rule::Rule;
#[doc(hidden)]
pub use scratch::poison_scratch;
pub use state::State;
pub use tape::Tape;
pub use view::View;

/// Loops and dispatch for the other crates of this workspace. Not a stable interface.
#[doc(hidden)]
pub mod vector {
    pub use crate::narrow::{BLOCK, NarrowRows};
    pub use crate::real::products;
    pub use crate::simd::vectorised;
}
