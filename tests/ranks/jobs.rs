//! Ranks that were not started for the same job, or make different calls, are named before anything runs.

use crate::cases::{Case, Text};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::schedule::{GPipe, OneFOneB, Schedule, Size};
use burn_pipeline::stage::{Batch, Reduction};
use burn_pipeline::train::{BuildError, Builder, EvalResults, Pipeline, PipelineError};
use burn_pipeline_mpi::Mpi;
use pipeline_examples::gpt::{GptPart, Signal};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(20);

fn builder(mpi: &Mpi, microbatches: usize) -> Builder {
    scheduled(Box::new(OneFOneB), mpi.ranks(), microbatches)
}

fn scheduled(schedule: Box<dyn Schedule>, ranks: usize, microbatches: usize) -> Builder {
    Pipeline::builder()
        .schedule(schedule, Size::new(ranks, microbatches))
        .devices(vec![Device::flex()])
        .stages(Text::stage)
        .optimizer(|| AdamWConfig::new().init())
        .timeout(DEADLINE)
        .model("a small one")
}

fn build(mpi: &Mpi, builder: Builder) -> Result<Pipeline, BuildError> {
    builder.build_rank(Box::new(mpi.link(Device::flex()).unwrap()))
}

/// Another plan, model, or loss contract on the last rank: all ranks report it, at once.
pub(crate) fn strangers(mpi: &Mpi) {
    let (last, ranks) = (mpi.ranks() - 1, mpi.ranks());
    let odd = mpi.rank() == last;
    let choose = |strange: Builder| if odd { strange } else { builder(mpi, 4) };
    let cases = [
        (choose(scheduled(Box::new(GPipe), ranks, 4)), "the plan: it has GPipe #"),
        (choose(builder(mpi, 5)), "the number of microbatches: it has 5, and they have 4"),
        (choose(builder(mpi, 4).model("a large one")), "the model: it has a large one, and they have a small one"),
        (choose(builder(mpi, 4).reduction(Reduction::Sum)), "the loss contract: it has Sum"),
    ];
    for (builder, says) in cases {
        let began = Instant::now();
        let error = build(mpi, builder).unwrap_err().to_string();
        let named = format!("rank {last} differs from the others in {says}");
        assert!(error.contains(&named), "{error} does not say {named}");
        assert!(began.elapsed() < DEADLINE / 2, "{:?}", began.elapsed());
    }
    // A rank notices itself that the plan is for another number of ranks, and tells the others.
    let error = build(mpi, choose(scheduled(Box::new(GPipe), ranks + 1, 4))).unwrap_err().to_string();
    let said = format!("the plan has {} rank(s), but the link has {ranks}", ranks + 1);
    assert!(error.contains(&said), "{error}");
    assert!(odd || error.contains(&format!("rank {last} failed")), "{error}");
}

/// The last rank is started with one different setting, and then with another; all ranks name it and the setting.
pub(crate) fn odd(mpi: &Mpi, fields: &str) {
    let last = mpi.ranks() - 1;
    for field in fields.split(',') {
        let own = Some(field).filter(|_| mpi.rank() == last);
        let error = crate::odd::build(Box::new(mpi.link(Device::flex()).unwrap()), own).unwrap_err();
        println!("{field} reported: {error}");
    }
}

