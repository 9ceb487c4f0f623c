//! What the processor can do, loops in versions for several processors, and prefetching.

/// Returns true if the processor has all features for which this crate compiles vectorised loops: AVX-512 has
/// several, and a virtual machine may hide some.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
}

/// Brings memory into the L2 cache before it is read. An address without memory is no error.
///
/// Processors prefetch on their own within a page of 4 KiB, after a few accesses to it. Packing and regions read many
/// short pieces.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T, count: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..count * size_of::<T>()).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: every processor of this kind has the instruction, and it accesses no memory.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.wrapping_byte_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, count);
}

/// Runs an expression of some arguments, compiled in versions for several processors: AVX-512; AVX2 with fused
/// multiply-add; or the target's basic features. The constant that is named first is true if the version has fused
/// multiply-add.
macro_rules! vectorized {
    (|$fma:ident, $($argument:ident: $type:ty),+| $run:expr) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
        fn with_avx512($($argument: $type),+) {
            const $fma: bool = true;
            $run
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2($($argument: $type),+) {
            const $fma: bool = true;
            $run
        }

        match () {
            // SAFETY: the processor has these instructions.
            #[cfg(target_arch = "x86_64")]
            () if $crate::processor::has_avx512() => unsafe { with_avx512($($argument),+) },
            // SAFETY: the processor has these instructions.
            #[cfg(target_arch = "x86_64")]
            () if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") => unsafe {
                with_avx2($($argument),+)
            },
            () => {
                // All 64-bit ARM processors have vectors and fused multiply-add.
                const $fma: bool = cfg!(target_arch = "aarch64");
                $run
            }
        }
    }};
}
pub(crate) use vectorized;
