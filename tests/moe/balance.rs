//! Loss-free load balancing: after each step, a pipeline's router biases equal bit for bit those of the loop on one
//! device that applies the rule directly; and the load becomes balanced.

use crate::cases::{Text, ahead, builder, by_name_in_model, config, cut_up, floats};
use crate::parity::{batches, schedules};
use burn::optim::AdamWConfig;
use burn::tensor::Tensor;
use burn_pipeline::execute::Tuning;
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::schedule::{Schedule, Size, by_name};
use burn_pipeline::stage::{SplitBackward, named_weights, with_weights};
use burn_pipeline::train::{Builder, Checkpoints, Pipeline, StageContext};
use burn_pipeline_moe::auxiliary::{LayerObservation, combine_microbatches};
use pipeline_examples::moe::gpt::{MoeGptConfig, Observed};
use pipeline_examples::moe::part::MoeGptPart;
use pipeline_tests::reference::{Reference, whole};
use std::cell::RefCell;
use std::collections::BTreeMap;
use tempfile::tempdir;

/// Large enough that choices change between steps: scores of four experts are around a quarter.
const RATE: f64 = 0.02;
/// The first step changes the bias, the second one uses it.
const STEPS: u64 = 2;
/// The allowed difference of weights: gradients are added in another order and go through AdamW.
const CLOSE: f32 = 5e-5;

type Weights = BTreeMap<String, Vec<f32>>;

/// A model with every kind of block and multi-token prediction. Its routers have a bias.
fn biased() -> MoeGptConfig {
    ahead().with_bias_rate(RATE)
}

/// The model's layer that a router's bias belongs to.
fn layer_of(config: &MoeGptConfig, name: &str) -> Option<usize> {
    let place = |rest: &str| rest.split('.').next().and_then(|place| place.parse::<usize>().ok());
    let rest = name.strip_suffix("router.bias")?;
    let of_block = rest.strip_prefix("blocks.").and_then(place);
    let count = config.pattern.len();
    of_block.or(rest.strip_prefix("ahead.modules.").and_then(place).map(|module| count + module))
}

/// `b += rate * sign(mean load - load)`, written out.
fn moved(bias: &[f32], load: &[f64], rate: f64) -> Vec<f32> {
    let mean = load.iter().sum::<f64>() / load.len() as f64;
    let sign = |&load: &f64| if load < mean { 1.0 } else { f32::from(-i8::from(load > mean)) };
    bias.iter().zip(load.iter().map(sign)).map(|(bias, sign)| bias + rate as f32 * sign).collect()
}

/// Adds up the observations of several microbatches, layer by layer.
fn added(observed: &[Observed]) -> Vec<LayerObservation> {
    combine_microbatches(&observed.iter().map(|one| &*one.layers).collect::<Vec<_>>())
}

/// The data of a step's batches, whose numbers continue from step to step.
fn texts(batches: &[usize], step: u64) -> Vec<Text> {
    let first = step * batches.len() as u64 + 1;
    (first..).zip(batches).map(|(number, &samples)| Text::new(number, samples)).collect()
}

/// The plain loop: all weights after each step.
fn plain(config: &MoeGptConfig, batches: &[usize], microbatches: usize) -> Vec<Weights> {
    looped(config, batches, microbatches, RATE)
}

fn looped(config: &MoeGptConfig, batches: &[usize], microbatches: usize, rate: f64) -> Vec<Weights> {
    let mut reference = Reference::new(config.part(&whole()).unwrap());
    let names = config.names(&whole()).unwrap();
    let pieces = cut_up(batches, microbatches);
    let all: Vec<usize> = pieces.iter().map(|(_, samples)| samples.len()).collect();
    let step = |step| {
        let (texts, observed) = (texts(batches, step), RefCell::new(Vec::new()));
        reference.step(&all, 1e-3, None, |model, i| {
            let (batch, samples) = pieces[i].clone();
            let (main, auxiliary, rows) = texts[batch].losses(config, model, samples);
            observed.borrow_mut().push(rows);
            main + auxiliary.unwrap()
        });
        let layers = added(&observed.into_inner());
        let mut biases = std::collections::HashMap::new();
        for weight in named_weights(&reference.model, &names) {
            if let Some(layer) = layer_of(config, &weight.names[0]) {
                let bias = moved(&floats(&weight.value), &layers[layer].load, rate);
                biases.insert(weight.id, AnyTensor::new(Tensor::<1>::from_floats(&*bias, &weight.value.device())));
            }
        }
        assert!(biases.len() > 1, "the model has routers");
        reference.model = with_weights(reference.model.clone(), &biases);
        let named = named_weights(&reference.model, &names).into_iter();
        named.map(|weight| (weight.names[0].clone(), floats(&weight.value))).collect()
    };
    (0..STEPS).map(step).collect()
}

