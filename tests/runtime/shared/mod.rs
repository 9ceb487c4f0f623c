//! Tied parameters: copies start equal and stay bitwise equal, and the model trains as on a single device that
//! holds each of them once.

pub(crate) mod model;
mod refusals;

use crate::cases::{range, read, sizes};
use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_pipeline::schedule::{Size as PlanSize, by_name};
use burn_pipeline::stage::{Accumulation, Batch, Names, Stage, StageBox};
use burn_pipeline::train::{Builder, Checkpoints, Pipeline, SharedCopy, SharedParameter, StageContext};
use model::{SMALL, Size, Text, Tied, declared, part, stage, table};
use pipeline_tests::reference::{Reference, whole};
use proptest::prelude::{ProptestConfig, Strategy};
use proptest::proptest;
use tempfile::tempdir;

const RATE: f64 = 1e-2;

/// Schedules with each kind of placement, and their chunks per rank.
const SCHEDULES: [(&str, usize); 5] =
    [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBV", 2), ("InterleavedZeroBubble", 2)];

fn builder(size: Size, schedule: &str, plan: PlanSize) -> Builder {
    let builder = Pipeline::builder().schedule(schedule, plan).devices(vec![Device::flex()]);
    let builder = builder.stages(stage(size)).optimizer(|| AdamWConfig::new().init());
    declared().into_iter().fold(builder, Builder::share)
}

/// Stages whose parameters have names of their own, as checkpoints need.
fn named(size: Size) -> impl Fn(&StageContext) -> StageBox + Send + Sync + 'static {
    let stage = stage(size);
    move |at| stage(at).named(Names::default().layers_from("blocks", at.layers(size.layers).start))
}

/// The values of all copies of a tied parameter, in model order.
fn copies(pipeline: &mut Pipeline, shared: &str) -> Vec<Vec<f32>> {
    let report = pipeline.shared().iter().find(|report| report.name == shared).unwrap().clone();
    let weights = pipeline.weights().unwrap();
    let value = |copy: &SharedCopy| {
        let stage = &weights[copy.stage];
        // Visiting order: token, blocks, bias, scores; a table has two dimensions.
        let tables = usize::from(stage[stage.len() - 1].shape().num_dims() == 2);
        let place = match copy.path.as_str() {
            "token" => 0,
            "scores" => stage.len() - 1,
            _ => stage.len() - 1 - tables,
        };
        read(&stage[place])
    };
    report.copies.iter().map(value).collect()
}

fn assert_close(got: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
        let close = (got - expected).abs() <= tolerance * expected.abs().max(1.0);
        assert!(close, "{what}: element {place} is {got}, on one device {expected}");
    }
}

/// The weights of all stages as one device holds them: the table, every block, the bias.
fn once(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    let (table, bias) = (copies(pipeline, "table").swap_remove(0), copies(pipeline, "bias").swap_remove(0));
    let weights = pipeline.weights().unwrap();
    let stages = weights.len();
    let mut blocks = Vec::new();
    for (index, stage) in weights.iter().enumerate() {
        let after = 1 + usize::from(index + 1 == stages && stages > 1);
        blocks.extend(stage[usize::from(index == 0)..stage.len() - after].iter().map(read));
    }
    [vec![table], blocks, vec![bias]].concat()
}

/// Trains the pipeline and the model on one device side by side.
fn assert_equals_one_device(
    size: Size,
    schedule: &str,
    plan: PlanSize,
    samples: usize,
    steps: usize,
    clip: Option<f64>,
) {
    let name = format!("{schedule} {plan:?}, {samples} samples");
    let builder = builder(size, schedule, plan);
    assert_trains_alike(builder, size, &name, sizes(samples, plan.microbatches.min(samples)), steps, clip);
}

