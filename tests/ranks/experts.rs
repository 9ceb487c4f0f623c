//! Every process knows what all routers did, whichever stages it holds: loads, dropped tokens, auxiliary losses.

use crate::experts_cases::{Text, builder, config, distance, plain, rich, step_of};
use burn::tensor::Device;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline_moe::router::Capacity;
use burn_pipeline_mpi::Mpi;
use pipeline_examples::moe::gpt::MoeGptConfig;
use std::time::Duration;

/// Every rank compares its report with the plain loop, which it runs itself.
pub(crate) fn metrics(mpi: &Mpi) {
    let config = rich().with_ahead("E".to_owned()).with_capacity(Capacity::Factor(0.7));
    let expected = plain(&config, &[5], 3).observed;
    for (name, chunks) in [("1F1B", 1), ("ZBVZeroBubble", 2)] {
        let size = Size { ranks: mpi.ranks(), chunks, microbatches: 3 };
        let builder = builder(by_name(name).unwrap().as_ref(), size, &config, |part, _| part);
        let link = mpi.link(Device::flex()).unwrap();
        let mut pipeline = builder.timeout(Duration::from_secs(60)).build_rank(Box::new(link)).unwrap();
        let report = pipeline.accumulate(Text::new(1, 5).batch()).unwrap();
        let got: Vec<_> = report.observed.iter().map(|numbers| config.read(numbers)).collect();
        assert_eq!(got.len(), expected.len());
        let mut dropped = 0.0;
        for (got, expected) in got.iter().zip(&expected) {
            assert!((got.next - expected.next).abs() < 1e-6 && got.layers.len() == expected.layers.len());
            for (got, expected) in got.layers.iter().zip(&expected.layers) {
                assert_eq!((&got.load, got.dropped), (&expected.load, expected.dropped), "{name}, rank {}", mpi.rank());
                let difference =
                    (got.load_balance - expected.load_balance).abs() + (got.router_z - expected.router_z).abs();
                assert!(difference < 1e-5 && (got.depth_router - expected.depth_router).abs() < 1e-6);
                dropped += got.dropped;
            }
        }
        assert!(dropped > 0.0, "with so little room some tokens are dropped");
    }
}

/// Experts over groups of two ranks, in two stages, and in as many replicas as the ranks allow: gradients are the
/// plain loop's.
pub(crate) fn expert_parallel(mpi: &Mpi) {
    let (ranks, members) = (2, 2);
    let config = config().with_shared(2).with_capacity(Capacity::Factor(0.7));
    gradients(mpi, &config, (ranks, mpi.ranks() / (ranks * members), members), 6);
}

/// Experts over the replicas of two stages, and then also over groups of two ranks, with and without a capacity.
pub(crate) fn over_replicas(mpi: &Mpi) {
    for capacity in [Capacity::Dropless, Capacity::Factor(0.7)] {
        let config = config().with_shared(2).with_capacity(capacity).with_expert_parallel(true);
        for members in [1, 2] {
            let replicas = mpi.ranks() / (2 * members);
            if replicas > 1 {
                gradients(mpi, &config, (2, replicas, members), 8);
            }
        }
    }
}

/// Compares gradients and observations with the plain loop over `samples` samples, which each rank runs itself.
fn gradients(mpi: &Mpi, config: &MoeGptConfig, (ranks, replicas, members): (usize, usize, usize), samples: usize) {
    let expected = plain(config, &[samples], 4);
    for (name, chunks) in [("1F1B", 1), ("ZBVZeroBubble", 2)] {
        let size = Size { ranks, chunks, microbatches: 4 / replicas };
        let builder = builder(by_name(name).unwrap().as_ref(), size, config, |part, _| part);
        let builder = builder.data_parallel(replicas).tensor_parallel(members).timeout(Duration::from_secs(60));
        let link = mpi.link(Device::flex()).unwrap();
        let pipeline = builder.build_rank(Box::new(link)).unwrap();
        let distance = distance(config, &step_of(pipeline, &[samples], config), &expected);
        let place = format!("{:?}, {name}, {replicas} x {members}, rank {}", config.capacity, mpi.rank());
        assert!(distance.routers < 2e-5 && distance.others < 2e-5, "{place}: {distance:?}");
        assert!(distance.observed < 1e-6 && distance.loss < 1e-5, "{place}: {distance:?}");
    }
}
