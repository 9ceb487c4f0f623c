//! A pipeline does not hang: a rank that panics, refuses or never answers ends every call at once, with an error
//! that names rank, stage and microbatch. Afterwards the pipeline is as before or, if a rank never answers, closed.

use crate::faulty::{FOREVER, Fault, How, batch, faulty};
use crate::watchdog::{quiet_ranks, within};
use burn::optim::{ModuleOptimizer, Optimizer, SgdConfig, SgdState};
use burn::tensor::{Device, Tensor};
use burn_pipeline::plan::StageId;
use burn_pipeline::schedule::Size;
use burn_pipeline::train::{BuildError, Builder, Pipeline, PipelineError, Progress};
use pipeline_tests::at_once::for_each_at_once;
use std::time::Duration;

const SCHEDULES: [&str; 3] = ["GPipe", "1F1B", "ZBVZeroBubble"];
const MICROBATCHES: usize = 4;
/// Far below [`PATIENT`]: a call that returns within it did not wait for the timeout.
const WATCHDOG: u64 = 20;
const PATIENT: Duration = Duration::from_secs(120);

fn chunks(schedule: &str) -> usize {
    if schedule == "ZBVZeroBubble" { 2 } else { 1 }
}

fn builder(schedule: &str, ranks: usize, fault: Option<Fault>) -> Builder {
    quiet_ranks();
    let size = Size::new(ranks, MICROBATCHES).with_chunks(chunks(schedule));
    Pipeline::builder()
        .schedule(schedule, size)
        .devices(vec![Device::flex()])
        .timeout(PATIENT)
        .stages(faulty(fault))
        .optimizer(|| SgdConfig::new().init())
}

/// The number of ranks, and the rank that fails: the first, one in between, or the last.
fn failing_ranks() -> Vec<(usize, usize)> {
    vec![(2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 0), (4, 2), (4, 3)]
}

/// A failing stage for every rank of every schedule: name, ranks, stage.
fn failing_stages() -> Vec<(&'static str, usize, usize)> {
    let mut places = Vec::new();
    for schedule in SCHEDULES {
        for (ranks, failing) in failing_ranks() {
            places.push((schedule, ranks, failing));
            if chunks(schedule) == 2 {
                places.push((schedule, ranks, 2 * ranks - 1 - failing));
            }
        }
    }
    places
}

/// Asserts that every call on a closed pipeline says so, and names the rank that failed first.
fn assert_closed(pipeline: &mut Pipeline, rank: usize, first: &str) {
    let errors = [
        pipeline.step(batch(MICROBATCHES), 0.1).unwrap_err(),
        pipeline.accumulate(batch(MICROBATCHES)).unwrap_err(),
        pipeline.eval(batch(MICROBATCHES)).unwrap_err(),
        pipeline.weights().unwrap_err(),
        pipeline.take_gradients().unwrap_err(),
    ];
    for error in errors {
        let PipelineError::Closed(failure) = &error else { panic!("not closed: {error}") };
        assert_eq!(failure.rank, rank, "{error}");
        assert!(error.to_string().contains("closed by an earlier failure"), "{error}");
        assert!(failure.message.contains(first), "{error} does not repeat: {first}");
    }
}

