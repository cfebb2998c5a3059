//! Tensors `[tokens, heads, dim]` that are read through strides, so that a caller need not transpose or copy them.

use crate::Real;
use crate::error::Error;

/// A read-only `[tokens, heads, dim]` tensor over a slice. Rows of `dim` numbers are contiguous; tokens and heads may
/// have any stride.
///
/// A batch `[batch, time, heads, dim]` is `[batch·time, heads, dim]` with offsets `0, time, 2·time, …`; a batch
/// `[batch, heads, time, dim]` is `[time, batch·heads, dim]` with strides `[dim, time·dim]`:
///
/// ```
/// use falcon_kernels::{Call, Form, Inputs, Rule, View};
///
/// let (batch, heads, time, dim) = (2, 3, 5, 4);
/// let data: Vec<f64> = (0..batch * heads * time * dim).map(|i| (i as f64).sin()).collect();
/// // Time is the outer axis, and the heads of the whole batch are heads of one sequence.
/// let view = View::strided(&data, [time, batch * heads, dim], [dim, time * dim])?;
/// let inputs = Inputs { q: view, k: view, v: view, gain: None, decay: None, offsets: &[0, time] };
/// let call = Call::new(&Rule::LINEAR_ATTENTION, Form::CHUNKED, inputs)?;
/// let (mut state, mut out) = (call.fresh_state(), vec![0.0; data.len()]);
/// call.forward(&mut state, &mut out)?;
/// # Ok::<(), falcon_kernels::Error>(())
/// ```
///
/// The outputs are `[time, batch·heads, dim]`.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, F> {
    data: &'a [F],
    shape: [usize; 3],
    strides: [usize; 2],
    /// Set where only the tokens of one sequence have a common stride.
    batch: Option<Batch>,
}

/// Sequences of equal length with a stride of their own.
#[derive(Clone, Copy, Debug)]
struct Batch {
    time: usize,
    stride: usize,
}

impl<'a, F: Real> View<'a, F> {
    /// A row-major tensor `[tokens, heads, dim]`.
    pub fn new(data: &'a [F], shape: [usize; 3]) -> Result<Self, Error> {
        let [_, heads, dim] = shape;
        let needed = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        match needed {
            Some(needed) if needed == data.len() => {
                Ok(Self { data, shape, strides: [heads.saturating_mul(dim), dim], batch: None })
            }
            needed => Err(Error::View { shape, strides: None, needed, got: data.len() }),
        }
    }

    /// A tensor `[tokens, heads, dim]` with the strides of tokens and heads.
    pub fn strided(data: &'a [F], shape: [usize; 3], strides: [usize; 2]) -> Result<Self, Error> {
        let [tokens, heads, dim] = shape;
        let needed = if tokens == 0 || heads == 0 {
            Some(0)
        } else {
            let last_token = (tokens - 1).checked_mul(strides[0]);
            let last_head = (heads - 1).checked_mul(strides[1]);
            last_token
                .and_then(|t| last_head.and_then(|h| t.checked_add(h)))
                .and_then(|start| start.checked_add(dim))
        };
        match needed {
            Some(needed) if needed <= data.len() => Ok(Self { data, shape, strides, batch: None }),
            needed => Err(Error::View { shape, strides: Some(strides), needed, got: data.len() }),
        }
    }

    /// A batch `[batch, time, heads, dim]` as `[batch·time, heads, dim]`, with the strides of sequences, tokens and
    /// heads. The strides are arbitrary, so a batch stored as `[batch, heads, time, dim]` is read in place.
    pub fn batched(data: &'a [F], shape: [usize; 4], strides: [usize; 3]) -> Result<Self, Error> {
        let [sequences, time, heads, dim] = shape;
        let [stride, token, head] = strides;
        let Some(tokens) = sequences.checked_mul(time) else {
            let shape = [usize::MAX, heads, dim];
            return Err(Error::View { shape, strides: Some([token, head]), needed: None, got: data.len() });
        };
        if sequences <= 1 || time.checked_mul(token) == Some(stride) {
            return Self::strided(data, [tokens, heads, dim], [token, head]);
        }
        if time <= 1 {
            return Self::strided(data, [tokens, heads, dim], [stride, head]);
        }
        // If the last sequence fits, all others do.
        let start = (sequences - 1).checked_mul(stride).filter(|start| *start <= data.len());
        let last = start.map(|start| Self::strided(&data[start..], [time, heads, dim], [token, head]));
        match last {
            Some(Ok(_)) => Ok(Self {
                data,
                shape: [tokens, heads, dim],
                strides: [token, head],
                batch: Some(Batch { time, stride }),
            }),
            _ => Err(Error::View {
                shape: [tokens, heads, dim],
                strides: Some([token, head]),
                needed: None,
                got: data.len(),
            }),
        }
    }

