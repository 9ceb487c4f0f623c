//! Models with skip edges: whatever cut and schedule the planner chooses, values that cross stage boundaries are
//! priced.

use burn_pipeline_plan::cost::{Layer, Layers, LinkCost, LinkCosts, Partition, PartitionError, Profile};
use burn_pipeline_plan::plan::{CheckOptions, PlanError, SkipEdge};
use burn_pipeline_plan::planner::{Candidate, Cut, PassChoice, Request, Strategy, Synthesis, Workload, best_plan};
use burn_pipeline_plan::schedule::by_name;
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use proptest::prelude::prop;
use proptest::{prop_assert, prop_assert_eq, proptest};
use std::collections::BTreeMap;

/// The U-Net of the example `denoise_unet`, measured layer by layer (`Builder::measure_layers`).
const UNET: &str = include_str!("profiles/denoise_unet.json");

fn layer(skip_bytes: f64) -> Layer {
    let layer = Layer::new('A').with_seconds(1.0, 1.0, 1.0);
    Layer { output_bytes: 10.0, activation_bytes: 5.0, skip_bytes, ..layer }
}

fn edges(pairs: &[(usize, usize)]) -> Vec<SkipEdge> {
    pairs.iter().map(|&pair| pair.into()).collect()
}

#[test]
fn a_skip_edge_stays_inside_a_stage_or_joins_a_message_or_stays_a_skip_edge() {
    let layers = Layers::new((0..6).map(|i| layer(f64::from(1 << i))).collect()).unwrap();
    let layers = layers.with_skips(edges(&[(0, 5), (1, 4), (2, 4), (0, 3)])).unwrap();
    let of = |boundaries: &[usize]| {
        let profile =
            Partition::from_boundaries(6, boundaries).unwrap().profile(&layers, LinkCosts::default()).unwrap();
        let bytes = profile.stages().iter().map(|stage| (stage.message_bytes, stage.skip_bytes)).collect::<Vec<_>>();
        (bytes, profile.skips().to_vec())
    };
    assert_eq!(of(&[]), (vec![(10.0, 0.0)], edges(&[])));
    // To the next stage, all of them go in one message: 1 + 1 from layer 0, 2 and 4.
    assert_eq!(of(&[3]), (vec![(10.0 + 1.0 + 1.0 + 2.0 + 4.0, 0.0), (10.0, 0.0)], edges(&[])));
    // Layers 0 and 1, 2 and 3, 4 and 5: two values from the first to the last stage travel as one.
    let (bytes, skips) = of(&[2, 4]);
    assert_eq!(bytes, [(10.0 + 1.0, 1.0 + 2.0), (10.0 + 4.0, 0.0), (10.0, 0.0)]);
    assert_eq!(skips, edges(&[(0, 2)]));
    let (bytes, skips) = of(&[1, 2, 3, 4, 5]);
    assert_eq!(bytes.iter().map(|(_, skip)| *skip).collect::<Vec<_>>(), [1.0, 2.0, 4.0, 0.0, 0.0, 0.0]);
    assert_eq!(skips, edges(&[(0, 3), (0, 5), (1, 4), (2, 4)]));
}

