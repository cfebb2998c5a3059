//! The functions that Python calls: forward pass, backward pass, and one decoding step.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use falcon_kernels::{Call, Compiled, Decoder, Error, Form, GradsMut, Inputs, Real, Rule, Sizes, State, View};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::array::{Array, Element, refused};
use crate::rule::{form_by_name, parse};
use crate::threads::on_threads;

type Object<'py> = Bound<'py, PyAny>;
/// Queries, keys, values, gains, decays.
type InputObjects<'py> = (Object<'py>, Object<'py>, Object<'py>, Option<Object<'py>>, Option<Object<'py>>);
/// Memory, last key, tail keys, tail values, and counts; see [`StateArrays`].
type StateObjects<'py> = (Object<'py>, Object<'py>, Object<'py>, Object<'py>, Object<'py>);
/// Gradients of memory, last key, tail keys and tail values.
type GradStateObjects<'py> = (Object<'py>, Object<'py>, Object<'py>, Object<'py>);

/// The inputs of a call.
struct InputArrays {
    q: Array,
    k: Array,
    v: Array,
    gain: Option<Array>,
    decay: Option<Array>,
    /// The start of each sequence, and the end of the last.
    offsets: Vec<usize>,
}

impl InputArrays {
    fn new(objects: InputObjects<'_>, cu_seqlens: Option<&Object<'_>>) -> PyResult<Self> {
        let (q, k, v, gain, decay) = objects;
        let optional =
            |name, object: Option<Object<'_>>| object.map(|object| Array::new(name, &object)).transpose();
        let q = Array::new("q", &q)?;
        let &[batch, time, _, _] = q.shape() else {
            let message = format!("q must be [batch, time, heads, dim], got {:?}", q.shape());
            return Err(PyValueError::new_err(message));
        };
        let offsets = match cu_seqlens {
            None => (0..=batch).map(|sequence| sequence * time).collect(),
            Some(object) => {
                let array = Array::new("cu_seqlens", object)?;
                let numbers = array.slice::<i64>()?.iter().map(|number| usize::try_from(*number));
                numbers
                    .collect::<Result<_, _>>()
                    .map_err(|_| PyValueError::new_err("cu_seqlens must not have negative numbers"))?
            }
        };
        let (gain, decay) = (optional("gain", gain)?, optional("decay", decay)?);
        Ok(Self { q, k: Array::new("k", &k)?, v: Array::new("v", &v)?, gain, decay, offsets })
    }

    fn views<F: Element + Real>(&self) -> PyResult<Inputs<'_, F>> {
        fn optional<F: Element + Real>(array: Option<&Array>) -> PyResult<Option<View<'_, F>>> {
            array.map(Array::view).transpose()
        }
        Ok(Inputs {
            q: self.q.view()?,
            k: self.k.view()?,
            v: self.v.view()?,
            gain: optional(self.gain.as_ref())?,
            decay: optional(self.decay.as_ref())?,
            offsets: &self.offsets,
        })
    }

    fn call<F: Element + Real>(&self, rule: &Rule, form: Form) -> PyResult<Call<'_, F>> {
        Call::new(rule, form, self.views()?).map_err(|error| self.refused(&error))
    }

    /// The `ValueError` for an error of the kernels, with indices `[batch, time, …]` instead of tokens. The decay is
    /// called `ridge`, as is the argument of every function in Python, also for a rule whose decay is a gate.
    fn refused(&self, error: &Error) -> PyErr {
        match error {
            Error::Range { tensor, index, value, meaning, low, high } => {
                let time = self.q.shape()[1].max(1);
                let (token, rest) = (index[0], &index[1..]);
                // In Python, a gain for all columns has no column axis.
                let rest = if self.array(tensor).is_some_and(|array| array.shape().len() == 3) {
                    &rest[..1]
                } else {
                    rest
                };
                let index = [token / time, token % time].into_iter().chain(rest.iter().copied()).collect();
                let tensor = if *tensor == "decay" { "ridge" } else { tensor };
                let (value, low, high) = (*value, *low, *high);
                refused(&Error::Range { tensor, index, value, meaning, low, high })
            }
            other => refused(other),
        }
    }

    fn array(&self, name: &str) -> Option<&Array> {
        match name {
            "gain" => self.gain.as_ref(),
            "decay" => self.decay.as_ref(),
            _ => None,
        }
    }
}

