//! The flags that `train_gpt` saves with the model because its losses depend on them.
//!
//! Guarantees: a run resumes only from a checkpoint of a run with equal flags; schedule, ranks and device may
//! differ.

use crate::gpt::GptConfig;
use crate::options::Options;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The flags that losses depend on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFlags {
    /// Width of the hidden state.
    pub d_model: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Bytes of a window.
    pub seq: usize,
    /// The number of text windows per step.
    pub batch: usize,
    /// The number of training steps, over which the learning rate changes.
    pub steps: usize,
    /// The peak learning rate.
    pub lr: f64,
    /// The seed of weights and data.
    pub seed: u64,
}

/// The checkpoint is of a run with other flags.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the checkpoint was saved with --{flag} {saved}, not {asked}; use the same value, or another folder for {folder}"
)]
pub struct OtherRun {
    /// The flag.
    pub flag: String,
    /// Its value in the checkpoint.
    pub saved: String,
    /// Its value in this run.
    pub asked: String,
    /// The flag that names the folder with the checkpoint.
    pub folder: &'static str,
}

burn_pipeline::debug_as_text!(OtherRun);

impl RunFlags {
    /// The flags of a run.
    pub fn of(options: &Options) -> Self {
        let Options { d_model, layers, heads, seq, batch, steps, lr, seed, .. } = *options;
        Self { d_model, layers, heads, seq, batch, steps, lr, seed }
    }

    /// The model that the flags describe.
    pub fn model(&self) -> GptConfig {
        let model = GptConfig::new().with_d_model(self.d_model).with_layers(self.layers).with_heads(self.heads);
        model.with_seq(self.seq).with_seed(self.seed)
    }

    /// Checks that the saved flags equal these.
    ///
    /// # Errors
    /// Returns the first flag that differs.
    pub fn same_as(&self, saved: &RunFlags) -> Result<(), OtherRun> {
        same_flags(self, saved, "--save")
    }
}

/// Checks that two sets of flags of one type are equal. `folder` is the flag that names the checkpoint's folder.
///
/// # Errors
/// Returns the first flag that differs.
pub fn same_flags<T: Serialize>(asked: &T, saved: &T, folder: &'static str) -> Result<(), OtherRun> {
    let (asked, saved) = (fields(asked), fields(saved));
    let differs = asked.iter().zip(&saved).find(|(asked, saved)| asked != saved);
    differs.map_or(Ok(()), |((flag, asked), (_, saved))| {
        Err(OtherRun { flag: flag.replace('_', "-"), saved: saved.clone(), asked: asked.clone(), folder })
    })
}

/// Every flag with its value, both as text: numbers are compared as written.
fn fields(flags: &impl Serialize) -> Vec<(String, String)> {
    let value = serde_json::to_value(flags).unwrap_or(Value::Null);
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(name, value)| (name.clone(), value.to_string())).collect()
}
