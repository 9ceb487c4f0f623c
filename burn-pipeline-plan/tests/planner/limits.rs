//! Numbers of microbatches for which no plan fits in memory: they are refused, and longer candidates dropped.

use burn_pipeline_plan::cost::{Layer, Layers, LinkCosts, Profile, UniformCosts};
use burn_pipeline_plan::plan::Placement;
use burn_pipeline_plan::planner::{Cut, PlannerError, Recompute, Request, Strategy, Synthesis, Workload, best_plan};

fn layers(count: usize) -> Layers {
    Layers::new(vec![Layer::new('A').with_seconds(1.0, 1.0, 1.0); count]).unwrap()
}

#[test]
fn the_planner_refuses_microbatches_whose_rows_would_not_fit_in_memory() {
    for many in [usize::MAX, 100_000_000_000, 1_000_000_000, (1 << 22) + 1] {
        let workloads = vec![Workload::new(8, layers(2)), Workload::new(many, layers(2))];
        let error = best_plan(&Request::new(workloads, 2, LinkCosts::default())).unwrap_err();
        assert_eq!(error, PlannerError::TooLong { what: "a candidate", forwards: many, most: 1 << 22 });
    }
}

#[test]
fn a_synthesis_refuses_microbatches_whose_orders_would_not_fit_in_memory() {
    let refusal = |placement: Placement, counts: &[usize]| {
        let profile = Profile::uniform(&placement, UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
        Synthesis::default().build(&profile, &placement, counts, &[]).unwrap_err()
    };
    let (one, two) = (Placement::looped(2, 1).unwrap(), Placement::bidirectional(2).unwrap());
    let long = |forwards| PlannerError::TooLong { what: "a synthesised plan", forwards, most: 1 << 20 };
    assert_eq!(refusal(one.clone(), &[usize::MAX]), long(usize::MAX));
    assert_eq!(refusal(two.clone(), &[usize::MAX, usize::MAX]), long(usize::MAX));
    assert_eq!(refusal(one.clone(), &[1_000_000_000]), long(2_000_000_000));
    // Both routes go through two stages.
    assert_eq!(refusal(two, &[1 << 19, 1]), long((1 << 20) + 2));
    let message = refusal(one, &[1 << 20]).to_string();
    assert_eq!(
        message,
        "2097152 forwards over all stages: a synthesised plan has at most 1048576; use fewer, larger microbatches"
    );
}

#[test]
fn candidates_of_too_many_stages_are_dropped_and_the_others_priced() {
    // 1025 microbatches on one device are few; through 4096 stages they are not.
    let request = Request {
        chunks: vec![64],
        cuts: vec![Cut::Even],
        recompute: vec![Recompute::Never],
        ..Request::new(vec![Workload::new(1025, layers(4096))], 64, LinkCosts::default())
    };
    let planned = best_plan(&request).unwrap();
    assert_eq!(planned.best.strategy, Strategy::DataParallel);
    assert_eq!(planned.candidates.len(), 2);
    let long = "4198400 forwards over all stages: a candidate has at most 4194304; use fewer, larger microbatches";
    let dropped = |what: &str| planned.dropped.iter().any(|(name, why)| name.starts_with(what) && why == long);
    assert!(dropped("Interleaved1F1B, ") && dropped("synthesised, "), "{:?}", planned.dropped);
}