/// The same for a pipeline whose batches are cut in this way.
fn assert_trains_alike(mut builder: Builder, size: Size, name: &str, cut: Vec<usize>, steps: usize, clip: Option<f64>) {
    if let Some(norm) = clip {
        builder = builder.clip_norm(norm);
    }
    let (mut pipeline, samples) = (builder.build().unwrap(), cut.iter().sum());
    let mut reference = Reference::new(part(size, &whole()));
    for step in 0..steps {
        let text = Text::new(size, samples, 10 + 2 * step as u64);
        let expected = reference.step(&cut, RATE, clip, |model, i| text.loss(model, range(&cut, i)));
        let report = pipeline.step(text.batch(), RATE).unwrap();
        assert_close(&[report.loss as f32], &[expected.loss as f32], 1e-5, &format!("{name}, loss of step {step}"));
        if let Some(norm) = report.gradient_norm {
            assert_close(&[norm as f32], &[expected.norm as f32], 1e-4, &format!("{name}, norm of step {step}"));
        }
        for shared in ["table", "bias"] {
            let copies = copies(&mut pipeline, shared);
            assert!(
                copies.iter().all(|copy| *copy == copies[0]),
                "{name}: copies of {shared} differ after step {step}"
            );
        }
    }
    for (place, (got, expected)) in once(&mut pipeline).iter().zip(reference.weights()).enumerate() {
        assert_close(got, &expected, 2e-4, &format!("{name}, weight {place} after {steps} steps"));
    }
}

#[test]
fn tied_copies_stay_bit_equal_for_20_steps_and_train_as_the_tied_model_on_one_device() {
    for (schedule, chunks) in SCHEDULES {
        for ranks in 1..=4 {
            let plan = PlanSize { ranks, chunks, microbatches: 4 };
            // Seven samples in four microbatches: uneven.
            assert_equals_one_device(SMALL, schedule, plan, 7, 20, (ranks % 2 == 0).then_some(0.5));
        }
    }
}

#[test]
fn tied_copies_are_shared_over_sharded_replicas() {
    for (schedule, chunks) in [("1F1B", 1), ("ZBV", 2), ("DualPipe", 1)] {
        for accumulation in [Accumulation::AsTheyCome, Accumulation::Ordered] {
            for samples in [8, 7] {
                let plan = PlanSize { ranks: 2, chunks, microbatches: 4 };
                let replicas = builder(SMALL, schedule, plan).data_parallel(2).accumulation(accumulation);
                let name = format!("{schedule}, {accumulation:?}, {samples} samples over two sharded replicas");
                let cut = sizes(samples, 8.min(samples));
                let clip = (samples == 7).then_some(0.5);
                assert_trains_alike(replicas.clone().sharded(true), SMALL, &name, cut, 10, clip);
                // Element by element, the sums are those of replicas with whole parameters.
                let train = |builder: Builder| {
                    let mut pipeline = builder.build().unwrap();
                    let text = Text::new(SMALL, samples, 10);
                    let losses: Vec<f64> = (0..3).map(|_| pipeline.step(text.batch(), RATE).unwrap().loss).collect();
                    (losses, once(&mut pipeline))
                };
                assert_eq!(train(replicas.clone().sharded(true)), train(replicas), "{name}");
            }
        }
    }
}

#[test]
fn both_replicas_of_a_bidirectional_placement_share_alike() {
    for schedule in ["DualPipe", "Chimera"] {
        let plan = PlanSize { ranks: 4, chunks: 2, microbatches: 8 };
        if by_name(schedule).is_ok_and(|schedule| schedule.build(plan).is_ok()) {
            assert_equals_one_device(SMALL, schedule, plan, 9, 5, Some(1.0));
        } else {
            let plan = PlanSize { chunks: 1, ..plan };
            assert_equals_one_device(SMALL, schedule, plan, 9, 5, Some(1.0));
        }
    }
}

/// More than two copies of a parameter are added in an order, which is another one on the other route.
#[test]
fn both_routes_step_many_copies_bit_for_bit_alike() {
    let size = Size { vocab: 7, width: 200, length: 3, layers: 4 };
    let plan = PlanSize { ranks: 4, chunks: 1, microbatches: 8 };
    for (schedule, accumulation) in [
        ("DualPipe", Accumulation::AsTheyCome),
        ("DualPipe", Accumulation::Ordered),
        ("Chimera", Accumulation::AsTheyCome),
    ] {
        let builder = builder(size, schedule, plan).stages(named(size)).optimizer(|| SgdConfig::new().init());
        let mut pipeline = builder.accumulation(accumulation).build().unwrap();
        for step in 0..3 {
            // The first step compares all copies of each stage, and so does a save.
            pipeline.step(Text::new(size, 9, 30 + step).batch(), 0.1).unwrap();
        }
        pipeline.save(&Checkpoints::new(tempdir().unwrap().path()), &()).unwrap();
    }
}

/// Changes a table.
type Change = fn(Param<Tensor<2>>) -> Param<Tensor<2>>;

