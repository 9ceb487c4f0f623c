//! ZBAuto: the zero-bubble heuristic, which orders operations by their costs and by the memory limit.
//!
//! ```text
//! p=2 v=1 m=3, F = I = W = 1, memory for two activations (ZB-1P)
//! rank 0: 0F0 0F1     0I0 0W0 0F2 0I1 0W1 0I2 0W2
//! rank 1:     1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
//! ```
//!
//! 1. [`heuristic`] builds an order and tracks the time, the memory and the bubble of every rank.
//! 2. It has three choices, as flags. All 8 combinations are built and the shortest (longest rank, first F to last
//!    W) is kept.
//!
//! Memory: F allocates `activation`, I frees `activation - weight_activation` of it, and W the rest. A limit of p
//! activations gives the paper's ZB-1P; 2p gives ZB-2P, whose bubble closes if F, I and W are about equal.
//! Source: Qi et al., Zero Bubble Pipeline Parallelism (2023), section 3.1; flags as in Sea AI Lab's scheduler.

mod heuristic;

use super::schedule_trait::{Chunks, Schedule, ScheduleError, ScheduleInfo, Size};
use crate::plan::{Action, PlacementKind, Plan};
use heuristic::{Pass, Problem};

/// The cost- and memory-driven zero-bubble schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct ZbAuto {
    /// Seconds of `F`, `I` and `W` of one microbatch, by rank, in any unit; the last entry applies to all further
    /// ranks. Default: one entry of F = I = W = 1.
    pub costs: Vec<[f64; 3]>,
    /// Latency of a transfer between neighbours, in the unit of the costs. Default 0.
    pub transfer: f64,
    /// Memory of one microbatch's activations on a rank (`M_B`), in any unit. Default 1.
    pub activation: f64,
    /// The part of it that is held from `I` to `W` (`M_W`). Default 1: `I` frees nothing.
    pub weight_activation: f64,
    /// The memory that a rank may hold, in the unit of `activation`; infinity for no limit. `None` (the default)
    /// means p activations, as much as 1F1B's first rank: the paper's ZB-1P. Twice as much gives its ZB-2P.
    pub limit: Option<f64>,
}

impl Default for ZbAuto {
    fn default() -> Self {
        Self { costs: vec![[1.0; 3]], transfer: 0.0, activation: 1.0, weight_activation: 1.0, limit: None }
    }
}

impl ZbAuto {
    /// The same costs for every rank, and defaults for all other fields.
    pub fn uniform(forward: f64, input: f64, weight: f64, transfer: f64) -> Self {
        Self { costs: vec![[forward, input, weight]], transfer, ..Self::default() }
    }

    /// The limit in the unit of `activation`, or an error message about the fields.
    fn memory_limit(&self, ranks: usize) -> Result<f64, String> {
        let times = self.costs.iter().flatten().copied().chain([self.transfer]);
        if self.costs.is_empty() || times.clone().any(|t| !t.is_finite() || t < 0.0) || times.sum::<f64>() == 0.0 {
            return Err("it takes finite costs of at least 0 for F, I, W and the transfer, not all of them 0".into());
        }
        if !self.activation.is_finite() || self.activation <= 0.0 {
            return Err(format!("it takes an activation memory above 0, not {}", self.activation));
        }
        if !(0.0..=self.activation).contains(&self.weight_activation) {
            let (kept, all) = (self.weight_activation, self.activation);
            return Err(format!("W holds a part of the activation memory: at least 0 and at most {all}, not {kept}"));
        }
        let limit = self.limit.unwrap_or(ranks as f64 * self.activation);
        if limit.is_nan() || limit < self.activation {
            let least = self.activation;
            return Err(format!(
                "a rank must hold one activation: it takes a memory limit of at least {least}, not {limit}"
            ));
        }
        Ok(limit)
    }

    /// The problem for the heuristic at this size. The fields have been validated.
    fn problem(&self, size: Size, limit: f64) -> Problem {
        let of_rank = |rank: usize| self.costs[rank.min(self.costs.len() - 1)];
        let largest = (0..size.ranks).flat_map(of_rank).fold(self.transfer, f64::max);
        let tick = 10_f64.powf(largest.log10().floor() - 6.0).max(f64::MIN_POSITIVE);
        let ticks = |cost: f64| (cost / tick).round() as u64;
        let (all, kept) = (self.activation, self.weight_activation);
        Problem {
            ranks: size.ranks,
            microbatches: size.microbatches,
            costs: (0..size.ranks).map(|rank| of_rank(rank).map(ticks)).collect(),
            transfer: ticks(self.transfer),
            memory: [all, kept - all, -kept],
            // Sums of many activations are rounded; a limit of exactly that many must still fit them.
            limit: limit * (1.0 + 1e-9),
        }
    }
}

impl Schedule for ZbAuto {
    fn info(&self) -> ScheduleInfo {
        ScheduleInfo::new(
            "ZBAuto",
            PlacementKind::Loop,
            Chunks::Exactly(1),
            "Qi et al. 2023, arXiv:2401.10241 (ZB-1P, ZB-2P)",
        )
    }

    fn build(&self, size: Size) -> Result<Plan, ScheduleError> {
        let schedule = self.info();
        schedule.check_size(size)?;
        let limit = self.memory_limit(size.ranks).or_else(|accepts| schedule.refuse(size, accepts))?;
        let orders = heuristic::shortest(&self.problem(size, limit));
        let action = |rank, &(pass, m): &(Pass, usize)| match pass {
            Pass::Forward => Action::forward(rank, m),
            Pass::Input => Action::backward_input(rank, m),
            Pass::Weight => Action::backward_weight(rank, m),
        };
        schedule.plan(size, |rank| orders[rank].iter().map(|step| action(rank, step)).collect())
    }
}
