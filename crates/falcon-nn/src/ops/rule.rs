//! A rule on tensors: by the kernels of `falcon-kernels` on the CPU, by tensor operations on other devices.

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use falcon_kernels::{Call, Decoder, Error, Form, Inputs, Rule, State, Tape, View};

use super::Engine;
use super::bridge::{Adjoint, Array, ForwardPass, Slice, only, run_with};
use super::tensor::{RuleInputs, TensorState, scan};
use crate::sequences::Sequences;

/// The memory of a batch of sequences between two calls. Its size does not depend on their lengths.
#[derive(Clone, Debug)]
pub(crate) enum RuleState {
    /// For [`Engine::Kernels`].
    Kernels(Box<Decoder<f32>>),
    /// For [`Engine::Tensors`].
    Tensors(Box<TensorState>),
}

/// Chunk size of the rules in tensor operations.
const TENSOR_CHUNK: usize = 32;

/// Runs `rule` over sequences that continue from `state`; returns the outputs and the state after them. No gradient
/// flows through the state: the gradients of a piece of a sequence come from the tokens of that piece only.
pub(crate) fn rule(
    rule: &Rule,
    inputs: RuleInputs,
    sequences: &Sequences,
    state: RuleState,
) -> (Tensor<3>, RuleState) {
    match state {
        RuleState::Kernels(decoder) => {
            let (out, decoder) = by_kernels(rule, inputs, sequences, *decoder);
            (out, RuleState::Kernels(Box::new(decoder)))
        }
        RuleState::Tensors(state) => {
            let (out, state) = scan(rule, inputs, sequences.offsets(), *state, TENSOR_CHUNK);
            (out, RuleState::Tensors(Box::new(state.detach())))
        }
    }
}

impl RuleState {
    /// The state for an engine, from one of the kernels.
    pub fn new(engine: Engine, rule: &Rule, state: State<f32>, device: &Device) -> Self {
        match engine {
            Engine::Kernels => {
                let decoder = Decoder::new(rule, state);
                Self::Kernels(Box::new(decoder.expect("the configuration has checked the rule")))
            }
            Engine::Tensors => Self::Tensors(Box::new(TensorState::from_state(&state, device))),
        }
    }

    /// A copy as a state of the kernels.
    pub fn to_state(&self, rule: &Rule) -> State<f32> {
        match self {
            Self::Kernels(decoder) => decoder.state().clone(),
            Self::Tensors(state) => state.to_state(rule),
        }
    }

    /// How many numbers it holds.
    pub fn size(&self) -> usize {
        match self {
            Self::Kernels(decoder) => decoder.state().bytes() / size_of::<f32>(),
            Self::Tensors(state) => state.size(),
        }
    }
}

fn by_kernels(
    rule: &Rule,
    inputs: RuleInputs,
    sequences: &Sequences,
    decoder: Decoder<f32>,
) -> (Tensor<3>, Decoder<f32>) {
    let RuleInputs { q, k, v, gain, decay } = inputs;
    let call = RuleCall { rule: *rule, offsets: sequences.offsets().to_vec(), gain: gain.is_some() };
    let inputs = [Some(q), Some(k), Some(v), gain, decay];
    let forward = |inputs: &[Slice<'_>], tracked: bool| {
        let (out, tape, decoder) = call.forward(inputs, tracked, decoder);
        let outputs = vec![Array { data: out, shape: inputs[2].shape.to_vec() }];
        ForwardPass { outputs, adjoint: Arc::new(RuleAdjoint { call, tape }), value: decoder }
    };
    let (mut outputs, decoder) =
        run_with(forward, inputs.into_iter().flatten().map(Tensor::into_dispatch).collect());
    (Tensor::from_dispatch(outputs.remove(0)), decoder)
}

/// One call of a rule.
#[derive(Debug)]
struct RuleCall {
    rule: Rule,
    offsets: Vec<usize>,
    /// Whether the fourth input is the gain.
    gain: bool,
}

impl RuleCall {
    fn inputs<'a>(&'a self, slices: &[Slice<'a>]) -> Result<Inputs<'a, f32>, Error> {
        let views: Result<Vec<_>, _> = slices
            .iter()
            .map(|slice| {
                let shape: &[usize; 3] = slice.shape.try_into().expect("tensors of rank 3");
                View::new(slice.data, *shape)
            })
            .collect();
        let views = views?;
        let (gain, decay) = match (self.gain, &views[3..]) {
            (true, [gain, decay]) => (Some(*gain), Some(*decay)),
            (true, [gain]) => (Some(*gain), None),
            (_, rest) => (None, rest.first().copied()),
        };
        Ok(Inputs { q: views[0], k: views[1], v: views[2], gain, decay, offsets: &self.offsets })
    }

    /// The outputs, the tape for a backward pass if one may follow, and the state after the tokens.
    fn forward(
        &self,
        slices: &[Slice<'_>],
        tracked: bool,
        mut decoder: Decoder<f32>,
    ) -> (Vec<f32>, Option<Tape<f32>>, Decoder<f32>) {
        let mut out = vec![0.0; slices[2].data.len()];
        let inputs = self.inputs(slices).unwrap_or_else(|error| panic!("{error}"));
        let one_token_each = self.offsets.windows(2).all(|w| w[1] == w[0] + 1);
        let (result, mut state) = if one_token_each && !tracked {
            match decoder.step(&inputs, &mut out) {
                Ok(()) => return (out, None, decoder),
                Err(error) => (Err(error), decoder.into_state()),
            }
        } else {
            let mut state = decoder.into_state();
            let result = Call::new(&self.rule, Form::CHUNKED, inputs).and_then(|call| match tracked {
                true => call.record(&mut state, &mut out).map(Some),
                false => call.forward(&mut state, &mut out).map(|()| None),
            });
            (result, state)
        };
        let tape = result.unwrap_or_else(|error| match error {
            // After a non-finite gate, the outputs and the memories of all sequences are NaN, and training reports it.
            Error::Range { value, .. } if !value.is_finite() => {
                out.fill(f32::NAN);
                state.memory.fill(f32::NAN);
                state.started.fill(true);
                None
            }
            error => panic!("{error}"),
        });
        (out, tape, Decoder::new(&self.rule, state).expect("the rule has been used already"))
    }
}

/// The backward pass of a call.
#[derive(Debug)]
struct RuleAdjoint {
    call: RuleCall,
    /// None if the forward pass had a non-finite gate.
    tape: Option<Tape<f32>>,
}

impl Adjoint for RuleAdjoint {
    fn backward(&self, slices: &[Slice<'_>], grads: Vec<Option<Vec<f32>>>) -> Vec<Vec<f32>> {
        let Some(tape) = &self.tape else {
            return slices.iter().map(|slice| vec![f32::NAN; slice.data.len()]).collect();
        };
        let inputs = self.call.inputs(slices).expect("the forward pass accepted them");
        let call = Call::new(&self.call.rule, Form::CHUNKED, inputs).expect("the forward pass accepted them");
        let grads = tape.backward(&call, &only(grads), None).expect("it is the call that was recorded");
        let gates = [grads.gain, grads.decay].into_iter().filter(|grad| !grad.is_empty());
        [grads.q, grads.k, grads.v].into_iter().chain(gates).collect()
    }
}
