//! The planner's lower bound, compared with simulated plans whose forwards and backwards are fused.

use burn_pipeline_plan::cost::{Layer, Layers, LinkCosts, Partition};
use burn_pipeline_plan::planner::{self, Cut, PassChoice, Request, Workload, best_plan};
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use proptest::prelude::{Just, Strategy, prop};
use proptest::test_runner::Config;
use proptest::{prop_assert, proptest};

/// A layer; `share` is the part of the shorter half that a fused pair does not hide.
fn layer(seconds: [f64; 3], share: Option<f64>) -> Layer {
    let [forward, input, weight] = seconds;
    let (long, short) = (forward.max(input + weight), forward.min(input + weight));
    let overlap = share.map(|share| long + share * short);
    Layer { overlap, ..Layer::new('A').with_seconds(forward, input, weight) }
}

fn request(layers: Layers, ranks: usize, microbatches: usize) -> Request {
    Request {
        chunks: vec![1, 2],
        cuts: vec![Cut::Even, Cut::Optimal],
        passes: vec![PassChoice::AsBuilt],
        synthesis: None,
        ..Request::new(vec![Workload::new(microbatches, layers)], ranks, LinkCosts::default())
    }
}

#[test]
fn a_forward_that_is_hidden_under_another_layers_backward_costs_nothing() {
    // Alone, the first layer hides a tenth of its forward; under the second layer's backward of 10 s, all of it.
    let first = Layer { overlap: Some(1.9), ..Layer::new('A').with_seconds(1.0, 0.5, 0.5) };
    let second = Layer::new('A').with_seconds(10.0, 5.0, 5.0);
    let planned = best_plan(&request(Layers::new(vec![first, second]).unwrap(), 2, 400)).unwrap();
    assert_eq!(planned.best.strategy, planner::Strategy::Schedule("DualPipe".into()));
    // Each microbatch takes 1 s and 10 s of backwards, and the forward of 10 s.
    assert_eq!(planned.bound, 400.0 * 21.0 / 2.0);
    assert!((planned.bound..1.01 * planned.bound).contains(&planned.best.seconds), "{planned}");
}

#[test]
fn without_fused_pairs_the_bound_is_all_work() {
    let layers = Layers::new(vec![layer([1.0, 2.0, 3.0], None); 4]).unwrap();
    assert_eq!(best_plan(&request(layers.clone(), 2, 8)).unwrap().bound, 8.0 * 24.0 / 2.0);
    // A single microbatch goes through all forwards and the backwards for inputs.
    assert_eq!(best_plan(&request(layers, 2, 1)).unwrap().bound, 12.0);
}

/// Layers with and without an `overlap`, and a cut into 4 stages.
fn models() -> impl Strategy<Value = (Layers, Partition)> {
    let seconds = [0.1..3.0f64, 0.1..3.0f64, 0.0..3.0f64];
    let layers = prop::collection::vec((seconds, prop::option::weighted(0.8, 0.0..1.2f64), 0..4u32), 4..=8);
    let layers = layers.prop_map(|layers| {
        let heavy = |(seconds, share, heavy): ([f64; 3], Option<f64>, u32)| {
            layer(seconds.map(|seconds| if heavy == 0 { 5.0 * seconds } else { seconds }), share)
        };
        Layers::new(layers.into_iter().map(heavy).collect()).unwrap()
    });
    layers.prop_flat_map(|layers| {
        let inner: Vec<usize> = (1..layers.len()).collect();
        let count = layers.len();
        let cut = prop::sample::subsequence(inner, 3);
        (Just(layers), cut.prop_map(move |cut| Partition::from_boundaries(count, &cut).unwrap()))
    })
}

proptest! {
    #![proptest_config(Config { cases: 128, failure_persistence: None, ..Config::default() })]

    #[test]
    fn no_plan_with_fused_pairs_is_faster_than_the_bound((layers, cut) in models(), microbatches in 1..40usize) {
        // `DualPipeV` has 4 stages on 2 ranks, `DualPipe` on 4.
        for (name, ranks, chunks) in [("DualPipeV", 2, 2), ("DualPipe", 4, 1)] {
            let planned = best_plan(&request(layers.clone(), ranks, microbatches)).unwrap();
            let least = planned.bound * (1.0 - 1e-9);
            let plan = by_name(name).unwrap().build(Size::new(ranks, microbatches).with_chunks(chunks)).unwrap();
            let profile = cut.profile(&layers, LinkCosts::default()).unwrap();
            let seconds = simulate(&plan, &profile, &SimulateOptions::default()).unwrap().makespan;
            prop_assert!(seconds >= least, "{name}, {cut}: {seconds}\n{planned}");
            prop_assert!(planned.candidates.iter().all(|candidate| candidate.seconds >= least), "{planned}");
        }
    }
}
