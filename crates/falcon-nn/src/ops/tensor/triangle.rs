//! Triangular matrices by recursive halving, and splitting and padding whose adjoints are cheap.

use burn::tensor::{Tensor, TensorCreationOptions};

/// Zeros of `shape`, of the type and on the device of `like`.
pub(super) fn zeros<const D: usize, const E: usize>(shape: [usize; D], like: &Tensor<E>) -> Tensor<D> {
    Tensor::zeros(shape, options(like))
}

/// Ones of `shape`, of the type and on the device of `like`.
pub(super) fn ones<const D: usize, const E: usize>(shape: [usize; D], like: &Tensor<E>) -> Tensor<D> {
    Tensor::ones(shape, options(like))
}

/// Creates tensors of the type and on the device of `like`.
pub(super) fn options<const E: usize>(like: &Tensor<E>) -> TensorCreationOptions {
    TensorCreationOptions::new(like.device()).with_dtype(like.dtype())
}

/// Repeats every entry of a dimension `times` times in a row.
pub(super) fn spread(x: Tensor<4>, dim: usize, times: usize) -> Tensor<4> {
    if times == 1 {
        return x;
    }
    let mut shape = x.dims();
    let mut wide = [0; 5];
    wide[..=dim].copy_from_slice(&shape[..=dim]);
    wide[dim + 1] = times;
    wide[dim + 2..].copy_from_slice(&shape[dim + 1..]);
    shape[dim] *= times;
    x.unsqueeze_dim::<5>(dim + 1).expand(wide).reshape(shape)
}

/// Splits the first dimension into `count` equal pieces.
///
/// The adjoint of a slice fills a whole tensor with zeros. Halving recursively makes that `log count` tensors instead
/// of `count`.
pub(super) fn pieces<const D: usize>(x: Tensor<D>, count: usize) -> Vec<Tensor<D>> {
    if count == 1 {
        return vec![x];
    }
    let (rows, half) = (x.dims()[0], count / 2);
    let middle = rows / count * half;
    let mut first = pieces(x.clone().slice_dim(0, 0..middle), half);
    first.extend(pieces(x.slice_dim(0, middle..rows), count - half));
    first
}

/// `D_is = Π_{s < r ≤ i} γ_r` for `s ≤ i`, else 0: `[batch, n]` to `[batch, n, n]`, `n` a power of two.
///
/// With `A` and `B` the two halves on the diagonal, the corner between them is an outer product: the first column of
/// `B` (the decay since the middle) times `γ` there times the last row of `A`. There are only products, so a gate may
/// be 0.
pub(super) fn products(gamma: Tensor<2>) -> Tensor<3> {
    let [batch, n] = gamma.dims();
    if n == 1 {
        return ones([batch, 1, 1], &gamma);
    }
    let half = n / 2;
    let both = products(gamma.clone().reshape([2 * batch, half])).reshape([batch, 2 * half, half]);
    let (a, b) = (both.clone().slice_dim(1, 0..half), both.slice_dim(1, half..n));
    let since = b.clone().slice_dim(2, 0..1);
    let until = a.clone().slice_dim(1, half - 1..half);
    let middle = gamma.slice_dim(1, half..half + 1).reshape([batch, 1, 1]);
    let corner = since * (middle * until);
    lower(a, corner, b)
}

/// `(I + T)⁻¹` of strictly lower triangular `T`, `[batch, n, n]`.
///
/// By halving, `[[A, 0], [C, B]]⁻¹ = [[A⁻¹, 0], [−B⁻¹ C A⁻¹, B⁻¹]]`. Powers of `T` would need fewer products, but they
/// grow and cancel.
pub(super) fn inverse(strict: Tensor<3>) -> Tensor<3> {
    let [batch, n, _] = strict.dims();
    let padded = n.next_power_of_two();
    if padded == n {
        return inverse_halves(strict);
    }
    let right = zeros([batch, n, padded - n], &strict);
    let below = zeros([batch, padded - n, padded], &strict);
    let strict = Tensor::cat(vec![Tensor::cat(vec![strict, right], 2), below], 1);
    inverse_halves(strict).slice([0..batch, 0..n, 0..n])
}

fn inverse_halves(strict: Tensor<3>) -> Tensor<3> {
    let [batch, n, _] = strict.dims();
    if n == 1 {
        return ones([batch, 1, 1], &strict);
    }
    let half = n / 2;
    let a = strict.clone().slice([0..batch, 0..half, 0..half]);
    let c = strict.clone().slice([0..batch, half..n, 0..half]);
    let b = strict.slice([0..batch, half..n, half..n]);
    let both = inverse_halves(Tensor::cat(vec![a, b], 0));
    let (a, b) = (both.clone().slice_dim(0, 0..batch), both.slice_dim(0, batch..2 * batch));
    let corner = b.clone().matmul(c.matmul(a.clone())).neg();
    lower(a, corner, b)
}

/// `[[a, 0], [corner, b]]`.
fn lower(a: Tensor<3>, corner: Tensor<3>, b: Tensor<3>) -> Tensor<3> {
    let zero = zeros(a.dims(), &a);
    Tensor::cat(vec![Tensor::cat(vec![a, zero], 2), Tensor::cat(vec![corner, b], 2)], 1)
}
