//! Round numbers for a time axis.

/// Ticks from 0 to `end`, about `count` of them, at 1, 2 or 5 times a power of ten.
pub(super) fn ticks(end: f64, count: usize) -> Vec<f64> {
    if !(end.is_finite() && end > 0.0) {
        return vec![0.0];
    }
    let step = step(end / count.max(1) as f64);
    // The smallest numbers have no step.
    if !step.is_normal() {
        return vec![0.0];
    }
    (0..).map(|i| f64::from(i) * step).take_while(|&t| t <= end * (1.0 + 1e-9)).collect()
}

/// The smallest of 1, 2, 5 times a power of ten that is not below `least`.
fn step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|k| k * power).find(|&s| s >= least * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// A number without trailing zeros: `0.1`, `25`, `1.00e-6`.
pub(super) fn short(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e7).contains(&value.abs()) {
        return format!("{value:.2e}");
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(33.0, 10), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]);
        assert_eq!(ticks(1.0, 5).len(), 6);
        assert_eq!(ticks(0.0, 5), [0.0]);
        assert_eq!(ticks(f64::NAN, 5), [0.0]);
        assert_eq!(ticks(5e-324, 5), [0.0]);
        assert_eq!((short(0.1), short(25.0), short(0.000_001)), ("0.1".into(), "25".into(), "1.00e-6".into()));
    }
}
