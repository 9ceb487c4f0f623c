//! The planner's reports, compared with the catalogue as priced here, and checked for properties of every report.

use burn_pipeline_plan::cost::{
    Dtype, Layer, Layers, LinkCost, LinkCosts, Partition, PartitionOptions, Profile, StageCost,
};
use burn_pipeline_plan::pass::overlap::{OverlapOptions, OverlapPass};
use burn_pipeline_plan::plan::{CheckOptions, Plan, StageId};
use burn_pipeline_plan::planner::{
    self, Cut, PassChoice, PlannerError, PlannerReport, Recompute, Request, Synthesis, Workload, best_plan,
};
use burn_pipeline_plan::schedule::{Chunks, Size, all, by_name};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use proptest::prelude::{Strategy, prop, prop_oneof};
use proptest::{prop_assert, proptest};

fn layer(seconds: [f64; 3], parameters: u64, activations: f64, output: f64) -> Layer {
    Layer {
        activation_bytes: activations,
        freed_at_input_bytes: activations / 4.0,
        output_bytes: output,
        ..Layer::new('A')
    }
    .with_seconds(seconds[0], seconds[1], seconds[2])
    .with_parameters(parameters, Dtype::F32)
}

/// Uneven layers: random ones, or equal ones with a heavy head.
fn layers() -> impl Strategy<Value = Layers> {
    let random = (0.1..3.0f64, 0.1..3.0f64, 0.1..3.0f64, 0..200u64, 1.0..50.0f64, 0.0..20.0f64)
        .prop_map(|(f, i, w, parameters, activations, output)| layer([f, i, w], parameters, activations, output));
    let alike = |n| {
        (1.0..8.0f64, 0.0..10.0f64).prop_map(move |(head, output)| {
            let mut layers = vec![layer([1.0, 1.0, 1.0], 50, 20.0, output); n - 1];
            layers.push(layer([head; 3], 400, 20.0, 0.0));
            layers
        })
    };
    let layers = prop_oneof![prop::collection::vec(random, 4..=12), (4..=12usize).prop_flat_map(alike)];
    layers.prop_map(|layers| Layers::new(layers).unwrap())
}

/// Links with random latency and bandwidth.
fn links() -> impl Strategy<Value = LinkCosts> {
    let link =
        (0.0..3.0f64, prop::option::of(2.0..100.0f64)).prop_map(|(latency, bandwidth)| LinkCost { latency, bandwidth });
    link.prop_map(|default| LinkCosts { default, between: vec![] })
}

/// Seconds in which the two copies of each stage in a bidirectional placement add up their gradients. Both ranks of a
/// pair have the same two stages.
fn reduction(plan: &Plan, profile: &Profile, state_factor: f64) -> f64 {
    let (placement, link) = (plan.placement(), profile.links().default);
    if placement.routes() == 1 {
        return 0.0;
    }
    let stages = |rank: usize| placement.stages_of(rank).into_iter().map(StageId::index);
    let bytes = |rank| stages(rank).map(|s| profile.stages()[s].weight_bytes / state_factor).sum::<f64>();
    link.latency + link.occupied((0..placement.ranks()).map(bytes).fold(0.0, f64::max))
}

/// The name and seconds of every schedule of the catalogue that fits at this size, with the even and the optimal cut.
fn catalogue(request: &Request) -> Vec<(String, f64)> {
    let workload = &request.workloads[0];
    let mut fitting = Vec::new();
    for schedule in all() {
        let chunks = match schedule.info().chunks {
            Chunks::Exactly(n) => vec![n],
            Chunks::Any => request.chunks.clone(),
        };
        for chunks in chunks {
            let size = Size { ranks: request.ranks, chunks, microbatches: workload.microbatches };
            let Ok(plan) = schedule.build(size) else { continue };
            if !plan.has_backward() || plan.stages() > workload.layers.len() {
                continue;
            }
            let even = Partition::even(workload.layers.len(), plan.stages()).unwrap();
            let options = PartitionOptions { states: 24, ..PartitionOptions::default() };
            let best = Partition::optimal(&workload.layers, plan.placement(), &options).unwrap().partition;
            for partition in [even, best] {
                let profile = partition.profile(&workload.layers, request.links.clone()).unwrap();
                let with_state =
                    |s: &StageCost| StageCost { weight_bytes: s.weight_bytes * request.state_factor, ..*s };
                let profile =
                    Profile::new(profile.stages().iter().map(with_state).collect(), profile.links().clone()).unwrap();
                let lowered = plan.without_idle().with_transfers().unwrap();
                let step = simulate(&lowered, &profile, &SimulateOptions::default()).unwrap();
                if request.cap.is_none_or(|cap| step.peak_bytes() <= cap) {
                    let seconds = step.makespan + reduction(&plan, &profile, request.state_factor);
                    fitting.push((format!("{} v={chunks} {partition}", plan.name()), seconds));
                }
            }
        }
    }
    fitting
}

