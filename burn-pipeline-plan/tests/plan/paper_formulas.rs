//! The simulator compared with closed formulas: bubbles, makespans and peaks from the papers and projects of the
//! schedules (Zero Bubble, arXiv:2401.10241; PipeOffload, arXiv:2503.01328; controllable memory, arXiv:2405.15362;
//! DualPipe, github.com/deepseek-ai/DualPipe; Chimera, arXiv:2107.06925).

use crate::pricing::{assert_near, build, four, price, stage};
use burn_pipeline_plan::cost::{LinkCosts, Profile, StageCost, UniformCosts};
use burn_pipeline_plan::schedule::{Gis, Schedule, Size};
use burn_pipeline_plan::simulate::{SimulateOptions, Simulation, simulate};

/// Sizes and costs at which closed formulas are tested. Formulas of the zero-bubble schedules hold if `W` is no
/// longer than `F` and `I`; all need m large enough for a steady phase.
fn formula_grid() -> impl Iterator<Item = (usize, usize, UniformCosts)> {
    let sizes = [(2, 8), (3, 12), (4, 8), (4, 16), (8, 24), (8, 32)];
    let costs = [[1.0, 1.0, 1.0], [2.0, 2.0, 1.0], [3.0, 3.0, 2.5]];
    sizes.into_iter().flat_map(move |(p, m)| {
        let of = move |c: [f64; 3]| (p, m, UniformCosts::new(c[0], c[1], c[2]));
        costs.into_iter().map(of)
    })
}

fn bubble(step: &Simulation) -> f64 {
    step.span - step.work
}

#[test]
fn the_formulas_of_one_chunk_schedules_hold() {
    for (p, m, even) in formula_grid() {
        let (q, f, i, w) = (p as f64 - 1.0, even.forward, even.input, even.weight);
        for c in [0.0, 0.125] {
            let costs = even.with_transfer(c);
            let of = |name| bubble(&price(&build(name, Size::new(p, m)), costs));
            assert_near(of("ZB-H1"), q * (f + i - w) + 4.0 * q * c, &format!("ZB-H1 p={p} m={m} {costs:?}"));
            assert_near(of("ZB-H2"), q * (f + i - 2.0 * w) + 2.0 * q * c, &format!("ZB-H2 p={p} m={m} {costs:?}"));
            // Each whole round of p microbatches waits once for a message there and back.
            if m % p == 0 {
                let messages = 2.0 * q * (m as f64 / p as f64 + 1.0) - 2.0;
                assert_near(of("1F1B"), q * (f + i + w) + messages * c, &format!("1F1B p={p} m={m} {costs:?}"));
            }
        }
        assert_near(bubble(&price(&build("GPipe", Size::new(p, m)), even)), q * (f + i + w), "GPipe");
    }
}

#[test]
fn the_formulas_of_looped_schedules_hold() {
    for (p, m, costs) in formula_grid().filter(|(p, m, _)| m % p == 0) {
        for v in [2, 3, 4] {
            let (q, chunks) = (p as f64 - 1.0, v as f64);
            let (f, i, w) = (costs.forward, costs.input, costs.weight);
            let of = |name| price(&build(name, Size::new(p, m).with_chunks(v)), costs);
            let at = format!("p={p} m={m} v={v} {costs:?}");
            let interleaved = of("Interleaved1F1B");
            assert_near(bubble(&interleaved), q * (f + i + w) / chunks, &format!("Interleaved1F1B {at}"));
            assert_near(interleaved.peak_activations(), (p as f64 * chunks + q) / chunks, &format!("peak {at}"));
            assert_near(bubble(&of("LoopedBFS")), q * (f + i + w) / chunks, &format!("LoopedBFS {at}"));
            assert_near(bubble(&of("InterleavedZeroBubble")), q * (f + i - w) / chunks, &format!("ZB {at}"));
            assert_near(bubble(&of("GIS")), q * (f + i) / chunks, &format!("GIS {at}"));
            assert_near(of("GIS").peak_activations(), p as f64, &format!("GIS peak {at}"));
        }
    }
}