    /// One number per head, repeated for all `tokens`, such as a fixed decay.
    pub fn per_head(data: &'a [F], tokens: usize) -> Self {
        Self { data, shape: [tokens, data.len(), 1], strides: [0, 1], batch: None }
    }

    /// The shape `[tokens, heads, dim]`.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// The `dim` numbers of one token and head.
    pub(crate) fn row(&self, token: usize, head: usize) -> &'a [F] {
        let start = match self.batch {
            None => token * self.strides[0],
            Some(Batch { time, stride }) => token / time * stride + token % time * self.strides[0],
        };
        let start = start + head * self.strides[1];
        &self.data[start..start + self.shape[2]]
    }

    /// The first element that satisfies `bad`, with its index.
    pub(crate) fn find(&self, bad: impl Fn(F) -> bool) -> Option<([usize; 3], F)> {
        let [tokens, heads, _] = self.shape;
        // A broadcast axis has to be read only once.
        let repeats = self.strides[0] == 0 && self.batch.is_none();
        let tokens = if repeats { tokens.min(1) } else { tokens };
        (0..tokens).flat_map(|t| (0..heads).map(move |h| (t, h))).find_map(|(t, h)| {
            let row = self.row(t, h);
            row.iter().position(|x| bad(*x)).map(|i| ([t, h, i], row[i]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_reach_the_same_rows() {
        let data: Vec<f32> = (0..24).map(|i| i as f32).collect();
        // [tokens 4, heads 3, dim 2] stored as [heads, tokens, dim].
        let view = View::strided(&data, [4, 3, 2], [2, 8]).unwrap();
        assert_eq!(view.row(1, 2), &[18.0, 19.0]);
        assert_eq!(View::per_head(&data[..3], 100).row(99, 2), &[2.0]);
    }

    #[test]
    fn batches_are_read_in_place() {
        let data: Vec<f32> = (0..48).map(|i| i as f32).collect();
        // [batch 2, time 4, heads 3, dim 2], stored as [batch, heads, time, dim].
        let (shape, strides) = ([2, 4, 3, 2], [24, 2, 8]);
        let view = View::batched(&data, shape, strides).unwrap();
        assert_eq!(view.shape(), [8, 3, 2]);
        for (batch, time, head) in [(0, 0, 0), (0, 3, 2), (1, 0, 0), (1, 3, 2)] {
            let start = (24 * batch + 2 * time + 8 * head) as f32;
            assert_eq!(view.row(4 * batch + time, head), &[start, start + 1.0]);
        }
        assert_eq!(view.find(|x| x == 47.0), Some(([7, 2, 1], 47.0)));
        // A row-major batch, one sequence, and one token per sequence have a common stride.
        for (shape, strides) in
            [([2, 4, 3, 2], [24, 6, 2]), ([1, 4, 3, 2], [99, 6, 2]), ([4, 1, 3, 2], [6, 99, 2])]
        {
            assert!(View::batched(&data, shape, strides).unwrap().batch.is_none());
        }
        // Both sequences have the same tokens.
        let repeated = View::batched(&data[..24], shape, [0, 2, 8]).unwrap();
        assert_eq!(repeated.row(7, 2), &[22.0, 23.0]);
        assert!(View::batched(&data[..47], shape, strides).is_err());
        assert!(View::batched(&data, [2, 4, 3, 2], [usize::MAX, 2, 8]).is_err());
        assert!(View::batched(&data, [usize::MAX, 4, 3, 2], strides).is_err());
    }

    #[test]
    fn short_slices_are_refused() {
        let data = [0f32; 23];
        let message = |view: Result<View<'_, f32>, Error>| view.unwrap_err().to_string();
        assert_eq!(message(View::new(&data, [4, 3, 2])), "a view of shape [4, 3, 2] needs 24 elements, got 23");
        let strided = message(View::strided(&data, [4, 3, 2], [2, 8]));
        assert_eq!(strided, "a view of shape [4, 3, 2] and strides [2, 8] needs 24 elements, got 23");
        let endless = message(View::strided(&data, [usize::MAX, 2, 2], [usize::MAX, 2]));
        assert!(endless.contains("more than can be addressed"), "{endless}");
        assert!(View::new(&data, [usize::MAX, 3, 2]).is_err());
        assert!(View::<f32>::new(&[], [0, 3, 2]).is_ok());
    }
}
