//! Models whose first layers do not train: the planner gives them fewer ranks, and their stages no backward.

use burn_pipeline_plan::cost::{
    Dtype, Layer, Layers, LinkCost, LinkCosts, Partition, PartitionError, Profile, ProfileError, StageCost,
};
use burn_pipeline_plan::plan::{Placement, PlacementKind};
use burn_pipeline_plan::planner::{Cut, Recompute, Request, Workload, best_plan};
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};

const LAYERS: usize = 16;
const FROZEN: usize = 8;

/// Equal layers, of which the second half trains.
fn layers() -> Layers {
    let layer = Layer { activation_bytes: 10.0, ..Layer::new('A').with_seconds(1.0, 1.0, 1.0) };
    Layers::new(vec![layer; LAYERS]).unwrap().train_from(FROZEN).unwrap()
}

/// The step of 1F1B on a cut, with the backwards of stages that train.
fn seconds(cut: &Partition) -> f64 {
    let profile = cut.profile(&layers(), LinkCosts::default()).unwrap();
    let plan = by_name("1F1B").unwrap().build(Size::new(4, 8)).unwrap().train_from(profile.first_trained()).unwrap();
    simulate(&plan, &profile, &SimulateOptions::default()).unwrap().makespan
}

#[test]
fn the_frozen_half_gets_more_layers_a_stage_and_the_step_is_shorter() {
    // In a bidirectional placement each rank has early and late stages, and an even cut is balanced.
    let request = Request {
        chunks: vec![1],
        placements: Some(vec![PlacementKind::Loop]),
        unpipelined: false,
        ..Request::new(vec![Workload::new(8, layers())], 4, LinkCosts::default())
    };
    let planned = best_plan(&request).unwrap();
    let (cut, plan) = (&planned.best.partition, planned.plan.plan());
    let sizes: Vec<usize> = cut.ranges().map(|range| range.len()).collect();
    let even = Partition::even(LAYERS, 4).unwrap();
    assert!(sizes[0] > FROZEN / 2 && sizes[0] > sizes[3], "{cut}");
    assert!(planned.best.seconds < seconds(&even), "{} s against {} s", planned.best.seconds, seconds(&even));
    // Of each microbatch, eight frozen layers take a second, the first trained one two, and seven three.
    assert!(planned.best.seconds >= 8.0 * 31.0 / 4.0);
    let first = plan.first_trained();
    assert_eq!(first, cut.boundaries().partition_point(|&start| start <= FROZEN));
    assert!(!plan.any_task(|task| task.op().is_backward() && task.stage().index() < first));
    assert!(seconds(&Partition::from_boundaries(LAYERS, &[8, 11, 13]).unwrap()) < seconds(&even));
}

#[test]
fn a_cap_on_memory_does_not_count_what_frozen_layers_do_not_hold() {
    // One stage of all frozen layers holds nothing, so its rank may have them all, whatever the cap.
    let request = Request {
        cap: Some(90.0),
        cuts: vec![Cut::Optimal, Cut::Fitting],
        chunks: vec![1],
        unpipelined: false,
        ..Request::new(vec![Workload::new(8, layers())], 2, LinkCosts::default())
    };
    let planned = best_plan(&request).unwrap();
    assert!(planned.best.partition.boundaries()[0] >= FROZEN, "{}", planned.best.partition);
    assert!(planned.best.peak_bytes <= 90.0);
    let all =
        Layers::new(layers().all().iter().map(|layer| Layer { activation_bytes: 10.0, ..layer.clone() }).collect())
            .unwrap();
    let request = Request { workloads: vec![Workload::new(8, all)], ..request };
    assert!(best_plan(&request).map_or(true, |other| other.best.seconds > planned.best.seconds));
}

#[test]
fn layers_and_profiles_that_do_not_train_say_so_in_json() {
    let read = Layers::from_json(&layers().to_json().unwrap()).unwrap().0;
    assert_eq!(read, layers());
    let profile = Partition::even(LAYERS, 4).unwrap().profile(&read, LinkCosts::default()).unwrap();
    assert_eq!((profile.first_trained(), profile.stages()[0].full_backward()), (2, 0.0));
    // Three of its layers pass gradients on, inside the stage.
    assert_eq!((profile.stages()[2].input, profile.stages()[2].weight), (Some(0.0), Some(7.0)));
    assert_eq!(Profile::from_json(&profile.to_json()).unwrap(), profile);
    assert_eq!(Layers::of_profile(&profile).unwrap().first_trained(), 2);
    assert_eq!(Profile::median(&[profile.clone(), profile.clone()]).unwrap(), profile);
    assert_eq!(layers().scaled(2.0, 0.0).unwrap().first_trained(), FROZEN);
    assert!(matches!(layers().train_from(LAYERS), Err(PartitionError::FirstTrained { first: 16, layers: 16 })));
    // The costs of backwards before the first layer that trains are gone.
    assert!(matches!(layers().train_from(FROZEN - 1), Err(PartitionError::FirstTrained { .. })));
    assert!(matches!(profile.train_from(1), Err(ProfileError::FirstTrained { first: 1, stages: 4 })));
    assert!(matches!(layers().vocabulary_parallel(4), Err(PartitionError::Vocabulary)));
}