/// Asserts that a step fails at once with an error of rank `rank` that contains all of `words`, and that the
/// pipeline is then as before.
fn assert_fails(schedule: &'static str, ranks: usize, fault: Fault, at: usize, words: &'static [&'static str]) {
    let what = format!("{schedule} on {ranks} ranks, {fault:?}");
    within(WATCHDOG, &what.clone(), move || {
        let mut pipeline = builder(schedule, ranks, Some(fault)).build().unwrap();
        let rank = pipeline.placement().rank_of(StageId::new(at));
        let error = pipeline.step(batch(MICROBATCHES), 0.1).unwrap_err();
        assert!(matches!(error, PipelineError::Undone { dropped: true, .. }), "{what}: {error}");
        let error = error.to_string();
        let place = format!("rank {rank}, stage {at}, microbatch {}", fault.microbatch);
        assert!(error.starts_with(&place), "{what}: {error}");
        for word in words {
            assert!(error.contains(word), "{what}: {error} does not say {word}");
        }
        // The plan around it, with the place marked.
        let marked = error.lines().find(|line| line.ends_with("<-- ERROR HERE")).unwrap_or_default();
        let tasks = ["F", "B", "I", "W"].map(|op| format!("{at}{op}{}", fault.microbatch));
        assert!(error.contains("\nin step 1, plan "), "{what}: {error}");
        assert!(tasks.iter().any(|task| marked.contains(task)), "{what}: {error}");
        assert_eq!(pipeline.progress(), Progress::default(), "{what}");
        let again = pipeline.step(batch(MICROBATCHES), 0.1).unwrap_err().to_string();
        assert!(again.starts_with(&place) && pipeline.weights().is_ok(), "{what}: {again}");
    });
}

#[test]
fn a_panic_in_a_forward_is_named_and_closes_nothing() {
    for (schedule, ranks, stage) in failing_stages() {
        let fault = Fault { stage, microbatch: 2, how: How::PanicInForward };
        assert_fails(schedule, ranks, fault, stage, &[", F: ", "panicked: a broken forward"]);
    }
}

#[test]
fn a_panic_in_a_backward_is_named_and_closes_nothing() {
    for (schedule, ranks, stage) in failing_stages() {
        let fault = Fault { stage, microbatch: 1, how: How::PanicInBackward };
        assert_fails(schedule, ranks, fault, stage, &["panicked: a broken backward"]);
    }
}

#[test]
fn an_output_that_does_not_fit_the_next_stage_is_named_there() {
    let outputs: [(How, &[&str]); 3] = [
        (How::WrongShape, &[", F: the stage's code panicked"]),
        (How::WrongRank, &["tensor 0 of the payload is float of rank 3", "float of rank 2 is expected"]),
        (How::WrongKind, &["tensor 0 of the payload is int of rank 2", "float of rank 2 is expected"]),
    ];
    for (schedule, ranks, stage) in failing_stages() {
        if stage + 1 == ranks * chunks(schedule) {
            continue;
        }
        for (how, words) in outputs {
            assert_fails(schedule, ranks, Fault { stage, microbatch: 3, how }, stage + 1, words);
        }
    }
}

#[test]
fn a_loss_that_fails_or_is_not_one_number_is_named() {
    let losses: [(How, &[&str]); 3] = [
        (How::LossPanics, &[", F: ", "panicked: the loss: a broken loss"]),
        (How::LossOfManyNumbers, &["the loss has shape [4]", "must be one number"]),
        (How::LossOfNoNumber, &["the loss has shape [0]", "must be one number"]),
    ];
    for schedule in SCHEDULES {
        for ranks in 1..=4 {
            for (how, words) in losses {
                let last = ranks * chunks(schedule) - 1;
                assert_fails(schedule, ranks, Fault { stage: last, microbatch: 0, how }, last, words);
            }
        }
    }
}

#[test]
fn an_output_without_samples_does_not_hang() {
    for schedule in SCHEDULES {
        for (ranks, stage) in [(2, 0), (4, 1)] {
            within(WATCHDOG, schedule, move || {
                let fault = Fault { stage, microbatch: 1, how: How::EmptyOutput };
                let mut pipeline = builder(schedule, ranks, Some(fault)).build().unwrap();
                // Burn accepts tensors without elements: the error is the stage's own, or a non-finite loss.
                let error = pipeline.step(batch(MICROBATCHES), 0.1).unwrap_err().to_string();
                assert!(error.contains("microbatch 1"), "{schedule}: {error}");
            });
        }
    }
}

#[test]
fn a_stage_that_never_answers_is_named_after_the_deadline_and_dropped() {
    let cases = [(2, 0), (2, 1), (3, 1), (4, 0), (4, 3)];
    let cases: Vec<_> =
        SCHEDULES.iter().flat_map(|schedule| cases.map(|(ranks, rank)| (*schedule, ranks, rank))).collect();
    for_each_at_once(5, &cases, |&(schedule, ranks, failing)| {
        within(WATCHDOG, &format!("{schedule}, {ranks} ranks, rank {failing} is stuck"), move || {
            let fault = Fault { stage: failing, microbatch: 1, how: How::NeverAnswer };
            let builder = builder(schedule, ranks, Some(fault)).timeout(Duration::from_secs(1));
            let mut pipeline = builder.build().unwrap();
            let error = pipeline.step(batch(MICROBATCHES), 0.1).unwrap_err();
            let PipelineError::Silent { rank, step, .. } = &error else { panic!("{schedule}, {ranks}: {error}") };
            assert_eq!((*rank, *step), (failing, Some(1)), "{error}");
            assert!(error.to_string().starts_with(&format!("step 1, rank {failing} did not answer")), "{error}");
            assert!(error.to_string().contains(&format!("is running {failing}F1")), "{error}");
            assert_closed(&mut pipeline, failing, "did not answer");
            drop(pipeline);
        });
    });
}

#[test]
fn a_factory_that_panics_is_named_with_its_stage() {
    for ranks in 1..=4 {
        for failing in 0..ranks {
            within(WATCHDOG, "a factory that panics", move || {
                let sound = faulty(None);
                let builder = builder("1F1B", ranks, None).stages(move |at| match at.index == failing {
                    true => panic!("no such layer"),
                    false => sound(at),
                });
                let error = builder.build().unwrap_err();
                assert!(matches!(error, BuildError::Stages(_)), "{error}");
                let said = format!("rank {failing} panicked while building stage {failing}: no such layer");
                assert!(error.to_string().contains(&said), "{error}");
            });
        }
    }
}

#[test]
fn a_factory_that_never_returns_is_named_after_sixty_timeouts() {
    within(WATCHDOG, "a factory that never returns", || {
        let sound = faulty(None);
        let builder = builder("1F1B", 3, None).timeout(Duration::from_millis(50)).stages(move |at| {
            if at.index == 1 {
                std::thread::sleep(FOREVER);
            }
            sound(at)
        });
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains("rank 1 did not answer") && error.contains("is building stage 1"), "{error}");
    });
}

