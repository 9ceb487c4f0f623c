//! NaN and infinite losses and gradients are an error by default; warnings tell a training pipeline what it will
//! not do. Every rank decides alike.

use crate::cases::{noise, read};
use crate::warnings::warned;
use burn::module::{Module, ParamGroup};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::link::{Link, LinkError, Message, Threads};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, StageBox};
use burn_pipeline::train::{BuildError, Builder, NonFinite, OnNonFinite, Pipeline, PipelineError, StageContext};
use pipeline_tests::mlp::{self, WIDTH};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const RATE: f64 = 1e-2;
const SAMPLES: usize = 8;
/// The NaN sample of a bad batch, and its microbatch of four.
const BAD: usize = 5;
const BAD_MICROBATCH: usize = 2;

/// Schedules with their chunks per rank and data-parallel replicas; each cuts a batch into four.
const PIPELINES: [(&str, usize, usize); 5] =
    [("GPipe", 1, 1), ("1F1B", 1, 1), ("ZBVZeroBubble", 2, 1), ("DualPipe", 1, 1), ("1F1B", 1, 2)];

fn builder((schedule, chunks, replicas): (&str, usize, usize)) -> Builder {
    let size = Size::new(2, 4 / replicas).with_chunks(chunks);
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]);
    builder.stages(mlp::stage).data_parallel(replicas).optimizer(|| AdamWConfig::new().init())
}

fn rows(numbers: Vec<f32>) -> Tensor<2> {
    Tensor::<1>::from_floats(&*numbers, &Device::flex()).reshape([SAMPLES, WIDTH])
}

fn batch_with(seed: u64, target: Vec<f32>) -> Batch {
    let ids = Tensor::<1, Int>::arange(0..SAMPLES as i64, &Device::flex()).remainder_scalar(3).reshape([SAMPLES, 1]);
    Batch::new((rows(noise(seed, SAMPLES * WIDTH)), ids)).target(rows(target))
}

fn good(seed: u64) -> Batch {
    batch_with(seed, noise(seed + 50, SAMPLES * WIDTH))
}

fn bad(seed: u64) -> Batch {
    let mut target = noise(seed + 50, SAMPLES * WIDTH);
    target[BAD * WIDTH] = f32::NAN;
    batch_with(seed, target)
}

fn weights(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    pipeline.weights().unwrap().iter().flatten().map(read).collect()
}

/// The weights after two good batches, with nothing in between.
fn undisturbed(of: (&str, usize, usize)) -> Vec<Vec<f32>> {
    let mut pipeline = builder(of).build().unwrap();
    for seed in [1, 2] {
        pipeline.step(good(seed), RATE).unwrap();
    }
    weights(&mut pipeline)
}

#[test]
fn a_loss_that_is_no_number_is_an_error_that_names_it_and_costs_nothing_but_its_batches() {
    for of in PIPELINES {
        let mut pipeline = builder(of).build().unwrap();
        pipeline.step(good(1), RATE).unwrap();
        pipeline.accumulate(good(7)).unwrap();
        let error = pipeline.step(bad(3), RATE).unwrap_err();
        let PipelineError::NonFinite { step: 2, source } = &error else { panic!("{of:?}: {error}") };
        let NonFinite::Loss { rank, stage, index, loss, weight } = *source else { panic!("{of:?}: {error}") };
        let placement = pipeline.placement();
        assert_eq!((index, weight, stage.index() + 1), (BAD_MICROBATCH, 2.0, placement.stages()), "{of:?}: {error}");
        // The job's rank is the pipeline rank times the replicas plus the replica; the second replica holds
        // microbatches 2 and 3.
        let replica = if of.2 == 2 { 1 } else { 0 };
        assert!(loss.is_nan() && rank == placement.rank_of(stage) * of.2 + replica, "{of:?}: {error}");
        assert!(error.to_string().contains("`Builder::on_non_finite`"), "{error}");
        assert_eq!(pipeline.progress().steps, 1);
        // An accumulated batch too.
        assert!(matches!(pipeline.accumulate(bad(4)), Err(PipelineError::NonFinite { .. })), "{of:?}");
        pipeline.step(good(2), RATE).unwrap();
        assert_eq!(weights(&mut pipeline), undisturbed(of), "{of:?}");
    }
}

