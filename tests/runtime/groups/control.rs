//! One rank per caller, as in processes; and proof that the tests notice errors: without the reduction, or with
//! another average, the numbers differ.

use super::{RATE, difference, parts, replicated, weights};
use crate::cases::{Case, Stack, range, sizes};
use burn::tensor::Device;
use burn_pipeline::link::{Link, LinkError, Message, MessageKind, ThreadLink, Threads};
use burn_pipeline::payload::{Payload, PayloadPart};
use burn_pipeline::train::{Builder, Pipeline};
use pipeline_tests::reference::Reference;
use std::time::Instant;

/// A change to gradients on their way between replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Tamper {
    /// Nothing.
    Not,
    /// Scales all pieces by this factor.
    Scale(f64),
    /// Loses what this rank sends.
    Lose {
        /// The rank.
        rank: usize,
    },
    /// Loses this rank's pieces of sharded parameters.
    LoseShards {
        /// The rank.
        rank: usize,
    },
}

struct Tampering {
    link: ThreadLink,
    tamper: Tamper,
}

impl Link for Tampering {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, set_activity);
    burn_pipeline::forward_link!(link: receive, probe, all_gather, abort);

    fn send(&mut self, to: usize, mut message: Message, deadline: Instant) -> Result<(), LinkError> {
        let lost = self.tamper == Tamper::LoseShards { rank: self.rank() };
        if lost && matches!(message.header.kind, MessageKind::ParameterShard) {
            return Ok(());
        }
        if matches!(message.header.kind, MessageKind::ReplicaGradient) {
            match self.tamper {
                Tamper::Lose { rank } if rank == self.rank() => return Ok(()),
                Tamper::Scale(factor) => {
                    let scaled = |part| match part {
                        PayloadPart::Tensor(tensor) => PayloadPart::Tensor(tensor.scale(factor)),
                        form => form,
                    };
                    message.payload = Payload::from_parts(message.payload.into_parts().map(scaled));
                }
                _ => {}
            }
        }
        self.link.send(to, message, deadline)
    }
}

/// The results of each of four ranks, each with its own caller.
pub(crate) fn on_links<T: Send>(builder: &Builder, tamper: Tamper, run: impl Fn(&mut Pipeline) -> T + Sync) -> Vec<T> {
    let threads = Threads::new(4);
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let link = Tampering { link: threads.link(rank, Device::flex()), tamper };
            let (builder, run) = (builder.clone(), &run);
            scope.spawn(move || run(&mut builder.build_rank(Box::new(link)).unwrap()))
        };
        let ranks: Vec<_> = (0..4).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The distance of the weights after two steps from the plain loop's, and whether the losses of both steps are
/// equal.
fn distance(tamper: Tamper) -> (f32, bool) {
    let case = Stack::new(13);
    let sizes = sizes(13, 8);
    let mut reference = Reference::new(case.model());
    let mut expected = Vec::new();
    for _ in 0..2 {
        let loss_of = |model: &_, i: usize| case.loss(model, range(&sizes, i));
        expected.push(reference.step_in_parts(&sizes, &parts(8, 1, 2), RATE, None, loss_of).loss);
    }
    let builder = replicated::<Stack>(("1F1B", 1), 4, 2);
    let ranks = on_links(&builder, tamper, |pipeline| {
        let losses: Vec<f64> = (0..2).map(|_| pipeline.step(case.batch(), RATE).unwrap().loss).collect();
        (losses, weights(pipeline))
    });
    let (losses, weights) = &ranks[0];
    (difference(weights, &reference.weights()), *losses == expected)
}

#[test]
fn ranks_with_callers_of_their_own_equal_the_plain_loop_bit_for_bit() {
    assert_eq!(distance(Tamper::Not), (0.0, true));
}

#[test]
fn a_reduction_that_is_left_out_is_noticed() {
    let (distance, losses) = distance(Tamper::Scale(0.0));
    assert!(distance > 1e-4 && !losses, "{distance}");
}

#[test]
fn another_average_is_noticed() {
    let (distance, losses) = distance(Tamper::Scale(0.5));
    assert!(distance > 1e-5 && !losses, "{distance}");
}