/// Asserts the properties of every report.
fn sound(request: &Request, planned: &PlannerReport) {
    let best = &planned.best;
    assert!(planned.bound <= best.seconds * (1.0 + 1e-9), "{planned}");
    assert_eq!(best.seconds, planned.candidates[0].seconds);
    let again = simulate(planned.plan.plan(), &planned.profile, &SimulateOptions::default()).unwrap();
    assert_eq!(again, planned.simulation);
    planned.plan.plan().clone().check(&CheckOptions::default()).unwrap();
    let limits = planned.breakdown;
    let parts = limits.work + limits.losses().iter().map(|(_, seconds)| seconds).sum::<f64>();
    assert!((parts - best.seconds).abs() <= 1e-9 * parts, "{planned}");
    for (i, c) in planned.candidates.iter().enumerate() {
        assert!(request.cap.is_none_or(|cap| c.peak_bytes <= cap));
        let beats = |o: &burn_pipeline_plan::planner::Candidate| {
            o.seconds <= c.seconds
                && o.peak_bytes <= c.peak_bytes
                && (o.seconds < c.seconds || o.peak_bytes < c.peak_bytes)
        };
        let equal_before =
            planned.candidates[..i].iter().any(|o| (o.seconds, o.peak_bytes) == (c.seconds, c.peak_bytes));
        assert_eq!(c.pareto, !planned.candidates.iter().any(beats) && !equal_before);
    }
}

fn request(layers: Layers, ranks: usize, microbatches: usize, links: LinkCosts, cap: Option<f64>) -> Request {
    let mut workload = Workload::new(microbatches, layers);
    workload.input_bytes = 5.0;
    let synthesis = Some(Synthesis { effort: 100_000, nodes: 1_000, ..Synthesis::default() });
    Request { cap, chunks: vec![1, 2, 3], synthesis, ..Request::new(vec![workload], ranks, links) }
}

