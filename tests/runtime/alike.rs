//! What must be equal on all ranks: options and optimizers of processes, and copies of a stage.

use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Module, Param, ParamGroup, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn_pipeline::cost::Partition;
use burn_pipeline::execute::{FusedActions, Tuning};
use burn_pipeline::link::Threads;
use burn_pipeline::payload::Validate;
use burn_pipeline::stage::{Names, SplitBackward, Stage, StageBox};
use burn_pipeline::train::{CheckpointError, Checkpoints, PipelineError, SharedParameter};
use burn_pipeline::{Batch, Builder, Pipeline, Size, StageContext};
use pipeline_tests::mlp::stage;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::tempdir;

fn builder() -> Builder {
    let builder = Pipeline::builder().schedule("1F1B", Size::new(2, 4)).stages(stage).devices(vec![Device::flex()]);
    builder.optimizer(|| AdamWConfig::new().init())
}

/// The results of two ranks, or replicas, that each build a pipeline; the second one's builder is `odd`.
fn built(builder: Builder, odd: Builder) -> [Result<(), String>; 2] {
    let links = Threads::new(2);
    std::thread::scope(|scope| {
        let rank = |number: usize, builder: Builder| {
            let link = links.link(number, Device::flex());
            scope.spawn(move || builder.build_rank(Box::new(link)).map(drop).map_err(|error| error.to_string()))
        };
        [rank(0, builder), rank(1, odd)].map(|rank| rank.join().unwrap())
    })
}

fn refused(builder: Builder, odd: Builder, option: &str) {
    for said in built(builder, odd) {
        let said = said.expect_err(option);
        assert!(said.contains("rank 1 differs from the others in ") && said.contains(option), "{option}: {said}");
    }
}

#[test]
fn an_option_that_one_process_has_otherwise_is_an_error_that_names_the_rank_and_the_option() {
    let options: Vec<(&str, Builder)> = vec![
        ("`Builder::share`", builder().share(SharedParameter::new("tied").at("linear.weight"))),
        ("`Builder::cut`", builder().cut(Partition::even(4, 2).unwrap())),
        ("`Builder::split`", builder().split(SplitBackward::Eager)),
        ("`Builder::tuning`", builder().tuning(Tuning { merge_weights: true, ..Tuning::default() })),
        ("`Builder::tuning`", builder().tuning(Tuning { fused: FusedActions::Sequence, ..Tuning::default() })),
        ("`Builder::tuning`", builder().tuning(Tuning { captured_programs: 3, ..Tuning::default() })),
        ("`Builder::tuning`", builder().tuning(Tuning { keep_outputs: true, ..Tuning::default() })),
        ("`Builder::compile`", builder().compile(true)),
        ("`Builder::validate`", builder().validate(Validate::EveryMicrobatch)),
        ("`Builder::compare_batches`", builder().compare_batches(true)),
        ("the seed", builder().seed(7)),
        ("clip norm", builder().clip_norm(1.0)),
    ];
    for (option, odd) in options {
        refused(builder(), odd, option);
    }
    for said in built(builder(), builder()) {
        said.unwrap();
    }
    // These may differ between processes.
    let tuning = Tuning { synchronize: true, ..Tuning::default() };
    for said in built(builder(), builder().threads(2).outputs(true).tuning(tuning)) {
        said.unwrap();
    }
}