#[test]
fn only_gradients_of_what_trains_are_added_up_over_replicas() {
    // One large layer that does not train, and small ones that do.
    let layer = |parameters| Layer::new('A').with_parameters(parameters, Dtype::I8).with_seconds(1.0, 1.0, 1.0);
    let small = || vec![layer(1_000_000); 3];
    let frozen = [vec![layer(1_000_000_000)], small()].concat();
    let links = LinkCosts { default: LinkCost { latency: 0.0, bandwidth: Some(1e9) }, ..LinkCosts::default() };
    let reduction = |layers: Vec<Layer>, first, placements: Vec<PlacementKind>| {
        let layers = Layers::new(layers).unwrap().train_from(first).unwrap();
        let unpipelined = placements.is_empty();
        let request = Request {
            placements: Some(placements),
            chunks: vec![1],
            cuts: vec![Cut::Even],
            unpipelined,
            ..Request::new(vec![Workload::new(8, layers)], 2, links.clone())
        };
        best_plan(&request).unwrap().breakdown.reduction
    };
    // A ring of two ranks sends each byte once.
    assert!((reduction(frozen.clone(), 1, vec![]) - 0.003).abs() < 1e-9);
    assert!((reduction(small(), 0, vec![]) - 0.003).abs() < 1e-9);
    // Both copies of the first stage exchange one small layer, and those of the second stage two.
    assert!((reduction(frozen, 1, vec![PlacementKind::Bidirectional]) - 0.003).abs() < 1e-9);
}

#[test]
fn a_recomputing_stage_that_does_not_train_computes_its_forward_once() {
    let request = Request {
        recompute: vec![Recompute::Everywhere],
        chunks: vec![1],
        cuts: vec![Cut::Even],
        unpipelined: false,
        ..Request::new(vec![Workload::new(8, layers())], 4, LinkCosts::default())
    };
    let planned = best_plan(&request).unwrap();
    let seconds = |stage: usize| planned.profile.stages()[stage].full_backward();
    assert_eq!((seconds(0), seconds(1)), (0.0, 0.0), "{}", planned.best.partition);
    assert!(seconds(2) > 0.0);
}

#[test]
fn the_first_stage_that_trains_recomputes_in_its_weight_gradients() {
    let cut = Partition::even(LAYERS, 4).unwrap();
    let profile = cut.profile(&layers(), LinkCosts::default()).unwrap();
    let again = profile.stages()[2].recomputing(1.0);
    assert_eq!((again.input, again.weight, again.recomputed_bytes), (Some(0.0), Some(11.0), 39.0));
    // The order of the two does not matter.
    let full =
        Profile::uniform(&Placement::looped(2, 1).unwrap(), burn_pipeline_plan::cost::UniformCosts::new(1.0, 1.0, 1.0))
            .unwrap();
    let stages: Vec<_> = full.stages().iter().map(|stage| stage.recomputing(0.0)).collect();
    let recomputing = Profile::new(stages, LinkCosts::default()).unwrap().train_from(1).unwrap();
    assert_eq!(recomputing.stages()[1], full.train_from(1).unwrap().stages()[1].recomputing(0.0));
}

#[test]
fn layers_that_recompute_are_frozen_before_a_cut_or_after_it_with_the_same_costs() {
    let recomputes = Layer { recomputed_bytes: 4.0, ..Layer::new('A').with_seconds(2.0, 5.0, 3.0) };
    let layers = Layers::new(vec![recomputes; 3]).unwrap();
    let cut = Partition::even(3, 3).unwrap();
    let after = cut.profile(&layers, LinkCosts::default()).unwrap().train_from(1).unwrap();
    let before = cut.profile(&layers.train_from(1).unwrap(), LinkCosts::default()).unwrap();
    let seconds = |profile: &Profile| -> Vec<[f64; 3]> {
        let of = |stage: &StageCost| [stage.forward, stage.input_backward(), stage.full_backward()];
        profile.stages().iter().map(of).collect()
    };
    assert_eq!(seconds(&before), seconds(&after));
}
