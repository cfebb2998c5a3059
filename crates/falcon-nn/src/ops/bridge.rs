//! Functions of slices as differentiable operations of Burn's CPU backend.
//!
//! A [`SliceOp`] has one output, a [`ManyOp`] several. An operation that returns more than tensors, such as a state, or
//! that keeps something for its backward pass, is a function given to [`run_with`], which returns all of it as a value.
//! This is the only module that depends on how Burn dispatches and differentiates.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, AutodiffBackend, Backend, Dispatch, ExtensionType, Flex, TensorMetadata, backend_extension,
};
use burn::tensor::{Tensor, TensorData};
use burn_flex::FlexTensor;

/// A differentiable function of row-major `f32` arrays.
pub(crate) trait SliceOp: Debug + Send + Sync {
    /// Computes the output. `tracked` tells whether a backward pass may follow.
    fn forward(&self, inputs: &[Slice<'_>], tracked: bool) -> Array;

    /// Computes the gradient of every input from that of the output, whose memory may be reused.
    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>>;
}

/// A differentiable function of row-major `f32` arrays with several outputs.
pub(crate) trait ManyOp: Debug + Send + Sync {
    /// Computes the outputs. `tracked` tells whether a backward pass may follow.
    fn forward(&self, inputs: &[Slice<'_>], tracked: bool) -> Vec<Array>;

    /// Computes the gradient of every input from those of the outputs. An output that the loss does not depend on has
    /// no gradient.
    fn backward(&self, inputs: &[Slice<'_>], grads: Vec<Option<Vec<f32>>>) -> Vec<Vec<f32>>;
}

/// The backward pass of one call, with what its forward pass has kept for it. Burn keeps the inputs.
pub(crate) trait Adjoint: Debug + Send + Sync {
    /// See [`ManyOp::backward`].
    fn backward(&self, inputs: &[Slice<'_>], grads: Vec<Option<Vec<f32>>>) -> Vec<Vec<f32>>;
}

/// The result of a forward pass.
pub(crate) struct ForwardPass<T> {
    pub outputs: Vec<Array>,
    pub adjoint: Arc<dyn Adjoint>,
    /// Whatever else the caller gets.
    pub value: T,
}

#[derive(Debug)]
struct One(Arc<dyn SliceOp>);

impl Adjoint for One {
    fn backward(&self, inputs: &[Slice<'_>], grads: Vec<Option<Vec<f32>>>) -> Vec<Vec<f32>> {
        self.0.backward(inputs, only(grads))
    }
}

#[derive(Debug)]
struct Many(Arc<dyn ManyOp>);

impl Adjoint for Many {
    fn backward(&self, inputs: &[Slice<'_>], grads: Vec<Option<Vec<f32>>>) -> Vec<Vec<f32>> {
        self.0.backward(inputs, grads)
    }
}

/// The gradient of the only output of an operation.
pub(super) fn only(mut grads: Vec<Option<Vec<f32>>>) -> Vec<f32> {
    grads[0].take().expect("a backward pass starts from a gradient")
}

/// A row-major array to read.
pub(crate) struct Slice<'a> {
    pub data: &'a [f32],
    pub shape: &'a [usize],
}

/// A row-major array to hand over.
pub(crate) struct Array {
    pub data: Vec<f32>,
    pub shape: Vec<usize>,
}

/// Runs an operation with one output on tensors of the CPU backend.
pub(crate) fn run<const D: usize, const N: usize>(op: Arc<dyn SliceOp>, inputs: [Primitive; N]) -> Tensor<D> {
    let forward = |inputs: &[Slice<'_>], tracked: bool| {
        let outputs = vec![op.forward(inputs, tracked)];
        ForwardPass { outputs, adjoint: Arc::new(One(op)), value: () }
    };
    let (mut outputs, ()) = run_with(forward, inputs.into());
    Tensor::from_dispatch(outputs.remove(0))
}

/// Runs an operation with several outputs on tensors of the CPU backend.
pub(crate) fn run_many(op: Arc<dyn ManyOp>, inputs: Vec<Primitive>) -> Vec<Primitive> {
    let forward = |inputs: &[Slice<'_>], tracked: bool| {
        let outputs = op.forward(inputs, tracked);
        ForwardPass { outputs, adjoint: Arc::new(Many(op)), value: () }
    };
    run_with(forward, inputs).0
}

/// Runs a function of slices on tensors of the CPU backend; returns its outputs and its value. The second argument of
/// `forward` tells whether a backward pass may follow; if none does, the adjoint is dropped.
pub(crate) fn run_with<T, F>(forward: F, inputs: Vec<Primitive>) -> (Vec<Primitive>, T)
where
    F: FnOnce(&[Slice<'_>], bool) -> ForwardPass<T>,
{
    let (outputs, _, value) = Dispatch::run_slices(forward, inputs.into(), false);
    (outputs, value)
}

/// A tensor of any rank on any of Burn's backends.
pub(crate) type Primitive = FloatTensor<Dispatch>;

/// Burn passes tensors as named fields, so there is a variant for each number of inputs.
macro_rules! arities {
    ($($name:ident $count:literal [$($x:ident)*];)*) => {
        /// The inputs of an operation.
        #[derive(ExtensionType)]
        pub enum Args<B: Backend> {
            $($name($(#[doc = stringify!($x)] FloatTensor<B>),*)),*
        }

        impl<B: Backend> Args<B> {
            fn into_vec(self) -> Vec<FloatTensor<B>> {
                match self {
                    $(Self::$name($($x),*) => vec![$($x),*]),*
                }
            }
        }

        impl<B: Backend> From<Vec<FloatTensor<B>>> for Args<B> {
            fn from(tensors: Vec<FloatTensor<B>>) -> Self {
                let count = tensors.len();
                let mut tensors = tensors.into_iter();
                let mut next = || tensors.next().expect("as many as counted");
                match count {
                    $($count => { $(let $x = next();)* Self::$name($($x),*) })*
                    _ => panic!("{count} inputs: an operation has from 1 to 8"),
                }
            }
        }

        fn track<B, C, T, F>(
            forward: F,
            inputs: Vec<FloatTensor<Autodiff<B, C>>>,
        ) -> Tracked<Autodiff<B, C>, T>
        where
            B: SliceBackend,
            C: CheckpointStrategy,
            F: FnOnce(&[Slice<'_>], bool) -> ForwardPass<T>,
        {
            match inputs.len() {
                $($count => track_all::<B, C, T, F, $count>(forward, inputs),)*
                count => panic!("{count} inputs: an operation has from 1 to 8"),
            }
        }
    };
}

arities! {
    Args1 1 [a];
    Args2 2 [a b];
    Args3 3 [a b c];
    Args4 4 [a b c d];
    Args5 5 [a b c d e];
    Args6 6 [a b c d e f];
    Args7 7 [a b c d e f g];
    Args8 8 [a b c d e f g h];
}

/// Backends that run functions of slices.
#[backend_extension(Flex, Autodiff)]
pub trait SliceBackend: Backend {
    fn run_slices<T, F>(
        forward: F,
        #[extension_type] inputs: Args<Self>,
        tracked: bool,
    ) -> (Vec<FloatTensor<Self>>, Arc<dyn Adjoint>, T)
    where
        F: FnOnce(&[Slice<'_>], bool) -> ForwardPass<T>;

    /// `grads` are the gradients of the outputs whose indices are in `given`. `outputs` is the number of all outputs.
    fn run_slices_backward(
        adjoint: Arc<dyn Adjoint>,
        #[extension_type] inputs: Args<Self>,
        #[extension_type] grads: Args<Self>,
        given: Vec<usize>,
        outputs: usize,
    ) -> Vec<FloatTensor<Self>>;
}

impl SliceBackend for Flex {
    fn run_slices<T, F>(forward: F, inputs: Args<Self>, tracked: bool) -> (Vec<FlexTensor>, Arc<dyn Adjoint>, T)
    where
        F: FnOnce(&[Slice<'_>], bool) -> ForwardPass<T>,
    {
        let ForwardPass { outputs, adjoint, value } = with_slices(inputs, |inputs| forward(inputs, tracked));
        let outputs = outputs.into_iter().map(|Array { data, shape }| tensor(data, shape)).collect();
        (outputs, adjoint, value)
    }

    fn run_slices_backward(
        adjoint: Arc<dyn Adjoint>,
        inputs: Args<Self>,
        grads: Args<Self>,
        given: Vec<usize>,
        outputs: usize,
    ) -> Vec<FlexTensor> {
        let mut by_output = vec![None; outputs];
        for (output, grad) in given.into_iter().zip(grads.into_vec()) {
            // Does not copy unless the gradient is shared.
            by_output[output] = Some(grad.into_data().try_into_vec().expect("gradients of f32 are f32"));
        }
        with_slices(inputs, |inputs| {
            let found = adjoint.backward(inputs, by_output);
            assert_eq!(found.len(), inputs.len(), "one gradient for each input");
            found.into_iter().zip(inputs).map(|(grad, input)| tensor(grad, input.shape.to_vec())).collect()
        })
    }
}

fn tensor(data: Vec<f32>, shape: Vec<usize>) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(data, shape))
}

fn with_slices<T>(inputs: Args<Flex>, f: impl FnOnce(&[Slice<'_>]) -> T) -> T {
    // Does not copy tensors that are contiguous.
    let inputs: Vec<_> = inputs.into_vec().into_iter().map(|x| x.to_contiguous()).collect();
    let shapes: Vec<Vec<usize>> = inputs.iter().map(|x| x.shape().to_vec()).collect();
    let slices: Vec<_> = inputs.iter().zip(&shapes).map(|(x, shape)| Slice { data: floats(x), shape }).collect();
    f(&slices)
}

fn floats(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("the CPU kernels compute in f32: use f32 tensors")
}

impl<B: SliceBackend, C: CheckpointStrategy> SliceBackend for Autodiff<B, C> {
    fn run_slices<T, F>(forward: F, inputs: Args<Self>, _: bool) -> (Vec<FloatTensor<Self>>, Arc<dyn Adjoint>, T)
    where
        F: FnOnce(&[Slice<'_>], bool) -> ForwardPass<T>,
    {
        track::<B, C, T, F>(forward, inputs.into_vec())
    }

    fn run_slices_backward(
        _: Arc<dyn Adjoint>,
        _: Args<Self>,
        _: Args<Self>,
        _: Vec<usize>,
        _: usize,
    ) -> Vec<FloatTensor<Self>> {
        panic!("the CPU operations have first derivatives only: no gradient can be taken of their gradients")
    }
}

/// Outputs, adjoint and value of a call, as [`SliceBackend::run_slices`] returns them.
type Tracked<B, T> = (Vec<FloatTensor<B>>, Arc<dyn Adjoint>, T);

/// Burn's operations have one output each. An operation with several outputs is therefore made of a hub, whose parents
/// are the inputs, and of a spoke for each output, whose parent is the hub. In a backward pass each spoke stores the
/// gradient of its output for the hub. The backward pass of the hub runs after those of its spokes and computes the
/// gradients of the inputs.
fn track_all<B, C, T, F, const N: usize>(
    forward: F,
    inputs: Vec<FloatTensor<Autodiff<B, C>>>,
) -> Tracked<Autodiff<B, C>, T>
where
    B: SliceBackend,
    C: CheckpointStrategy,
    F: FnOnce(&[Slice<'_>], bool) -> ForwardPass<T>,
{
    let inputs: [_; N] = inputs.try_into().unwrap_or_else(|_| panic!("{N} inputs"));
    let nodes = inputs.each_ref().map(|x| x.node());
    let inputs: Vec<_> = inputs.map(|x| x.into_primitive()).into();
    match Hub.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => {
            let (mut outputs, adjoint, value) = B::run_slices(forward, inputs.clone().into(), true);
            let stored = Arc::new(Mutex::new(vec![None; outputs.len()]));
            let saved = Saved { adjoint: adjoint.clone(), inputs, stored: stored.clone() };
            if outputs.len() == 1 {
                return (vec![prep.finish(saved, outputs.remove(0))], adjoint, value);
            }
            let hub = prep.finish(saved, placeholder::<B>(&outputs[0]));
            let spokes = outputs.into_iter().enumerate().map(|(index, output)| {
                match Spoke.prepare::<C>([hub.node()]).compute_bound().stateful() {
                    OpsKind::Tracked(prep) => prep.finish((stored.clone(), index), output),
                    OpsKind::UnTracked(prep) => prep.finish(output),
                }
            });
            (spokes.collect(), adjoint, value)
        }
        OpsKind::UnTracked(prep) => {
            let (mut outputs, adjoint, value) = B::run_slices(forward, inputs.into(), false);
            if outputs.len() == 1 {
                return (vec![prep.finish(outputs.remove(0))], adjoint, value);
            }
            let outputs = outputs.into_iter().map(<Autodiff<B, C> as AutodiffBackend>::from_inner).collect();
            (outputs, adjoint, value)
        }
    }
}

/// Stands for the value of a hub and for its gradient: one number that is never read.
fn placeholder<B: Backend>(like: &FloatTensor<B>) -> FloatTensor<B> {
    B::float_zeros([1].into(), &like.device(), like.dtype().into())
}

/// The gradients that the spokes have stored for their hub, by output.
type StoredGrads<B> = Arc<Mutex<Vec<Option<FloatTensor<B>>>>>;

#[derive(Clone, Debug)]
struct Saved<B: Backend> {
    adjoint: Arc<dyn Adjoint>,
    inputs: Vec<FloatTensor<B>>,
    stored: StoredGrads<B>,
}

#[derive(Debug)]
struct Hub;

impl<B: SliceBackend, const N: usize> Backward<B, N> for Hub {
    type State = Saved<B>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let Saved { adjoint, inputs, stored } = ops.state;
        let mut stored = std::mem::take(&mut *stored.lock().expect("no step panicked"));
        if let [only] = &mut stored[..] {
            *only = Some(grad);
        }
        let given = stored.iter().enumerate().filter(|(_, grad)| grad.is_some()).map(|(index, _)| index).collect();
        let outputs = stored.len();
        let stored: Vec<_> = stored.into_iter().flatten().collect();
        let found = B::run_slices_backward(adjoint, inputs.into(), stored.into(), given, outputs);
        assert_eq!(found.len(), N, "one gradient for each input");
        for (parent, grad) in ops.parents.into_iter().zip(found) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

#[derive(Debug)]
struct Spoke;

impl<B: Backend> Backward<B, 1> for Spoke {
    type State = (StoredGrads<B>, usize);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let (stored, index) = ops.state;
        if let [Some(hub)] = ops.parents {
            grads.register::<B>(hub.id, placeholder::<B>(&grad));
        }
        stored.lock().expect("no step panicked")[index] = Some(grad);
    }
}