/// Plain gradient descent that fails on one rank.
#[derive(Clone)]
struct Stepping {
    rank: usize,
    does: fn(),
}

impl Optimizer for Stepping {
    type State<const D: usize> = SgdState<D>;

    fn step<const D: usize>(
        &self,
        rate: f64,
        weight: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<SgdState<D>>,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        if std::thread::current().name().is_some_and(|name| name.starts_with(&format!("rank {} ", self.rank))) {
            (self.does)();
        }
        (weight - gradient.mul_scalar(rate), state)
    }

    fn to_device<const D: usize>(state: SgdState<D>, _: &Device) -> SgdState<D> {
        state
    }
}

#[test]
fn an_optimizer_that_panics_is_named_with_its_stage() {
    for schedule in SCHEDULES {
        for (ranks, failing) in failing_ranks() {
            within(WATCHDOG, "an optimizer that panics", move || {
                let stepping = Stepping { rank: failing, does: || panic!("no momentum") };
                let builder = builder(schedule, ranks, None);
                let builder = builder.optimizer(move || ModuleOptimizer::from(stepping.clone()));
                let mut pipeline = builder.build().unwrap();
                let error = pipeline.step(batch(MICROBATCHES), 0.1).unwrap_err().to_string();
                let said = format!(
                    "rank {failing} panicked while stepping the weights of stage {failing} in step 1: no momentum"
                );
                assert!(error.starts_with(&said) && error.contains("load a checkpoint"), "{error}");
                let refused = pipeline.step(batch(MICROBATCHES), 0.1).unwrap_err();
                assert!(matches!(&refused, PipelineError::Uneven(failure) if failure.rank == failing), "{refused}");
                assert!(pipeline.weights().is_ok());
            });
        }
    }
}

#[test]
fn an_optimizer_that_never_returns_is_named_after_the_deadline() {
    within(WATCHDOG, "an optimizer that never returns", || {
        let stepping = Stepping { rank: 1, does: || std::thread::sleep(FOREVER) };
        let builder = builder("1F1B", 3, None).timeout(Duration::from_secs(1));
        let mut pipeline = builder.optimizer(move || ModuleOptimizer::from(stepping.clone())).build().unwrap();
        let error = pipeline.step(batch(MICROBATCHES), 0.1).unwrap_err().to_string();
        assert!(error.contains("rank 1 did not answer") && error.contains("is stepping its weights"), "{error}");
        assert_closed(&mut pipeline, 1, "did not answer");
    });
}
