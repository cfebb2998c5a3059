//! Arrays of other frameworks, exchanged by DLPack.

use dlpark::ffi::DLDeviceType;
use dlpark::python::{ImportedDlpack, from_dlpack};
use falcon_kernels::{Error, Real, View};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Number types that both DLPack and this module support.
pub trait Element: dlpark::DlpackElement + Copy {}
impl Element for f32 {}
impl Element for f64 {}
impl Element for i64 {}

/// An array of another framework. The framework keeps its memory alive as long as this value exists.
pub struct Array {
    name: &'static str,
    dlpack: ImportedDlpack,
    shape: Vec<usize>,
    /// Strides in elements.
    strides: Vec<usize>,
}

impl Array {
    /// Imports an array by DLPack. Error messages call it `name`.
    pub fn new(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let dlpack = from_dlpack(object.as_borrowed(), None, None)?;
        let wrong = |error: dlpark::tensor::Error| PyValueError::new_err(format!("{name}: {error}"));
        let tensor = dlpack.validate().map_err(wrong)?;
        if tensor.device().device_type != DLDeviceType::CPU {
            let device = tensor.device().device_type.0;
            return Err(PyValueError::new_err(format!(
                "{name} must be in the CPU's memory, got DLPack device {device}"
            )));
        }
        let shape = tensor.shape().iter().map(|size| *size as usize).collect();
        let strides = tensor.strides_or_compact().map_err(wrong)?;
        let strides = strides.iter().map(|stride| usize::try_from(*stride)).collect::<Result<Vec<_>, _>>();
        let strides =
            strides.map_err(|_| PyValueError::new_err(format!("{name} must not have negative strides")))?;
        Ok(Self { name, dlpack, shape, strides })
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Whether the elements are of type `F`.
    pub fn is<F: Element>(&self) -> bool {
        self.dlpack.validate().is_ok_and(|tensor| tensor.dtype().is::<F>())
    }

    /// The address of the first element, and the number of elements from the first to the last in memory.
    fn extent<F: Element>(&self) -> PyResult<(*const F, usize)> {
        let wrong = |error: dlpark::tensor::Error| PyTypeError::new_err(format!("{}: {error}", self.name));
        let tensor = self.dlpack.validate().map_err(wrong)?;
        // SAFETY: DLPack guarantees that the pointer is that of the array, which is in the CPU's memory.
        let pointer = unsafe { tensor.offset_data_ptr::<F>() }.map_err(wrong)?;
        if self.shape.contains(&0) {
            return Ok((pointer, 0));
        }
        let mut steps = self.shape.iter().zip(&self.strides).map(|(size, stride)| (size - 1).checked_mul(*stride));
        let last = steps.try_fold(0usize, |sum, step| sum.checked_add(step?));
        let length = last.and_then(|last| last.checked_add(1));
        length.map(|length| (pointer, length)).ok_or_else(|| {
            PyValueError::new_err(format!("{}: the array has more elements than can be counted", self.name))
        })
    }

    /// The memory from the first element to the last.
    fn span<F: Element>(&self) -> PyResult<&[F]> {
        let (pointer, length) = self.extent::<F>()?;
        // SAFETY: the array has this many elements from the pointer on, and they stay allocated while `self` lives.
        // Other Python threads may run meanwhile; like every framework, this one requires that they do not write to the
        // array during a call.
        Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
    }

    /// The elements of a row-major array.
    pub fn slice<F: Element>(&self) -> PyResult<&[F]> {
        self.check_compact()?;
        self.span()
    }

    /// The elements of a row-major array, for writing.
    pub fn slice_mut<F: Element>(&mut self) -> PyResult<&mut [F]> {
        self.check_compact()?;
        if self.dlpack.flags().contains(dlpark::DlpackFlags::READ_ONLY) {
            return Err(PyValueError::new_err(format!("{} is read-only", self.name)));
        }
        let (pointer, length) = self.extent::<F>()?;
        // SAFETY: as in `span`. This package allocates the arrays that are written to for a single call, so that
        // nothing else refers to them and they do not overlap.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast_mut(), length) })
    }

    fn check_compact(&self) -> PyResult<()> {
        let mut expected = 1;
        for (size, stride) in self.shape.iter().zip(&self.strides).rev() {
            if *size != 1 && *stride != expected && !self.shape.contains(&0) {
                return Err(PyValueError::new_err(format!("{} must be contiguous", self.name)));
            }
            expected *= size;
        }
        Ok(())
    }

    /// A view of `[batch, time, heads]` or `[batch, time, heads, dim]`. The numbers of a row must be contiguous; other
    /// strides are arbitrary.
    pub fn view<F: Element + Real>(&self) -> PyResult<View<'_, F>> {
        let (shape, strides) = match (self.shape.as_slice(), self.strides.as_slice()) {
            (&[batch, time, heads], &[b, t, h]) => ([batch, time, heads, 1], [b, t, h]),
            (&[batch, time, heads, dim], &[b, t, h, d]) if d == 1 || dim <= 1 || self.shape.contains(&0) => {
                ([batch, time, heads, dim], [b, t, h])
            }
            (&[_, _, _, _], _) => {
                let message = format!("{}: the last dimension must be contiguous", self.name);
                return Err(PyValueError::new_err(message));
            }
            (shape, _) => {
                let message = format!(
                    "{} must be [batch, time, heads] or [batch, time, heads, dim], got {shape:?}",
                    self.name
                );
                return Err(PyValueError::new_err(message));
            }
        };
        View::batched(self.span::<F>()?, shape, strides).map_err(|error| refused(&error))
    }
}

/// The `ValueError` for an error of the kernels.
pub fn refused(error: &Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}