#[test]
fn steps_with_a_loss_that_is_no_number_are_skipped_and_counted() {
    for of in PIPELINES {
        let mut pipeline = builder(of).on_non_finite(OnNonFinite::Skip).build().unwrap();
        let first = pipeline.step(good(1), RATE).unwrap();
        assert_eq!((first.skipped, first.skipped_steps), (None, 0));
        let skipped = pipeline.step(bad(3), RATE).unwrap();
        assert!(skipped.loss.is_nan() && skipped.skipped_steps == 1, "{of:?}");
        assert!(matches!(skipped.skipped, Some(NonFinite::Loss { index: BAD_MICROBATCH, .. })), "{of:?}");
        // The step of an accumulated bad batch is skipped, however good its other batches are.
        let accumulated = pipeline.accumulate(bad(4)).unwrap();
        assert!(accumulated.skipped.is_some() && accumulated.skipped_steps == 1, "{of:?}");
        let skipped = pipeline.step(good(5), RATE).unwrap();
        assert!(skipped.loss.is_nan() && skipped.skipped.is_some() && skipped.skipped_steps == 2, "{of:?}");
        assert_eq!((pipeline.progress().steps, pipeline.progress().batches), (1, 4));
        let last = pipeline.step(good(2), RATE).unwrap();
        assert_eq!((last.skipped, last.skipped_steps), (None, 2));
        assert_eq!(weights(&mut pipeline), undisturbed(of), "{of:?}");
    }
}

#[test]
fn what_may_pass_steps_the_weights_as_the_plain_loop_does() {
    let mut pipeline = builder(PIPELINES[1]).on_non_finite(OnNonFinite::Pass).clip_norm(1.0).build().unwrap();
    let report = pipeline.step(bad(3), RATE).unwrap();
    assert!(report.loss.is_nan() && report.skipped.is_none());
    assert!(weights(&mut pipeline).iter().flatten().any(|weight| weight.is_nan()));
}

/// The square root of zero: a loss of 0, and non-finite gradients.
fn root() -> Builder {
    rooted(PIPELINES[1])
}

fn rooted(of: (&str, usize, usize)) -> Builder {
    builder(of).stages(|at| match at.is_last() {
        false => mlp::stage(at),
        true => {
            let stage = StageBox::with_loss(mlp::part(at), |(y, _): (Tensor<2>, Tensor<2, Int>), _: Tensor<2>| {
                (y.clone() - y).square().sum().sqrt()
            });
            stage.named(mlp::names(at))
        }
    })
}

#[test]
fn a_norm_that_is_no_number_is_treated_as_a_loss_where_gradients_are_looked_at() {
    let mut refusing = root().clip_norm(f64::INFINITY).build().unwrap();
    let before = weights(&mut refusing);
    let error = refusing.step(good(1), RATE).unwrap_err();
    let PipelineError::NonFinite { step: 1, source: NonFinite::Norm { norm } } = error else { panic!("{error}") };
    assert!(norm.is_nan());
    assert_eq!(weights(&mut refusing), before);
    let mut skipping = root().clip_norm(1.0).on_non_finite(OnNonFinite::Skip).build().unwrap();
    let report = skipping.step(good(1), RATE).unwrap();
    assert_eq!((report.loss, report.skipped_steps, weights(&mut skipping)), (0.0, 1, before));
}

