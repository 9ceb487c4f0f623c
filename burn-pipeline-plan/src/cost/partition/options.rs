//! The objective of the search for the best cut, and its memory limit.

use crate::cost::amount::is_amount;
use crate::cost::layer::Layer;
use crate::cost::partition_error::PartitionError;

/// The quantity by which layers are weighed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Measure {
    /// Seconds of `F`, `I` and `W`, measured or estimated.
    #[default]
    Seconds,
    /// Floating-point operations.
    Flops,
    /// The number of parameters.
    Parameters,
}

impl Measure {
    /// The weight of a layer.
    pub fn of(self, layer: &Layer) -> f64 {
        match self {
            Measure::Seconds => layer.seconds(),
            Measure::Flops => layer.flops,
            Measure::Parameters => layer.parameters as f64,
        }
    }
}

/// The objective of the search for the best cut, and its limits.
#[derive(Clone, PartialEq, Debug)]
pub struct PartitionOptions {
    /// The quantity to balance over the ranks.
    pub measure: Measure,
    /// The most bytes that a rank may hold; `None` for no limit.
    pub cap: Option<f64>,
    /// Bytes held per byte of parameters: 1 for the parameters, plus 1 for gradients, plus 2 for Adam's moments.
    /// Default: 1.
    pub state_factor: f64,
    /// The number of microbatches whose activations each stage holds at its peak, one entry per stage. An empty
    /// list means one microbatch per stage. 1F1B on `p` ranks holds `p - s` on stage `s`.
    pub held: Vec<f64>,
    /// States kept for each stage and boundary if a rank has several stages. More states find better cuts and take
    /// longer. Default: 128.
    pub states: usize,
}

impl Default for PartitionOptions {
    fn default() -> Self {
        Self { measure: Measure::default(), cap: None, state_factor: 1.0, held: Vec::new(), states: 128 }
    }
}

impl PartitionOptions {
    /// Refuses limits that are negative, infinite or NaN, or a list of the wrong length.
    pub(super) fn check(&self, stages: usize) -> Result<(), PartitionError> {
        let refuse =
            |field, value: f64, expected| Err(PartitionError::Memory { field, value: value.to_string(), expected });
        match self.cap {
            None => return Ok(()),
            Some(cap) if !is_amount(cap) => return refuse("cap", cap, None),
            Some(_) => {}
        }
        if !is_amount(self.state_factor) {
            return refuse("state_factor", self.state_factor, None);
        }
        if let Some(&held) = self.held.iter().find(|&&held| !is_amount(held)) {
            return refuse("held", held, None);
        }
        if !self.held.is_empty() && self.held.len() != stages {
            return refuse("held", self.held.len() as f64, Some(stages));
        }
        Ok(())
    }
}
