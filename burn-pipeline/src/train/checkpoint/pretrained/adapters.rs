//! Adapters as PEFT stores them, and as Burn's LoRA holds them.
//!
//! PEFT names the factors of a layer `base_model.model.<layer>.lora_A.weight`, of shape `[rank, in]`, and `.lora_B`,
//! `[out, rank]`. Burn's parameters are `<layer>.weight.lora.a`, `[in, rank]`, and `.b`, `[rank, out]`.

use crate::train::checkpoint::durable::write_durably;
use crate::train::checkpoint::error::CheckpointError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The name of the file that holds a folder's adapters.
pub(in crate::train::checkpoint) const FILE: &str = "adapter_model.safetensors";
/// The name of the file that says how they compute.
pub(in crate::train::checkpoint) const CONFIG: &str = "adapter_config.json";
const PREFIX: &str = "base_model.model.";
/// The ends of names, in Burn and in PEFT.
const FACTORS: [(&str, &str); 2] = [(".weight.lora.a", ".lora_A.weight"), (".weight.lora.b", ".lora_B.weight")];

/// Returns true if this is the name of an adapter's parameter.
pub(in crate::train::checkpoint) fn is_adapter(name: &str) -> bool {
    FACTORS.iter().any(|(burn, _)| name.ends_with(burn))
}

/// The name in Burn of what PEFT stores, or the reverse; `None` if it is not the name of an adapter.
pub(super) fn renamed(name: &str, to_burn: bool) -> Option<String> {
    FACTORS.iter().find_map(|(burn, peft)| match to_burn {
        true => name.strip_prefix(PREFIX)?.strip_suffix(peft).map(|layer| format!("{layer}{burn}")),
        false => name.strip_suffix(burn).map(|layer| format!("{PREFIX}{layer}{peft}")),
    })
}

/// What PEFT says of adapters beside their values (`adapter_config.json`); with [`Lora::new`](burn::module::Lora::new)
/// it makes the same adapters.
#[derive(Clone, PartialEq, Debug)]
pub struct Adapters {
    /// The rank of the factors (`r`).
    pub rank: usize,
    /// The scale of the adapters times their rank (`lora_alpha`).
    pub alpha: f64,
    /// The name or path of the model that they adapt (`base_model_name_or_path`).
    pub base: Option<String>,
}

/// The fields of the file that say how adapters compute.
#[derive(Serialize, Deserialize)]
struct Config {
    peft_type: String,
    base_model_name_or_path: Option<String>,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    target_modules: serde_json::Value,
    #[serde(default)]
    bias: Option<String>,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    rank_pattern: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    alpha_pattern: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    fan_in_fan_out: bool,
}

/// A folder's file, and its fields.
fn config(folder: &Path) -> Result<(PathBuf, Config), CheckpointError> {
    let path = folder.join(CONFIG);
    let text = fs::read(&path).map_err(CheckpointError::io("reading", &path))?;
    let config = serde_json::from_slice(&text).map_err(|error| CheckpointError::damaged(&path, error.to_string()))?;
    Ok((path, config))
}

impl Adapters {
    /// Reads a folder's `adapter_config.json`.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if it cannot be read, or its adapters are not those that Burn's LoRA computes: of
    /// another kind, with trained biases, RSLoRA, DoRA, or with ranks or scales by layer.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let (path, config) = config(folder.as_ref())?;
        let others = [
            ("peft_type", config.peft_type != "LORA"),
            ("bias", config.bias.is_some_and(|bias| bias != "none")),
            ("use_rslora", config.use_rslora),
            ("use_dora", config.use_dora),
            ("rank_pattern", !config.rank_pattern.is_empty()),
            ("alpha_pattern", !config.alpha_pattern.is_empty()),
            ("fan_in_fan_out", config.fan_in_fan_out),
        ];
        match others.iter().find(|(_, differs)| *differs) {
            Some((field, _)) => {
                let message = format!("`{field}` asks for adapters that Burn's LoRA does not compute");
                Err(CheckpointError::damaged(&path, message))
            }
            None => Ok(Self { rank: config.r, alpha: config.lora_alpha, base: config.base_model_name_or_path }),
        }
    }

    /// Returns the layers that a folder's adapters adapt, as its `adapter_config.json` lists them (`target_modules`):
    /// whole names, or their ends.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if it cannot be read, or holds no list: PEFT also takes an expression, or
    /// `all-linear`.
    pub fn targets(folder: impl AsRef<Path>) -> Result<Vec<String>, CheckpointError> {
        let (path, config) = config(folder.as_ref())?;
        serde_json::from_value(config.target_modules).map_err(|_| {
            let message = "`target_modules` is no list of layers; write the names of the layers there".to_owned();
            CheckpointError::damaged(&path, message)
        })
    }

    /// Writes it for adapters of these names in PEFT.
    pub(in crate::train::checkpoint) fn write<'a>(
        &self,
        folder: &Path,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<(), CheckpointError> {
        let layer = |name: &'a str| FACTORS.iter().find_map(|(_, peft)| name.strip_suffix(peft))?.rsplit('.').next();
        let targets: BTreeSet<&str> = names.filter_map(layer).collect();
        let config = Config {
            peft_type: "LORA".to_owned(),
            base_model_name_or_path: self.base.clone(),
            r: self.rank,
            lora_alpha: self.alpha,
            target_modules: targets.into_iter().collect(),
            bias: Some("none".to_owned()),
            use_rslora: false,
            use_dora: false,
            rank_pattern: serde_json::Map::new(),
            alpha_pattern: serde_json::Map::new(),
            fan_in_fan_out: false,
        };
        let path = folder.join(CONFIG);
        let text = serde_json::to_string_pretty(&config).map_err(|e| CheckpointError::damaged(&path, e.to_string()))?;
        write_durably(&path, format!("{text}\n").as_bytes())
    }
}