#[test]
fn auto_is_never_slower_than_any_schedule_that_fits_on_260_random_profiles() {
    let config = proptest::test_runner::Config { cases: 260, ..Default::default() };
    // Caps from one that few candidates fit under to one that all fit under: a model takes about 12 kB in all.
    let cap = prop::option::of((2.5..5.0f64).prop_map(|exponent: f64| exponent.exp() * 100.0));
    let cases = (layers(), 1..=4usize, 1..=8usize, links(), cap);
    let counts = std::cell::RefCell::new(std::collections::BTreeMap::<String, usize>::new());
    let count = |what: &str| *counts.borrow_mut().entry(what.to_owned()).or_default() += 1;
    let gain = std::cell::Cell::new(0.0f64);
    proptest!(config, |((layers, ranks, microbatches, links, cap) in cases)| {
        let request = request(layers, ranks, microbatches, links, cap);
        let schedules = catalogue(&request);
        match best_plan(&request) {
            Ok(planned) => {
                sound(&request, &planned);
                for (schedule, seconds) in &schedules {
                    prop_assert!(planned.best.seconds <= seconds * (1.0 + 1e-9), "{schedule}: {seconds}\n{planned}");
                }
                let way = &planned.best.strategy;
                count(&match way { planner::Strategy::Schedule(_) => "schedule".to_owned(), other => other.to_string() });
                if let Some((_, fastest)) = schedules.iter().min_by(|a, b| a.1.total_cmp(&b.1)) {
                    gain.set(gain.get() + 1.0 - planned.best.seconds / fastest);
                    count("cases in which some schedule fits");
                }
            }
            Err(PlannerError::NothingFits { .. }) => {
                prop_assert!(schedules.is_empty(), "{schedules:?}");
                count("nothing fits");
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    });
    let counts = counts.into_inner();
    let mean = 100.0 * gain.get() / counts["cases in which some schedule fits"] as f64;
    println!("{counts:?}; seconds saved against the best schedule, on average: {mean:.2} %");
}

/// Profiles that `train_gpt` (`--layers 8`) and `train_moe` (`--layers 6 --seq 64`) measured with a block a stage
/// (`--schedule InterleavedZeroBubble --ranks 2 --chunks 4`, or 3).
const EXAMPLES: [(&str, &str); 2] =
    [("train_gpt", include_str!("profiles/train_gpt.json")), ("train_moe", include_str!("profiles/train_moe.json"))];

#[test]
fn auto_is_never_slower_than_any_schedule_that_fits_on_the_profiles_of_the_example_models() {
    for (name, text) in EXAMPLES {
        let profile = Profile::from_json(text).unwrap();
        let layers = Layers::of_profile(&profile).unwrap();
        let forward = profile.stages().iter().map(|stage| stage.forward).sum::<f64>() / layers.len() as f64;
        let slow = LinkCosts { default: LinkCost { latency: 2.0 * forward, bandwidth: Some(1e8) }, between: vec![] };
        for (ranks, links) in [1, 2, 4].into_iter().flat_map(|r| [(r, LinkCosts::default()), (r, slow.clone())]) {
            let asked = |cap| Request {
                chunks: vec![1, 2],
                unpipelined: false,
                ..request(layers.clone(), ranks, 8, links.clone(), cap)
            };
            let free = best_plan(&asked(None)).unwrap();
            // Again with two thirds of the memory of the best plan.
            let tight = asked(Some(free.best.peak_bytes * 2.0 / 3.0));
            for (request, planned) in [(asked(None), Ok(free)), (tight.clone(), best_plan(&tight))] {
                let schedules = catalogue(&request);
                let fastest = schedules.iter().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
                let Ok(planned) = planned else {
                    assert!(schedules.is_empty(), "{name}: {schedules:?}");
                    continue;
                };
                sound(&request, &planned);
                let best = &planned.best;
                assert!(best.seconds <= fastest * (1.0 + 1e-9), "{name}: {fastest}\n{planned}");
                let saved = match fastest.is_finite() {
                    true => {
                        format!("{:.2} % less than the best schedule that fits", 100.0 * (1.0 - best.seconds / fastest))
                    }
                    false => "and no schedule fits".to_owned(),
                };
                println!("{name}, {ranks} ranks: {best}, {saved}");
            }
        }
    }
}

#[test]
fn the_answer_does_not_depend_on_the_threads() {
    let layers =
        Layers::new((0..8).map(|i| layer([1.0 + f64::from(i % 3), 1.0, 1.5], 50, 20.0, 3.0)).collect()).unwrap();
    let links = LinkCosts { default: LinkCost { latency: 0.2, bandwidth: Some(30.0) }, between: vec![] };
    let request = request(layers, 3, 6, links, Some(3_000.0));
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| best_plan(&request).unwrap())
    };
    assert_eq!(with(1), with(4));
}

#[test]
fn with_blocking_transfers_the_overlap_passes_pay() {
    let layers = Layers::new(vec![layer([1.0; 3], 50, 20.0, 30.0); 8]).unwrap();
    let slow = LinkCosts { default: LinkCost { latency: 0.3, bandwidth: Some(60.0) }, between: vec![] };
    let with = |passes: Vec<PassChoice>| {
        let simulate = SimulateOptions { overlap: false, ..SimulateOptions::default() };
        let request =
            Request { passes, simulate, unpipelined: false, ..request(layers.clone(), 4, 8, slow.clone(), None) };
        best_plan(&request).unwrap()
    };
    let (still, moved) = (with(vec![PassChoice::AsBuilt, PassChoice::MergeBackward]), with(PassChoice::ALL.to_vec()));
    assert_eq!(moved.best.passes, PassChoice::Overlap);
    assert!(moved.best.seconds < 0.95 * still.best.seconds);
    assert!(moved.plan.plan().any_task(|task| task.op().is_wait()));
    println!("{} s as built, {} s with communication moved", still.best.seconds, moved.best.seconds);
    // The report has the results of the passes, and its last step is the plan's.
    assert_eq!(
        moved.overlap.iter().map(|report| report.pass).collect::<Vec<_>>(),
        OverlapPass::USUAL.map(|p| p.name())
    );
    assert_eq!(moved.overlap[2].makespan_after, moved.best.seconds);
    assert!(still.overlap.is_empty());
}

