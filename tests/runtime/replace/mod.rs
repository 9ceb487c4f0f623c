//! Replaces a stage's module during a run: a new head of another size, new layers, layers frozen and unfrozen.
//! Later steps and checkpoints are those of the plain loop that replaces the same layers. A module that does not
//! fit changes nothing.

use crate::cases::{noise, range, read, sizes};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor};
use burn_pipeline::link::Threads;
use burn_pipeline::payload::Validate;
use burn_pipeline::plan::StageId;
use burn_pipeline::schedule::{Chunks, all, by_name};
use burn_pipeline::stage::{Names, SplitBackward, init_seeded};
use burn_pipeline::train::Checkpoints;
use burn_pipeline::{Accumulation, Batch, Builder, Pipeline, Size, Stage, StageBox, StageContext};
use pipeline_tests::reference::{Reference, weights, whole};
use tempfile::tempdir;

mod layers;
mod refusals;

const WIDTH: usize = 4;
const LAYERS: usize = 8;
const SAMPLES: usize = 7;
const MICROBATCHES: usize = 3;
const RATE: f64 = 0.02;

#[derive(Module, Debug)]
struct Part {
    layers: Vec<Linear>,
    head: Option<Linear>,
    /// True if it declares that it cannot be captured.
    reads: bool,
}

impl Stage for Part {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let x = self.layers.iter().fold(x, |x, layer| x.clone() + tanh(layer.forward(x)));
        match &self.head {
            Some(head) => head.forward(x),
            None => x,
        }
    }

    fn skip_capture(&self) -> Option<&'static str> {
        self.reads.then_some("it reads values")
    }
}

fn linear(seed: usize, to: usize, device: &Device) -> Linear {
    init_seeded(seed as u64, device, |device| LinearConfig::new(WIDTH, to).init(device))
}

/// The part of a model whose head has `classes` classes.
fn part(at: &StageContext, classes: usize) -> Part {
    let layers = at.layers(LAYERS).map(|layer| linear(layer, WIDTH, &at.device)).collect();
    Part { layers, head: at.is_last().then(|| linear(100 + classes, classes, &at.device)), reads: false }
}

fn stage_with(at: &StageContext, classes: usize) -> StageBox {
    let part = part(at, classes);
    let stage = match at.is_last() {
        false => StageBox::new(part),
        true => StageBox::with_loss(part, |y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean()),
    };
    stage.named(Names::default().layers_from("layers", at.layers(LAYERS).start))
}

fn builder(schedule: &str, classes: usize) -> Builder {
    let schedule = by_name(schedule).unwrap();
    let chunks = match schedule.info().chunks {
        Chunks::Exactly(chunks) => chunks,
        Chunks::Any => 2,
    };
    let size = Size { ranks: 2, chunks, microbatches: MICROBATCHES };
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]);
    let builder = builder.accumulation(Accumulation::Ordered).optimizer(|| AdamWConfig::new().init());
    builder.stages(move |at| stage_with(at, classes))
}

fn data(step: usize, classes: usize) -> (Tensor<2>, Tensor<2>) {
    let of = |seed: usize, width: usize| {
        let values = noise(seed as u64, SAMPLES * width);
        Tensor::<1>::from_floats(&*values, &Device::flex()).reshape([SAMPLES, width])
    };
    (of(2 * step, WIDTH), of(2 * step + 1, classes))
}

fn step(pipeline: &mut Pipeline, number: usize, classes: usize) -> f64 {
    let (x, wanted) = data(number, classes);
    pipeline.step(Batch::new(x).target(wanted), RATE).unwrap().loss
}

fn plain_step(reference: &mut Reference<Part>, number: usize, classes: usize) -> f64 {
    plain_step_in(MICROBATCHES, reference, number, classes)
}

fn plain_step_in(microbatches: usize, reference: &mut Reference<Part>, number: usize, classes: usize) -> f64 {
    let ((x, wanted), sizes) = (data(number, classes), sizes(SAMPLES, microbatches));
    let loss = |model: &Part, i: usize| {
        let cut = |tensor: &Tensor<2>| tensor.clone().slice([range(&sizes, i)]).autodiff();
        (model.forward(cut(&x), ()) - cut(&wanted)).square().mean()
    };
    reference.step(&sizes, RATE, None, loss).loss
}

