//! The input of the heuristic: costs, memory, and the memory limit.

/// The costs of one rank's stage for one microbatch, in any unit of time.
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
    /// Memory of one microbatch's activations on a rank (`M_B`), in any unit. Default 1.
    pub activation: f64,
    /// The part of it that is kept from `I` to `W` (`M_W`). Default 1: `I` frees nothing.
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

    /// The limit in the unit of `activation`, or a sentence that says what is wrong with the fields.
    pub(super) fn memory_limit(&self, ranks: usize) -> Result<f64, String> {
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
