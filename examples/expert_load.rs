//! The load of experts as a drawing: how uneven it was at each step, and who had how much in the end.
//!
//! 1. Above, for each layer with experts, the largest load over the mean one, step by step; 1 is even.
//! 2. Below, one row a layer and one cell an expert: its share of the last steps' choices, over the even share.

use crate::moe_training::MoeStepRecord;
use std::fmt::Write;

const WIDTH: f64 = 720.0;
const CURVES: f64 = 220.0;
const MARGIN: f64 = 48.0;
const ROW: f64 = 26.0;
/// Line colours that are told apart by colour-blind readers too (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// Choices that fell on each expert of each layer over the last `last` steps.
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

/// Largest load over mean load of each layer with experts, over the last `last` steps.
pub fn imbalance(records: &[MoeStepRecord], last: usize) -> Vec<f64> {
    loads(records, last).iter().map(|load| relative(load).into_iter().fold(0.0, f64::max)).collect()
}

/// Loads over their mean.
fn relative(load: &[f64]) -> Vec<f64> {
    let mean = load.iter().sum::<f64>() / load.len().max(1) as f64;
    load.iter().map(|load| if mean > 0.0 { load / mean } else { 1.0 }).collect()
}

/// The drawing, as SVG.
pub fn svg(title: &str, records: &[MoeStepRecord], last: usize) -> String {
    let loads = loads(records, last);
    let height = 2.0 * MARGIN + CURVES + 30.0 + ROW * loads.len() as f64 + 20.0;
    let width = WIDTH + 2.0 * MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    curves(&mut out, records);
    cells(&mut out, &loads, last.min(records.len()));
    out.push_str("</svg>\n");
    out
}

fn curves(out: &mut String, records: &[MoeStepRecord]) {
    let layers = records.first().map_or(0, |record| record.imbalance.len());
    let most = records.iter().flat_map(|record| &record.imbalance).copied().fold(2.0, f64::max).ceil();
    let (bottom, steps) = (MARGIN + CURVES, records.len().max(2) - 1);
    let y = |value: f64| bottom - (value - 1.0) / (most - 1.0) * CURVES;
    for tick in 1..=most as usize {
        let at = y(tick as f64);
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "<line x1=\"{MARGIN}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            MARGIN + WIDTH,
            MARGIN - 6.0,
            at + 4.0
        );
    }
    for layer in 0..layers {
        let point = |(step, record): (usize, &MoeStepRecord)| {
            format!("{:.1},{:.1}", MARGIN + WIDTH * step as f64 / steps as f64, y(record.imbalance[layer]))
        };
        let points: Vec<String> = records.iter().enumerate().map(point).collect();
        let colour = COLOURS[layer % COLOURS.len()];
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.2\" points=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">layer {layer}</text>",
            points.join(" "),
            MARGIN + 70.0 * layer as f64,
            MARGIN - 8.0
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{MARGIN}\" y=\"{:.1}\">largest load over mean load, step by step</text>",
        bottom + 16.0
    );
}

fn cells(out: &mut String, loads: &[Vec<f64>], last: usize) {
    let top = MARGIN + CURVES + 44.0;
    let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"{:.1}\">load over mean load, last {last} steps</text>", top - 8.0);
    for (layer, load) in loads.iter().enumerate() {
        let width = WIDTH / load.len().max(1) as f64;
        for (expert, share) in relative(load).into_iter().enumerate() {
            let (x, y) = (MARGIN + width * expert as f64, top + ROW * layer as f64);
            // White at nothing, full at three times the even share.
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

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::StepRecord;

    fn record(step: usize, load: Vec<Vec<f64>>) -> MoeStepRecord {
        let (loss, learning_rate, gradient_norm, step_seconds, tokens_per_second) = (1.0, 1.0, 1.0, 1.0, 1.0);
        MoeStepRecord {
            step: StepRecord { step, loss, learning_rate, gradient_norm, step_seconds, tokens_per_second },
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
        // Each step is uneven, but not always to the same expert.
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