fn weights(config: &MoeGptConfig, pipeline: &mut Pipeline) -> Weights {
    let weights = pipeline.weights().unwrap();
    by_name_in_model(config, weights.iter().map(|stage| stage.iter().map(floats).collect()))
}

fn trained(builder: Builder) -> Builder {
    builder.optimizer(|| AdamWConfig::new().init())
}

fn step(pipeline: &mut Pipeline, batches: &[usize], step: u64) -> f64 {
    let mut texts = texts(batches, step);
    let last = texts.pop().unwrap();
    texts.iter().for_each(|text| drop(pipeline.accumulate(text.batch()).unwrap()));
    pipeline.step(last.batch(), 1e-3).unwrap().loss
}

/// Asserts that biases are bitwise equal and all other weights equal up to the order of additions. Returns the
/// pipeline after its steps.
fn assert_alike(
    config: &MoeGptConfig,
    builder: Builder,
    batches: &[usize],
    expected: &[Weights],
    place: &str,
) -> Pipeline {
    let mut pipeline = trained(builder).build().unwrap();
    for (number, expected) in (0..STEPS).zip(expected) {
        step(&mut pipeline, batches, number);
        let got = weights(config, &mut pipeline);
        assert_eq!(got.len(), expected.len());
        for ((name, expected), got) in expected.iter().zip(got.values()) {
            match layer_of(config, name) {
                Some(_) => assert_eq!(got, expected, "{name} after step {number}: {place}"),
                None => {
                    let difference = got.iter().zip(expected).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
                    assert!(difference < CLOSE, "{name} is {difference:e} off after step {number}: {place}");
                }
            }
        }
    }
    pipeline
}

fn sized(schedule: &dyn Schedule, chunks: usize, microbatches: usize, config: &MoeGptConfig) -> Builder {
    builder(schedule, Size { ranks: 2, chunks, microbatches }, config, |part, _| part)
}

#[test]
fn every_schedule_moves_the_bias_as_the_loop_on_one_device() {
    let config = biased();
    for (accumulation, microbatches) in [(3, 1), (1, 5), (3, 4)] {
        let batches = batches(accumulation, microbatches, microbatches % 2 == 0);
        let expected = plain(&config, &batches, microbatches);
        for (schedule, chunks) in schedules() {
            let place = format!("{}, batches of {batches:?}", schedule.info().name);
            let builder = sized(schedule.as_ref(), chunks, microbatches, &config);
            assert_alike(&config, builder, &batches, &expected, &place);
        }
    }
}

#[test]
fn captured_stages_read_the_moved_bias() {
    let config = biased();
    for batches in [&[9][..], &[4, 6, 5]] {
        let expected = plain(&config, batches, 4);
        for (name, chunks) in [("ZBH1", 1), ("ZBVZeroBubble", 2), ("InterleavedZeroBubble", 2), ("DualPipe", 1)] {
            let builder = sized(by_name(name).unwrap().as_ref(), chunks, 4, &config).split(SplitBackward::Captured);
            // The bias is a parameter, so forwards that share a recording read it too.
            let record_every = if name == "DualPipe" { 1000 } else { 1 };
            let builder = builder.tuning(Tuning { record_every, ..Tuning::default() });
            let mut pipeline = assert_alike(&config, builder, batches, &expected, name);
            let engines = pipeline.engines().unwrap();
            assert!(engines.iter().all(|(_, report)| report.captured), "{name}");
        }
    }
}

#[test]
fn a_forward_that_read_the_bias_of_the_start_would_be_noticed() {
    let config = biased();
    let (moves, stays) = (looped(&config, &[9], 4, RATE), looped(&config, &[9], 4, 0.0));
    let difference = |step: usize| {
        let weights = moves[step].iter().zip(stays[step].values());
        let weights = weights.filter(|((name, _), _)| layer_of(&config, name).is_none());
        let pairs = weights.flat_map(|((_, moves), stays)| moves.iter().zip(stays));
        pairs.fold(0.0f32, |max, (a, b)| max.max((a - b).abs()))
    };
    assert_eq!(difference(0), 0.0, "the first step chooses without it");
    assert!(difference(1) > 10.0 * CLOSE, "the second does not");
}

