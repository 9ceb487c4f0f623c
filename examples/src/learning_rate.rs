//! The learning rate over a run, from Burn's schedulers: a linear rise, then a cosine down to a tenth.
//!
//! The shape is that of Loshchilov and Hutter, "SGDR", 2017, with one period and a warm-up before it.

use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;

/// The peak is not a valid learning rate.
#[derive(Clone, PartialEq, thiserror::Error)]
#[error("--lr {rate} must be more than 0 and at most 1")]
pub struct RateError {
    /// The requested rate.
    pub rate: f64,
}

burn_pipeline::debug_as_text!(RateError);

/// The steps of the rise: a tenth of the run, at most 100.
fn warm_up(steps: usize) -> usize {
    (steps / 10).min(100)
}

/// The rate of each of `steps` steps, with the maximum `peak`.
///
/// # Errors
/// Returns [`RateError`] unless `peak` is above 0 and at most 1, as Burn's schedulers require.
pub fn learning_rates(peak: f64, steps: usize) -> Result<Vec<f64>, RateError> {
    let invalid = || RateError { rate: peak };
    // Written so that NaN is refused too.
    if !(peak > 0.0 && peak <= 1.0) {
        return Err(invalid());
    }
    let rise = warm_up(steps);
    let fall = CosineAnnealingLrSchedulerConfig::new(peak, (steps - rise).saturating_sub(1).max(1));
    let fall = LrSchedulerConfig::Cosine(fall.with_min_lr(peak / 10.0));
    let (parts, milestones) = match rise {
        0 => (vec![fall], vec![]),
        _ => {
            let first = peak / (rise + 1) as f64;
            let up = LinearLrSchedulerConfig::new(first, peak, rise);
            (vec![LrSchedulerConfig::Linear(up), fall], vec![rise])
        }
    };
    let scheduler = SequentialLrSchedulerConfig::new(parts, milestones).init();
    let mut scheduler = scheduler.map_err(|_| invalid())?;
    Ok((0..steps).map(|_| scheduler.step().base()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_to_its_peak_and_falls_to_a_tenth() {
        let rates = learning_rates(0.5, 200).unwrap();
        assert_eq!(rates.len(), 200);
        assert!((rates[0] - 0.5 / 21.0).abs() < 1e-12, "{}", rates[0]);
        assert!((rates[20] - 0.5).abs() < 1e-12, "{}", rates[20]);
        assert!((rates[199] - 0.05).abs() < 1e-12, "{}", rates[199]);
        assert!(rates[..=20].is_sorted());
        assert!(rates[20..].iter().rev().is_sorted());
    }

    #[test]
    fn short_runs_have_rates_too() {
        for steps in 1..30 {
            let rates = learning_rates(1e-3, steps).unwrap();
            assert_eq!(rates.len(), steps);
            assert!(rates.iter().all(|&rate| rate > 0.0 && rate <= 1e-3), "{rates:?}");
        }
    }

    #[test]
    fn a_rate_out_of_range_is_refused() {
        for rate in [0.0, -1.0, 1.5, f64::NAN, f64::INFINITY] {
            assert!(learning_rates(rate, 10).is_err(), "{rate}");
        }
    }
}