/// Steps whose gradients are not finite although their loss is; clipping would notice them by their norm.
#[test]
fn gradients_are_looked_at_where_nothing_clips_so_weights_and_checkpoints_stay_good() {
    for of in
        PIPELINES.into_iter().flat_map(|of| [(of, false), (of, true)]).filter(|(of, sharded)| !sharded || of.2 > 1)
    {
        let (of, sharded) = of;
        let make = || rooted(of).sharded(sharded);
        let mut refusing = make().build().unwrap();
        let before = weights(&mut refusing);
        let error = refusing.step(good(1), RATE).unwrap_err();
        let PipelineError::NonFinite { step: 1, source: NonFinite::Gradient { stage, name } } = &error else {
            panic!("{of:?}: {error}")
        };
        assert_eq!((*stage, name.as_ref()), (0, "layers.0.linear.weight"), "{of:?}");
        assert_eq!(weights(&mut refusing), before, "{of:?}");
        // A caller's optimizer does not get them either.
        refusing.accumulate(good(1)).unwrap();
        assert!(matches!(refusing.take_gradients(), Err(PipelineError::NonFinite { .. })), "{of:?}");
        let mut skipping = make().on_non_finite(OnNonFinite::Skip).build().unwrap();
        let report = skipping.step(good(1), RATE).unwrap();
        assert!(matches!(report.skipped, Some(NonFinite::Gradient { .. })) && report.loss == 0.0, "{of:?}");
        assert_eq!((report.skipped_steps, weights(&mut skipping)), (1, before), "{of:?}");
        skipping.accumulate(good(1)).unwrap();
        assert!(skipping.take_gradients().unwrap().iter().flatten().all(Option::is_none), "{of:?}");
        let mut passing = make().on_non_finite(OnNonFinite::Pass).build().unwrap();
        assert_eq!(passing.step(good(1), RATE).unwrap().skipped, None);
        assert!(weights(&mut passing).iter().flatten().any(|weight| weight.is_nan()), "{of:?}");
    }
}

#[test]
fn a_first_step_that_trains_nothing_is_an_error_unless_its_rate_is_zero() {
    for of in PIPELINES {
        let frozen = |at: &StageContext| {
            // Unfreezing by a name that no parameter has changes nothing.
            let part = mlp::part(at).freeze().unfreeze_group(ParamGroup::from_predicate("linaer"));
            match at.is_last() {
                false => StageBox::new(part),
                true => StageBox::with_loss(part, mlp::loss),
            }
        };
        let mut pipeline = builder(of).stages(frozen).build().unwrap();
        for action in 0..2 {
            let error = pipeline.step(good(1), RATE).unwrap_err();
            assert!(matches!(error, PipelineError::TrainsNothing { step: 1 }), "{of:?} {action}: {error}");
            assert!(error.to_string().contains("`Module::unfreeze_group`"), "{error}");
        }
        // `take_gradients` works, and probes and evaluations need no optimizer.
        pipeline.accumulate(good(1)).unwrap();
        pipeline.eval(good(1)).unwrap();
        assert_eq!(pipeline.step(good(1), 0.0).unwrap().skipped, None);
        assert_eq!(pipeline.progress().steps, 1);
        pipeline.replace_module(0, |part: mlp::Mlp, _: &StageContext| part.unfreeze()).unwrap();
        pipeline.step(good(1), RATE).unwrap();
    }
}

#[test]
fn a_limit_of_infinity_looks_at_the_norm_and_clips_nothing() {
    let run = |limit: Option<f64>| {
        let builder = builder(PIPELINES[1]);
        let mut pipeline = limit.map_or(builder.clone(), |limit| builder.clip_norm(limit)).build().unwrap();
        let norm = pipeline.step(good(1), RATE).unwrap().gradient_norm;
        (norm.is_some(), weights(&mut pipeline))
    };
    assert_eq!(run(Some(f64::INFINITY)).1, run(None).1);
    assert!(run(Some(f64::INFINITY)).0);
}

/// Counts its rank's messages.
struct Counting<L> {
    link: L,
    sent: Arc<AtomicUsize>,
}

impl<L: Link> Link for Counting<L> {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, set_activity, receive);
    burn_pipeline::forward_link!(link: probe, abort);

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.link.send(to, message, deadline)
    }

    fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.link.all_gather(bytes, deadline)
    }
}

