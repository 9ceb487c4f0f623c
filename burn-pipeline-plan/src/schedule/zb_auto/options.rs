//! The input of the heuristic: costs, memory, and the memory limit.

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
    pub(super) fn memory_limit(&self, ranks: usize) -> Result<f64, String> {
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
}
