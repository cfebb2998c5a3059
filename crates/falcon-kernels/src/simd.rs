//! Vector instructions, chosen at run time.

use pulp::{Arch, Simd, WithSimd};

/// Work that is compiled once for each instruction set and run with the best one that the machine has.
pub(crate) trait Vectorised {
    /// This and everything it calls must be `#[inline(always)]` to be compiled for the chosen instructions. `FUSED`
    /// says whether they have a fused multiply-add; see [`crate::real::mul_add`].
    fn run<const FUSED: bool>(self);
}

struct Wrapped<W>(W);

impl<W: Vectorised> WithSimd for Wrapped<W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        // All vector extensions that `pulp` has for x86 and ARM are fused, those for WebAssembly are not.
        if S::IS_SCALAR || cfg!(target_family = "wasm") { self.0.run::<false>() } else { self.0.run::<true>() }
    }
}

/// Runs `f`, which should be `#[inline(always)]`, compiled for the vector instructions that the machine has.
pub fn vectorised<R>(f: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(f)
}

/// Runs `work` with the vector instructions that the machine has.
pub(crate) fn dispatch(work: impl Vectorised) {
    Arch::new().dispatch(Wrapped(work));
}
