//! The two number types of a scan.

use falcon_kernels::Compiled;

/// The numbers of a result.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Computed in `f32`.
    F32(Vec<f32>),
    /// Computed in `f64`.
    F64(Vec<f64>),
    /// Whole numbers.
    I64(Vec<i64>),
}

/// A number type that a scan can compute in.
pub(crate) trait Number: Compiled {
    /// Its name in messages and reports.
    const NAME: &'static str;
    /// What a user can do when it overflows.
    const ADVICE: &'static str;
    /// Results in this type.
    fn data(values: Vec<Self>) -> Data;
}

impl Number for f32 {
    const NAME: &'static str = "f32";
    const ADVICE: &'static str = "use --dtype f64, or scale them down";
    fn data(values: Vec<Self>) -> Data {
        Data::F32(values)
    }
}

impl Number for f64 {
    const NAME: &'static str = "f64";
    const ADVICE: &'static str = "scale them down";
    fn data(values: Vec<Self>) -> Data {
        Data::F64(values)
    }
}

/// The exact value of an IEEE half-precision number.
pub(crate) fn half_to_f32(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}

#[cfg(test)]
mod tests {
    use super::half_to_f32;

    #[test]
    fn halves_are_exact() {
        for (bits, value) in [
            (0x0000, 0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 2f32.powi(-24)),
            (0x3555, 0.33325195),
        ] {
            assert_eq!(half_to_f32(bits), value, "{bits:#x}");
        }
        assert_eq!(half_to_f32(0xfc00), f32::NEG_INFINITY);
        assert!(half_to_f32(0x7e00).is_nan());
    }
}
