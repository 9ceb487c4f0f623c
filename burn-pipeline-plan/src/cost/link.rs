//! The costs of links: a default, and overrides for pairs of ranks.
//!
//! Collectives take the time of the slowest link of the ring of ranks: an all-reduce runs around the ring, a broadcast
//! or a reduction along a chain. A link of a tensor-parallel group, or between two groups, is as slow as the slowest
//! link that it stands for.

use super::amount::is_amount;
use super::error::ProfileError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::iter::repeat_n;

/// The cost of a one-way link: a message of `b` bytes takes `latency + b / bandwidth` seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkCost {
    /// Seconds before the first byte arrives.
    pub latency: f64,
    /// Bytes per second. If absent, a message takes only the latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<f64>,
}

impl LinkCost {
    /// The seconds from the start of a message of `bytes` to its arrival.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.latency + self.occupied(bytes)
    }

    /// The seconds that a message of `bytes` occupies the link: bytes over bandwidth.
    pub fn occupied(&self, bytes: f64) -> f64 {
        self.bandwidth.map_or(0.0, |bandwidth| bytes / bandwidth)
    }
}

/// The cost of a link from one rank to another that differs from the default.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkOverride {
    /// The sending rank.
    pub from: usize,
    /// The receiving rank.
    pub to: usize,
    /// Seconds before the first byte arrives.
    #[serde(default)]
    pub latency: f64,
    /// Bytes per second. If absent, a message takes only the latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<f64>,
}

impl LinkOverride {
    pub(super) fn new(from: usize, to: usize, LinkCost { latency, bandwidth }: LinkCost) -> Self {
        Self { from, to, latency, bandwidth }
    }

    pub(super) fn cost(&self) -> LinkCost {
        LinkCost { latency: self.latency, bandwidth: self.bandwidth }
    }
}

/// The costs of all links: a default, and overrides for pairs of ranks. If a pair is listed twice, the last entry
/// applies.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkCosts {
    /// The cost of every pair that is not listed.
    pub default: LinkCost,
    /// Overrides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub between: Vec<LinkOverride>,
}

impl LinkCosts {
    /// The cost of the link from one rank to another.
    pub fn link(&self, from: usize, to: usize) -> LinkCost {
        let listed = self.between.iter().rev().find(|b| (b.from, b.to) == (from, to));
        listed.map_or(self.default, LinkOverride::cost)
    }

    /// The seconds of a ring all-reduce over ranks `0..ranks`: it takes `2(p-1)` steps, each of which moves a
    /// `p`-th of the bytes over the slowest link of the ring.
    pub fn all_reduce_seconds(&self, ranks: usize, bytes: f64) -> f64 {
        let (p, hops) = (ranks as f64, 2.0 * (ranks as f64 - 1.0));
        if ranks < 2 { 0.0 } else { hops * self.slowest(ranks, bytes / p) }
    }

    /// The seconds of a broadcast from one of the ranks `0..ranks`, or a reduction to one of them, piece by piece
    /// along a chain: the latencies of all its links, plus the bytes over the slowest one.
    pub fn chain_seconds(&self, ranks: usize, bytes: f64) -> f64 {
        if ranks < 2 { 0.0 } else { (ranks as f64 - 2.0) * self.slowest(ranks, 0.0) + self.slowest(ranks, bytes) }
    }

    /// The seconds of a message over the slowest link of the ring.
    fn slowest(&self, ranks: usize, bytes: f64) -> f64 {
        if self.between.is_empty() {
            return self.default.seconds(bytes);
        }
        (0..ranks).map(|rank| self.link(rank, (rank + 1) % ranks).seconds(bytes)).fold(0.0, f64::max)
    }

    /// The links within groups of consecutive ranks of these sizes, and the links between groups. Each has the cost of
    /// the slowest link in the group, or of the slowest pair that exchanges pieces. Of two groups that exchange any,
    /// the size of one is a multiple of that of the other.
    pub(crate) fn of_unequal(&self, sizes: &[usize]) -> (Vec<LinkCosts>, LinkCosts) {
        let start = |group: usize| sizes[..group].iter().sum::<usize>();
        let inside = (0..sizes.len()).map(|group| {
            let (first, size) = (start(group), sizes[group]);
            let ring = (0..size).map(|place| self.link(first + place, first + (place + 1) % size));
            let default = ring.filter(|_| size > 1).reduce(slower).unwrap_or(self.default);
            LinkCosts { default, between: Vec::new() }
        });
        let group_of: Vec<usize> = sizes.iter().enumerate().flat_map(|(group, &size)| repeat_n(group, size)).collect();
        let groups = |b: &LinkOverride| Some((*group_of.get(b.from)?, *group_of.get(b.to)?));
        let listed: BTreeSet<(usize, usize)> = self.between.iter().filter_map(groups).collect();
        let between = listed.into_iter().filter(|(from, to)| from != to).filter_map(|(from, to)| {
            let most = sizes[from].max(sizes[to]);
            let place = |group: usize, member: usize| start(group) + member * sizes[group] / most;
            let links = (0..most).map(|member| self.link(place(from, member), place(to, member)));
            Some(LinkOverride::new(from, to, links.reduce(slower)?))
        });
        let between = between.collect();
        (inside.collect(), LinkCosts { default: self.default, between })
    }

