//! The link gets the stages' boundary metadata: the first step's messages find their receives posted, and messages
//! of other shapes arrive all the same.

use crate::cases::{Case, Text, small_gpt};
use crate::parity::{RATE, builder};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::payload::PayloadSpec;
use burn_pipeline::plan::Op;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, StageBox};
use burn_pipeline::train::{Builder, Pipeline, StageContext};
use burn_pipeline_mpi::{Mpi, ReceiveCounters};
use pipeline_examples::gpt::Signal;
use std::sync::Arc;

const MICROBATCHES: usize = 4;

fn tokens(samples: usize, length: usize) -> Tensor<2, Int> {
    Tensor::<1, Int>::arange(0..(samples * length) as i64, &Device::flex())
        .remainder_scalar(17)
        .reshape([samples, length])
}

/// A batch of one sample of each length.
fn ready(lengths: [usize; MICROBATCHES]) -> Batch {
    let piece = |length| Batch::new(Signal::Tokens(tokens(1, length))).target(tokens(1, length));
    Batch::from_microbatches(lengths.map(piece).into())
}

/// A small GPT whose stages declare their boundaries, for sequences of this length.
fn declared(length: usize) -> impl Fn(&StageContext) -> StageBox + Send + Sync + 'static {
    move |at| {
        let hidden = PayloadSpec::of(Signal::Hidden(Tensor::zeros([1, length, 8], &Device::flex())));
        let ids = PayloadSpec::of(Signal::Tokens(tokens(1, length)));
        let input = if at.is_first() { ids } else { hidden.clone() };
        small_gpt().stage(at).declare(input, (!at.is_last()).then_some(hidden))
    }
}

/// The number of messages that a rank receives according to the plan.
fn to_receive(pipeline: &mut Pipeline, rank: usize) -> u64 {
    let plan = pipeline.plan(MICROBATCHES).unwrap();
    let receives = |op| matches!(op, Op::ReceiveForward | Op::ReceiveBackward);
    plan.plan().tasks(rank).filter(|task| receives(task.op())).count() as u64
}

/// How this rank's messages have arrived so far: in receives posted ahead, and by their headers.
fn counts(counters: &ReceiveCounters) -> [u64; 2] {
    [counters.ahead(), counters.after_frame()]
}

/// One step, and how its messages arrived.
fn landed(pipeline: &mut Pipeline, counters: &ReceiveCounters, batch: Batch) -> (f64, [u64; 2]) {
    let before = counts(counters);
    let loss = pipeline.step(batch, RATE).unwrap().loss;
    let after = counts(counters);
    (loss, [after[0] - before[0], after[1] - before[1]])
}

fn linked(mpi: &Mpi, builder: &Builder) -> (Pipeline, Arc<ReceiveCounters>) {
    let link = mpi.link(Device::flex()).unwrap();
    let counters = link.receive_counters();
    (builder.clone().build_rank(Box::new(link)).unwrap(), counters)
}

/// The losses of threads over the same batches.
fn on_threads(builder: &Builder, batches: &[fn() -> Batch]) -> Vec<f64> {
    let mut threads = builder.clone().build().unwrap();
    batches.iter().map(|batch| threads.step(batch(), RATE).unwrap().loss).collect()
}

pub(crate) fn receives(mpi: &Mpi) {
    // Steps of the learned shape, of another, of the learned one again, and of several at once.
    let batches: [fn() -> Batch; 4] = [
        || Text::new(MICROBATCHES).batch(),
        || ready([4; 4]),
        || Text::new(MICROBATCHES).batch(),
        || ready([6, 3, 6, 5]),
    ];
    for (schedule, chunks) in [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBV", 2)] {
        let builder = builder::<Text>(schedule, Size { ranks: mpi.ranks(), chunks, microbatches: MICROBATCHES });
        let expected = on_threads(&builder, &batches);
        // Learned: a run on zeros. Declared: nothing runs and nothing is exchanged. Declared wrongly. Unknown.
        let learned = |mpi: &Mpi| {
            let (mut pipeline, counters) = linked(mpi, &builder);
            let known = pipeline.metadata(batches[0]()).unwrap();
            assert!(known.iter().all(|(_, known)| known.input_gradients.is_some()), "found in a run on zeros");
            (pipeline, counters)
        };
        for (how, known) in [("learned", true), ("declared", true), ("wrongly declared", false), ("not known", false)] {
            let (mut pipeline, counters) = match how {
                "learned" => learned(mpi),
                "declared" => linked(mpi, &builder.clone().stages(declared(6))),
                "wrongly declared" => linked(mpi, &builder.clone().stages(declared(5))),
                _ => linked(mpi, &builder),
            };
            let (place, all) =
                (format!("{schedule}, {how}, rank {}", mpi.rank()), to_receive(&mut pipeline, mpi.rank()));
            assert!(all > 0);
            for (step, (batch, &expected)) in batches.iter().zip(&expected).enumerate() {
                let (loss, [ahead, after_frame]) = landed(&mut pipeline, &counters, batch());
                assert_eq!(loss, expected, "{place}, step {step}");
                assert_eq!(ahead + after_frame, all, "{place}, step {step}");
                match step {
                    0 => assert_eq!(after_frame == 0, known, "{place}: {after_frame} messages needed their headers"),
                    // Another shape always needs headers again.
                    _ => assert!(after_frame > 0, "{place}, step {step}"),
                }
            }
        }
    }
}