#[test]
fn one_copy_alone_is_neither_frozen_nor_changed_by_a_new_module() {
    let frozen = |table: Param<Tensor<2>>| table.set_require_grad(false);
    let halved = |table: Param<Tensor<2>>| table.map(|values| values * 0.5);
    let changes: [(&str, Change); 2] = [("frozen", frozen), ("changed", halved)];
    for (what, change) in changes {
        let mut pipeline = builder(SMALL, "1F1B", PlanSize::new(2, 2)).stages(named(SMALL)).build().unwrap();
        let batch = |step: u64| Text::new(SMALL, 4, 30 + step).batch();
        let folder = tempdir().unwrap();
        let saved = Checkpoints::new(folder.path());
        pipeline.step(batch(0), RATE).unwrap();
        let with = move |mut part: Tied, _: &StageContext| {
            part.token = part.token.map(change);
            part.scores = part.scores.map(change);
            part
        };
        pipeline.replace_module(0, with).unwrap();
        let refused = [
            pipeline.step(batch(1), RATE).unwrap_err().to_string(),
            pipeline.save(&saved, &()).unwrap_err().to_string(),
            pipeline.export(folder.path().join("exported.safetensors")).unwrap_err().to_string(),
        ];
        for refused in refused {
            assert!(refused.contains("since a module was replaced"), "{what}: {refused}");
            assert!(refused.contains("`scores` of stage 1 differs from `token` of stage 0"), "{what}: {refused}");
        }
        // All copies alike are one parameter that is changed.
        pipeline.replace_module(1, with).unwrap();
        let before = copies(&mut pipeline, "table");
        pipeline.step(batch(1), RATE).unwrap();
        let after = copies(&mut pipeline, "table");
        assert_eq!(after[0], after[1], "{what}");
        assert_eq!(before == after, what == "frozen", "{what}");
        pipeline.save(&saved, &()).unwrap();
    }
}

#[test]
fn with_ordered_accumulation_the_cut_does_not_show_in_a_single_bit() {
    // The sum of two copies does not depend on the order, nor therefore on rank or schedule. (Several biases are
    // added rank by rank, so only the tables are tied, and each stage has its own bias.)
    let train = |schedule: &str, ranks, chunks| {
        let plan = PlanSize { ranks, chunks, microbatches: 4 };
        let builder = Pipeline::builder().schedule(schedule, plan).devices(vec![Device::flex()]);
        let builder = builder.stages(stage(SMALL)).optimizer(|| AdamWConfig::new().init());
        let [tables, _] = declared();
        let mut pipeline = builder.share(tables).accumulation(Accumulation::Ordered).build().unwrap();
        for step in 0..5 {
            pipeline.step(Text::new(SMALL, 6, 30 + step).batch(), RATE).unwrap();
        }
        pipeline.weights().unwrap().iter().flatten().map(read).collect::<Vec<_>>()
    };
    let expected = train("GPipe", 4, 1);
    assert_eq!(train("1F1B", 4, 1), expected);
    assert_eq!(train("Interleaved1F1B", 2, 2), expected);
    assert_eq!(train("ZBV", 2, 2), expected);
    assert_eq!(train("Interleaved1F1B", 1, 4), expected);
}

/// Its fields have another order than its forward.
#[derive(Module, Debug)]
struct ScoresFirst {
    scores: Option<Param<Tensor<2>>>,
    token: Option<Param<Tensor<2>>>,
}

impl Stage for ScoresFirst {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let x = self.token.as_ref().map_or(x.clone(), |token| x.matmul(token.val()).tanh());
        self.scores.as_ref().map_or(x.clone(), |scores| x.matmul(scores.val()))
    }
}

