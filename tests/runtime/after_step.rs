//! `after_step`: a stage gets the observations of every microbatch since the step before.

use burn::module::{Module, Param, ParamId};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, Loss, NamedWeight, Names, SplitBackward, Stage, StageBox};
use burn_pipeline::train::{Checkpoints, Pipeline, PipelineError};
use safetensors::SafeTensors;
use tempfile::tempdir;

/// Keeps the sum and the number of its observations in a parameter that is not trained. It multiplies by the last
/// observation, so that a forward shows which value it read.
#[derive(Module, Debug)]
struct Keeper {
    weight: Param<Tensor<1>>,
    kept: Param<Tensor<1>>,
    #[module(skip)]
    fails: Option<Fails>,
}

/// What the rule does with three observations or more.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fails {
    Panics,
    /// Keeps the trained weight, with its identifier, as a frozen one.
    HalfFrozen,
    /// Keeps what it computed from the weight, without saying whether that trains.
    Unclear,
}

impl Stage for Keeper {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let last = self.kept.val().narrow(0, 2, 1);
        x * (self.weight.val() * last).unsqueeze::<2>()
    }

    fn after_step(mut self, observed: &[Vec<f64>]) -> Self {
        match self.fails.filter(|_| observed.len() > 2) {
            None => {}
            Some(Fails::Panics) => panic!("three are too many"),
            Some(Fails::HalfFrozen) => return Self { kept: self.weight.clone().set_require_grad(false), ..self },
            Some(Fails::Unclear) => {
                let kept = Param::initialized(ParamId::new(), self.weight.val() * 2.0);
                return Self { kept, ..self };
            }
        }
        let (sum, last) = (observed.iter().flatten().sum::<f64>(), observed.last().map_or(0.0, |numbers| numbers[0]));
        self.kept = self.kept.map(|kept| {
            let device = kept.device();
            let seen: Vec<f32> = kept.clone().into_data().iter::<f32>().collect();
            Tensor::from_floats([seen[0] + sum as f32, seen[1] + observed.len() as f32, last as f32], &device)
        });
        self
    }
}

fn pipeline((name, chunks, replicas): (&str, usize, usize), split: SplitBackward, fails: Option<Fails>) -> Pipeline {
    let size = Size { ranks: 2, chunks, microbatches: 4 };
    let builder = Pipeline::builder().schedule(name, size).devices(vec![Device::flex()]);
    let builder = builder.split(split).data_parallel(replicas).optimizer(|| SgdConfig::new().init());
    let builder = builder.stages(move |at| {
        let one = |count| Tensor::<1>::ones([count], &at.device);
        let kept = Param::from_tensor(one(3)).set_require_grad(false);
        let keeper = Keeper { weight: Param::from_tensor(one(1)), kept, fails: fails.filter(|_| at.is_last()) };
        let stage = match at.is_last() {
            false => StageBox::new(keeper),
            true => StageBox::with_loss(keeper, |y: Tensor<2>, number: Tensor<2>| {
                let number = number.slice([0..1, 0..1]).flatten::<1>(0, 1);
                Loss::from(y.mean()).observing(number)
            }),
        };
        let index = at.index;
        stage.named(Names::default().renamed(move |name| format!("{index}.{name}")))
    });
    builder.build().unwrap()
}

/// One sample per microbatch, each with its own target.
fn batch(first: i64, samples: i64) -> Batch {
    let count = Tensor::<1, burn::tensor::Int>::arange(first..first + samples, &Device::flex()).float();
    Batch::new(Tensor::<2>::ones([samples as usize, 1], &Device::flex())).target(count.reshape([samples as usize, 1]))
}

/// What each stage has kept.
fn kept(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    let read = |stage: Vec<burn_pipeline::payload::AnyTensor>| stage[1].to_data().unwrap().iter::<f32>().collect();
    pipeline.weights().unwrap().into_iter().map(read).collect()
}

const CASES: [((&str, usize, usize), SplitBackward); 5] = [
    (("1F1B", 1, 1), SplitBackward::Eager),
    (("ZBVZeroBubble", 2, 1), SplitBackward::Captured),
    (("DualPipe", 1, 1), SplitBackward::Eager),
    (("1F1B", 1, 2), SplitBackward::Eager),
    (("ZBH1", 1, 2), SplitBackward::Captured),
];

