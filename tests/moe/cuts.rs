//! Cuts of a mixture-of-experts model: the cost of its layers, and that training and resuming do not depend on the
//! cut.

use crate::cases::{Text, ahead, builder, by_name_in_model, config, distance, floats, pipelined, plain, rich};
use crate::parity::assert_close;
use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn_pipeline::cost::{Dtype, Layers, Measure, Partition, PartitionOptions, PartitionReport};
use burn_pipeline::plan::Placement;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::Accumulation;
use burn_pipeline::train::{Checkpoint, Checkpoints, Pipeline, StageContext};
use burn_pipeline_moe::cost::MicrobatchSize;
use burn_pipeline_moe::layers::{AttentionConfig, BlockConfig, BlockKind, MixtureOfExpertsConfig};
use burn_pipeline_moe::router::Capacity;
use pipeline_examples::moe::gpt::{MoeGptConfig, MoeGptError};
use pipeline_tests::reference::whole;
use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
use std::collections::BTreeMap;
use tempfile::{TempDir, tempdir};

const KINDS: [BlockKind; 4] = [BlockKind::Dense, BlockKind::Experts, BlockKind::DenseDepths, BlockKind::ExpertsDepths];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_blocks_parameters_are_those_of_its_module(
        (half, heads, dense, hidden) in (1usize..5, 1usize..4, 1usize..20, 1usize..9),
        (experts, shared, bias) in (1usize..6, 0usize..3, any::<bool>()),
    ) {
        let d = 2 * half * heads;
        let mixture = MixtureOfExpertsConfig::new(d, hidden, experts).with_top_k(1).with_shared(shared);
        let config = BlockConfig::new(AttentionConfig::new(d, heads), dense, mixture.with_expert_bias(bias));
        for kind in KINDS {
            let parameters = config.init(kind, &Device::flex()).num_params() as u64;
            prop_assert_eq!(config.parameters(kind), parameters, "{:?}", kind);
        }
    }
}

#[test]
fn the_layers_of_the_model_add_up_to_its_parameters() {
    let size = MicrobatchSize { batch: 2, seq: 6, dtype: Dtype::F32 };
    for config in [config(), ahead(), rich().with_relations(0).with_ahead("DE".to_owned())] {
        let counted: u64 = config.cost_layers(size).unwrap().all().iter().map(|layer| layer.parameters).sum();
        assert_eq!(counted, config.part(&whole()).unwrap().num_params() as u64, "{config:?}");
    }
}

#[test]
fn experts_weigh_all_in_memory_and_as_few_in_time_as_tokens_take() {
    let (d, seq, hidden) = (64, 32, 128);
    let of = |mixture: MixtureOfExpertsConfig, kind| {
        let config = BlockConfig::new(AttentionConfig::new(d, 4), 2 * hidden, mixture);
        let size = MicrobatchSize { batch: 4, seq, dtype: Dtype::Bf16 };
        (config.layer(kind, size).unwrap(), config.active_parameters(kind))
    };
    let mixture = |experts| MixtureOfExpertsConfig::new(d, hidden, experts).with_capacity(Capacity::Dropless);
    let (dense, _) = of(mixture(64), BlockKind::Dense);
    let (experts, active) = of(mixture(64), BlockKind::Experts);
    // By hand: two of 64 experts are as wide as the dense layer, and the router adds a little.
    let (tokens, matrices) = (4.0 * seq as f64, 4.0 * (d * d) as f64 + 3.0 * (d * 2 * hidden) as f64);
    assert_eq!(dense.flops, tokens * (2.0 * matrices + 4.0 * (seq * d) as f64));
    assert_eq!(experts.flops - dense.flops, tokens * 2.0 * (d * 64) as f64);
    let of_an_expert = (3 * d * hidden) as u64;
    assert_eq!(experts.parameters - dense.parameters, 62 * of_an_expert + 64 * d as u64);
    assert_eq!(experts.parameters - active, 62 * of_an_expert);
    assert_eq!((experts.output_bytes, experts.parameter_bytes()), (tokens * d as f64 * 2.0, 2 * experts.parameters));
    // Half of the tokens bypass the block.
    let (around, _) = of(mixture(64), BlockKind::DenseDepths);
    assert_eq!(around.flops, tokens / 2.0 * (2.0 * matrices + 4.0 * (seq / 2 * d) as f64) + tokens * 2.0 * d as f64);
    // Dropped choices are not computed, and spare capacity adds no work.
    let with = |factor| of(mixture(64).with_capacity(Capacity::Factor(factor)), BlockKind::Experts).0.flops;
    assert_eq!(with(4.0), experts.flops);
    assert_eq!(experts.flops - with(0.5), tokens * 6.0 * (d * hidden) as f64);
}

