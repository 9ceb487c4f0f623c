//! ZBAuto: the zero-bubble heuristic, which orders operations by what they cost and by the memory there is.
//!
//! ```text
//! p=2 v=1 m=3, F = I = W = 1, memory for two activations (ZB-1P)
//! rank 0: 0F0 0F1     0I0 0W0 0F2 0I1 0W1 0I2 0W2
//! rank 1:     1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
//! ```
//!
//! 1. [`heuristic`] builds an order while it keeps the time, the memory and the bubble of every rank.
//! 2. Three choices in it are flags; all 8 combinations are built and the shortest (longest rank, first F to last
//!    W) is kept.
//!
//! Memory is counted as `activation` from F, `activation - weight_activation` of it given back at I, the rest at
//! W. With the limit of p activations this is the paper's ZB-1P, with 2p ZB-2P, where the bubble closes as long
//! as F, I and W are alike.
//! Source: Qi et al., Zero Bubble Pipeline Parallelism (2023), section 3.1; flags as in Sea AI Lab's scheduler.

mod heuristic;

use super::{Chunks, Family, Schedule, ScheduleError, Size, interleave, refuse, refuse_empty};
use crate::plan::{Action, PlacementKind, Plan};

/// What one rank's stage costs for one microbatch, in any unit of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ZbAutoStage {
    /// `F`.
    pub forward: f64,
    /// `I`.
    pub input: f64,
    /// `W`.
    pub weight: f64,
}

/// How much memory a rank may hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MemoryLimit {
    /// This many times p activations: 1 is ZB-1P, 2 is ZB-2P.
    TimesRanks(f64),
    /// This much, in the unit of [`ZbAuto::activation`].
    Absolute(f64),
    /// Any amount.
    Unlimited,
}

/// The cost- and memory-driven zero-bubble schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct ZbAuto {
    /// Costs by rank; the last entry stands for all ranks after it. Default: one entry of F = I = W = 1.
    pub costs: Vec<ZbAutoStage>,
    /// Latency of a transfer between neighbours, in the unit of the costs. Default 0.
    pub transfer: f64,
    /// Memory that one microbatch's activations take on a rank (`M_B`), any unit. Default 1.
    pub activation: f64,
    /// The part of it that is kept from `I` to `W` (`M_W`). Default 1: `I` gives nothing back.
    pub weight_activation: f64,
    /// Memory a rank may hold. Default p activations, as much as 1F1B's first rank.
    pub limit: MemoryLimit,
}

impl Default for ZbAuto {
    fn default() -> Self {
        Self {
            costs: vec![ZbAutoStage { forward: 1.0, input: 1.0, weight: 1.0 }],
            transfer: 0.0,
            activation: 1.0,
            weight_activation: 1.0,
            limit: MemoryLimit::TimesRanks(1.0),
        }
    }
}

impl ZbAuto {
    /// The same costs for every rank, everything else as by default.
    pub fn uniform(forward: f64, input: f64, weight: f64, transfer: f64) -> Self {
        Self { costs: vec![ZbAutoStage { forward, input, weight }], transfer, ..Self::default() }
    }

    /// The limit in the unit of `activation`, or what is wrong with the fields.
    fn memory_limit(&self, ranks: usize) -> Result<f64, String> {
        let times = self.costs.iter().flat_map(|c| [c.forward, c.input, c.weight]).chain([self.transfer]);
        if self.costs.is_empty() || times.clone().any(|t| !t.is_finite() || t < 0.0) || times.sum::<f64>() == 0.0 {
            return Err("it takes finite costs of at least 0 for F, I, W and the transfer, not all of them 0".into());
        }
        if !self.activation.is_finite() || self.activation <= 0.0 {
            return Err(format!("it takes an activation memory above 0, not {}", self.activation));
        }
        if !(0.0..=self.activation).contains(&self.weight_activation) {
            let (kept, all) = (self.weight_activation, self.activation);
            return Err(format!("W keeps a part of the activation memory: at least 0 and at most {all}, not {kept}"));
        }
        let limit = match self.limit {
            MemoryLimit::TimesRanks(times) => times * ranks as f64 * self.activation,
            MemoryLimit::Absolute(limit) => limit,
            MemoryLimit::Unlimited => f64::INFINITY,
        };
        if limit.is_nan() || limit < self.activation {
            let least = self.activation;
            return Err(format!(
                "a rank must hold one activation: it takes a memory limit of at least {least}, not {limit}"
            ));
        }
        Ok(limit)
    }
}

impl Schedule for ZbAuto {
    fn family(&self) -> Family {
        Family {
            name: "ZBAuto",
            placement: PlacementKind::Loop,
            chunks: Chunks::Exactly(1),
            microbatches: "any m >= 1",
            source: "Qi et al. 2023, arXiv:2401.10241 (ZB-1P, ZB-2P)",
        }
    }

    fn build(&self, size: Size) -> Result<Plan, ScheduleError> {
        let family = self.family();
        refuse_empty(&family, size)?;
        let limit = match self.memory_limit(size.ranks) {
            Ok(limit) => limit,
            Err(accepts) => return refuse(&family, size, accepts),
        };
        let orders = heuristic::shortest(&heuristic::Problem::new(self, size, limit));
        let letter = |rank| {
            move |&(pass, m): &(heuristic::Pass, usize)| match pass {
                heuristic::Pass::Forward => Action::forward(rank, m),
                heuristic::Pass::Input => Action::backward_input(rank, m),
                heuristic::Pass::Weight => Action::backward_weight(rank, m),
            }
        };
        interleave::plan(family.name, size, |rank| orders[rank].iter().map(letter(rank)).collect())
    }
}