#[test]
fn the_first_copy_is_the_same_one_on_every_cut_whatever_the_order_of_fields() {
    let train = |ranks| {
        let stage = |at: &StageContext| {
            let scores = at.is_last().then(|| table(5, 4, 4, &at.device));
            let part = ScoresFirst { scores, token: at.is_first().then(|| table(6, 4, 4, &at.device)) };
            match at.is_last() {
                false => StageBox::new(part),
                true => StageBox::with_loss(part, |y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean()),
            }
        };
        let builder = Pipeline::builder().schedule("1F1B", PlanSize::new(ranks, 2)).devices(vec![Device::flex()]);
        let builder = builder.stages(stage).optimizer(|| SgdConfig::new().init()).accumulation(Accumulation::Ordered);
        let mut pipeline = builder.share(SharedParameter::new("table").at("token").at("scores")).build().unwrap();
        assert_eq!(pipeline.shared()[0].copies[0].path, "token", "{ranks}");
        let mut step = || {
            let x = Tensor::<1>::from_floats([0.5, -1.0, 0.25, 2.0, 1.0, -0.5, 0.0, 1.5], &Device::flex());
            let x = x.reshape([2, 4]);
            pipeline.step(Batch::new(x.clone()).target(x * 0.5), 0.1).unwrap().loss
        };
        let losses = [step(), step()];
        let folder = tempfile::tempdir().unwrap();
        let saved = Checkpoints::new(folder.path().join("saved"));
        pipeline.save(&saved, &()).unwrap();
        let [of_checkpoint, of_pipeline] = ["checkpoint", "pipeline"].map(|name| folder.path().join(name));
        saved.latest().unwrap().export(&of_checkpoint).unwrap();
        pipeline.export(&of_pipeline).unwrap();
        assert_eq!(std::fs::read(of_checkpoint).unwrap(), std::fs::read(of_pipeline).unwrap(), "{ranks}");
        losses
    };
    assert_eq!(train(1), train(2));
}

fn shapes() -> impl Strategy<Value = (Size, usize, usize, usize, usize)> {
    let size = (2usize..9, 1usize..6, 1usize..5, 4usize..9);
    let size = size.prop_map(|(vocab, width, length, layers)| Size { vocab, width, length, layers });
    (size, 0usize..SCHEDULES.len(), 1usize..=4, 1usize..=5, 1usize..=8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_shape_any_cut_and_any_uneven_batch_trains_as_on_one_device(
        (size, schedule, ranks, microbatches, samples) in shapes(),
    ) {
        let (schedule, chunks) = SCHEDULES[schedule];
        // Every stage has a layer.
        let ranks = ranks.min(size.layers / chunks).max(1);
        let plan = PlanSize { ranks, chunks, microbatches };
        assert_equals_one_device(size, schedule, plan, samples, 2, None);
    }
}

#[test]
fn accumulated_batches_are_reduced_once() {
    let plan = PlanSize { ranks: 2, chunks: 1, microbatches: 2 };
    let (first, second) = (Text::new(SMALL, 2, 40), Text::new(SMALL, 2, 50));
    let mut pipeline = builder(SMALL, "1F1B", plan).build().unwrap();
    pipeline.accumulate(first.batch()).unwrap();
    pipeline.step(second.batch(), RATE).unwrap();
    let both = |i: usize| if i < 2 { (&first, i) } else { (&second, i - 2) };
    let mut reference = Reference::new(part(SMALL, &whole()));
    reference.step(&[1; 4], RATE, None, |model, i| both(i).0.loss(model, both(i).1..both(i).1 + 1));
    for (got, expected) in once(&mut pipeline).iter().zip(reference.weights()) {
        assert_close(got, &expected, 1e-4, "weights after one step of two batches");
    }
}

#[test]
fn the_report_says_what_is_shared_and_how_it_will_be_reduced() {
    let pipeline = builder(SMALL, "ZBV", PlanSize { ranks: 2, chunks: 2, microbatches: 2 }).build().unwrap();
    let said: Vec<String> = pipeline.shared().iter().map(ToString::to_string).collect();
    let table = "`table` [11, 6], 264 bytes, on stage 0 (`token`, rank 0), stage 3 (`scores`, rank 0): \
                 gradients are added up on the rank";
    let bias = "`bias` [6], 24 bytes, on stage 0 (`bias`, rank 0), stage 1 (`bias`, rank 1), stage 2 (`bias`, rank 1), \
                stage 3 (`bias`, rank 0): gradients are summed once a step over ranks [0, 1]";
    assert_eq!(said, [table, bias]);
    let pipeline = builder(SMALL, "GPipe", PlanSize { ranks: 2, chunks: 1, microbatches: 2 }).build().unwrap();
    let said: Vec<String> = pipeline.shared().iter().map(ToString::to_string).collect();
    assert!(said[0].ends_with("gradients are summed once a step over ranks [0, 1], together with `bias`"), "{said:?}");
    let pipeline = builder(SMALL, "GPipe", PlanSize { ranks: 1, chunks: 1, microbatches: 2 }).build().unwrap();
    assert!(pipeline.shared().iter().all(|report| report.to_string().ends_with("one copy, nothing to sum")));
}