/// The arrays of a state: memory, last key, tail keys, tail values, and counts. The counts are integers `[sequences,
/// 2]`: whether the sequence has had a token, and how many pairs its tail holds.
struct StateArrays([Array; 5]);

impl StateArrays {
    fn new((memory, last_key, tail_key, tail_value, counts): StateObjects<'_>) -> PyResult<Self> {
        Ok(Self([
            Array::new("memory", &memory)?,
            Array::new("last_key", &last_key)?,
            Array::new("tail_key", &tail_key)?,
            Array::new("tail_value", &tail_value)?,
            Array::new("counts", &counts)?,
        ]))
    }

    fn read<F: Element + Real>(&self, rule: &Rule, sizes: &Sizes) -> PyResult<State<F>> {
        let mut state = State::fresh(rule, sizes);
        let shapes = state.shapes();
        let [memory, last_key, tail_key, tail_value, counts] = &self.0;
        let arrays = [memory, last_key, tail_key, tail_value];
        let parts: [&mut [F]; 4] = [&mut state.memory, &mut state.last_key, &mut state.tail_x, &mut state.tail_v];
        for ((part, array), shape) in parts.into_iter().zip(arrays).zip(&shapes) {
            if array.shape() != shape {
                let message = format!("an array of the state has shape {:?}, expected {shape:?}", array.shape());
                return Err(PyValueError::new_err(message));
            }
            part.copy_from_slice(array.slice()?);
        }
        if counts.shape() != [sizes.sequences, 2] {
            let message =
                format!("the counts of the state must be [{}, 2], got {:?}", sizes.sequences, counts.shape());
            return Err(PyValueError::new_err(message));
        }
        for (sequence, counts) in counts.slice::<i64>()?.chunks_exact(2).enumerate() {
            state.started[sequence] = counts[0] != 0;
            state.tail_len[sequence] = usize::try_from(counts[1])
                .map_err(|_| PyValueError::new_err("the tail of a state has a negative length"))?;
        }
        Ok(state)
    }

    fn write<F: Element + Real>(&mut self, state: &State<F>) -> PyResult<()> {
        let [memory, last_key, tail_key, tail_value, counts] = &mut self.0;
        let parts: [&[F]; 4] = [&state.memory, &state.last_key, &state.tail_x, &state.tail_v];
        for (array, part) in [memory, last_key, tail_key, tail_value].into_iter().zip(parts) {
            copy_into(array, part)?;
        }
        let numbers = state.started.iter().zip(&state.tail_len);
        let numbers: Vec<i64> = numbers.flat_map(|(started, tail)| [i64::from(*started), *tail as i64]).collect();
        copy_into(counts, &numbers)
    }
}

fn copy_into<F: Element>(array: &mut Array, numbers: &[F]) -> PyResult<()> {
    let into = array.slice_mut()?;
    if into.len() != numbers.len() {
        let message = format!("an array for results has {} numbers, expected {}", into.len(), numbers.len());
        return Err(PyValueError::new_err(message));
    }
    into.copy_from_slice(numbers);
    Ok(())
}

/// Runs `work` while other Python threads can run, and turns a panic into an exception.
fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> PyResult<T> + Send) -> PyResult<T> {
    let message = |panic: &(dyn Any + Send)| match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_string(),
        (_, Some(text)) => text.clone(),
        _ => "unknown".into(),
    };
    py.detach(|| {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            let message = format!("a bug in falcon_fwa, please report it: {}", message(&*panic));
            Err(PyRuntimeError::new_err(message))
        })
    })
}

/// Panics, for the test that panics become exceptions.
#[pyfunction]
pub fn panic(py: Python<'_>, message: String) -> PyResult<()> {
    detached(py, || panic!("{message}"))
}