#[test]
fn an_optimizer_that_one_process_has_otherwise_is_an_error_at_the_start() {
    let decay = |decay| move || AdamWConfig::new().with_weight_decay(decay).init();
    let clipped = || AdamWConfig::new().with_grad_clipping(Some(GradientClippingConfig::Norm(1.0))).init();
    let group = || {
        let none = AdamWConfig::new().with_weight_decay(0.0).build();
        AdamWConfig::new().init().with_group(ParamGroup::from_predicate("bias"), none, None)
    };
    // On ranks with other stages, and on replicas of one stage.
    let replicas = || {
        let builder = Pipeline::builder().schedule("GPipe", Size::new(1, 4)).stages(stage);
        builder.devices(vec![Device::flex()]).optimizer(|| AdamWConfig::new().init()).data_parallel(2)
    };
    for base in [builder as fn() -> Builder, replicas] {
        refused(base(), base().optimizer(decay(0.5)), "the optimizer of `");
        refused(base(), base().optimizer(|| AdamWConfig::new().with_beta_2(0.99).init()), "the optimizer of `");
        refused(base(), base().optimizer(clipped), "the optimizer of `");
        refused(base(), base().optimizer(|| SgdConfig::new().init()), "the optimizer of `");
        refused(base().optimizer(decay(1e-4)), base().optimizer(group), "bias`");
        for said in built(base().optimizer(group), base().optimizer(group)) {
            said.unwrap();
        }
    }
}

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    #[module(skip)]
    moves: Moves,
}

/// Changes one copy's weights after this many steps of all copies together.
#[derive(Clone, Debug, Default)]
struct Moves(Option<Arc<AtomicUsize>>);

impl Stage for Layer {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, _: ()) -> Tensor<2> {
        self.linear.forward(x).tanh()
    }

    fn after_step(mut self, _: &[Vec<f64>]) -> Self {
        if self.moves.0.as_ref().is_some_and(|left| left.fetch_sub(1, Ordering::Relaxed) == 1) {
            self.linear.weight = self.linear.weight.map(|weight| (weight.detach() * 1.5).detach().require_grad());
        }
        self
    }
}

/// Copies of a model of one or two stages.
fn copies(schedule: &str, ranks: usize, replicas: usize, moves: Moves) -> Builder {
    let builder = Pipeline::builder().schedule(schedule, Size::new(ranks, 4)).devices(vec![Device::flex()]);
    builder.data_parallel(replicas).optimizer(|| SgdConfig::new().init()).stages(move |at| {
        let layer = Layer { linear: LinearConfig::new(3, 3).init(&at.device), moves: moves.clone() };
        let stage = match at.is_last() {
            false => StageBox::new(layer),
            true => StageBox::with_loss(layer, |y: Tensor<2>, target: Tensor<2>| (y - target).square().mean()),
        };
        let index = at.index;
        stage.named(Names::default().renamed(move |path| format!("layers.{index}.{path}")))
    })
}

fn batch() -> Batch {
    let x = Tensor::<2>::ones([8, 3], &Device::flex());
    Batch::new(x.clone()).target(x * 0.3)
}

/// Two copies of each stage: data-parallel replicas, and both routes of a bidirectional schedule.
fn both(moves: fn() -> Moves) -> [Builder; 2] {
    [copies("GPipe", 1, 2, moves()), copies("DualPipe", 2, 1, moves())]
}

#[test]
fn copies_that_part_in_the_first_step_are_an_error() {
    // Each new optimizer decays the weights more than the one before it.
    let made = Arc::new(AtomicUsize::new(0));
    let counted = move || -> ModuleOptimizer {
        AdamWConfig::new().with_weight_decay(made.fetch_add(1, Ordering::Relaxed) as f32).init()
    };
    for builder in both(Moves::default) {
        // A step whose rate is 0 moves no weight, so it shows nothing yet.
        let mut pipeline = builder.optimizer(counted.clone()).build().unwrap();
        pipeline.step(batch(), 0.0).unwrap();
        let error = pipeline.step(batch(), 0.1).unwrap_err();
        assert!(matches!(error, PipelineError::HalfStepped(_)), "{error}");
        assert!(error.to_string().contains("hold copies of stage"), "{error}");
    }
    for builder in both(Moves::default) {
        builder.build().unwrap().step(batch(), 0.1).unwrap();
    }
}