/// The layers of the pipeline's stages, in model order: each stage of a bidirectional placement once.
fn pipeline_weights(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    pipeline.weights().unwrap().iter().flatten().map(read).collect()
}

/// A new last layer, and a new head of five classes, drawn with a seed.
fn renewed(mut part: Part, seed: usize, device: &Device) -> Part {
    part.layers.pop();
    part.layers.push(linear(seed, WIDTH, device));
    Part { head: Some(linear(seed + 1, 5, device)), ..part }
}

/// The losses and weights of a plain loop of four steps whose last layer and head are replaced after two.
fn expected(microbatches: usize) -> (Vec<f64>, Vec<Vec<f32>>) {
    let mut reference = Reference::new(part(&whole(), 3));
    let mut losses: Vec<f64> = (0..2).map(|number| plain_step_in(microbatches, &mut reference, number, 3)).collect();
    reference.model = renewed(reference.model.clone(), 50, &whole().device);
    losses.extend((2..4).map(|number| plain_step_in(microbatches, &mut reference, number, 5)));
    (losses, reference.weights())
}

/// The same in a pipeline. All copies except the one on rank `first` draw other values and must take over the first
/// one's.
fn replaced_mid_run(pipeline: &mut Pipeline, first: usize) -> (Vec<f64>, Vec<Vec<f32>>) {
    let mut losses: Vec<f64> = (0..2).map(|number| step(pipeline, number, 3)).collect();
    let last = pipeline.placement().stages() - 1;
    let seed = move |rank: usize| if rank == first { 50 } else { 500 + rank };
    pipeline.replace_module(last, move |part: Part, at| renewed(part, seed(at.rank), &at.device)).unwrap();
    losses.extend((2..4).map(|number| step(pipeline, number, 5)));
    (losses, pipeline_weights(pipeline))
}

/// The rank of one replica that holds the last stage's first copy.
fn last_stages_rank(pipeline: &Pipeline) -> usize {
    let placement = pipeline.placement();
    placement.rank_of(StageId::new(placement.stages() - 1))
}

#[test]
fn every_schedule_goes_on_as_the_plain_loop_with_the_new_layers() {
    let expected = expected(MICROBATCHES);
    for schedule in all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly") {
        let name = schedule.info().name;
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            let mut pipeline = builder(name, 3).split(split).build().unwrap();
            let first = last_stages_rank(&pipeline);
            assert!(replaced_mid_run(&mut pipeline, first) == expected, "{name}, {split:?}");
        }
    }
}

#[test]
fn copies_on_data_parallel_replicas_and_in_processes_get_the_same_new_layers() {
    for name in ["1F1B", "ZBVZeroBubble", "DualPipe"] {
        let mut pipeline = builder(name, 3).data_parallel(2).build().unwrap();
        let first = last_stages_rank(&pipeline);
        assert!(replaced_mid_run(&mut pipeline, 2 * first) == expected(2 * MICROBATCHES), "{name} on replicas");
        let expected = expected(MICROBATCHES);
        let links = Threads::new(2);
        // One pipeline per rank, as in processes.
        std::thread::scope(|scope| {
            let rank = |rank: usize| {
                let link = Box::new(links.link(rank, Device::flex()));
                scope.spawn(move || replaced_mid_run(&mut builder(name, 3).build_rank(link).unwrap(), first))
            };
            for rank in [rank(0), rank(1)] {
                assert!(rank.join().unwrap() == expected, "{name} in processes");
            }
        });
    }
}

