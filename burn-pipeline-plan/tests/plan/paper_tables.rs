//! The simulator compared with tables of the papers: rates, makespans and peaks. No number here comes from this
//! library.
//!
//! Sources: tables 5 and 9 of the Zero Bubble paper (arXiv:2401.10241). The rest was made once with the schedule
//! generators of PyTorch 2.15 and of Sea AI Lab and an event simulator in another language.

use crate::pricing::{build, four, price};
use burn_pipeline_plan::cost::UniformCosts;
use burn_pipeline_plan::plan::Plan;
use burn_pipeline_plan::schedule::{Schedule, Size, ZbAuto};

/// Tables 9 and 5 of the Zero Bubble paper: a model's shape, its times in ms, and the resulting rates.
struct Measured {
    /// Attention heads, hidden size, sequence length.
    shape: (f64, f64, f64),
    ranks: usize,
    microbatches: usize,
    forward: f64,
    input: f64,
    weight: f64,
    transfer: f64,
    /// 1F1B, ZB-H1, ZB-H2, ZB-1p, ZB-2p as printed.
    rates: &'static str,
    /// 1F1B-I: the paper's column, which its closed form gives, and the simulated rate of its real order.
    interleaved: &'static str,
}

const SMALL: (f64, f64, f64) = (24.0, 2304.0, 1024.0);
const LARGE: (f64, f64, f64) = (32.0, 4096.0, 1024.0);

const TABLE: [Measured; 6] = [
    measured(SMALL, 24, [18.522, 18.086, 9.337, 0.601], "0.2431 0.1585 0.1083 0.1585 0.0433", "0.1055 0.1090"),
    measured(SMALL, 32, [18.513, 18.086, 9.331, 0.626], "0.1985 0.1242 0.0837 0.1242 0.0039", "0.0818 0.0847"),
    measured(SMALL, 64, [18.546, 18.097, 9.321, 0.762], "0.1240 0.0674 0.0444 0.0674 0.0026", "0.0443 0.0461"),
    measured(LARGE, 24, [29.718, 29.444, 19.927, 0.527], "0.2347 0.1323 0.0698 0.1323 0.0029", "0.0808 0.0827"),
    measured(LARGE, 32, [29.802, 29.428, 19.530, 0.577], "0.1898 0.1045 0.0559 0.1045 0.0022", "0.0628 0.0644"),
    measured(LARGE, 64, [29.935, 29.621, 19.388, 0.535], "0.1091 0.0554 0.0294 0.0554 0.0010", "0.0320 0.0328"),
];

const fn measured(
    shape: (f64, f64, f64),
    microbatches: usize,
    [forward, input, weight, transfer]: [f64; 4],
    rates: &'static str,
    interleaved: &'static str,
) -> Measured {
    Measured { shape, ranks: 8, microbatches, forward, input, weight, transfer, rates, interleaved }
}

/// The cost-driven schedule with the paper's memory: `M_B = 34h + 5as`, `M_W = 32h`, and a limit in ranks.
fn zb_auto(row: &Measured, times: f64) -> ZbAuto {
    let (heads, hidden, sequence) = row.shape;
    let activation = 34.0 * hidden + 5.0 * heads * sequence;
    ZbAuto {
        activation,
        weight_activation: 32.0 * hidden,
        limit: Some(times * row.ranks as f64 * activation),
        ..ZbAuto::uniform(row.forward, row.input, row.weight, row.transfer)
    }
}

#[test]
fn the_zero_bubble_papers_rates_come_out_to_the_printed_digits() {
    for row in &TABLE {
        let costs = UniformCosts::new(row.forward, row.input, row.weight).with_transfer(row.transfer);
        let size = Size::new(row.ranks, row.microbatches);
        let mut plans: Vec<Plan> = ["1F1B", "ZB-H1", "ZB-H2"].map(|name| build(name, size)).into();
        plans.extend([1.0, 2.0].map(|times| zb_auto(row, times).build(size).unwrap()));
        let rates: Vec<String> = plans.iter().map(|plan| four(price(plan, costs).bubble_rate_span())).collect();
        assert_eq!(rates.join(" "), row.rates, "m = {}, F = {}", row.microbatches, row.forward);
    }
}

#[test]
fn the_papers_interleaved_column_is_a_closed_form_that_the_real_order_does_not_reach() {
    // The column charges (2pv-p-2)c for transfers. The built order takes (2pv-2)c, so its rates are higher. Chunks
    // are single layers: 24 on 8 ranks in the small model, 32 in the large one (embedding and head counted as one
    // layer each).
    for row in &TABLE {
        let costs = UniformCosts::new(row.forward, row.input, row.weight).with_transfer(row.transfer);
        let chunks = if row.shape == SMALL { 3 } else { 4 };
        let (p, v) = (row.ranks as f64, chunks as f64);
        let work = row.microbatches as f64 * (row.forward + row.input + row.weight);
        let bubble = (p - 1.0) / v * (row.forward + row.input + row.weight) + (2.0 * p * v - p - 2.0) * row.transfer;
        let plan = build("Interleaved1F1B", Size::new(row.ranks, row.microbatches).with_chunks(chunks));
        let simulated = price(&plan, costs).bubble_rate_span();
        assert_eq!(format!("{} {}", four(bubble / (bubble + work)), four(simulated)), row.interleaved);
    }
}

/// F, I, W and the latency of the four cost models: even, even with transfers, uneven, a measured one.
const MODELS: [[f64; 4]; 4] =
    [[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.1], [1.0, 1.2, 0.8, 0.0], [1.0, 0.976, 0.504, 0.0324]];