/// Calls that differ are refused everywhere, and the pipeline continues.
pub(crate) fn calls(mpi: &Mpi) {
    let last = mpi.ranks() - 1;
    let odd = mpi.rank() == last;
    let mut pipeline = build(mpi, builder(mpi, 4)).unwrap();
    let text = Text::new(4);
    let first = pipeline.step(text.batch(), 0.0).unwrap().loss;
    // One rank's batch has no target: it says why, and the others say that it did.
    let (whole, tokens) = (text.batch(), Tensor::<2, Int>::zeros([4, 6], &Device::flex()));
    let error = match odd {
        true => pipeline.step(Batch::new(Signal::Tokens(tokens)), 0.0).unwrap_err(),
        false => pipeline.step(whole, 0.0).unwrap_err(),
    };
    match (odd, &error) {
        (true, PipelineError::NoTarget) => {}
        (false, PipelineError::Elsewhere { rank, message }) if *rank == last => {
            assert!(message.contains("a training step needs a target"), "{message}");
        }
        _ => panic!("{error}"),
    }
    // Another batch, another learning rate, another call.
    let other = if odd { Text::new(6) } else { Text::new(4) };
    diverged(&pipeline.step(other.batch(), 0.0).unwrap_err(), last, "6 samples");
    let error = if odd { pipeline.eval(text.batch()).map(drop) } else { pipeline.step(text.batch(), 0.0).map(drop) };
    diverged(&error.unwrap_err(), last, "evaluating");
    let rate = if odd { 0.5 } else { 0.0 };
    diverged(&pipeline.step(text.batch(), rate).unwrap_err(), last, "at learning rate 0.5");
    let stepped = if odd { pipeline.accumulate(text.batch()) } else { pipeline.step(text.batch(), 0.0) };
    diverged(&stepped.unwrap_err(), last, "then no step");
    // The gradients of a refused call's batch would count in the next step.
    assert_eq!(pipeline.progress().batches, 1);
    let again = pipeline.step(text.batch(), 0.0).unwrap().loss;
    assert_eq!(first, again, "refused calls left something behind");
}

fn diverged(error: &PipelineError, odd: usize, says: &str) {
    let PipelineError::Diverged { rank, theirs, .. } = error else { panic!("{error}") };
    assert!(*rank == odd && theirs.contains(says), "{error}");
}

/// Outputs of the last stage, and the modules of each stage.
pub(crate) fn reads(mpi: &Mpi) {
    let mut pipeline = build(mpi, builder(mpi, 3)).unwrap();
    let text = Text::new(5);
    let mut alone = scheduled(Box::new(OneFOneB), 1, 3).build().unwrap();
    let output = |pipeline: &mut Pipeline| {
        let report = pipeline.eval(text.batch()).unwrap();
        let (Signal::Logits(scores) | Signal::Hidden(scores)) = report.output().unwrap() else { panic!("no scores") };
        (report.loss, scores.into_data().iter::<f32>().collect::<Vec<f32>>())
    };
    let expected = output(&mut alone);
    assert_eq!(output(&mut pipeline), expected);
    // Only the last rank wants outputs, only the first wants nothing. Each passes its own choice, and all take
    // part.
    let me = mpi.rank();
    let wants = if me + 1 == mpi.ranks() {
        EvalResults::All
    } else if me == 0 {
        EvalResults::Nothing
    } else {
        EvalResults::Loss
    };
    let report = pipeline.eval_for(text.batch(), wants).unwrap();
    assert_eq!(report.loss, expected.0.filter(|_| me > 0));
    assert_eq!(report.outputs::<Signal>().unwrap().len(), if wants == EvalResults::All { 3 } else { 0 });
    // Only the first rank wants outputs, which the last one sends.
    let wants = if me == 0 { EvalResults::All } else { EvalResults::Nothing };
    let report = pipeline.eval_for(text.batch(), wants).unwrap();
    if me == 0 {
        let (Signal::Logits(scores) | Signal::Hidden(scores)) = report.output().unwrap() else { panic!("no scores") };
        assert_eq!((report.loss, scores.into_data().iter::<f32>().collect::<Vec<f32>>()), expected);
    } else {
        assert_eq!((report.loss, report.outputs::<Signal>().unwrap().len()), (None, 0));
    }
    for stage in 0..mpi.ranks() {
        let module = pipeline.module::<GptPart>(stage);
        assert_eq!(module.is_ok(), stage == mpi.rank(), "stage {stage}");
    }
    let links = pipeline.measure_links().unwrap();
    assert_eq!(links.between.len(), 2 * (mpi.ranks() - 1));
    assert!(links.between.iter().all(|link| link.latency > 0.0));
}
