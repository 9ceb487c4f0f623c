//! Compares the load of experts with the auxiliary losses of all stages, of the last one alone, and of none: three
//! trainings, one drawing.
//!
//! 1. The trainings differ only in the injection: same data, same initial weights.
//! 2. At each step, loads are summed over the last [`WINDOW`] steps, for each layer with experts. Drawn are the
//!    largest loads over the mean loads of the worst layer of the inner stages, and of the last stage.

use crate::line_chart::{HEIGHT, Line, MARGIN, begin, lines};
use crate::moe::expert_load::imbalance;
use crate::moe::record::MoeStepRecord;

/// The number of steps that loads are summed over.
pub const WINDOW: usize = 20;

/// One training's curves.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadCurve {
    /// The stages whose auxiliary losses were injected.
    pub injection: String,
    /// The largest load over the mean load of the worst layer before the last stage, step by step.
    pub inner: Vec<f64>,
    /// The same in the last stage.
    pub last: Vec<f64>,
}

impl LoadCurve {
    /// The curves of a training. The first `inner` of its layers with experts are not in the last stage.
    pub fn new(injection: String, records: &[MoeStepRecord], inner: usize) -> Self {
        let worst = |layers: &[f64]| layers.iter().copied().fold(1.0, f64::max);
        let at = |step: usize| imbalance(&records[..=step], WINDOW);
        let (inner, last) = (0..records.len())
            .map(|step| {
                let layers = at(step);
                let (before, after) = layers.split_at(inner.min(layers.len()));
                (worst(before), worst(after))
            })
            .unzip();
        Self { injection, inner, last }
    }
}

/// The drawing, as SVG.
pub fn svg(title: &str, curves: &[LoadCurve]) -> String {
    let mut out = begin(title, 2.0 * MARGIN + HEIGHT);
    let both = |(colour, curve): (usize, &LoadCurve)| {
        let line = |part: &str, values: &[f64], dashed| Line {
            name: format!("{}: {part}", curve.injection),
            values: values.to_vec(),
            colour,
            dashed,
        };
        [line("inner", &curve.inner, false), line("last", &curve.last, true)]
    };
    let drawn: Vec<Line> = curves.iter().enumerate().flat_map(both).collect();
    let caption = format!(
        "max/mean load of the worst layer over {WINDOW} steps: inner stages solid, last stage dashed; \
         by the stages whose auxiliary losses reach routers"
    );
    lines(&mut out, &drawn, 120.0, &caption);
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::StepRecord;

    fn record(step: usize, load: Vec<Vec<f64>>) -> MoeStepRecord {
        let (loss, learning_rate, gradient_norm, step_seconds, tokens_per_second) = (1.0, 1.0, 1.0, 1.0, 1.0);
        let step =
            StepRecord { step, loss, learning_rate, gradient_norm, step_seconds, tokens_per_second, skipped: None };
        let (ahead, load_balance, router_z, depth_router, dropped) = (0.0, 1.0, 1.0, 0.0, 0.0);
        MoeStepRecord { step, ahead, load_balance, router_z, depth_router, dropped, imbalance: Vec::new(), load }
    }

    #[test]
    fn the_worst_layer_of_each_part_is_followed_over_a_window() {
        // Two inner layers, and one in the last stage; the second inner one is uneven at first and evens out.
        let early = || vec![vec![2.0, 2.0], vec![4.0, 0.0], vec![1.0, 3.0]];
        let late = || vec![vec![2.0, 2.0], vec![2.0, 2.0], vec![3.0, 1.0]];
        let records: Vec<_> = (1..=2 * WINDOW).map(|i| record(i, if i <= WINDOW { early() } else { late() })).collect();
        let curve = LoadCurve::new("all".to_owned(), &records, 2);
        assert_eq!((curve.inner[0], curve.last[0]), (2.0, 1.5));
        assert_eq!((curve.inner[WINDOW + WINDOW / 2 - 1], curve.last[WINDOW + WINDOW / 2 - 1]), (1.5, 1.0));
        assert_eq!((curve.inner[2 * WINDOW - 1], curve.last[2 * WINDOW - 1]), (1.0, 1.5));
        let drawing = svg("load", &[curve.clone(), LoadCurve { injection: "none".to_owned(), ..curve }]);
        assert_eq!((drawing.matches("<polyline").count(), drawing.matches("dasharray").count()), (4, 2));
        assert!(drawing.ends_with("</svg>\n") && !drawing.contains("NaN"));
    }
}
