//! Tensor-parallel groups over links other than threads of one process.

use crate::model::{Signal, batch, builder, weights};
use crate::plain::SMALL;
use burn::tensor::Device;
use burn_pipeline::link::{TcpLink, Threads};
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::train::Pipeline;
use std::time::Duration;

#[test]
fn a_grid_over_tcp_gives_the_bits_of_threads() {
    for (grid, split) in [((1, 1, 2), SplitBackward::Captured), ((2, 1, 2), SplitBackward::Eager)] {
        let ranks = grid.0 * grid.1 * grid.2;
        let builder = || builder(("1F1B", 1), grid).split(split).clip_norm(0.1).outputs(true);
        // Between two rows nothing of a group is exchanged but outputs.
        let train = |mut pipeline: Pipeline| {
            let step = pipeline.step(batch(&SMALL, 8), 0.5).unwrap();
            let losses = [(); 2].map(|()| pipeline.eval(batch(&SMALL, 8)).unwrap().loss);
            let outputs: Vec<Signal> = step.outputs().unwrap();
            (step.loss, step.gradient_norm, losses, outputs.len(), weights(&mut pipeline))
        };
        let expected = train(builder().build().unwrap());
        let threads = Threads::new(ranks);
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let (threads, builder, expected) = (threads.clone(), builder(), &expected);
                scope.spawn(move || {
                    let mut first = threads.link(rank, Device::flex());
                    let link = TcpLink::by_link(&mut first, Device::flex(), Duration::from_secs(20)).unwrap();
                    assert_eq!(&train(builder.build_rank(Box::new(link)).unwrap()), expected, "{grid:?}, rank {rank}");
                });
            }
        });
    }
}
