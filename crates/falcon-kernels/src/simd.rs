//! Run-time choice of vector instructions.

use pulp::{Arch, Simd, WithSimd};

/// Work whose body, inlined, is compiled once for each instruction set and run with the best one the machine has.
pub(crate) trait Vectorised {
    /// Must be `#[inline(always)]`, and so must what it calls, to be compiled for the chosen instructions. `FUSED` says
    /// whether those multiply and add in one; see [`crate::real::mul_add`].
    fn run<const FUSED: bool>(self);
}

struct Wrapped<W>(W);

impl<W: Vectorised> WithSimd for Wrapped<W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        // True of every vector extension that `pulp` has for x86 and ARM; not of WebAssembly's.
        if S::IS_SCALAR || cfg!(target_family = "wasm") { self.0.run::<false>() } else { self.0.run::<true>() }
    }
}

/// Runs `work` with the machine's vector instructions.
pub(crate) fn dispatch(work: impl Vectorised) {
    Arch::new().dispatch(Wrapped(work));
}