#[test]
fn wrong_edges_are_refused_and_others_survive_the_round_trip() {
    let layers = || Layers::new(vec![layer(3.0); 4]).unwrap();
    let refused = |pairs: &[(usize, usize)]| layers().with_skips(edges(pairs)).unwrap_err();
    let edge = |from, to| SkipEdge { from, to };
    let assert_refused = |edges: &[(usize, usize)], at, part: &str| match refused(edges) {
        PartitionError::Skip(PlanError::Skip { edge: refused, reason }) => {
            assert!(refused == at && reason.contains(part), "{refused} {reason}");
        }
        other => panic!("{other}"),
    };
    assert_refused(&[(2, 1)], edge(2, 1), "does not lead to a later stage");
    assert_refused(&[(1, 2)], edge(1, 2), "leads to the next stage");
    assert_refused(&[(1, 4)], edge(1, 4), "needs a stage 4, but the plan has 4");
    assert_refused(&[(0, 2), (0, 2)], edge(0, 2), "is listed twice");
    let across = layers().with_skips(edges(&[(0, 3), (0, 2)])).unwrap();
    assert_eq!(Layers::from_json(&across.to_json().unwrap()).unwrap().0, across);
    assert_eq!(across.scaled(0.5, 0.0).unwrap().skips(), across.skips());
    assert_eq!(across.scaled(0.5, 0.0).unwrap().all()[0].skip_bytes, 1.5);
    let profile = Partition::even(4, 4).unwrap().profile(&across, LinkCosts::default()).unwrap();
    assert_eq!(Layers::of_profile(&profile).unwrap().skips(), across.skips());
    assert!(Layers::from_json(r#"{"layers": [{"kind": "A"}], "skips": [[0, 2]]}"#).is_err());
}

fn request(layers: Layers, ranks: usize, links: LinkCosts) -> Request {
    let synthesis = Some(Synthesis { effort: 100_000, nodes: 1_000, ..Synthesis::default() });
    let request = Request::new(vec![Workload::new(6, layers)], ranks, links);
    Request { chunks: vec![1, 2], synthesis, unpipelined: false, ..request }
}

#[test]
fn the_u_net_of_the_example_is_planned_with_its_long_connections() {
    let (layers, _) = Layers::from_json(UNET).unwrap();
    assert_eq!(layers.skips(), edges(&[(0, 6), (1, 5), (2, 4)]));
    let forward = layers.all().iter().map(|layer| layer.forward).sum::<f64>() / layers.len() as f64;
    let slow = LinkCosts { default: LinkCost { latency: forward, bandwidth: Some(1e7) }, between: vec![] };
    for (ranks, links) in [2, 3].into_iter().flat_map(|ranks| [(ranks, LinkCosts::default()), (ranks, slow.clone())]) {
        let request = request(layers.clone(), ranks, links);
        let planned = best_plan(&request).unwrap();
        let best = &planned.best;
        // The plan has the edges of its cut.
        let profile = best.partition.profile(&layers, request.links.clone()).unwrap();
        assert_eq!(planned.plan.plan().skips(), profile.skips());
        planned.plan.plan().clone().check(&CheckOptions::default()).unwrap();
        let again = simulate(planned.plan.plan(), &planned.profile, &SimulateOptions::default()).unwrap();
        assert_eq!(again, planned.simulation);
        assert!(planned.bound <= best.seconds);
        // No candidate was dropped because of its edges.
        assert!(planned.dropped.iter().all(|(_, reason)| !reason.contains("edge")));
        let ways: std::collections::BTreeSet<String> =
            planned.candidates.iter().map(|candidate| candidate.strategy.to_string()).collect();
        assert!(ways.len() > 8, "{ways:?}");
        println!("{ranks} ranks: {best}, edges {:?}", planned.plan.plan().skips());
    }
}

#[test]
fn a_heavy_connection_past_a_stage_is_paid_for_on_a_slow_network() {
    // Layer 1 sends 1000 bytes to layer 3: over the next boundary of the even cut, at 100 seconds a microbatch.
    let layers = Layers::new(vec![layer(0.0), layer(1000.0), layer(0.0), layer(0.0), layer(0.0), layer(0.0)]).unwrap();
    let layers = layers.with_skips(edges(&[(1, 3)])).unwrap();
    let links = LinkCosts { default: LinkCost { latency: 0.0, bandwidth: Some(10.0) }, between: vec![] };
    let asked = |cuts: Vec<Cut>| Request { cuts, chunks: vec![1], ..request(layers.clone(), 3, links.clone()) };
    let even = best_plan(&asked(vec![Cut::Even])).unwrap();
    assert!(even.best.seconds > 100.0, "{even}");
    let without = Layers::new(layers.all().to_vec()).unwrap();
    let free = best_plan(&Request { cuts: vec![Cut::Even], chunks: vec![1], ..request(without, 3, links.clone()) });
    assert!(free.unwrap().best.seconds < 50.0);
}

proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 40, failure_persistence: None, ..Default::default() })]

    #[test]
    fn whatever_the_edges_more_to_send_makes_no_plan_faster(
        bytes in prop::collection::vec(0.0..50.0f64, 8),
        pairs in prop::collection::btree_set((0..6usize, 2..8usize), 0..6),
        ranks in 2..=3usize,
        bandwidth in 5.0..100.0f64,
    ) {
        let pairs: Vec<(usize, usize)> =
            pairs.into_iter().map(|(from, span)| (from, from + span)).filter(|(_, to)| *to < 8).collect();
        let layers = Layers::new(bytes.into_iter().map(layer).collect()).unwrap();
        let across = layers.clone().with_skips(edges(&pairs)).unwrap();
        let links = LinkCosts { default: LinkCost { latency: 0.1, bandwidth: Some(bandwidth) }, between: vec![] };
        let synthesis = Some(Synthesis { starts: 0, ..Synthesis::default() });
        let ask = |layers| best_plan(&Request { synthesis, ..request(layers, ranks, links.clone()) }).unwrap();
        let (with, without) = (ask(across.clone()), ask(layers));
        prop_assert_eq!(with.candidates[0].seconds, with.best.seconds);
        // Compare candidates whose plan is the same with and without edges.
        let bare: BTreeMap<String, f64> = without.candidates.iter().filter_map(same_plan_whatever_it_costs).collect();
        for (name, seconds) in with.candidates.iter().filter_map(same_plan_whatever_it_costs) {
            let Some(bare) = bare.get(&name) else { continue };
            prop_assert!(seconds >= bare * (1.0 - 1e-9), "{name}: {seconds} with edges, {bare} without");
        }
        // The best plan with edges that carry nothing is no slower.
        let best = &with.best;
        let profile: Profile = best.partition.profile(&across, links.clone()).unwrap();
        prop_assert_eq!(with.plan.plan().skips(), profile.skips());
        let weightless = Layers::new(vec![layer(0.0); 8]).unwrap().with_skips(edges(&pairs)).unwrap();
        let weightless = best.partition.profile(&weightless, links).unwrap();
        let light = simulate(with.plan.plan(), &weightless, &SimulateOptions::default()).unwrap().makespan;
        prop_assert!(light <= best.seconds * (1.0 + 1e-9), "{light} s for {best}");
    }
}

/// The description and seconds of a candidate whose plan depends only on its shape. Plans that are built or changed
/// by costs are left out: other costs make other plans, and a heuristic may find the better plan for higher costs.
fn same_plan_whatever_it_costs(candidate: &Candidate) -> Option<(String, f64)> {
    let choice = candidate;
    let Strategy::Schedule(name) = &choice.strategy else { return None };
    let by_costs = by_name(name).is_err() || choice.passes == PassChoice::Overlap;
    let key = format!("{name} {} {} {:?} {}", choice.placement, choice.partition, choice.recomputing, choice.passes);
    (!by_costs).then_some((key, candidate.seconds))
}