/// Calls a generic function for the number type of an array.
macro_rules! by_number {
    ($array:expr, $call:ident($($argument:expr),* $(,)?)) => {
        if $array.is::<f32>() {
            $call::<f32>($($argument),*)
        } else if $array.is::<f64>() {
            $call::<f64>($($argument),*)
        } else {
            Err(PyTypeError::new_err("q must be float32 or float64"))
        }
    };
}

/// The forward pass of a rule. The caller has allocated all arrays that are written to.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // The only caller is the Python package, which passes them in order.
pub fn forward(
    py: Python<'_>,
    rule: &str,
    form: &str,
    chunk_size: usize,
    inputs: InputObjects<'_>,
    cu_seqlens: Option<Object<'_>>,
    state: StateObjects<'_>,
    out: Object<'_>,
    final_state: StateObjects<'_>,
    saved: Option<Object<'_>>,
    threads: usize,
) -> PyResult<()> {
    let (rule, form) = (parse(rule)?.rule, form_by_name(form, chunk_size)?);
    let inputs = InputArrays::new(inputs, cu_seqlens.as_ref())?;
    let (state, mut out) = (StateArrays::new(state)?, Array::new("out", &out)?);
    let mut final_state = StateArrays::new(final_state)?;
    let mut saved = saved.map(|saved| Array::new("saved", &saved)).transpose()?;
    detached(py, || {
        by_number!(
            inputs.q,
            run_forward(&rule, form, &inputs, &state, &mut out, &mut final_state, saved.as_mut(), threads)
        )
    })
}

#[allow(clippy::too_many_arguments)] // `forward` for one number type.
fn run_forward<F: Element + Compiled>(
    rule: &Rule,
    form: Form,
    arrays: &InputArrays,
    state: &StateArrays,
    out: &mut Array,
    final_state: &mut StateArrays,
    saved: Option<&mut Array>,
    threads: usize,
) -> PyResult<()> {
    let call = arrays.call::<F>(rule, form)?;
    let mut state = state.read(rule, &call.sizes())?;
    let out = out.slice_mut()?;
    let result = match saved {
        None => on_threads(threads, || call.forward(&mut state, out))?,
        Some(saved) => {
            let needed = call.saved_len();
            let saved = saved.slice_mut()?;
            let length = saved.len();
            let saved = saved.get_mut(..needed).ok_or_else(|| {
                PyValueError::new_err(format!("saved has {length} numbers, expected at least {needed}"))
            })?;
            on_threads(threads, || call.record_into(&mut state, out, saved))?
        }
    };
    result.map_err(|error| arrays.refused(&error))?;
    final_state.write(&state)
}

/// The backward pass of a call of `forward`. The arrays for the gradients are overwritten.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // The only caller is the Python package, which passes them in order.
pub fn backward(
    py: Python<'_>,
    rule: &str,
    form: &str,
    chunk_size: usize,
    inputs: InputObjects<'_>,
    cu_seqlens: Option<Object<'_>>,
    state: StateObjects<'_>,
    saved: Object<'_>,
    grad_out: Object<'_>,
    grad_final: Option<GradStateObjects<'_>>,
    grads: InputObjects<'_>,
    grad_state: StateObjects<'_>,
    threads: usize,
) -> PyResult<()> {
    let (rule, form) = (parse(rule)?.rule, form_by_name(form, chunk_size)?);
    let inputs = InputArrays::new(inputs, cu_seqlens.as_ref())?;
    let (state, saved) = (StateArrays::new(state)?, Array::new("saved", &saved)?);
    let grad_out = Array::new("grad_out", &grad_out)?;
    let grad_final = grad_final.map(|(memory, last_key, tail_key, tail_value)| -> PyResult<_> {
        Ok([
            Array::new("gradient of memory", &memory)?,
            Array::new("gradient of last_key", &last_key)?,
            Array::new("gradient of tail_key", &tail_key)?,
            Array::new("gradient of tail_value", &tail_value)?,
        ])
    });
    let grad_final = grad_final.transpose()?;
    let mut grads = InputArrays::new(grads, None)?;
    let mut grad_state = StateArrays::new(grad_state)?;
    let call = Backward { rule: &rule, form, arrays: &inputs, state: &state, saved: &saved, grad_out: &grad_out };
    detached(py, || {
        by_number!(inputs.q, run_backward(call, grad_final.as_ref(), &mut grads, &mut grad_state, threads))
    })
}

