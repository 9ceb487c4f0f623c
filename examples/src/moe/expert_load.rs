//! Draws the load of experts: how uneven it was at each step, and each expert's share at the end.
//!
//! 1. Above: the largest load over the mean load of each layer with experts, step by step; 1 is even.
//! 2. Below: one row per layer and one cell per expert, with its share of the last steps' choices relative to the
//!    even share.

use crate::line_chart::{HEIGHT, Line, MARGIN, WIDTH, begin, lines};
use crate::moe::record::MoeStepRecord;
use std::fmt::Write;

const ROW: f64 = 26.0;

/// The choices of each expert of each layer over the last `last` steps.
fn loads(records: &[MoeStepRecord], last: usize) -> Vec<Vec<f64>> {
    let mut sums: Vec<Vec<f64>> = Vec::new();
    for record in &records[records.len().saturating_sub(last)..] {
        sums.resize(record.load.len(), Vec::new());
        for (sum, load) in sums.iter_mut().zip(&record.load) {
            sum.resize(load.len(), 0.0);
            sum.iter_mut().zip(load).for_each(|(sum, load)| *sum += load);
        }
    }
    sums
}

/// The largest load over the mean load of each layer with experts, over the last `last` steps.
pub fn imbalance(records: &[MoeStepRecord], last: usize) -> Vec<f64> {
    loads(records, last).iter().map(|load| relative(load).into_iter().fold(0.0, f64::max)).collect()
}

/// Loads relative to their mean.
fn relative(load: &[f64]) -> Vec<f64> {
    let mean = load.iter().sum::<f64>() / load.len().max(1) as f64;
    load.iter().map(|load| if mean > 0.0 { load / mean } else { 1.0 }).collect()
}

/// The drawing, as SVG.
pub fn svg(title: &str, records: &[MoeStepRecord], last: usize) -> String {
    let loads = loads(records, last);
    let mut out = begin(title, 2.0 * MARGIN + HEIGHT + 30.0 + ROW * loads.len() as f64 + 20.0);
    let layers = records.first().map_or(0, |record| record.imbalance.len());
    let line = |layer: usize| Line {
        name: format!("layer {layer}"),
        values: records.iter().map(|record| record.imbalance[layer]).collect(),
        colour: layer,
        dashed: false,
    };
    let curves: Vec<Line> = (0..layers).map(line).collect();
    lines(&mut out, &curves, 70.0, "largest load over mean load, step by step");
    cells(&mut out, &loads, last.min(records.len()));
    out.push_str("</svg>\n");
    out
}

fn cells(out: &mut String, loads: &[Vec<f64>], last: usize) {
    let top = MARGIN + HEIGHT + 44.0;
    let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"{:.1}\">load over mean load, last {last} steps</text>", top - 8.0);
    for (layer, load) in loads.iter().enumerate() {
        let width = WIDTH / load.len().max(1) as f64;
        for (expert, share) in relative(load).into_iter().enumerate() {
            let (x, y) = (MARGIN + width * expert as f64, top + ROW * layer as f64);
            // White at zero, opaque at three times the even share.
            let opacity = (share / 3.0).min(1.0);
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#0072b2\" \
                 fill-opacity=\"{opacity:.3}\" stroke=\"#888\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{share:.2}</text>",
                width - 2.0,
                ROW - 4.0,
                x + width / 2.0,
                y + 15.0
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{layer}</text>",
            MARGIN - 6.0,
            top + ROW * layer as f64 + 15.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::StepRecord;

    fn record(step: usize, load: Vec<Vec<f64>>) -> MoeStepRecord {
        let (loss, learning_rate, gradient_norm, step_seconds, tokens_per_second) = (1.0, 1.0, 1.0, 1.0, 1.0);
        MoeStepRecord {
            step: StepRecord {
                step,
                loss,
                learning_rate,
                gradient_norm,
                step_seconds,
                tokens_per_second,
                skipped: None,
            },
            ahead: 0.0,
            load_balance: 1.0,
            router_z: 1.0,
            depth_router: 0.0,
            dropped: 0.0,
            imbalance: load.iter().map(|load| relative(load).into_iter().fold(0.0, f64::max)).collect(),
            load,
        }
    }

    #[test]
    fn loads_are_summed_before_they_are_compared() {
        // Each step is uneven, but not always in favour of the same expert.
        let records =
            [record(1, vec![vec![9.0, 1.0]]), record(2, vec![vec![6.0, 2.0]]), record(3, vec![vec![2.0, 6.0]])];
        assert_eq!(imbalance(&records, 2), [1.0]);
        assert_eq!(imbalance(&records, 99), [17.0 / 13.0]);
        assert!(imbalance(&[], 5).is_empty());
    }

    #[test]
    fn the_drawing_has_a_curve_a_layer_and_a_cell_an_expert() {
        let records: Vec<MoeStepRecord> =
            (0..4).map(|step| record(step, vec![vec![1.0, 2.0, 3.0], vec![0.0, 0.0, 0.0]])).collect();
        let drawing = svg("a < b", &records, 2);
        assert_eq!(drawing.matches("<polyline").count(), 2);
        assert_eq!(drawing.matches("fill-opacity").count(), 6);
        assert!(drawing.contains("a &lt; b") && drawing.contains(">1.50<"));
        assert!(!drawing.contains("NaN"));
    }
}
