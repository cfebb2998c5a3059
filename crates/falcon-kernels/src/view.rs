//! A `[tokens, heads, dim]` tensor read through strides, so that nobody transposes or copies to call a kernel.

use crate::Real;
use crate::error::Error;

/// A read-only `[tokens, heads, dim]` tensor over a slice. Rows of `dim` numbers are contiguous; tokens and
/// heads may lie at any stride.
///
/// A batch `[batch, time, heads, dim]` is `[batch·time, heads, dim]` with offsets `0, time, 2·time, …`; a batch
/// `[batch, heads, time, dim]` is `[time, batch·heads, dim]` with strides `[dim, time·dim]`:
///
/// ```
/// use falcon_kernels::{Form, Inputs, Rule, View, forward};
///
/// let (batch, heads, time, dim) = (2, 3, 5, 4);
/// let data: Vec<f64> = (0..batch * heads * time * dim).map(|i| (i as f64).sin()).collect();
/// // Time is the outer axis, and every head of the batch a head of one sequence.
/// let view = View::strided(&data, [time, batch * heads, dim], [dim, time * dim])?;
/// let inputs = Inputs { q: view, k: view, v: view, gain: None, decay: None, offsets: &[0, time] };
/// let mut state = inputs.fresh_state(&Rule::LINEAR_ATTENTION)?;
/// let mut out = vec![0.0; data.len()];
/// forward(&Rule::LINEAR_ATTENTION, Form::CHUNKED, &inputs, &mut state, &mut out)?;
/// # Ok::<(), falcon_kernels::Error>(())
/// ```
///
/// The outputs are `[time, batch·heads, dim]`.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, F> {
    data: &'a [F],
    shape: [usize; 3],
    strides: [usize; 2],
}

impl<'a, F: Real> View<'a, F> {
    /// Row-major `[tokens, heads, dim]`.
    pub fn new(data: &'a [F], shape: [usize; 3]) -> Result<Self, Error> {
        let [_, heads, dim] = shape;
        let needed = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        match needed {
            Some(needed) if needed == data.len() => {
                Ok(Self { data, shape, strides: [heads.saturating_mul(dim), dim] })
            }
            needed => Err(Error::View { shape, strides: None, needed, got: data.len() }),
        }
    }

    /// `[tokens, heads, dim]` with the distance from one token, and from one head, to the next.
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
            Some(needed) if needed <= data.len() => Ok(Self { data, shape, strides }),
            needed => Err(Error::View { shape, strides: Some(strides), needed, got: data.len() }),
        }
    }

    /// One number per head, the same for all `tokens`: a fixed decay.
    pub fn per_head(data: &'a [F], tokens: usize) -> Self {
        Self { data, shape: [tokens, data.len(), 1], strides: [0, 1] }
    }

    /// `[tokens, heads, dim]`.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// The `dim` numbers of one token and head.
    pub(crate) fn row(&self, token: usize, head: usize) -> &'a [F] {
        let start = token * self.strides[0] + head * self.strides[1];
        &self.data[start..start + self.shape[2]]
    }

    /// The first element for which `bad` holds, with its index.
    pub(crate) fn find(&self, bad: impl Fn(F) -> bool) -> Option<([usize; 3], F)> {
        let [tokens, heads, _] = self.shape;
        // A broadcast axis is looked at once.
        let tokens = if self.strides[0] == 0 { tokens.min(1) } else { tokens };
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
    fn short_slices_are_refused() {
        let data = [0f32; 23];
        let said = |view: Result<View<'_, f32>, Error>| view.unwrap_err().to_string();
        assert_eq!(said(View::new(&data, [4, 3, 2])), "a view of shape [4, 3, 2] needs 24 elements, got 23");
        let strided = said(View::strided(&data, [4, 3, 2], [2, 8]));
        assert_eq!(strided, "a view of shape [4, 3, 2] and strides [2, 8] needs 24 elements, got 23");
        let endless = said(View::strided(&data, [usize::MAX, 2, 2], [usize::MAX, 2]));
        assert!(endless.contains("more than can be counted"), "{endless}");
        assert!(View::new(&data, [usize::MAX, 3, 2]).is_err());
        assert!(View::<f32>::new(&[], [0, 3, 2]).is_ok());
    }
}
