//! Functions of slices as differentiable operations of Burn's CPU backend.
//!
//! A [`SliceOp`] is made for one call. It may keep what its backward pass needs; Burn keeps the inputs. This is the only
//! place that knows how Burn dispatches and differentiates.

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, ExtensionType, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Tensor, TensorData};
use burn_flex::FlexTensor;

/// A differentiable function of row-major `f32` arrays.
pub(crate) trait SliceOp: Debug + Send + Sync {
    /// The output. `tracked` says whether a backward pass may follow.
    fn forward(&self, inputs: &[Slice<'_>], tracked: bool) -> Array;

    /// The gradient of every input, from that of the output.
    fn backward(&self, inputs: &[Slice<'_>], grad: &[f32]) -> Vec<Vec<f32>>;
}

/// An array to read.
pub(crate) struct Slice<'a> {
    pub data: &'a [f32],
    pub shape: &'a [usize],
}

/// An array to hand over.
pub(crate) struct Array {
    pub data: Vec<f32>,
    pub shape: Vec<usize>,
}

/// Runs `op` on tensors of the CPU backend.
pub(crate) fn run<const D: usize, const N: usize>(op: Arc<dyn SliceOp>, inputs: [Primitive; N]) -> Tensor<D>
where
    Args<Dispatch>: From<[Primitive; N]>,
{
    Tensor::from_dispatch(Dispatch::run_slices(op, inputs.into(), false))
}

/// A tensor of any rank, on its way through the bridge.
pub(crate) type Primitive = FloatTensor<Dispatch>;

/// The inputs of an operation.
#[derive(ExtensionType)]
pub enum Args<B: Backend> {
    One(FloatTensor<B>),
    Two(FloatTensor<B>, FloatTensor<B>),
    Three(FloatTensor<B>, FloatTensor<B>, FloatTensor<B>),
    Four(FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>),
    Five(FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>),
}

impl<B: Backend> Args<B> {
    fn into_vec(self) -> Vec<FloatTensor<B>> {
        match self {
            Self::One(a) => vec![a],
            Self::Two(a, b) => vec![a, b],
            Self::Three(a, b, c) => vec![a, b, c],
            Self::Four(a, b, c, d) => vec![a, b, c, d],
            Self::Five(a, b, c, d, e) => vec![a, b, c, d, e],
        }
    }
}

impl<B: Backend> From<[FloatTensor<B>; 1]> for Args<B> {
    fn from([a]: [FloatTensor<B>; 1]) -> Self {
        Self::One(a)
    }
}

impl<B: Backend> From<[FloatTensor<B>; 2]> for Args<B> {
    fn from([a, b]: [FloatTensor<B>; 2]) -> Self {
        Self::Two(a, b)
    }
}

impl<B: Backend> From<[FloatTensor<B>; 3]> for Args<B> {
    fn from([a, b, c]: [FloatTensor<B>; 3]) -> Self {
        Self::Three(a, b, c)
    }
}

impl<B: Backend> From<[FloatTensor<B>; 4]> for Args<B> {
    fn from([a, b, c, d]: [FloatTensor<B>; 4]) -> Self {
        Self::Four(a, b, c, d)
    }
}

impl<B: Backend> From<[FloatTensor<B>; 5]> for Args<B> {
    fn from([a, b, c, d, e]: [FloatTensor<B>; 5]) -> Self {
        Self::Five(a, b, c, d, e)
    }
}

/// Backends that run [`SliceOp`]s.
#[backend_extension(Flex, Autodiff)]
pub trait SliceBackend: Backend {
    fn run_slices(op: Arc<dyn SliceOp>, #[extension_type] inputs: Args<Self>, tracked: bool) -> FloatTensor<Self>;
    fn run_slices_backward(
        op: Arc<dyn SliceOp>,
        #[extension_type] inputs: Args<Self>,
        grad: FloatTensor<Self>,
    ) -> Vec<FloatTensor<Self>>;
}

impl SliceBackend for Flex {
    fn run_slices(op: Arc<dyn SliceOp>, inputs: Args<Self>, tracked: bool) -> FlexTensor {
        let Array { data, shape } = with_slices(inputs, |inputs| op.forward(inputs, tracked));
        FlexTensor::from_data(TensorData::new(data, shape))
    }

    fn run_slices_backward(op: Arc<dyn SliceOp>, inputs: Args<Self>, grad: FlexTensor) -> Vec<FlexTensor> {
        let grad = grad.to_contiguous();
        with_slices(inputs, |inputs| {
            let grads = op.backward(inputs, floats(&grad));
            let arrays = grads.into_iter().zip(inputs).map(|(grad, input)| (grad, input.shape.to_vec()));
            arrays.map(|(grad, shape)| FlexTensor::from_data(TensorData::new(grad, shape))).collect()
        })
    }
}

fn with_slices<T>(inputs: Args<Flex>, f: impl FnOnce(&[Slice<'_>]) -> T) -> T {
    // Free where they are contiguous already.
    let inputs: Vec<_> = inputs.into_vec().into_iter().map(|x| x.to_contiguous()).collect();
    let shapes: Vec<Vec<usize>> = inputs.iter().map(|x| x.shape().to_vec()).collect();
    let slices: Vec<_> = inputs.iter().zip(&shapes).map(|(x, shape)| Slice { data: floats(x), shape }).collect();
    f(&slices)
}

fn floats(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("the CPU kernels compute in f32: use f32 tensors")
}

impl<B: SliceBackend, C: CheckpointStrategy> SliceBackend for Autodiff<B, C> {
    fn run_slices(op: Arc<dyn SliceOp>, inputs: Args<Self>, _: bool) -> FloatTensor<Self> {
        match inputs {
            Args::One(a) => track::<B, C, 1>(op, [a]),
            Args::Two(a, b) => track::<B, C, 2>(op, [a, b]),
            Args::Three(a, b, c) => track::<B, C, 3>(op, [a, b, c]),
            Args::Four(a, b, c, d) => track::<B, C, 4>(op, [a, b, c, d]),
            Args::Five(a, b, c, d, e) => track::<B, C, 5>(op, [a, b, c, d, e]),
        }
    }

    fn run_slices_backward(_: Arc<dyn SliceOp>, _: Args<Self>, _: FloatTensor<Self>) -> Vec<FloatTensor<Self>> {
        panic!("the CPU operations have first derivatives only: no gradient can be taken of their gradients")
    }
}

fn track<B: SliceBackend, C: CheckpointStrategy, const N: usize>(
    op: Arc<dyn SliceOp>,
    inputs: [FloatTensor<Autodiff<B, C>>; N],
) -> FloatTensor<Autodiff<B, C>>
where
    Args<B>: From<[FloatTensor<B>; N]>,
{
    let nodes = inputs.each_ref().map(|x| x.node());
    let inputs = inputs.map(|x| x.into_primitive());
    match Step.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => {
            let output = B::run_slices(op.clone(), inputs.clone().into(), true);
            prep.finish(Saved { op, inputs }, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(B::run_slices(op, inputs.into(), false)),
    }
}

#[derive(Clone, Debug)]
struct Saved<B: Backend, const N: usize> {
    op: Arc<dyn SliceOp>,
    inputs: [FloatTensor<B>; N],
}

#[derive(Debug)]
struct Step;

impl<B: SliceBackend, const N: usize> Backward<B, N> for Step
where
    Args<B>: From<[FloatTensor<B>; N]>,
{
    type State = Saved<B, N>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let Saved { op, inputs } = ops.state;
        let found = B::run_slices_backward(op, inputs.into(), grad);
        for (parent, grad) in ops.parents.into_iter().zip(found) {
            if let Some(node) = parent {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}