#[test]
fn a_checkpoint_holds_the_new_layers_and_no_longer_fits_the_old_ones() {
    let folder = tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path());
    let mut pipeline = builder("1F1B", 3).build().unwrap();
    replaced_mid_run(&mut pipeline, 1);
    pipeline.save(&checkpoints, &()).unwrap();
    let after = [step(&mut pipeline, 4, 5), step(&mut pipeline, 5, 5)];

    // Another cut, whose factory builds the new head.
    let mut resumed = builder("Interleaved1F1B", 5).build().unwrap();
    resumed.load(&checkpoints.latest().unwrap()).unwrap();
    assert_eq!([step(&mut resumed, 4, 5), step(&mut resumed, 5, 5)], after);

    let error = builder("1F1B", 3).build().unwrap().load(&checkpoints.latest().unwrap()).unwrap_err();
    assert!(error.to_string().contains("head.weight"), "{error}");
}

#[test]
fn layers_that_are_frozen_stay_and_train_again_once_they_are_thawed() {
    let frozen = |part: Part, freeze: bool| {
        let layer = |layer: Linear| if freeze { layer.no_grad() } else { layer.train() };
        Part { layers: part.layers.into_iter().map(layer).collect(), ..part }
    };
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        let mut pipeline = builder("ZBH1", 3).split(split).build().unwrap();
        let mut reference = Reference::new(part(&whole(), 3));
        for (number, freeze) in [(0, None), (1, Some(true)), (2, None)] {
            if let Some(freeze) = freeze {
                pipeline.replace_module(0, move |part: Part, _| frozen(part, freeze)).unwrap();
                let (first, rest) = reference.model.layers.split_at(LAYERS / 2);
                let first = Part { layers: first.to_vec(), head: None, reads: false };
                let layers = [frozen(first, freeze).layers, rest.to_vec()].concat();
                reference.model = Part { layers, ..reference.model.clone() };
            }
            let before = pipeline_weights(&mut pipeline);
            assert_eq!(step(&mut pipeline, number, 3), plain_step(&mut reference, number, 3), "{split:?}, {number}");
            let after = pipeline_weights(&mut pipeline);
            let moved = |layer: usize| before[2 * layer] != after[2 * layer];
            let is_frozen = number > 0;
            assert!((0..LAYERS).all(|layer| moved(layer) != (is_frozen && layer < LAYERS / 2)), "{split:?}, {number}");
            assert!(after == weights(&reference.model), "{split:?}, {number}");
        }
    }
}

#[test]
fn boundaries_of_another_width_are_learned_anew() {
    let between = |from: usize, to: usize, device: &Device| {
        init_seeded(70, device, |device| LinearConfig::new(from, to).init(device))
    };
    let mut pipeline = builder("1F1B", 3).validate(Validate::EveryMicrobatch).build().unwrap();
    step(&mut pipeline, 0, 3);
    pipeline
        .replace_module(0, move |part: Part, at| Part { head: Some(between(WIDTH, 6, &at.device)), ..part })
        .unwrap();
    let wide = move |_: Part, at: &StageContext| Part {
        layers: vec![between(6, 6, &at.device)],
        head: Some(between(6, 3, &at.device)),
        reads: false,
    };
    pipeline.replace_module(1, wide).unwrap();
    assert!(step(&mut pipeline, 1, 3).is_finite());
}

#[test]
fn what_is_known_of_a_stage_is_what_its_new_module_says() {
    let mut pipeline = builder("ZBH1", 3).build().unwrap();
    pipeline.replace_module(0, |part: Part, _| Part { reads: true, ..part }).unwrap();
    let captured = |pipeline: &mut Pipeline| pipeline.engines().unwrap()[0].1.captured;
    let bytes = |pipeline: &mut Pipeline, classes| {
        let (x, wanted) = data(0, classes);
        pipeline.step(Batch::new(x).target(wanted), RATE).unwrap().weight_bytes[1]
    };
    let before = bytes(&mut pipeline, 3);
    assert!(!captured(&mut pipeline));
    pipeline.replace_module(0, |part: Part, _| Part { reads: false, ..part }).unwrap();
    pipeline.replace_module(1, |part: Part, at| renewed(part, 50, &at.device)).unwrap();
    // Two more classes.
    assert_eq!(bytes(&mut pipeline, 5), before + 2 * (WIDTH + 1) * size_of::<f32>());
    assert!(captured(&mut pipeline));
}