    /// The links within groups of `members` consecutive ranks of `ranks`, which are those of the slowest group, and the
    /// links between groups.
    pub(crate) fn of_groups(&self, members: usize, ranks: usize) -> (LinkCosts, LinkCosts) {
        let (inside, between) = self.of_unequal(&vec![members; ranks / members]);
        let default = inside.iter().map(|group| group.default).reduce(slower).unwrap_or(self.default);
        (LinkCosts { default, between: Vec::new() }, between)
    }

    /// Refuses links with a number that is negative, infinite or NaN, or a bandwidth of zero.
    ///
    /// # Errors
    /// Returns [`ProfileError::LinkCost`].
    pub fn check(&self) -> Result<(), ProfileError> {
        check_link("default".into(), self.default)?;
        self.between.iter().try_for_each(|b| check_link(format!("{} -> {}", b.from, b.to), b.cost()))
    }
}

/// A link with the higher latency and the lower bandwidth of both.
fn slower(a: LinkCost, b: LinkCost) -> LinkCost {
    LinkCost {
        latency: a.latency.max(b.latency),
        bandwidth: a.bandwidth.into_iter().chain(b.bandwidth).min_by(f64::total_cmp),
    }
}

fn check_link(link: String, LinkCost { latency, bandwidth }: LinkCost) -> Result<(), ProfileError> {
    let refuse = |link, field, value: f64, accepts| {
        Err(ProfileError::LinkCost { link, field, value: value.to_string(), accepts })
    };
    match bandwidth {
        _ if !is_amount(latency) => refuse(link, "latency", latency, "zero or a positive number"),
        Some(value) if !is_amount(value) || value == 0.0 => refuse(link, "bandwidth", value, "a positive number"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_moves_each_byte_almost_twice_and_a_chain_once() {
        let links = LinkCosts { default: LinkCost { latency: 0.5, bandwidth: Some(10.0) }, between: Vec::new() };
        assert_eq!(links.all_reduce_seconds(4, 40.0), 6.0 * 1.5);
        assert_eq!(links.chain_seconds(4, 40.0), 3.0 * 0.5 + 4.0);
        assert_eq!((links.all_reduce_seconds(1, 40.0), links.chain_seconds(1, 40.0)), (0.0, 0.0));
    }

    #[test]
    fn groups_have_the_slowest_links_of_their_members() {
        // Two nodes of two ranks: fast inside, slow between, and one override per pair across.
        let link = |from, to, bandwidth| LinkOverride { from, to, latency: 0.0, bandwidth: Some(bandwidth) };
        let fast = [(0, 1), (1, 0), (2, 3), (3, 2)].map(|(from, to)| link(from, to, 100.0));
        let links = LinkCosts {
            default: LinkCost { latency: 1.0, bandwidth: Some(10.0) },
            between: [&fast[..], &[link(0, 2, 50.0), link(1, 3, 20.0)]].concat(),
        };
        let (inside, between) = links.of_groups(2, 4);
        assert_eq!(inside.default.bandwidth, Some(100.0));
        assert_eq!((between.link(0, 1).bandwidth, between.link(1, 0).bandwidth), (Some(20.0), Some(10.0)));
        assert_eq!(links.of_groups(4, 4).0.default, LinkCost { latency: 1.0, bandwidth: Some(10.0) });
    }

    #[test]
    fn groups_of_different_sizes_have_the_slowest_links_of_their_pairs() {
        let link = |from, to, bandwidth| LinkOverride { from, to, latency: 0.0, bandwidth: Some(bandwidth) };
        let fast = [(1, 2), (2, 1), (0, 1), (0, 2)].map(|(from, to)| link(from, to, 100.0));
        let links = LinkCosts { default: LinkCost { latency: 0.0, bandwidth: Some(10.0) }, between: fast.to_vec() };
        // Rank 0, then ranks 1 and 2.
        let (inside, between) = links.of_unequal(&[1, 2]);
        assert_eq!(inside.iter().map(|links| links.default.bandwidth).collect::<Vec<_>>(), [Some(10.0), Some(100.0)]);
        assert_eq!((between.link(0, 1).bandwidth, between.link(1, 0).bandwidth), (Some(100.0), Some(10.0)));
        assert_eq!(links.of_unequal(&[2, 1]).1.link(0, 1).bandwidth, Some(100.0));
        assert_eq!(links.of_unequal(&[1, 1, 1]).1.link(0, 1), links.link(0, 1));
    }

    #[test]
    fn the_last_override_of_a_pair_holds() {
        let between = |latency| LinkOverride { from: 0, to: 1, latency, bandwidth: Some(2.0) };
        let links = LinkCosts {
            default: LinkCost { latency: 9.0, bandwidth: None },
            between: vec![between(1.0), between(3.0)],
        };
        assert_eq!(links.link(0, 1).latency, 3.0);
        assert_eq!(links.link(0, 1).occupied(10.0), 5.0);
        assert_eq!(links.link(1, 0).latency, 9.0);
        assert_eq!(links.link(1, 0).occupied(10.0), 0.0);
    }
}
