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
//! // The first key learnt the second value, the second key the third.
//! assert_eq!(out, [0.0, 0.0, 5.0]);
//! # Ok::<(), falcon_kernels::Error>(())
//! ```
//!
//! # Rules
//!
//! With `x = k_{t−1}`, a gain `β ∈ [0, 2]` and a ridge `λ = λ̄E`, given by `λ̄ ≥ 0`, a step has the size `η = β / (E + λ + ε)` and
//! keeps `γ = max(1 − ηλ, 10⁻³)` of what was there. Where a rule regresses, `E` is the curvature of the loss along the keys, so that a
//! step with `β < 2` lowers the loss, unless `γ` is held at its least; for the inner product `E` only limits the size of a write.
//!
//! | rule | one step | `E` |
//! |---|---|---|
//! | [`Rule::FALCON_1`] | `S ← γS + η x (v − Sᵀx)ᵀ` | `‖x‖²` |
//! | [`Rule::FALCON_2`] | the same with `η`, `γ` for every column of `v` | `‖x‖²` |
//! | [`Rule::FALCON_3`] | `S ← γS + (η/B) Σ x_j (v_j − Sᵀx_j)ᵀ` over the last `B` pairs | `λ_max` of their mean `x xᵀ` |
//! | [`Rule::FALCON_1A`] | `S ← γS + η x vᵀ` | `‖x‖²` |
//! | [`Rule::FALCON_2A`] | the same with `η`, `γ` for every column of `v` | `‖x‖²` |
//! | [`Rule::FALCON_3A`] | `S ← γS + (η/B) Σ x_j v_jᵀ` over the last `B` pairs | mean `‖x_j‖²` |
//!
//! **Choosing one.** Rules that regress (1, 2, 3) take out of the memory what it already says of a key before they write, so
//! that a key can be given another value; forward and backward they cost 1.4 to 2.8 times what the inner product (1A, 2A, 3A) costs,
//! which adds and lets the ridge forget. A window (3, 3A) lets a pair be learnt several times, gains per column (2, 2A) let the parts of a value be
//! kept for different times. Start with Falcon-1A, or with Falcon-1 where keys come back. Everything else about a rule is a
//! field of [`Rule`]:
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
//! [`Form::Recurrent`] is the definition, step by step. [`Form::Masked`] makes the sequence one masked product, `O(T²)`: to read
//! and to test with. [`Form::CHUNKED`] is what training runs: inside 64 tokens matrix products, between them the memory. They
//! give the same outputs, states and gradients up to rounding, for any rule.
//!
//! # Continuation
//!
//! [`State`] is all that the future needs of the past: the memory, the last key, the last `B − 1` pairs. A sequence may be cut
//! anywhere, and each piece may have a form of its own:
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
//! [`backward`] gives the gradient of every input and of the incoming state. [`record`] runs forward and keeps a [`Tape`], whose
//! [`Tape::backward`] does not run forward again. The gradient of a state is a [`State`]: hand that of a piece to the piece
//! before it, and the gradients are those of the undivided sequence.
//!
//! # What the numbers promise
//!
//! Arithmetic is in the type of the inputs, `f32` or `f64`. Forms, chunk sizes and splits of a sequence change results
//! by rounding only, thread counts not at all. Non-finite gains are always refused, non-finite `q`, `k`, `v` by
//! [`Inputs::check_finite`].

mod backward;
mod call;
mod chunked;
mod coefficients;
mod compiled;
mod decode;
mod eigen;
mod error;
mod form;
mod forward;
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
mod tape;
mod view;

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
