//! A rule on tensors: by the kernels of `falcon-kernels` on the CPU, by tensor operations elsewhere.

use std::sync::{Arc, Mutex, OnceLock};

use burn::tensor::{Device, Tensor};
use falcon_kernels::{Call, Decoder, Error, Form, Inputs, Rule, State, Tape, View};

use super::Engine;
use super::bridge::{Array, Slice, SliceOp, run};
use super::tensor::{RuleInputs, TensorState, scan};
use crate::sequences::Sequences;

/// The memory of a batch of sequences between two calls; a fixed size, however long they are.
#[derive(Clone, Debug)]
pub(crate) enum RuleState {
    /// For [`Engine::Kernels`].
    Kernels(Box<Decoder<f32>>),
    /// For [`Engine::Tensors`].
    Tensors(Box<TensorState>),
}

/// Steps of a chunk where the rule runs in tensor operations.
const TENSOR_CHUNK: usize = 32;

/// Runs `rule` over sequences, from `state` on. The state carries no gradient: a piece of a sequence learns from its own tokens, and
/// what came before is given.
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
    /// From numbers, such as [`State::fresh`].
    pub fn new(engine: Engine, rule: &Rule, state: State<f32>, device: &Device) -> Self {
        match engine {
            Engine::Kernels => {
                let decoder = Decoder::new(rule, state);
                Self::Kernels(Box::new(decoder.expect("the configuration has checked the rule")))
            }
            Engine::Tensors => Self::Tensors(Box::new(TensorState::from_state(&state, device))),
        }
    }

    /// As numbers.
    pub fn to_state(&self, rule: &Rule) -> State<f32> {
        match self {
            Self::Kernels(decoder) => decoder.state().clone(),
            Self::Tensors(state) => state.to_state(rule),
        }
    }

    /// How many numbers it holds.
    pub fn numbers(&self) -> usize {
        match self {
            Self::Kernels(decoder) => decoder.state().bytes() / size_of::<f32>(),
            Self::Tensors(state) => state.numbers(),
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
    let op = Arc::new(RuleOp {
        rule: *rule,
        offsets: sequences.offsets().to_vec(),
        gain: gain.is_some(),
        state: Mutex::new(Some(decoder)),
        tape: OnceLock::new(),
    });
    let [q, k, v] = [q, k, v].map(Tensor::into_dispatch);
    let out = match (gain.map(Tensor::into_dispatch), decay.map(Tensor::into_dispatch)) {
        (None, None) => run(op.clone(), [q, k, v]),
        (Some(gain), None) => run(op.clone(), [q, k, v, gain]),
        (None, Some(decay)) => run(op.clone(), [q, k, v, decay]),
        (Some(gain), Some(decay)) => run(op.clone(), [q, k, v, gain, decay]),
    };
    let decoder = op.state.lock().expect("no call panicked").take().expect("the call put it back");
    (out, decoder)
}

#[derive(Debug)]
struct RuleOp {
    rule: Rule,
    offsets: Vec<usize>,
    /// Whether the fourth input is the gain.
    gain: bool,
    /// Incoming, and after the forward pass outgoing.
    state: Mutex<Option<Decoder<f32>>>,
    tape: OnceLock<Tape<f32>>,
}

impl RuleOp {
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

    fn try_forward(&self, slices: &[Slice<'_>], tracked: bool, out: &mut [f32]) -> Result<(), Error> {
        let inputs = self.inputs(slices)?;
        let mut held = self.state.lock().expect("no call panicked");
        let mut decoder = held.take().expect("the call has a state");
        let one_each = self.offsets.windows(2).all(|w| w[1] == w[0] + 1);
        let done = if one_each && !tracked {
            decoder.step(&inputs, out)
        } else {
            let mut state = decoder.into_state();
            let done = Call::new(&self.rule, Form::CHUNKED, inputs).and_then(|call| {
                if !tracked {
                    return call.forward(&mut state, out);
                }
                let tape = call.record(&mut state, out)?;
                self.tape.set(tape).expect("an operation runs once");
                Ok(())
            });
            decoder = Decoder::new(&self.rule, state)?;
            done
        };
        *held = Some(decoder);
        done
    }
}

impl SliceOp for RuleOp {
    fn forward(&self, inputs: &[Slice<'_>], tracked: bool) -> Array {
        let mut out = vec![0.0; inputs[2].data.len()];
        match self.try_forward(inputs, tracked, &mut out) {
            Ok(()) => {}
            // A gate that is no finite number makes everything NaN, also of the sequences beside it; who trains looks for it.
            Err(Error::Range { value, .. }) if !value.is_finite() => {
                out.fill(f32::NAN);
                let mut held = self.state.lock().expect("no call panicked");
                let mut state = held.take().expect("the call put it back").into_state();
                state.memory.fill(f32::NAN);
                state.started.fill(true);
                *held = Some(Decoder::new(&self.rule, state).expect("the rule has been used already"));
            }
            Err(error) => panic!("{error}"),
        }
        Array { data: out, shape: inputs[2].shape.to_vec() }
    }

    fn backward(&self, slices: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>> {
        let Some(tape) = self.tape.get() else {
            return slices.iter().map(|slice| vec![f32::NAN; slice.data.len()]).collect();
        };
        let inputs = self.inputs(slices).expect("the forward pass accepted them");
        let call = Call::new(&self.rule, Form::CHUNKED, inputs).expect("the forward pass accepted them");
        let grads = tape.backward(&call, &grad, None).expect("it is the call that was recorded");
        let gates = [grads.gain, grads.decay].into_iter().filter(|grad| !grad.is_empty());
        [grads.q, grads.k, grads.v].into_iter().chain(gates).collect()
    }
}
