//! Measures links by sending messages back and forth between ranks that are neighbours in some route.
//!
//! All ranks go through the same list of pairs, in the same order, and skip pairs that they are not part of. The
//! latency is half the median round trip of a small message; the additional time of a large one gives the bandwidth.
//! The device is synchronised, so that copies between devices are included.

use super::profile::median;
use crate::execute::ExecuteError;
use crate::link::{Header, MessageKind};
use crate::payload::Boundary;
use crate::train::control::Command;
use crate::train::error::PipelineError;
use crate::train::pipeline::Pipeline;
use crate::train::step::Rank;
use burn::tensor::{Device, Tensor};
use burn_pipeline_plan::cost::{LinkCosts, LinkOverride};
use burn_pipeline_plan::plan::Placement;
use std::collections::BTreeSet;
use std::time::Instant;

/// Elements of the large message: 4 MiB.
const LARGE: usize = 1 << 20;
/// Round trips of each message; the first ones are warm-up.
const ROUNDS: usize = 21;
/// A large message must take this many times as long as a small one to give a bandwidth; less is noise.
const NOISE: f64 = 1.5;

impl Pipeline {
    /// Measures the links between ranks that exchange tensors: the median of half a round trip, for a small and a large
    /// message.
    ///
    /// For tensor-parallel stages, a link connects two pipeline ranks, as in plans: each rank measures to its
    /// counterpart, all at the same time, and the slowest counts.
    ///
    /// If a large message takes no longer than a small one (threads that move handles on one device), the link has no
    /// bandwidth limit.
    ///
    /// # Errors
    /// Same as [`Pipeline::step`].
    pub fn measure_links(&mut self) -> Result<LinkCosts, PipelineError> {
        let between = slowest(self.ask(MeasureLinks)?.concat());
        Ok(LinkCosts { between, ..LinkCosts::default() })
    }
}

/// The ranks at both ends of a link, its latency and its bandwidth. (`LinkOverride` omits fields when serialized.)
type Measured = (usize, usize, f64, Option<f64>);

/// Measures each rank's links. The lower rank of each pair replies, for both directions.
struct MeasureLinks;

impl Command for MeasureLinks {
    type Reply = Vec<Measured>;
    const NAME: &'static str = "measuring links";

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        let grid = rank.executor.grid();
        let mut links = Vec::new();
        for (a, b) in pairs(&rank.placement) {
            let own = grid.pipeline_rank();
            let other = if own == a { b } else { a };
            let Some(peer) = [a, b].contains(&own).then(|| grid.partner(other)).flatten() else { continue };
            if own == a {
                let (small, large) = (time(rank, peer, 1)?, time(rank, peer, LARGE)?);
                let bytes = (LARGE * size_of::<f32>()) as f64;
                let bandwidth = (large > NOISE * small).then(|| bytes / (large - small));
                let both = [(a, b, small, bandwidth), (b, a, small, bandwidth)];
                // All replicas measure at the same time, as in training; the first one replies.
                links.extend(both.into_iter().filter(|_| rank.is_first_replica()));
            } else {
                (0..2 * ROUNDS).try_for_each(|_| echo(rank, peer))?;
            }
        }
        Ok(links)
    }

    fn exchange(&self, rank: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        rank.executor.gather(&own)
    }
}

/// Each link once, with the slowest measurement.
fn slowest(links: Vec<Measured>) -> Vec<LinkOverride> {
    let mut each: Vec<LinkOverride> = Vec::new();
    for (from, to, latency, bandwidth) in links {
        match each.iter_mut().find(|known| (known.from, known.to) == (from, to)) {
            None => each.push(LinkOverride { from, to, latency, bandwidth }),
            Some(known) => {
                let slower = slower((known.latency, known.bandwidth), (latency, bandwidth));
                (known.latency, known.bandwidth) = slower;
            }
        }
    }
    each
}

/// The larger latency and the smaller bandwidth of two links.
pub(super) fn slower(one: (f64, Option<f64>), other: (f64, Option<f64>)) -> (f64, Option<f64>) {
    let bandwidth = match (one.1, other.1) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    (one.0.max(other.0), bandwidth)
}

/// Pairs of ranks that exchange tensors, the lower one first.
fn pairs(placement: &Placement) -> BTreeSet<(usize, usize)> {
    let stages = (0..placement.ranks()).flat_map(|rank| placement.stages_of(rank));
    let ends = stages.filter_map(|stage| Some((placement.rank_of(stage), placement.rank_of(placement.next(stage)?))));
    ends.filter(|(a, b)| a != b).map(|(a, b)| (a.min(b), a.max(b))).collect()
}

/// Seconds of half a round trip.
fn time(rank: &mut Rank, peer: usize, elements: usize) -> Result<f64, ExecuteError> {
    let device = rank.executor.device().clone().inner();
    let mut payload = Tensor::<1>::zeros([elements], &device).into_payload();
    synchronize(rank, &device)?;
    let mut seconds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        rank.executor.send_to(peer, header(), payload)?;
        payload = rank.executor.receive_from(peer, header())?;
        synchronize(rank, &device)?;
        seconds.push(began.elapsed().as_secs_f64() / 2.0);
    }
    Ok(median(&mut seconds))
}

fn echo(rank: &mut Rank, peer: usize) -> Result<(), ExecuteError> {
    let payload = rank.executor.receive_from(peer, header())?;
    let device = rank.executor.device().clone();
    synchronize(rank, &device)?;
    rank.executor.send_to(peer, header(), payload)
}

fn header() -> Header {
    Header::of(MessageKind::Timing)
}

fn synchronize(rank: &mut Rank, device: &Device) -> Result<(), ExecuteError> {
    let synced = device.sync();
    synced.map_err(|error| ExecuteError::Device { rank: rank.number(), message: error.to_string() })
}