#[test]
fn cuts_by_parameters_and_by_flops_differ_and_each_balances_its_own() {
    let config = config().with_pattern("EDDDDDDE".to_owned()).with_experts(32).with_d_model(32).with_d_hidden(32);
    let config = config.with_vocab(17);
    let layers = config.cost_layers(MicrobatchSize { batch: 2, seq: 6, dtype: Dtype::F32 }).unwrap();
    let timed = layers.all().iter().map(|layer| layer.clone().estimated(1e9)).collect();
    let timed = Layers::new(timed).unwrap();
    let weights: Vec<f64> = layers.all().iter().map(|layer| Measure::Parameters.of(layer)).collect();
    let placement = Placement::looped(4, 1).unwrap();
    let by_memory = Partition::weighted(&weights, 4).unwrap();
    let by_time = Partition::optimal(&timed, &placement, &PartitionOptions::default()).unwrap().partition;
    let even = Partition::even(8, 4).unwrap();
    let sizes = |cut: &Partition| {
        let sum = |range: std::ops::Range<usize>| weights[range].iter().sum::<f64>();
        cut.ranges().map(sum).fold(0.0, f64::max)
    };
    assert!(sizes(&by_memory) < sizes(&even), "{by_memory} holds less on its fullest stage than {even}");
    let busiest = |cut: &Partition| PartitionReport::new(&timed, cut, &placement).unwrap().imbalance();
    assert!(busiest(&by_time) <= busiest(&even) && busiest(&by_time) < busiest(&by_memory));
    assert_ne!(by_memory, by_time);
    // Virtual stages: two per rank, along a V.
    let v = Placement::v(2).unwrap();
    let cut = Partition::optimal(&timed, &v, &PartitionOptions::default()).unwrap().partition;
    assert_eq!(cut.stages(), 4);
}

#[test]
fn an_uneven_cut_has_the_gradients_of_one_device() {
    for (boundaries, name, ranks, chunks) in
        [(vec![1], "1F1B", 2, 1), (vec![1, 6, 7], "ZBVZeroBubble", 2, 2), (vec![3, 4, 5], "Interleaved1F1B", 2, 2)]
    {
        let config = ahead().with_boundaries(boundaries);
        let size = Size { ranks, chunks, microbatches: 4 };
        let builder = builder(by_name(name).unwrap().as_ref(), size, &config, |part, _| part);
        assert_close(&distance(&config, &pipelined(builder, &[7], &config), &plain(&config, &[7], 4)), name);
    }
}

#[test]
fn a_cut_that_does_not_fit_the_plan_is_refused() {
    let at = |index, stages| StageContext {
        index,
        stages,
        rank: 0,
        device: Device::flex(),
        cut: None,
        group: Default::default(),
        replicas: Default::default(),
    };
    let cut = config().with_boundaries(vec![2, 4]);
    assert_eq!(cut.layers(&at(1, 3)), Ok(2..4));
    assert_eq!(cut.layers(&at(0, 1)), Ok(0..8));
    assert_eq!(cut.layers(&at(0, 2)), Err(MoeGptError::Stages { cut: 3, stages: 2 }));
    assert!(matches!(config().with_boundaries(vec![4, 2]).layers(&at(0, 3)), Err(MoeGptError::Boundaries(_))));
}

const RATE: f64 = 1e-2;

fn pipeline(config: &MoeGptConfig, (name, ranks, chunks): (&str, usize, usize)) -> Pipeline {
    let size = Size { ranks, chunks, microbatches: 4 };
    let builder = builder(by_name(name).unwrap().as_ref(), size, config, |part, _| part);
    let builder = builder.accumulation(Accumulation::Ordered);
    builder.optimizer(|| AdamWConfig::new().init()).clip_norm(1.0).build().unwrap()
}

type Weights = BTreeMap<String, Vec<f32>>;

fn weights(config: &MoeGptConfig, pipeline: &mut Pipeline) -> Weights {
    let weights = pipeline.weights().unwrap();
    by_name_in_model(config, weights.iter().map(|stage| stage.iter().map(floats).collect()))
}

fn steps(pipeline: &mut Pipeline, steps: std::ops::Range<u64>) -> Vec<f64> {
    steps.map(|step| pipeline.step(Text::new(step + 1, 6).batch(), RATE).unwrap().loss).collect()
}

fn difference(a: &Weights, b: &Weights) -> f32 {
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    let pairs = a.values().flatten().zip(b.values().flatten());
    pairs.fold(0.0, |max, (a, b)| max.max((a - b).abs()))
}