#[test]
fn messages_cost_interleaving_what_the_formula_says() {
    for (p, m) in [(4, 8), (8, 24)] {
        for v in [2, 3, 4] {
            let c = 0.01;
            let plan = build("Interleaved1F1B", Size::new(p, m).with_chunks(v));
            let bubble = bubble(&price(&plan, UniformCosts::new(1.0, 1.0, 1.0).with_transfer(c)));
            let formula = 3.0 * (p as f64 - 1.0) / v as f64 + (2.0 * (p * v) as f64 - 2.0) * c;
            assert_near(bubble, formula, &format!("p={p} m={m} v={v}"));
        }
    }
}

#[test]
fn gis_h_halves_the_memory_for_the_bubble_that_the_formula_says() {
    for (p, m, v) in [(4, 8, 2), (4, 16, 3), (8, 24, 2), (8, 32, 4)] {
        let (half, chunks) = (p as f64 / 2.0, v as f64);
        let step = price(&build("GISH", Size::new(p, m).with_chunks(v)), UniformCosts::new(1.0, 1.0, 1.0));
        let formula = 2.0 * (p as f64 - 1.0) / chunks + (chunks - 1.0) * half / chunks;
        assert_near(bubble(&step), formula, &format!("p={p} m={m} v={v}"));
        assert_near(step.peak_activations(), (chunks + 1.0) / (2.0 * chunks) * p as f64, "peak");
    }
}

#[test]
fn smaller_groups_of_gis_trade_slots_for_memory() {
    for (p, m, v, group) in [(4, 12, 2, 3), (4, 12, 3, 2), (8, 24, 2, 6), (8, 24, 4, 4), (8, 24, 3, 8)] {
        let gis = Gis { group: Some(group), ..Gis::default() };
        let step = price(&gis.build(Size::new(p, m).with_chunks(v)).unwrap(), UniformCosts::new(1.0, 1.0, 1.0));
        let (p, chunks, g) = (p as f64, v as f64, group as f64);
        let formula = 2.0 * (p - 1.0) / chunks + (p - g) * (chunks - 1.0) / chunks;
        assert_near(bubble(&step), formula, &format!("p={p} m={m} v={v} g={group}"));
        assert_near(step.peak_activations(), (g * (chunks - 1.0) + p) / chunks, "peak");
    }
}

#[test]
fn zb_h1_holds_whole_activations_on_early_ranks_and_parts_for_w_on_late_ones() {
    // Worker i of p, from 1: (p-i+1) M_B + (i-1) M_W, where B frees M_B - M_W.
    for (p, m, whole, for_weights) in [(4, 8, 10.0, 4.0), (8, 24, 34.0, 32.0), (6, 13, 3.0, 1.0)] {
        let cost = StageCost { activation_bytes: whole, ..stage(1.0, 1.0, 1.0) };
        let cost = StageCost { freed_at_input_bytes: whole - for_weights, ..cost };
        let profile = Profile::new(vec![cost; p], LinkCosts::default()).unwrap();
        let step = simulate(&build("ZB-H1", Size::new(p, m)), &profile, &SimulateOptions::default()).unwrap();
        for (rank, report) in step.ranks.iter().enumerate() {
            let formula = (p - rank) as f64 * whole + rank as f64 * for_weights;
            assert_near(report.peak_bytes, formula, &format!("p={p} m={m} rank {rank}"));
        }
    }
}

#[test]
fn zbv_has_no_bubble_where_forward_and_both_backwards_are_alike() {
    for (p, m) in [(2, 3), (4, 7), (4, 16), (8, 15), (8, 32)] {
        let step = price(&build("ZBV", Size::new(p, m).with_chunks(2)), UniformCosts::new(1.0, 1.0, 1.0));
        assert_near(bubble(&step), 0.0, &format!("p={p} m={m}"));
        assert_near(step.peak_activations(), p as f64, "peak");
    }
}

#[test]
fn v_half_and_v_min_hold_what_their_blocks_say() {
    for p in [2, 4, 6, 8, 16] {
        let peak = |name| price(&build(name, Size::new(p, 3 * p).with_chunks(2)), UniformCosts::new(1.0, 1.0, 1.0));
        assert_eq!(peak("VHalf").peak_activations(), ((p + 2) / 2) as f64, "V-Half, p = {p}");
        assert_eq!(peak("VMin").peak_activations(), ((p + 4) / 3) as f64, "V-Min, p = {p}");
    }
}

