//! What counts as an amount of seconds, bytes or FLOPs.

/// Whether a number is finite and not negative.
pub(super) fn is_amount(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// Whether a number is zero, so that it can be left out of JSON.
pub(super) fn is_zero(value: &f64) -> bool {
    *value == 0.0
}