/// The results of two ranks in processes for three batches, the second of which is bad, and the number of messages.
fn over_a_link(action: OnNonFinite) -> (Vec<Vec<String>>, usize) {
    let (threads, sent) = (Threads::new(2), Arc::new(AtomicUsize::new(0)));
    let said = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            let (link, sent) = (threads.link(rank, Device::flex()), sent.clone());
            scope.spawn(move || {
                let builder = builder(PIPELINES[1]).on_non_finite(action).clip_norm(1.0);
                let mut pipeline = builder.build_rank(Box::new(Counting { link, sent })).unwrap();
                let step = |batch| match pipeline.step(batch, RATE) {
                    Ok(report) => format!("{} {:?}", report.loss, report.skipped),
                    Err(error) => error.to_string(),
                };
                [good(1), bad(3), good(2)].into_iter().map(step).collect::<Vec<String>>()
            })
        });
        ranks.map(|rank| rank.join().unwrap()).into()
    });
    (said, sent.load(Ordering::Relaxed))
}

#[test]
fn ranks_in_processes_decide_alike_and_send_nothing_for_it() {
    let passed = over_a_link(OnNonFinite::Pass).1;
    for (action, word) in [
        (OnNonFinite::Error, "microbatch 2 of the batch: the loss is NaN"),
        (OnNonFinite::Skip, "Some(rank 1, stage 1, microbatch 2 of the batch: the loss is NaN"),
    ] {
        let (said, sent) = over_a_link(action);
        assert_eq!(said[0], said[1]);
        assert!(said[0][1].contains(word) && said[0][2].ends_with("None"), "{said:?}");
        // Fewer messages than if everything passes: the skipped step sends none.
        assert!(sent < passed, "{action:?}: {sent} messages, {passed} where everything passes");
    }
}

#[test]
fn a_limit_that_is_no_positive_number_is_refused() {
    for limit in [0.0, -1.0, f64::NAN] {
        let error = builder(PIPELINES[1]).clip_norm(limit).build().unwrap_err();
        assert!(matches!(error, BuildError::ClipNorm { .. }), "{error}");
    }
}

#[test]
fn a_loss_on_a_stage_that_is_not_the_last_is_refused() {
    let all = |at: &StageContext| StageBox::with_loss(mlp::part(at), mlp::loss);
    for of in PIPELINES {
        let error = builder(of).stages(all).build().unwrap_err();
        let last = 2 * of.1 - 1;
        assert!(matches!(error, BuildError::LossInside { stage: 0, last: l } if l == last), "{of:?}: {error}");
    }
}

#[test]
fn a_step_without_an_optimizer_is_refused_and_gradients_are_still_computed() {
    let builder = Pipeline::builder().schedule("1F1B", Size::new(2, 4)).devices(vec![Device::flex()]);
    let mut pipeline = builder.stages(mlp::stage).build().unwrap();
    for _ in 0..2 {
        assert!(matches!(pipeline.step(good(1), RATE), Err(PipelineError::NoOptimizer)));
    }
    pipeline.accumulate(good(1)).unwrap();
    let gradients = pipeline.take_gradients().unwrap();
    assert!(!gradients.is_empty() && gradients.iter().flatten().all(Option::is_some));
}

#[test]
fn a_learning_rate_that_is_not_finite_is_refused_and_weights_stay() {
    for of in PIPELINES {
        let [mut pipeline, mut other] = [(); 2].map(|()| builder(of).build().unwrap());
        for rate in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let refused = pipeline.step(good(1), rate);
            assert!(matches!(refused, Err(PipelineError::LearningRate { .. })), "{of:?}, {rate}: {refused:?}");
        }
        let [after, expected] = [&mut pipeline, &mut other].map(|pipeline| {
            pipeline.step(good(1), RATE).unwrap();
            pipeline.step(good(2), RATE).unwrap().loss
        });
        assert_eq!(after, expected, "{of:?}");
    }
}

#[test]
fn a_good_step_warns_of_nothing() {
    let step = || drop(builder(PIPELINES[1]).build().unwrap().step(good(1), RATE).unwrap());
    assert_eq!(warned(step), Vec::<String>::new());
}
