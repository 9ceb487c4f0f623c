//! Checks of amounts of seconds, bytes or FLOPs.

/// Returns true if a number is finite and not negative.
pub(super) fn is_amount(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// Returns true if a number is zero and can be left out of JSON.
pub(super) fn is_zero(value: &f64) -> bool {
    *value == 0.0
}
