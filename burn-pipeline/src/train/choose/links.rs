//! Measuring links: messages sent to and fro between ranks that are neighbours in some route.
//!
//! 1. All ranks go through the same list of pairs, in the same order; those that are not in a pair pass it over.
//! 2. The lower rank of a pair sends a message and waits until it is back, for a small and for a large one.
//! 3. Half the median round trip of the small one is the latency; what the large one takes beyond that gives the
//!    bandwidth. The device is waited for, so that copies between devices are counted.

use crate::cost::LinkOverride;
use crate::execute::ExecuteError;
use crate::link::{Direction, Header, LinkError, Message};
use crate::plan::Placement;
use crate::stage::{Boundary, Payload};
use crate::train::step::rank::Rank;
use burn::tensor::{Device, Tensor};
use std::collections::BTreeSet;
use std::time::Instant;

/// Elements of the large message: 4 MiB.
const LARGE: usize = 1 << 20;
/// Round trips of each message; the first ones warm up.
const ROUNDS: usize = 21;
/// A large message must take this many times a small one before a bandwidth is made of it: less is noise.
const NOISE: f64 = 1.5;

/// Measures this rank's links; the lower rank of each pair answers, for both ways.
pub(crate) fn measure(rank: &mut Rank) -> Result<Vec<LinkOverride>, ExecuteError> {
    let grid = rank.executor().grid();
    let mut links = Vec::new();
    for (a, b) in pairs(rank.placement()) {
        let me = grid.pipeline_rank();
        if me == a {
            let [small, large] = [1, LARGE].map(|elements| lead(rank, grid.rank_of(b), elements));
            let (small, large) = (rank.told(small)?, rank.told(large)?);
            let bytes = (LARGE * size_of::<f32>()) as f64;
            let bandwidth = (large > NOISE * small).then(|| bytes / (large - small));
            // All replicas measure, at the same time as they will train; the first one answers.
            let answers = grid.replica() == 0;
            let both = [(a, b), (b, a)].map(|(from, to)| LinkOverride { from, to, latency: small, bandwidth });
            links.extend(both.into_iter().filter(|_| answers));
        } else if me == b {
            let echoed = (0..2 * ROUNDS).try_for_each(|_| echo(rank, grid.rank_of(a)));
            rank.told(echoed)?;
        }
    }
    Ok(links)
}

/// Ranks that hand tensors to each other, the lower one first.
fn pairs(placement: &Placement) -> BTreeSet<(usize, usize)> {
    let stages = (0..placement.ranks()).flat_map(|rank| placement.stages_of(rank));
    let ends = stages.filter_map(|stage| Some((placement.rank_of(stage), placement.rank_of(placement.next(stage)?))));
    ends.filter(|(a, b)| a != b).map(|(a, b)| (a.min(b), a.max(b))).collect()
}

/// Seconds of half a round trip.
fn lead(rank: &mut Rank, peer: usize, elements: usize) -> Result<f64, ExecuteError> {
    let device = rank.executor().device().clone().inner();
    let mut payload = Tensor::<1>::zeros([elements], &device).into_payload();
    synchronize(rank, &device)?;
    let mut seconds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        send(rank, peer, payload)?;
        payload = receive(rank, peer)?;
        synchronize(rank, &device)?;
        seconds.push(began.elapsed().as_secs_f64() / 2.0);
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[ROUNDS / 2])
}

fn echo(rank: &mut Rank, peer: usize) -> Result<(), ExecuteError> {
    let payload = receive(rank, peer)?;
    let device = rank.executor().device().clone();
    synchronize(rank, &device)?;
    send(rank, peer, payload)
}

fn header(rank: &Rank) -> Header {
    let any = rank.placement().stages_of(0)[0];
    Header { stage: any, microbatch: 0, direction: Direction::Probe }
}

fn send(rank: &mut Rank, to: usize, payload: Payload) -> Result<(), ExecuteError> {
    let (header, deadline) = (header(rank), rank.executor().deadline());
    let sent = rank.executor().link().send(to, Message { header, payload }, deadline);
    sent.map_err(|source| link_error(rank, source))
}

fn receive(rank: &mut Rank, from: usize) -> Result<Payload, ExecuteError> {
    let (header, deadline) = (header(rank), rank.executor().deadline());
    let received = rank.executor().link().receive(from, header, deadline);
    received.map_err(|source| link_error(rank, source))
}

fn link_error(rank: &mut Rank, source: LinkError) -> ExecuteError {
    ExecuteError::Link { rank: rank.executor().rank(), task: None, source }
}

fn synchronize(rank: &mut Rank, device: &Device) -> Result<(), ExecuteError> {
    let synced = device.sync();
    synced.map_err(|error| ExecuteError::Device { rank: rank.executor().rank(), message: error.to_string() })
}
