//! Cuts with about the same load of the busiest rank: the planner's choice, compared with all of them.

use burn_pipeline_plan::cost::{Layer, Layers, LinkCost, LinkCosts, Partition, PartitionReport};
use burn_pipeline_plan::plan::{Placement, PlacementKind};
use burn_pipeline_plan::planner::{Cut, PassChoice, Request, Workload, best_plan};
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use proptest::{prop_assert, prop_assume, proptest};

/// Eight equal layers and a head, on four ranks.
fn model(head: f64) -> Layers {
    let layer = |times: f64| Layer { output_bytes: 1.0, ..Layer::new('L') }.with_seconds(times, times, times / 2.0);
    let mut layers = vec![layer(1.0); 7];
    layers.push(layer(head));
    Layers::new(layers).unwrap()
}

/// Every cut of this many layers into four stages.
fn all_cuts(layers: usize) -> Vec<Partition> {
    let mut cuts = Vec::new();
    for first in 1..layers {
        for second in first + 1..layers {
            for third in second + 1..layers {
                cuts.push(Partition::from_boundaries(layers, &[first, second, third]).unwrap());
            }
        }
    }
    cuts
}

#[test]
fn the_best_plan_is_no_slower_than_a_schedule_on_any_cut_that_loads_the_busiest_rank_as_little() {
    proptest!(|(head in 2..6u32, latency in 0.0..1.5f64)| {
        let layers = model(f64::from(head));
        let placement = Placement::bidirectional(4).unwrap();
        let links = LinkCosts { default: LinkCost { latency, bandwidth: None }, ..LinkCosts::default() };
        let load = |cut: &Partition| {
            let report = PartitionReport::new(&layers, cut, &placement).unwrap();
            report.rank_seconds.into_iter().fold(0.0, f64::max)
        };
        let cuts = all_cuts(layers.len());
        let least = cuts.iter().map(load).fold(f64::INFINITY, f64::min);
        let alike: Vec<_> = cuts.iter().filter(|cut| load(cut) <= least * (1.0 + 1e-9)).collect();
        // The planner tries at most sixteen cuts beside the first.
        prop_assume!((2..=17).contains(&alike.len()));

        let request = Request {
            chunks: vec![1],
            placements: Some(vec![PlacementKind::Bidirectional]),
            cuts: vec![Cut::Optimal],
            passes: vec![PassChoice::AsBuilt],
            synthesis: None,
            unpipelined: false,
            ..Request::new(vec![Workload::new(8, layers.clone())], 4, links.clone())
        };
        let planned = best_plan(&request).unwrap();

        for name in ["DualPipe", "Chimera"] {
            let plan = by_name(name).unwrap().build(Size::new(4, 8)).unwrap().without_idle().with_transfers().unwrap();
            for cut in &alike {
                let profile = cut.profile(&layers, links.clone()).unwrap();
                let seconds = simulate(&plan, &profile, &SimulateOptions::default()).unwrap().makespan;
                // The two routes add up no bytes here, but wait once for the link.
                prop_assert!(planned.best.seconds <= seconds + latency + 1e-9, "{name}, {cut}: {seconds}\n{planned}");
            }
        }
    });
}