/// The arguments of a backward pass that are only read.
#[derive(Clone, Copy)]
struct Backward<'a> {
    rule: &'a Rule,
    form: Form,
    arrays: &'a InputArrays,
    state: &'a StateArrays,
    saved: &'a Array,
    grad_out: &'a Array,
}

fn run_backward<F: Element + Compiled>(
    call: Backward<'_>,
    grad_final: Option<&[Array; 4]>,
    grads: &mut InputArrays,
    grad_state: &mut StateArrays,
    threads: usize,
) -> PyResult<()> {
    let Backward { rule, form, arrays, state, saved, grad_out } = call;
    let call = arrays.call::<F>(rule, form)?;
    let state = state.read::<F>(rule, &call.sizes())?;
    let grad_final = grad_final.map(|arrays| -> PyResult<_> {
        // The final state has the same sizes. The kernels compute the length of its tail from the initial state.
        let mut grad = state.zeros_like();
        let parts: [&mut [F]; 4] = [&mut grad.memory, &mut grad.last_key, &mut grad.tail_x, &mut grad.tail_v];
        for (part, array) in parts.into_iter().zip(arrays) {
            let numbers = array.slice::<F>()?;
            if numbers.len() != part.len() {
                return Err(PyValueError::new_err("the gradient of a state must have the size of the state"));
            }
            part.copy_from_slice(numbers);
        }
        Ok(grad)
    });
    let grad_final = grad_final.transpose()?;
    let saved = saved.slice::<F>()?.get(..call.saved_len()).ok_or_else(|| {
        PyValueError::new_err("saved is shorter than what a forward pass over these inputs saves")
    })?;
    let grad_out = grad_out.view::<F>()?;
    let grad_initial = {
        let InputArrays { q, k, v, gain, decay, .. } = grads;
        let (mut no_gain, mut no_decay) = ([], []);
        let into = GradsMut {
            q: q.slice_mut()?,
            k: k.slice_mut()?,
            v: v.slice_mut()?,
            gain: gain.as_mut().map_or(Ok(&mut no_gain[..]), |array| array.slice_mut())?,
            decay: decay.as_mut().map_or(Ok(&mut no_decay[..]), |array| array.slice_mut())?,
        };
        on_threads(threads, || call.backward_into(&state, saved, grad_out, grad_final.as_ref(), into))?
            .map_err(|error| refused(&error))?
    };
    grad_state.write(&grad_initial)
}

/// One token of each sequence by the decoder: a single pass over the memory, on the calling thread.
#[pyfunction]
pub fn step(
    py: Python<'_>,
    rule: &str,
    inputs: InputObjects<'_>,
    state: StateObjects<'_>,
    out: Object<'_>,
    final_state: StateObjects<'_>,
) -> PyResult<()> {
    let rule = parse(rule)?.rule;
    let inputs = InputArrays::new(inputs, None)?;
    let (state, mut out) = (StateArrays::new(state)?, Array::new("out", &out)?);
    let mut final_state = StateArrays::new(final_state)?;
    detached(py, || by_number!(inputs.q, run_step(&rule, &inputs, &state, &mut out, &mut final_state)))
}

fn run_step<F: Element + Compiled>(
    rule: &Rule,
    arrays: &InputArrays,
    state: &StateArrays,
    out: &mut Array,
    final_state: &mut StateArrays,
) -> PyResult<()> {
    let inputs = arrays.views::<F>()?;
    let sizes = arrays.call::<F>(rule, Form::Recurrent)?.sizes();
    let mut decoder = Decoder::new(rule, state.read(rule, &sizes)?).map_err(|error| refused(&error))?;
    decoder.step(&inputs, out.slice_mut()?).map_err(|error| arrays.refused(&error))?;
    final_state.write(decoder.state())
}