#[test]
fn the_passes_and_their_budgets_are_those_of_the_request() {
    let layers = Layers::new(vec![layer([1.0; 3], 50, 20.0, 30.0); 8]).unwrap();
    let slow = LinkCosts { default: LinkCost { latency: 0.3, bandwidth: Some(60.0) }, between: vec![] };
    let simulate = SimulateOptions { overlap: false, ..SimulateOptions::default() };
    let passes = vec![OverlapPass::SinkWaits, OverlapPass::ReorderCommunication];
    let overlap = OverlapOptions { reach: 3, group: 1, margin: 0.5, extra_share: 0.1, ..OverlapOptions::default() };
    let asked = Request {
        passes: vec![PassChoice::AsBuilt, PassChoice::Overlap],
        overlap_passes: passes.clone(),
        overlap,
        simulate,
        synthesis: None,
        unpipelined: false,
        ..request(layers, 4, 8, slow, None)
    };
    let planned = best_plan(&asked).unwrap();
    assert_eq!(planned.best.passes, PassChoice::Overlap);
    // Running the passes by hand, with the same budgets, on the plan of the candidate's schedule gives this plan.
    let planner::Strategy::Schedule(name) = &planned.best.strategy else { panic!("{}", planned.best) };
    let size = Size::new(4, planned.best.microbatches).with_chunks(planned.best.chunks);
    let built = by_name(name).unwrap().build(size).unwrap().without_idle().with_transfers().unwrap();
    let options = OverlapOptions { simulate, ..overlap };
    let by_hand = built.overlap(&planned.profile, &passes, &options).unwrap();
    assert_eq!((&by_hand.plan, &by_hand.reports), (planned.plan.plan(), &planned.overlap));
    let usual =
        built.overlap(&planned.profile, &OverlapPass::USUAL, &OverlapOptions { simulate, ..Default::default() });
    assert_ne!(usual.unwrap().plan, by_hand.plan);
}

#[test]
fn a_measured_profile_of_stages_is_planned_without_cutting_it_anew() {
    let stage =
        |forward| StageCost { forward, backward: Some(2.0 * forward), activation_bytes: 1.0, ..StageCost::default() };
    let profile = Profile::new([1.0, 1.0, 1.0, 3.0].map(stage).to_vec(), LinkCosts::default()).unwrap();
    let workload = Workload::new(6, Layers::of_profile(&profile).unwrap());
    let fixed = Request {
        chunks: vec![2],
        cuts: vec![Cut::Even],
        unpipelined: false,
        ..Request::new(vec![workload], 2, LinkCosts::default())
    };
    let planned = best_plan(&fixed).unwrap();
    sound(&fixed, &planned);
    assert_eq!(planned.plan.plan().stages(), 4);
    assert!(planned.candidates.iter().all(|c| c.partition.to_string() == "1+1+1+1"));
    // A V puts the heavy last stage on the rank of the first one.
    assert_eq!(planned.bound, 6.0 * 18.0 / 2.0);
}

#[test]
fn measured_peaks_of_kept_stages_count_under_a_cap() {
    let stage = StageCost {
        forward: 1.0,
        backward: Some(2.0),
        activation_bytes: 1.0,
        forward_peak_bytes: Some(100.0),
        ..StageCost::default()
    };
    let profile = Profile::new(vec![stage; 2], LinkCosts::default()).unwrap();
    let workload = || Workload::new(4, Layers::of_profile(&profile).unwrap());
    let with_cap = |cap| Request {
        chunks: vec![1],
        cap: Some(cap),
        unpipelined: false,
        ..Request::new(vec![workload()], 2, LinkCosts::default())
    };
    assert!(best_plan(&with_cap(50.0)).is_err());
    let planned = best_plan(&with_cap(1e3)).unwrap();
    assert!(planned.best.peak_bytes >= 100.0, "{}", planned.best.peak_bytes);
}

#[test]
fn plans_without_a_pipeline_are_considered() {
    let layers = || Layers::new(vec![layer([1.0; 3], 1_000, 1.0, 1.0); 4]).unwrap();
    let best = |links| best_plan(&request(layers(), 4, 4, links, None)).unwrap();
    // Sending costs nothing: each rank takes a microbatch.
    assert_eq!(best(LinkCosts::default()).best.strategy, planner::Strategy::DataParallel);
    // Any message takes longer than the whole step on one device.
    let slow = LinkCosts { default: LinkCost { latency: 1e3, bandwidth: None }, between: vec![] };
    assert_eq!(best(slow).best.strategy, planner::Strategy::OneDevice);
    // Gradients are heavy, activations are light: a pipeline.
    let narrow = LinkCosts { default: LinkCost { latency: 0.0, bandwidth: Some(100.0) }, between: vec![] };
    assert!(matches!(best(narrow).best.strategy, planner::Strategy::Schedule(_) | planner::Strategy::Synthesised));
}