#[test]
fn no_checkpoint_is_made_of_copies_that_part_later() {
    let folder = tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path());
    // After the first step nothing has changed; in the third, one copy has.
    let moves: [(usize, fn() -> Moves); 2] =
        [(0, || Moves(Some(Arc::new(AtomicUsize::new(6))))), (1, || Moves(Some(Arc::new(AtomicUsize::new(12)))))];
    for (place, moves) in moves {
        let [replicas, directions] = both(moves);
        let mut pipeline = if place == 0 { replicas } else { directions }.build().unwrap();
        for _ in 0..2 {
            pipeline.step(batch(), 0.1).unwrap();
        }
        pipeline.save(&checkpoints, &()).unwrap();
        pipeline.step(batch(), 0.1).unwrap();
        let error = pipeline.save(&checkpoints, &()).unwrap_err();
        assert!(matches!(error, CheckpointError::Drifted { .. }), "{error}");
        assert!(error.to_string().contains("so they cannot be saved"), "{error}");
        assert_eq!(checkpoints.latest().unwrap().progress().steps, 2);
        // The earlier checkpoint can still be loaded.
        pipeline.load(&checkpoints.latest().unwrap()).unwrap();
        pipeline.save(&checkpoints, &()).unwrap();
    }
}

#[derive(Module, Debug)]
struct Masked {
    linear: Linear,
    mask: Param<Tensor<1, Bool>>,
    order: Param<Tensor<1, Int>>,
}

impl Stage for Masked {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, _: ()) -> Tensor<2> {
        let y = self.linear.forward(x).select(1, self.order.val());
        y.mask_fill(self.mask.val().unsqueeze(), 0.0)
    }
}

/// A layer whose mask and order are others in each copy.
fn masked(at: &StageContext, made: &AtomicUsize) -> Masked {
    let number = made.fetch_add(1, Ordering::Relaxed);
    let features: [usize; 4] = std::array::from_fn(|feature| feature);
    let mask = Tensor::from_bool(TensorData::from(features.map(|feature| feature == number % 4)), &at.device);
    let order = Tensor::from_ints(features.map(|feature| ((feature + number) % 4) as i32), &at.device);
    let linear = LinearConfig::new(4, 4).init(&at.device);
    Masked { linear, mask: Param::initialized(ParamId::new(), mask), order: Param::initialized(ParamId::new(), order) }
}

#[test]
fn copies_take_the_first_one_s_integers_and_truth_values_too() {
    let samples = Tensor::<2>::ones([8, 4], &Device::flex());
    for (schedule, ranks, replicas) in [("1F1B", 1, 2), ("DualPipe", 2, 1), ("DualPipe", 2, 2)] {
        let made = Arc::new(AtomicUsize::new(0));
        let of_factory = made.clone();
        let builder = Pipeline::builder().schedule(schedule, Size::new(ranks, 4)).devices(vec![Device::flex()]);
        let builder = builder.data_parallel(replicas).optimizer(|| SgdConfig::new().init()).stages(move |at| {
            let layer = masked(at, &of_factory);
            match at.is_last() {
                false => StageBox::new(layer),
                true => StageBox::with_loss(layer, |y: Tensor<2>, target: Tensor<2>| (y - target).square().mean()),
            }
        });
        let mut pipeline = builder.build().unwrap();
        let alike = |pipeline: &mut Pipeline, when: &str| {
            let outputs: Tensor<2> = pipeline.eval(Batch::new(samples.clone())).unwrap().output().unwrap();
            let rows: Vec<Vec<f32>> = outputs.iter_dim(0).map(|row| row.into_data().iter().collect()).collect();
            assert!(rows.iter().all(|row| *row == rows[0]), "{schedule} over {replicas} replicas, {when}: {rows:?}");
        };
        alike(&mut pipeline, "at the start");
        let batch = || Batch::new(samples.clone()).target(samples.clone() * 0.3);
        pipeline.step(batch(), 0.1).unwrap();
        alike(&mut pipeline, "after a step");
        let of_module = made.clone();
        pipeline.replace_module(0, move |_: Masked, at: &StageContext| masked(at, &of_module)).unwrap();
        alike(&mut pipeline, "with another module");
        pipeline.step(batch(), 0.1).unwrap();
    }
}
