//! The bytes sent between replicas: with a capacity a fixed product of sizes, without one the rows of the choices
//! of other replicas' experts.

use super::{Grid, MICROBATCHES, SAMPLES, on, parallel_config};
use crate::cases::{SEQ, Text, plain};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::link::{Link, LinkError, Message, MessageKind, ThreadLink, Threads};
use burn_pipeline_moe::router::Capacity;
use pipeline_examples::moe::gpt::MoeGptConfig;
use pipeline_tests::device::device;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A link that counts the bytes of exchanges inside stages and cannot look ahead.
struct Counting {
    link: ThreadLink,
    bytes: Arc<AtomicUsize>,
}

impl Link for Counting {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, set_activity, receive, all_gather, abort);

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        if message.header.kind == MessageKind::Member {
            self.bytes.fetch_add(message.payload.bytes(), Ordering::Relaxed);
        }
        self.link.send(to, message, deadline)
    }
}

/// The bytes that all ranks send inside stages in one batch.
fn sent(config: &MoeGptConfig, schedule: (&str, usize), grid: Grid) -> usize {
    let ranks = grid.0 * grid.1 * grid.2;
    let threads = Threads::new(ranks);
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (bytes, threads) = (Arc::new(AtomicUsize::new(0)), threads.clone());
            scope.spawn(move || {
                let link = Counting { link: threads.link(rank, Device::flex()), bytes: bytes.clone() };
                let mut pipeline = on(config, schedule, grid).build_rank(Box::new(link)).unwrap();
                // Building the pipeline sent weights.
                bytes.store(0, Ordering::Relaxed);
                pipeline.accumulate(Text::new(1, SAMPLES).batch()).unwrap();
                let sent = bytes.load(Ordering::Relaxed);
                // Keeps every rank alive until all have finished.
                pipeline.weights().unwrap();
                sent
            })
        };
        let ranks: Vec<_> = (0..ranks).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).sum()
    })
}

const FLOAT: usize = size_of::<f32>();
const SCHEDULES: [(&str, usize); 2] = [("1F1B", 1), ("ZBVZeroBubble", 2)];

#[test]
fn with_a_capacity_bytes_follow_from_sizes() {
    let config = parallel_config(Capacity::Factor(0.7));
    let tokens = SAMPLES / MICROBATCHES * SEQ;
    // Five layers that all tokens take, and one that half of them take.
    let rows = |tokens: usize| (0.7 * (tokens * config.top_k) as f64 / config.experts as f64).ceil() as usize;
    let rows = 5 * rows(tokens) + rows(tokens / 2);
    for (grid, replicas) in [((1, 2, 1), 2), ((2, 2, 1), 2), ((1, 4, 1), 4)] {
        // There and back, forward and backward: all rows except those of a replica's own experts.
        let others = config.experts * (replicas - 1) / replicas;
        let expected = 4 * MICROBATCHES * others * rows * config.d_model * FLOAT;
        for schedule in SCHEDULES {
            assert_eq!(sent(&config, schedule, grid), expected, "{schedule:?} on {grid:?}");
        }
    }
}

#[test]
fn without_a_capacity_only_rows_of_choices_travel() {
    let config = parallel_config(Capacity::Dropless);
    let observed = plain(&config, &[SAMPLES], MICROBATCHES).observed;
    let number = Tensor::<1, Int>::zeros([1], &device()).into_data().as_bytes().len();
    for (grid, replicas) in [((1, 2, 1), 2), ((2, 2, 1), 2), ((1, 4, 1), 4)] {
        let held = config.experts / replicas;
        let mut expected = 0;
        for (i, microbatch) in observed.iter().enumerate() {
            let replica = i * replicas / MICROBATCHES;
            // Layers without experts have no load.
            let loads = microbatch.layers.iter().map(|layer| &layer.load);
            for load in loads.filter(|load| load.iter().any(|&load| load > 0.0)) {
                let elsewhere = load.iter().enumerate().filter(|(expert, _)| expert / held != replica);
                let rows = elsewhere.map(|(_, load)| *load as usize).sum::<usize>();
                // There and back, forward and backward; and the loads once, to each other replica.
                expected += 4 * rows * config.d_model * FLOAT + (replicas - 1) * config.experts * number;
            }
        }
        for schedule in SCHEDULES {
            assert_eq!(sent(&config, schedule, grid), expected, "{schedule:?} on {grid:?}");
        }
    }
}
