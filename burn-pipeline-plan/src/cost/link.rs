//! The costs of links: a default, and overrides for single pairs of ranks.

use super::amount::is_amount;
use super::error::ProfileError;
use serde::{Deserialize, Serialize};

/// The cost of a one-way link: a message of `b` bytes takes `latency + b / bandwidth` seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCost {
    /// Seconds before the first byte arrives.
    #[serde(default)]
    pub latency: f64,
    /// Bytes a second. If absent, a message takes the latency alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<f64>,
}

impl LinkCost {
    /// Seconds from the start of a message of `bytes` to its arrival.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.latency + self.occupied(bytes)
    }

    /// Seconds that a message of `bytes` occupies the link: bytes over bandwidth.
    pub fn occupied(&self, bytes: f64) -> f64 {
        self.bandwidth.map_or(0.0, |bandwidth| bytes / bandwidth)
    }
}

/// The cost of a link from one rank to another that differs from the default.
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
    /// Bytes a second. If absent, a message takes the latency alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<f64>,
}

/// The costs of all links: a default, and overrides for single pairs of ranks. If a pair is listed twice, the last entry
/// holds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCosts {
    /// The cost of every pair that is not listed.
    #[serde(default)]
    pub default: LinkCost,
    /// Overrides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub between: Vec<LinkOverride>,
}

impl LinkCosts {
    /// The cost of the link from one rank to another.
    pub fn link(&self, from: usize, to: usize) -> LinkCost {
        let listed = self.between.iter().rev().find(|b| (b.from, b.to) == (from, to));
        listed.map_or(self.default, |b| LinkCost { latency: b.latency, bandwidth: b.bandwidth })
    }

    /// Refuses links with a number that is negative, infinite or NaN, or a bandwidth of zero.
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
