//! What the processor can do.

/// Returns true if the processor has all features for which this crate compiles vectorised loops: AVX-512 has
/// several, and a virtual machine may hide some.
pub(crate) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
}