fn model([forward, input, weight, transfer]: [f64; 4]) -> UniformCosts {
    UniformCosts::new(forward, input, weight).with_transfer(transfer)
}

/// Schedule, chunks, rates over the span under the four models, makespan under the first, largest and smallest peak.
type Row = (&'static str, usize, [&'static str; 4], f64, f64, f64);

const FOUR_RANKS: [Row; 13] = [
    ("GPipe", 1, ["0.2727", "0.2857", "0.2727", "0.2779"], 33.0, 8.0, 8.0),
    ("1F1B", 1, ["0.2727", "0.3064", "0.2727", "0.2863"], 33.0, 4.0, 1.0),
    ("Interleaved1F1B", 2, ["0.1579", "0.1973", "0.1579", "0.1738"], 28.5, 5.5, 2.5),
    ("Interleaved1F1B", 4, ["0.0857", "0.1795", "0.0857", "0.1249"], 26.25, 4.75, 3.25),
    ("LoopedBFS", 2, ["0.1579", "0.1753", "0.1579", "0.1648"], 28.5, 8.0, 8.0),
    ("InterleavedZeroBubble", 2, ["0.0588", "0.1144", "0.0805", "0.1208"], 25.5, 4.0, 4.0),
    ("ZBVZeroBubble", 2, ["0.0000", "0.0625", "0.0476", "0.0898"], 25.5, 4.0, 4.0),
    ("DualPipeV", 2, ["0.0588", "0.1045", "0.0805", "0.1157"], 25.5, 4.5, 4.5),
    ("ZB-H1", 1, ["0.1111", "0.1489", "0.1489", "0.1950"], 27.0, 4.0, 4.0),
    ("ZB-H2", 1, ["0.0000", "0.0244", "0.0698", "0.1351"], 27.0, 7.0, 7.0),
    ("VHalf", 2, ["0.0943", "0.1638", "0.1398", "0.1829"], 26.5, 3.0, 3.0),
    ("VMin", 2, ["0.1864", "0.2836", "0.3023", "0.3462"], 29.5, 2.0, 2.0),
    ("1F1B-V", 2, ["0.2381", "0.3084", "0.2381", "0.3072"], 31.5, 3.0, 3.0),
];

const EIGHT_RANKS: [Row; 13] = [
    ("GPipe", 1, ["0.2258", "0.2373", "0.2258", "0.2303"], 93.0, 24.0, 24.0),
    ("1F1B", 1, ["0.2258", "0.2683", "0.2258", "0.2430"], 93.0, 8.0, 1.0),
    ("Interleaved1F1B", 2, ["0.1273", "0.1579", "0.1273", "0.1395"], 82.5, 11.5, 4.5),
    ("Interleaved1F1B", 4, ["0.0680", "0.1372", "0.0680", "0.0964"], 77.25, 9.75, 6.25),
    ("LoopedBFS", 2, ["0.1273", "0.1418", "0.1273", "0.1330"], 82.5, 24.0, 24.0),
    ("InterleavedZeroBubble", 2, ["0.0464", "0.0898", "0.0637", "0.0960"], 75.5, 8.0, 8.0),
    ("ZBVZeroBubble", 2, ["0.0000", "0.0526", "0.0374", "0.0728"], 75.5, 8.0, 8.0),
    ("DualPipeV", 2, ["0.0464", "0.0909", "0.0661", "0.0924"], 75.5, 8.5, 8.5),
    ("ZB-H1", 1, ["0.0886", "0.1198", "0.1198", "0.1585"], 79.0, 8.0, 8.0),
    ("ZB-H2", 1, ["0.0000", "0.0191", "0.0551", "0.1083"], 79.0, 15.0, 15.0),
    ("VHalf", 2, ["0.1056", "0.1559", "0.1377", "0.1701"], 80.5, 5.0, 5.0),
    ("VMin", 2, ["0.1579", "0.2807", "0.2836", "0.3353"], 85.5, 4.0, 3.5),
    ("1F1B-V", 2, ["0.1864", "0.2690", "0.1864", "0.2898"], 88.5, 6.0, 6.0),
];

fn assert_rows(rows: &[Row], ranks: usize, microbatches: usize) {
    let mut wrong = Vec::new();
    for &(name, chunks, rates, makespan, most, least) in rows {
        let plan = build(name, Size::new(ranks, microbatches).with_chunks(chunks));
        let steps = MODELS.map(|costs| price(&plan, model(costs)));
        let peaks = steps[0].ranks.iter().map(|rank| rank.peak_activations);
        let (highest, lowest) = (peaks.clone().fold(0.0, f64::max), peaks.fold(f64::INFINITY, f64::min));
        let got = (steps.each_ref().map(|s| four(s.bubble_rate_span())), steps[0].makespan, highest, lowest);
        let want = (rates.map(String::from), makespan, most, least);
        let near = (got.1 - want.1).abs() < 1e-9 && (got.2 - want.2).abs() < 1e-9 && (got.3 - want.3).abs() < 1e-9;
        if got.0 != want.0 || !near {
            wrong.push(format!("{name} v={chunks}: {got:?} instead of {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "p={ranks} m={microbatches}\n{}", wrong.join("\n"));
}

#[test]
fn every_schedule_under_four_cost_models_on_four_ranks() {
    assert_rows(&FOUR_RANKS, 4, 8);
}

#[test]
fn every_schedule_under_four_cost_models_on_eight_ranks() {
    assert_rows(&EIGHT_RANKS, 8, 24);
}
