//! Training steps of a small GPT over two ranks, and their exposed communication.

use crate::pulled::{Ends, Pulled};
use crate::samples::{quantile, spread};
use crate::there_and_back::over_tcp as tcp;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::link::Link;
use burn_pipeline::plan::Op;
use burn_pipeline::schedule::{OneFOneB, Size};
use burn_pipeline::stage::Batch;
use burn_pipeline::train::{Builder, Pipeline, StepReport};
use pipeline_examples::gpt::{GptConfig, Signal};
use std::time::Duration;

const MICROBATCHES: usize = 8;
const BATCH: usize = 16;
const STEPS: usize = 12;

fn config() -> GptConfig {
    GptConfig::new().with_d_model(128).with_layers(4).with_heads(4).with_seq(128)
}

/// The bytes of one message between the stages.
fn message() -> usize {
    BATCH / MICROBATCHES * config().seq * config().d_model * size_of::<f32>()
}

pub(crate) fn describe() -> String {
    format!(
        "1F1B, 2 ranks x 1 thread, {MICROBATCHES} microbatches; {} bytes per message; {} x {} hidden, {} layers",
        message(),
        config().seq,
        config().d_model,
        config().layers
    )
}

fn builder() -> Builder {
    Pipeline::builder()
        .schedule(OneFOneB, Size::new(2, MICROBATCHES))
        .devices(vec![Device::flex()])
        .stages(|at| config().stage(at))
        .optimizer(|| SgdConfig::new().init())
        .timeout(Duration::from_secs(60))
}

fn reports(pipeline: &mut Pipeline) -> Vec<StepReport> {
    let draw = |salt: i64| {
        let tokens = Tensor::<1, Int>::arange(0..(BATCH * config().seq) as i64, &Device::flex());
        tokens.mul_scalar(7919 + salt).remainder_scalar(251).reshape([BATCH, config().seq])
    };
    let step = |_| {
        let batch = Batch::new(Signal::Tokens(draw(0))).target(draw(31));
        pipeline.step(batch, 1e-3).unwrap()
    };
    // The first ones warm up.
    (0..STEPS + 2).map(step).skip(2).collect()
}

/// One row of the table.
fn row(name: &str, ahead: &str, reports: &[StepReport]) -> String {
    let ends: Vec<f64> = reports.iter().map(|report| report.timeline.end()).collect();
    let waits = |report: &StepReport| {
        let waits = report.timeline.exposed_times();
        let received =
            waits.iter().filter(|wait| matches!(wait.task.op(), Op::ReceiveForward | Op::ReceiveBackward)).count();
        assert!(received >= MICROBATCHES, "the trace has {received} receives");
        // Per rank, on average.
        (waits.iter().map(|w| w.exposed).sum::<f64>() / 2.0, waits.iter().map(|w| w.early).sum::<f64>() / 2.0)
    };
    let (exposures, earlies): (Vec<f64>, Vec<f64>) = reports.iter().map(waits).unzip();
    let shares: Vec<f64> = exposures.iter().zip(&ends).map(|(exposure, end)| exposure / end).collect();
    format!(
        "| {name} | {ahead} | {} | {} | {:.1}% | {:.1} |\n",
        spread(&ends, 1e3, 1),
        spread(&exposures, 1e3, 2),
        quantile(&shares, 0.5) * 100.0,
        quantile(&earlies, 0.5) * 1e3,
    )
}

pub(crate) fn over_threads() -> String {
    row("threads", "yes", &reports(&mut builder().build().unwrap()))
}

/// Trains with both ranks over links, each in its own thread.
fn over(name: &str, ahead: &str, link: impl Fn(usize) -> Box<dyn Link> + Sync) -> String {
    std::thread::scope(|scope| {
        scope.spawn(|| reports(&mut builder().build_rank(link(1)).unwrap()));
        let measured = reports(&mut builder().build_rank(link(0)).unwrap());
        row(name, ahead, &measured)
    })
}

pub(crate) fn over_tcp() -> String {
    let port = crate::port();
    let ahead = over("TCP", "yes", |rank| Box::new(tcp(rank, port)));
    let ports: [u16; 5] = std::array::from_fn(|_| crate::port());
    let pulled = over("TCP", "no", |rank| Box::new(pulled(rank, |number| Box::new(tcp(rank, ports[number])))));
    ahead + &pulled
}

/// One rank's end. Its five links are opened in the same order on both ranks.
pub(crate) fn pulled(rank: usize, open: impl FnMut(usize) -> Box<dyn Link>) -> Pulled {
    // Each link serves one direction: requests and messages of rank 0, requests and messages of rank 1.
    let [asks0, sends1, asks1, sends0, common] = std::array::from_fn(open);
    Pulled::new(match rank {
        0 => Ends { asked: asks1, asks: asks0, sends: sends0, receives: sends1, common },
        _ => Ends { asked: asks0, asks: asks1, sends: sends1, receives: sends0, common },
    })
}

/// Rank 0's row over links between processes; empty on the others.
#[cfg(feature = "mpi")]
pub(crate) fn of_this_process(name: &str, ahead: &str, link: Box<dyn Link>) -> String {
    let leads = link.rank() == 0;
    let mut pipeline = builder().build_rank(link).unwrap();
    let measured = reports(&mut pipeline);
    if leads { row(name, ahead, &measured) } else { String::new() }
}
