//! How a schedule is chosen.

/// How a schedule is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoOptions {
    /// Steps before measuring, for captures, compiled kernels and the optimizer's first state.
    pub warm_up: usize,
    /// Steps that are measured.
    pub measured: usize,
    /// The share of a pass that the best plan must be predicted to save, for a switch.
    pub gain: f64,
    /// Steps that are measured after a switch, after as many warm-up steps as at the start. With 0 there is no trial.
    pub trial: usize,
    /// The most bytes that a rank may hold.
    pub cap: Option<f64>,
    /// Bytes held for each byte of parameters: 2 with gradients, 4 with Adam's moments.
    pub state_factor: f64,
}

impl Default for AutoOptions {
    fn default() -> Self {
        Self { warm_up: 2, measured: 5, gain: 0.02, trial: 5, cap: None, state_factor: 4.0 }
    }
}