/// The formula's bubble: the longest time that a rank does not compute within the makespan.
fn idle_in_makespan(step: &Simulation) -> f64 {
    step.ranks.iter().map(|rank| step.makespan - rank.busy).fold(0.0, f64::max)
}

#[test]
fn dual_pipe_takes_what_its_project_says() {
    // F = I = W = 1 and the fused pair at 3, 2.5 and 2.
    let makespans = [(8, 16, [54.0, 49.0, 44.0]), (16, 32, [110.0, 99.0, 88.0])];
    for (ranks, microbatches, expected) in makespans {
        let plan = build("DualPipe", Size::new(ranks, microbatches));
        for (fused, makespan) in [3.0, 2.5, 2.0].into_iter().zip(expected) {
            let step = price(&plan, UniformCosts::new(1.0, 1.0, 1.0).with_overlap(fused));
            assert_near(step.makespan, makespan, &format!("p={ranks} F&B={fused}"));
        }
    }
    for (p, microbatches) in [(4, 8), (4, 20), (8, 16), (8, 40), (16, 32)] {
        let plan = build("DualPipe", Size::new(p, microbatches));
        for fused in [3.0, 2.5, 2.0] {
            let step = price(&plan, UniformCosts::new(1.0, 1.0, 1.0).with_overlap(fused));
            let formula = (p as f64 / 2.0 - 1.0) * (fused + 2.0 - 3.0);
            assert_near(idle_in_makespan(&step), formula, &format!("p={p} m={microbatches} F&B={fused}"));
            assert_eq!(step.peak_activations(), p as f64 + 1.0, "peak at p = {p}");
        }
    }
    // If W is shorter than F, the formula is an upper bound.
    for (p, simulated, formula) in [(4, 20.0, 22.0), (8, 60.0, 66.0), (16, 144.0, 154.0)] {
        let step =
            price(&build("DualPipe", Size::new(p, 2 * p)), UniformCosts::new(10.0, 12.0, 9.0).with_overlap(28.0));
        assert_near(idle_in_makespan(&step), simulated, &format!("p={p}"));
        assert_near((p as f64 / 2.0 - 1.0) * (28.0 + 21.0 - 27.0), formula, "formula");
    }
}

#[test]
fn dual_pipe_v_takes_the_same_on_half_the_ranks() {
    for (p, m) in [(2, 4), (4, 8), (4, 12), (8, 16)] {
        let plan = build("DualPipeV", Size::new(p, m).with_chunks(2));
        for fused in [3.0, 2.5, 2.0] {
            let step = price(&plan, UniformCosts::new(1.0, 1.0, 1.0).with_overlap(fused));
            // A chunk takes half of its rank's microbatch.
            let formula = (p as f64 - 1.0) * (fused + 2.0 - 3.0) / 2.0;
            assert_near(idle_in_makespan(&step), formula, &format!("p={p} m={m} F&B={fused}"));
            assert_eq!(step.peak_activations(), (2.0 * p as f64 + 1.0) / 2.0, "peak at p = {p}");
        }
    }
}

#[test]
fn chimera_wastes_what_its_paper_says() {
    for (p, units) in [(4, 1), (4, 3), (8, 1), (8, 2), (16, 1)] {
        let m = p * units;
        let plan = build("Chimera", Size::new(p, m));
        // Forward and backward take the same time: (p-2)/(2m+p-2).
        let step = price(&plan, UniformCosts::new(1.0, 0.5, 0.5));
        let (p, m) = (p as f64, m as f64);
        assert_near(step.bubble_rate_makespan(), (p - 2.0) / (2.0 * m + p - 2.0), &format!("p={p} m={m}"));
        assert!(step.ranks.iter().all(|rank| (p / 2.0 + 1.0..=p).contains(&rank.peak_activations)), "p={p} m={m}");
    }
    // Backward twice as long, one unit: (p-2)/(1.5m+p-2).
    for (p, rate) in [(4, "0.2500"), (8, "0.3333"), (16, "0.3684")] {
        let step = price(&build("Chimera", Size::new(p, p)), UniformCosts::new(1.0, 1.0, 1.0));
        assert_eq!(four(step.bubble_rate_makespan()), rate, "p = {p}");
    }
}