const CUTS: [(&str, usize, usize); 5] =
    [("ZBVZeroBubble", 2, 2), ("GPipe", 1, 1), ("1F1B", 4, 1), ("DualPipe", 2, 1), ("Interleaved1F1B", 2, 4)];

fn saved(config: &MoeGptConfig, cut: (&str, usize, usize), folder: &TempDir) -> Checkpoint {
    let checkpoints = Checkpoints::new(folder.path().join(cut.0));
    let mut pipeline = pipeline(config, cut);
    steps(&mut pipeline, 0..2);
    pipeline.save(&checkpoints, &()).unwrap();
    checkpoints.latest().unwrap()
}

/// Each cut resumes from the previous cut's checkpoint. Compares the losses of the last two of four steps and the
/// weights after them with those of one device that never stopped.
fn ring(config: &MoeGptConfig, mut compare: impl FnMut(&str, &[f64], &[f64], &Weights, &Weights)) {
    let folder = tempdir().unwrap();
    let mut whole = pipeline(config, ("GPipe", 1, 1));
    let expected = steps(&mut whole, 0..4);
    let expected_weights = weights(config, &mut whole);
    for (place, &cut) in CUTS.iter().enumerate() {
        let next = CUTS[(place + 1) % CUTS.len()];
        let checkpoint = saved(config, cut, &folder);
        assert_eq!(checkpoint.parameters().len(), expected_weights.len(), "{cut:?}: each parameter once");
        let mut resumed = pipeline(config, next);
        resumed.load(&checkpoint).unwrap();
        assert_eq!(resumed.progress().steps, 2);
        let losses = steps(&mut resumed, 2..4);
        let place = format!("{cut:?}, then {next:?}");
        compare(&place, &losses, &expected[2..], &weights(config, &mut resumed), &expected_weights);
    }
}

#[test]
fn every_cut_goes_on_to_the_bit_from_what_another_one_has_saved() {
    // Gradients are added in microbatch order and no parameter is tied, so every sum has one order.
    ring(&config().with_bias_rate(0.01), |place, losses, expected, weights, expected_weights| {
        assert_eq!(losses, expected, "{place}");
        assert_eq!(weights, expected_weights, "{place}");
    });
}

#[test]
fn what_stages_share_rounds_by_the_cut_and_nothing_else_does() {
    // The embedding is on two stages and the relation bias on all of them. All layers of a stage use one copy in
    // one graph, whose backward adds up their parts microbatch by microbatch; copies are added once, after all
    // microbatches. So the sums have the same terms with other parentheses.
    ring(&rich().with_ahead("E".to_owned()), |place, losses, expected, weights, expected_weights| {
        for (got, expected) in losses.iter().zip(expected) {
            assert!((got - expected).abs() < 2e-6, "{place}: {got}, without stopping {expected}");
        }
        let distance = difference(weights, expected_weights);
        assert!(distance < 1e-3, "{place}: weights are {distance:e} off");
    });
}

#[test]
fn a_cut_goes_on_from_its_own_checkpoint_to_the_bit_and_not_without_the_optimizers_state() {
    let config = rich().with_ahead("E".to_owned());
    let (folder, cut) = (tempdir().unwrap(), ("ZBVZeroBubble", 2, 2));
    let mut never_stopped = pipeline(&config, cut);
    let expected = steps(&mut never_stopped, 0..4);
    let checkpoint = saved(&config, cut, &folder);
    let mut resumed = pipeline(&config, cut);
    resumed.load(&checkpoint).unwrap();
    assert_eq!(steps(&mut resumed, 2..4), expected[2..]);
    assert_eq!(weights(&config, &mut resumed), weights(&config, &mut never_stopped));
    let mut without = pipeline(&config, cut);
    without.load_weights(&checkpoint).unwrap();
    let got = steps(&mut without, 2..4);
    assert_eq!(got[0], expected[2], "the weights differ");
    assert!((got[1] - expected[3]).abs() > 1e-4, "the moments have no effect");
}

#[test]
fn the_model_is_exported_with_each_parameter_once() {
    let config = rich().with_ahead("D".to_owned());
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    pipeline(&config, ("1F1B", 4, 1)).export(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let mut names: Vec<String> =
        safetensors::SafeTensors::deserialize(&bytes).unwrap().names().into_iter().map(str::to_owned).collect();
    names.sort_unstable();
    let mut whole = pipeline(&config, ("GPipe", 1, 1));
    assert_eq!(names, weights(&config, &mut whole).into_keys().collect::<Vec<_>>());
}
