//! Functions of slices as differentiable operations of Burn's CPU backend.
//!
//! A [`SliceOp`] is made for one call. It may keep what its backward pass needs; Burn keeps the inputs. A [`ManyOp`] has several
//! outputs. This is the only place that knows how Burn dispatches and differentiates.

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
    /// The output. `tracked` says whether a backward pass may follow.
    fn forward(&self, inputs: &[Slice<'_>], tracked: bool) -> Array;

    /// The gradient of every input, from that of the output, which is there to be overwritten.
    fn backward(&self, inputs: &[Slice<'_>], grad: Vec<f32>) -> Vec<Vec<f32>>;
}

/// A differentiable function of row-major `f32` arrays to several.
pub(crate) trait ManyOp: Debug + Send + Sync {
    /// How many outputs there are.
    fn outputs(&self) -> usize;

    /// The outputs. `tracked` says whether a backward pass may follow.
    fn forward(&self, inputs: &[Slice<'_>], tracked: bool) -> Vec<Array>;

    /// The gradient of every input, from those of the outputs: none where the loss does not depend on one.
    fn backward(&self, inputs: &[Slice<'_>], grads: Vec<Option<Vec<f32>>>) -> Vec<Vec<f32>>;
}

/// One output is a case of many.
#[derive(Debug)]
struct One(Arc<dyn SliceOp>);

impl ManyOp for One {
    fn outputs(&self) -> usize {
        1
    }

    fn forward(&self, inputs: &[Slice<'_>], tracked: bool) -> Vec<Array> {
        vec![self.0.forward(inputs, tracked)]
    }

    fn backward(&self, inputs: &[Slice<'_>], mut grads: Vec<Option<Vec<f32>>>) -> Vec<Vec<f32>> {
        self.0.backward(inputs, grads[0].take().expect("a backward pass starts from a gradient"))
    }
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
pub(crate) fn run<const D: usize, const N: usize>(op: Arc<dyn SliceOp>, inputs: [Primitive; N]) -> Tensor<D> {
    let mut outputs = run_many(Arc::new(One(op)), inputs.into());
    Tensor::from_dispatch(outputs.remove(0))
}

/// Runs `op` on tensors of the CPU backend.
pub(crate) fn run_many(op: Arc<dyn ManyOp>, inputs: Vec<Primitive>) -> Vec<Primitive> {
    Dispatch::run_slices(op, inputs.into(), false)
}

/// A tensor of any rank, on its way through the bridge.
pub(crate) type Primitive = FloatTensor<Dispatch>;

/// Burn passes tensors by name, one type for each number of them.
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
                    _ => panic!("{count} inputs: the bridge is not that wide"),
                }
            }
        }

        fn track<B: SliceBackend, C: CheckpointStrategy>(
            op: Arc<dyn ManyOp>,
            inputs: Vec<FloatTensor<Autodiff<B, C>>>,
        ) -> Vec<FloatTensor<Autodiff<B, C>>> {
            match inputs.len() {
                $($count => track_all::<B, C, $count>(op, inputs),)*
                count => panic!("{count} inputs: the bridge is not that wide"),
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

/// Backends that run [`ManyOp`]s.
#[backend_extension(Flex, Autodiff)]
pub trait SliceBackend: Backend {
    fn run_slices(
        op: Arc<dyn ManyOp>,
        #[extension_type] inputs: Args<Self>,
        tracked: bool,
    ) -> Vec<FloatTensor<Self>>;

    /// `grads` are those of the outputs `given`.
    fn run_slices_backward(
        op: Arc<dyn ManyOp>,
        #[extension_type] inputs: Args<Self>,
        #[extension_type] grads: Args<Self>,
        given: Vec<usize>,
    ) -> Vec<FloatTensor<Self>>;
}

impl SliceBackend for Flex {
    fn run_slices(op: Arc<dyn ManyOp>, inputs: Args<Self>, tracked: bool) -> Vec<FlexTensor> {
        let outputs = with_slices(inputs, |inputs| op.forward(inputs, tracked));
        outputs.into_iter().map(|Array { data, shape }| tensor(data, shape)).collect()
    }

    fn run_slices_backward(
        op: Arc<dyn ManyOp>,
        inputs: Args<Self>,
        grads: Args<Self>,
        given: Vec<usize>,
    ) -> Vec<FlexTensor> {
        let mut by_output = vec![None; op.outputs()];
        for (output, grad) in given.into_iter().zip(grads.into_vec()) {
            // Free where nobody else has it.
            by_output[output] = Some(grad.into_data().try_into_vec().expect("gradients of f32 are f32"));
        }
        with_slices(inputs, |inputs| {
            let found = op.backward(inputs, by_output);
            assert_eq!(found.len(), inputs.len(), "gradients, and inputs");
            found.into_iter().zip(inputs).map(|(grad, input)| tensor(grad, input.shape.to_vec())).collect()
        })
    }
}

fn tensor(data: Vec<f32>, shape: Vec<usize>) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(data, shape))
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
    fn run_slices(op: Arc<dyn ManyOp>, inputs: Args<Self>, _: bool) -> Vec<FloatTensor<Self>> {
        track::<B, C>(op, inputs.into_vec())
    }

    fn run_slices_backward(
        _: Arc<dyn ManyOp>,
        _: Args<Self>,
        _: Args<Self>,
        _: Vec<usize>,
    ) -> Vec<FloatTensor<Self>> {
        panic!("the CPU operations have first derivatives only: no gradient can be taken of their gradients")
    }
}

/// Burn's operations have one output each. One of ours with several is a hub that every output hangs from: the outputs leave
/// their gradients with the hub, which is run after all of them and then has what it needs.
fn track_all<B: SliceBackend, C: CheckpointStrategy, const N: usize>(
    op: Arc<dyn ManyOp>,
    inputs: Vec<FloatTensor<Autodiff<B, C>>>,
) -> Vec<FloatTensor<Autodiff<B, C>>> {
    let inputs: [_; N] = inputs.try_into().unwrap_or_else(|_| panic!("{N} inputs"));
    let nodes = inputs.each_ref().map(|x| x.node());
    let inputs: Vec<_> = inputs.map(|x| x.into_primitive()).into();
    match Hub.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => {
            let mut outputs = B::run_slices(op.clone(), inputs.clone().into(), true);
            let left = Arc::new(Mutex::new(vec![None; outputs.len()]));
            let saved = Saved { op, inputs, left: left.clone() };
            if outputs.len() == 1 {
                return vec![prep.finish(saved, outputs.remove(0))];
            }
            let hub = prep.finish(saved, nothing::<B>(&outputs[0]));
            let spokes = outputs.into_iter().enumerate().map(|(index, output)| {
                match Spoke.prepare::<C>([hub.node()]).compute_bound().stateful() {
                    OpsKind::Tracked(prep) => prep.finish((left.clone(), index), output),
                    OpsKind::UnTracked(prep) => prep.finish(output),
                }
            });
            spokes.collect()
        }
        OpsKind::UnTracked(prep) => {
            let mut outputs = B::run_slices(op, inputs.into(), false);
            if outputs.len() == 1 {
                return vec![prep.finish(outputs.remove(0))];
            }
            outputs.into_iter().map(<Autodiff<B, C> as AutodiffBackend>::from_inner).collect()
        }
    }
}

/// What stands for the value of a hub, and for its gradient: one number that nobody reads.
fn nothing<B: Backend>(like: &FloatTensor<B>) -> FloatTensor<B> {
    B::float_zeros([1].into(), &like.device(), like.dtype().into())
}

/// The gradients that outputs have left with their hub.
type Left<B> = Arc<Mutex<Vec<Option<FloatTensor<B>>>>>;

#[derive(Clone, Debug)]
struct Saved<B: Backend> {
    op: Arc<dyn ManyOp>,
    inputs: Vec<FloatTensor<B>>,
    left: Left<B>,
}

#[derive(Debug)]
struct Hub;

impl<B: SliceBackend, const N: usize> Backward<B, N> for Hub {
    type State = Saved<B>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let Saved { op, inputs, left } = ops.state;
        let mut left = std::mem::take(&mut *left.lock().expect("no step panicked"));
        if let [only] = &mut left[..] {
            *only = Some(grad);
        }
        let given = left.iter().enumerate().filter(|(_, grad)| grad.is_some()).map(|(index, _)| index).collect();
        let left: Vec<_> = left.into_iter().flatten().collect();
        let found = B::run_slices_backward(op, inputs.into(), left.into(), given);
        assert_eq!(found.len(), N, "gradients, and inputs");
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
    type State = (Left<B>, usize);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let (left, index) = ops.state;
        if let [Some(hub)] = ops.parents {
            grads.register::<B>(hub.id, nothing::<B>(&grad));
        }
        left.lock().expect("no step panicked")[index] = Some(grad);
    }
}