#[test]
fn a_cap_makes_stages_recompute_and_says_what_it_costs() {
    let layers = Layers::new(vec![layer([1.0; 3], 10, 100.0, 1.0); 8]).unwrap();
    let with = |recompute: Vec<Recompute>, cap| {
        let narrow = LinkCosts { default: LinkCost { latency: 0.1, bandwidth: Some(100.0) }, between: vec![] };
        let request = request(layers.clone(), 4, 8, narrow, Some(cap));
        let request = Request { recompute, synthesis: None, unpipelined: false, ..request };
        best_plan(&request)
    };
    let never = with(vec![Recompute::Never], 1e6).unwrap().best;
    // A block holds 100 bytes a microbatch and 80 of parameters, so 300 are too few for two blocks without
    // recomputation.
    let refused = with(vec![Recompute::Never], 300.0).unwrap_err().to_string();
    assert!(refused.contains("the leanest holds") && refused.contains("above the cap of 3.0000e2"), "{refused}");
    let partly = with(vec![Recompute::Never, Recompute::WhereNeeded, Recompute::Everywhere], 400.0).unwrap();
    assert!(!partly.best.recomputing.is_empty());
    assert!(partly.best.seconds > never.seconds);
    let (dropped, seconds) = partly.faster_without_cap.as_ref().unwrap();
    let reason = &partly.dropped.iter().find(|(what, _)| what == dropped).unwrap().1;
    assert!(*seconds < partly.best.seconds && reason.contains("above the cap"), "{reason}");
    assert!(partly.to_string().contains("the cap costs"), "{partly}");
}

#[test]
fn fewer_microbatches_win_where_each_has_a_fixed_cost() {
    let layers = Layers::new(vec![layer([1.0; 3], 1_000, 1.0, 1.0); 4]).unwrap();
    let with = |fixed| {
        let measured = Workload::new(8, layers.clone());
        let workloads = [2, 8, 32].map(|m| measured.recut(m, fixed).unwrap()).to_vec();
        let narrow = LinkCosts { default: LinkCost { latency: 0.0, bandwidth: Some(10.0) }, between: vec![] };
        let synthesis = Some(Synthesis { effort: 100_000, ..Synthesis::default() });
        let request = Request { synthesis, ..Request::new(workloads, 2, narrow) };
        best_plan(&request).unwrap().best.microbatches
    };
    assert!(with(0.9) < with(0.0));
    let measured = Workload::new(8, layers.clone());
    assert_eq!(measured.recut(8, 0.5).unwrap().layers, layers);
    let twice = measured.recut(4, 0.5).unwrap();
    assert_eq!((twice.layers.all()[0].forward, twice.layers.all()[0].activation_bytes), (1.5, 2.0));
}

#[test]
fn requests_that_no_plan_can_answer_are_refused() {
    let layers = Layers::new(vec![layer([1.0; 3], 1, 1.0, 1.0); 2]).unwrap();
    let refused = |request: Request| best_plan(&request).unwrap_err().to_string();
    let good = || Request::new(vec![Workload::new(2, layers.clone())], 2, LinkCosts::default());
    assert!(refused(Request { workloads: vec![], ..good() }).contains("no workload"));
    assert!(refused(Request { ranks: 0, ..good() }).contains("0 ranks"));
    assert!(refused(Request { cap: Some(f64::NAN), ..good() }).contains("`cap` is NaN"));
    assert!(refused(Request { workloads: vec![Workload::new(0, layers.clone())], ..good() }).contains("no microbatch"));
    // Three ranks and two layers: no pipeline can be cut, so only plans without a pipeline remain.
    let planned = best_plan(&Request { ranks: 3, ..good() }).unwrap();
    assert!(planned.dropped.iter().any(|(_, reason)| reason.contains("2 layers cannot be cut into 3 stages")));
    assert_eq!(planned.best.strategy, planner::Strategy::DataParallel);
}

proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 12, ..Default::default() })]

    #[test]
    fn with_one_rank_nothing_beats_one_device(layers in layers(), microbatches in 1..6usize) {
        let planned = best_plan(&request(layers, 1, microbatches, LinkCosts::default(), None)).unwrap();
        let alone = planned.candidates.iter().find(|c| c.strategy == planner::Strategy::OneDevice).unwrap();
        // Sums in another order differ in their last bits.
        prop_assert!(planned.best.seconds >= alone.seconds * (1.0 - 1e-12));
    }
}