#[test]
fn every_stage_gets_what_was_observed_of_all_batches_of_the_step_once() {
    for (place, split) in CASES {
        let (mut pipeline, all) = (pipeline(place, split, None), 4 * place.2 as i64);
        // Microbatches 0.., and those of the next batch after them.
        pipeline.accumulate(batch(0, all)).unwrap();
        assert!(kept(&mut pipeline).iter().all(|kept| kept == &[1.0; 3]), "{place:?}: before the step");
        pipeline.step(batch(all, all), 0.0).unwrap();
        let (count, last) = (2 * all, 2 * all - 1);
        let expected = [1.0 + (last * (last + 1) / 2) as f32, 1.0 + count as f32, last as f32];
        for kept in kept(&mut pipeline) {
            assert_eq!(kept, expected, "{place:?}");
        }
        // The next forward reads the new value on every stage, captured or not.
        let loss = pipeline.accumulate(batch(0, all)).unwrap().loss;
        assert_eq!(loss, (last as f64).powi(pipeline.placement().stages() as i32), "{place:?}");
        // Neither taken gradients nor an evaluation are part of a step.
        pipeline.take_gradients().unwrap();
        pipeline.eval(batch(0, all)).unwrap();
        pipeline.step(batch(7, all), 0.0).unwrap();
        for kept in kept(&mut pipeline) {
            assert_eq!(kept[1..], [1.0 + (count + all) as f32, (6 + all) as f32], "{place:?}");
        }
    }
}

#[test]
fn what_it_has_changed_is_saved_and_taken_up() {
    let folder = tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path());
    let mut first = pipeline(("1F1B", 1, 1), SplitBackward::Eager, None);
    first.step(batch(3, 4), 0.0).unwrap();
    first.save(&checkpoints, &()).unwrap();
    let mut second = pipeline(("1F1B", 1, 1), SplitBackward::Eager, None);
    second.load(&checkpoints.latest().unwrap()).unwrap();
    assert_eq!(kept(&mut second), [[19.0, 5.0, 6.0]; 2]);
    for pipeline in [&mut first, &mut second] {
        pipeline.step(batch(0, 4), 0.0).unwrap();
    }
    assert_eq!(kept(&mut second), kept(&mut first));
}

#[test]
fn a_panic_in_it_names_rank_and_stage_and_asks_for_a_checkpoint() {
    let mut pipeline = pipeline(("1F1B", 1, 1), SplitBackward::Eager, Some(Fails::Panics));
    pipeline.step(batch(0, 2), 0.0).unwrap();
    let error = pipeline.step(batch(0, 4), 0.0).unwrap_err().to_string();
    for says in ["rank 1", "changing stage 1 after step", "three are too many"] {
        assert!(error.contains(says), "{error}");
    }
    let refused = pipeline.step(batch(0, 2), 0.0).unwrap_err().to_string();
    assert!(refused.contains("rank 1") && refused.contains("load a checkpoint"), "{refused}");
}

/// The values of both stages' parameters, by name.
fn named(pipeline: &mut Pipeline) -> Vec<(String, Vec<f32>)> {
    let read = |weight: NamedWeight| (weight.names[0].clone(), weight.value.to_data().unwrap().iter().collect());
    pipeline.named_weights().unwrap().into_iter().flatten().map(read).collect()
}

#[test]
fn a_rule_that_makes_a_refused_module_leaves_the_one_before_it_and_a_load_heals() {
    for fails in [Fails::HalfFrozen, Fails::Unclear] {
        for (place, split) in [CASES[0], CASES[1], CASES[4]] {
            let folder = tempdir().unwrap();
            let (good, after) = (Checkpoints::new(folder.path().join("good")), folder.path().join("after"));
            let new = || pipeline(place, split, Some(fails));
            let mut first = new();
            first.step(batch(0, 2), 0.1).unwrap();
            first.save(&good, &()).unwrap();
            let before = named(&mut first);
            let error = first.step(batch(0, 4 * place.2 as i64), 0.0).unwrap_err();
            assert!(matches!(error, PipelineError::HalfStepped(_)), "{fails:?}, {place:?}: {error}");
            // The last stage has no weights but those of before; others may have followed their rule.
            let (now, last) = (named(&mut first), format!("{}.", first.placement().stages() - 1));
            assert!(now.iter().map(|(name, _)| name).eq(before.iter().map(|(name, _)| name)), "{fails:?}, {place:?}");
            let of_last = |(name, _): &&(String, Vec<f32>)| name.starts_with(&last);
            assert!(now.iter().filter(of_last).eq(before.iter().filter(of_last)), "{fails:?}, {place:?}: {now:?}");
            first.export(&after).unwrap();
            let file = std::fs::read(&after).unwrap();
            assert_eq!(SafeTensors::deserialize(&file).unwrap().len(), before.len(), "{fails:?}, {place:?}");
            let mut second = new();
            for one in [&mut first, &mut second] {
                one.load(&good.latest().unwrap()).unwrap();
            }
            assert_eq!(named(&mut first), before, "{fails:?}, {place:?}");
            for step in 1..4 {
                let losses = [&mut first, &mut second].map(|one| one.step(batch(step, 2), 0.1).unwrap().loss);
                assert_eq!(losses[0], losses[1], "{fails:?}, {place:?}");
            }
            assert_eq!(named(&mut first), named(&mut second), "{fails:?}, {place:?}");
        }
    }
}
