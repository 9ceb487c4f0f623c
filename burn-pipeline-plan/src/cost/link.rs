//! The network: one default link, and exceptions for named pairs of ranks.

use super::error::ProfileError;
use super::profile::is_amount;
use serde::{Deserialize, Serialize};

/// A one-way connection: a message of `b` bytes takes `latency + b / bandwidth` seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCost {
    /// Seconds before the first byte arrives.
    #[serde(default)]
    pub latency: f64,
    /// Bytes a second; without it, messages cost their latency alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<f64>,
}

impl LinkCost {
    /// Seconds that a message occupies the link: bytes over bandwidth.
    pub fn occupied(&self, bytes: f64) -> f64 {
        self.bandwidth.map_or(0.0, |bandwidth| bytes / bandwidth)
    }
}

/// A link from one rank to another that differs from the default.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkOverride {
    /// Sending rank.
    pub from: usize,
    /// Receiving rank.
    pub to: usize,
    /// Seconds before the first byte arrives.
    #[serde(default)]
    pub latency: f64,
    /// Bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<f64>,
}

/// All links: a default one, and exceptions. Where a pair is named twice, the last one holds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCosts {
    /// Any pair that is not listed.
    #[serde(default)]
    pub default: LinkCost,
    /// Pairs that differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub between: Vec<LinkOverride>,
}

impl LinkCosts {
    /// The link from one rank to another.
    pub fn link(&self, from: usize, to: usize) -> LinkCost {
        let exception = self.between.iter().rev().find(|b| (b.from, b.to) == (from, to));
        exception.map_or(self.default, |b| LinkCost { latency: b.latency, bandwidth: b.bandwidth })
    }

    /// Refuses links whose numbers are no amounts.
    ///
    /// # Errors
    /// [`ProfileError::LinkCost`].
    pub fn check(&self) -> Result<(), ProfileError> {
        check_link("default".into(), self.default.latency, self.default.bandwidth)?;
        self.between.iter().try_for_each(|b| check_link(format!("{} -> {}", b.from, b.to), b.latency, b.bandwidth))
    }
}

fn check_link(link: String, latency: f64, bandwidth: Option<f64>) -> Result<(), ProfileError> {
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
    fn the_last_exception_of_a_pair_holds() {
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
