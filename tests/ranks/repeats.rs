//! Messages that repeat find their receives posted, and messages of other shapes arrive all the same.

use crate::cases::{Case, Text};
use crate::parity::{RATE, builder};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::plan::Op;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::Batch;
use burn_pipeline::train::Pipeline;
use burn_pipeline_mpi::{Mpi, ReceiveCounters};
use pipeline_examples::gpt::Signal;

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

pub(crate) fn receives(mpi: &Mpi) {
    // Batches, each with the number of microbatches whose receives are posted ahead. A message needs its header if the
    // one before it had another shape, or was the first of its own.
    let batches: [(fn() -> Batch, u64); 5] = [
        (|| Text::new(MICROBATCHES).batch(), 2),
        (|| Text::new(MICROBATCHES).batch(), 4),
        (|| ready([4; 4]), 2),
        (|| Text::new(MICROBATCHES).batch(), 2),
        (|| ready([6, 3, 5, 6]), 1),
    ];
    for (schedule, chunks) in [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBV", 2)] {
        let builder = builder::<Text>(schedule, Size { ranks: mpi.ranks(), chunks, microbatches: MICROBATCHES });
        let mut threads = builder.clone().build().unwrap();
        let link = mpi.link(Device::flex()).unwrap();
        let counters = link.receive_counters();
        let mut pipeline = builder.build_rank(Box::new(link)).unwrap();
        let all = to_receive(&mut pipeline, mpi.rank());
        assert!(all > 0);
        for (step, (batch, posted)) in batches.iter().enumerate() {
            let place = format!("{schedule}, rank {}, step {step}", mpi.rank());
            let expected = threads.step(batch(), RATE).unwrap().loss;
            let (loss, [ahead, after_frame]) = landed(&mut pipeline, &counters, batch());
            assert_eq!(loss, expected, "{place}");
            assert_eq!(ahead + after_frame, all, "{place}");
            assert_eq!(ahead, all * posted / MICROBATCHES as u64, "{place}");
        }
    }
}
