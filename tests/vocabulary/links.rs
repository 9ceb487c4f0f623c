//! Vocabulary parallelism over links other than threads of one process.

use crate::model::{BOTH, TIED, batch, builder, weights};
use burn::tensor::Device;
use burn_pipeline::link::{TcpLink, Threads};
use std::time::Duration;

#[test]
fn ranks_over_tcp_have_the_bits_of_threads() {
    for (parallel, schedule, ranks) in
        [(BOTH, ("1F1B", 1), 3), (BOTH, ("ZBVZeroBubble", 2), 2), (TIED, ("ZBH1", 1), 3), (TIED, ("1F1B", 1), 5)]
    {
        let builder = || builder(parallel, schedule, ranks, 2 * ranks).clip_norm(0.1);
        let mut pipeline = builder().build().unwrap();
        let step = pipeline.step(batch(4 * ranks), 0.5).unwrap();
        let loss = pipeline.eval(batch(4 * ranks)).unwrap().loss;
        let expected = (step.loss, step.gradient_norm, loss, weights(&mut pipeline));
        let threads = Threads::new(ranks);
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let (threads, builder, expected) = (threads.clone(), builder(), &expected);
                scope.spawn(move || {
                    let mut first = threads.link(rank, Device::flex());
                    let link = TcpLink::by_link(&mut first, Device::flex(), Duration::from_secs(20)).unwrap();
                    let mut pipeline = builder.build_rank(Box::new(link)).unwrap();
                    let step = pipeline.step(batch(4 * ranks), 0.5).unwrap();
                    let loss = pipeline.eval(batch(4 * ranks)).unwrap().loss;
                    let got = (step.loss, step.gradient_norm, loss, weights(&mut pipeline));
                    assert_eq!(&got, expected, "{schedule:?}, rank {rank}");
                });
            }
        });
    }
}