#[test]
fn replicas_move_alike_by_the_loads_of_all() {
    let config = biased();
    for batches in [&[9][..], &[8, 8, 9]] {
        let expected = plain(&config, batches, 4);
        for (name, chunks) in [("1F1B", 1), ("ZBVZeroBubble", 2), ("DualPipe", 1), ("Interleaved1F1B", 2)] {
            // Each of two replicas cuts its part into two.
            let builder = sized(by_name(name).unwrap().as_ref(), chunks, 2, &config).data_parallel(2);
            assert_alike(&config, builder, batches, &expected, name);
        }
    }
    // Sharded parameters are pieces after a step; a bias is whole. Tied parameters cannot be sharded.
    let config = crate::cases::config().with_bias_rate(RATE);
    let builder = sized(by_name("1F1B").unwrap().as_ref(), 1, 2, &config).data_parallel(2).sharded(true);
    assert_alike(&config, builder, &[9], &plain(&config, &[9], 4), "sharded");
}

#[test]
fn a_run_goes_on_from_its_checkpoint_to_the_bit_with_its_bias() {
    let (config, batches) = (biased(), [7]);
    let folder = tempdir().unwrap();
    for (name, chunks) in [("1F1B", 1), ("ZBVZeroBubble", 2), ("DualPipe", 1)] {
        let checkpoints = Checkpoints::new(folder.path().join(name));
        let new = || trained(sized(by_name(name).unwrap().as_ref(), chunks, 4, &config)).build().unwrap();
        let (mut whole, mut stopped, mut resumed) = (new(), new(), new());
        let losses: Vec<f64> = (0..4).map(|number| step(&mut whole, &batches, number)).collect();
        assert_eq!([0, 1].map(|number| step(&mut stopped, &batches, number)), losses[..2], "{name}");
        stopped.save(&checkpoints, &()).unwrap();
        let checkpoint = checkpoints.latest().unwrap();
        assert!(checkpoint.parameters().iter().any(|entry| entry.names[0].contains("router.bias")), "{name}");
        resumed.load(&checkpoint).unwrap();
        let biases = |weights: Weights| weights.into_iter().filter(|(name, _)| layer_of(&config, name).is_some());
        assert!(biases(weights(&config, &mut resumed)).any(|(_, bias)| bias.iter().any(|&b| b != 0.0)), "{name}");
        let again: Vec<f64> = (2..4).map(|number| step(&mut resumed, &batches, number)).collect();
        assert_eq!(again, losses[2..], "{name}");
        assert_eq!(weights(&config, &mut resumed), weights(&config, &mut whole), "{name}");
    }
}

/// A part whose routers choose clearly and therefore unevenly, with scores as far apart as those of trained
/// routers.
fn decided(config: &MoeGptConfig, part: MoeGptPart, at: &StageContext) -> MoeGptPart {
    let scores = named_weights(&part, &config.names(at).unwrap()).into_iter();
    let scores = scores.filter(|weight| weight.names[0].ends_with("router.scores.weight")).map(|weight| {
        let larger: Vec<f32> = floats(&weight.value).iter().map(|score| score * 40.0).collect();
        let larger = Tensor::<1>::from_floats(&*larger, &weight.value.device());
        (weight.id, AnyTensor::new(larger.reshape([config.d_model, config.experts])))
    });
    let scores = scores.collect();
    with_weights(part, &scores)
}

#[test]
fn an_uneven_load_becomes_even_and_stays_uneven_without() {
    // The weights are fixed, so only the bias can balance the load.
    let uneven = |rate: f64, steps: usize| {
        let config = config().with_pattern("EDEe".to_owned()).with_bias_rate(rate);
        let model = config.clone();
        let builder = builder(by_name("1F1B").unwrap().as_ref(), Size::new(2, 4), &config, move |part, at| {
            decided(&model, part, at)
        });
        let mut pipeline = trained(builder).build().unwrap();
        let text = Text::new(1, 32);
        let mut step = || {
            let report = pipeline.step(text.batch(), 0.0).unwrap();
            let layers = added(&report.observed.iter().map(|numbers| config.read(numbers)).collect::<Vec<_>>());
            let with_experts = layers.iter().filter(|layer| layer.load.iter().sum::<f64>() > 0.0);
            with_experts.map(LayerObservation::imbalance).fold(1.0, f64::max)
        };
        let imbalances: Vec<f64> = (0..steps).map(|_| step()).collect();
        (imbalances[0], imbalances[steps * 5 / 6..].iter().copied().fold(1.0, f64::max))
    };
    let (first, last) = uneven(0.01, 60);
    println!("max/mean load of the worst layer: {first:.2} in step 1, at most {last:.2} after 50 steps");
    assert!(first > 1.5 && last < 1.25, "{first} and {last}");
    let (first, last) = uneven(0.0, 6);
    assert_eq!(first, last, "the load changes without a bias");
}
