//! Comparison of CPU operations with tensor operations.

use burn::tensor::{Device, Tensor, TensorData};

use super::Engine;

/// Asserts that `f` gives the same outputs and gradients with both engines, and the same outputs where no gradient is
/// needed, for inputs of the given shapes. `f` gets its inputs as flat tensors and returns its outputs as such.
pub(crate) fn compare(shapes: &[Vec<usize>], f: impl Fn(Engine, &[Tensor<1>]) -> Vec<Tensor<1>>) {
    let (device, plain) = (Device::flex().autodiff(), Device::flex());
    let numbers = |tensor: Tensor<1>| -> Vec<f32> { tensor.into_data().try_into_vec().unwrap() };
    let data = |seed: usize, len: usize| -> Vec<f32> {
        (0..len).map(|i| ((i * 37 + seed * 101 + 11) as f32 * 0.7371).sin() * 0.8).collect()
    };
    let on = |device: &Device, data: Vec<f32>| {
        let len = data.len();
        Tensor::<1>::from_data(TensorData::new(data, [len]), device)
    };
    let tensor = |data| on(&device, data);
    let run = |engine| {
        let inputs: Vec<_> = shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| tensor(data(i, shape.iter().product())).require_grad())
            .collect();
        let outputs = f(engine, &inputs);
        let found: Vec<_> = outputs.iter().map(|output| numbers(output.clone())).collect();
        let parts = outputs.into_iter().enumerate().map(|(i, output)| {
            let weights = tensor(data(50 + i, output.dims()[0]));
            (output * weights).sum()
        });
        let loss = parts.reduce(|a, b| a + b).expect("an output");
        let grads = loss.backward();
        let grads = inputs.iter().map(|input| input.grad(&grads).map(numbers));
        (found, grads.collect::<Vec<_>>())
    };
    let ((outputs, grads), (expected, expected_grads)) = (run(Engine::Kernels), run(Engine::Tensors));
    let inputs = shapes.iter().enumerate().map(|(i, shape)| on(&plain, data(i, shape.iter().product())));
    let untracked = f(Engine::Kernels, &inputs.collect::<Vec<_>>()).into_iter().map(numbers).collect();
    for (outputs, how) in [(outputs, "with gradients"), (untracked, "without gradients")] {
        assert_eq!(outputs.len(), expected.len(), "outputs of inputs {shapes:?}, {how}");
        for (i, (got, expected)) in outputs.iter().zip(&expected).enumerate() {
            close(got, expected, &format!("output {i} of inputs {shapes:?}, {how}"));
        }
    }
    assert_eq!(grads.len(), expected_grads.len(), "gradients of inputs {shapes:?}");
    for (i, (got, expected)) in grads.iter().zip(&expected_grads).enumerate() {
        // A missing gradient is a gradient of 0.
        let zeros = vec![0.0; shapes[i].iter().product()];
        let [got, expected] = [got, expected].map(|grad| grad.as_ref().unwrap_or(&zeros));
        close(got, expected, &format!("gradient of input {i} of {shapes:?}"));
    }
}

fn close(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let most = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= 2e-5 * most.max(1.0), "{what}: number {i} is {got}, not {expected}");
    }
}
