//! What PEFT says of adapters beside their values, and whether it is what the model computes.
//!
//! Guarantees: adapters that the model would compute in another way are refused, by the field that asks for it, or by
//! the name of one and both numbers.

use super::factors::{adapted_by, layer_of};
use crate::stage::NamedWeight;
use crate::train::checkpoint::durable::write_durably;
use crate::train::checkpoint::error::CheckpointError;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The name of the file that holds a folder's adapters.
pub(in crate::train::checkpoint) const FILE: &str = "adapter_model.safetensors";
/// The name of the file that says how they compute.
pub(in crate::train::checkpoint) const CONFIG: &str = "adapter_config.json";

/// Fields that ask for what Burn's LoRA does not compute, unless they are off.
const OTHERS: [&str; 15] = [
    "bias",
    "use_dora",
    "rank_pattern",
    "alpha_pattern",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "modules_to_save",
];
/// Ways to start adapters that leave the base as it is (`init_lora_weights`). Others subtract them from its weights.
const STARTS: [&str; 4] = ["gaussian", "eva", "orthogonal", "mica"];

/// What PEFT says of adapters beside their values (`adapter_config.json`); with [`Lora::new`](burn::module::Lora::new)
/// it makes the same adapters.
#[derive(Clone, PartialEq, Debug)]
pub struct Adapters {
    /// The rank of the factors (`r`).
    pub rank: usize,
    /// The scale of the adapters times their rank (`lora_alpha`; with `use_rslora`, times the root of the rank).
    pub alpha: f64,
    /// The name or path of the model that they adapt (`base_model_name_or_path`).
    pub base: Option<String>,
}

/// The fields of the file that are read, beside those that ask for something else.
#[derive(Deserialize)]
struct Config {
    peft_type: String,
    base_model_name_or_path: Option<String>,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    target_modules: Value,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    init_lora_weights: Value,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// A folder's file, and its fields.
fn config(folder: &Path) -> Result<(PathBuf, Config), CheckpointError> {
    let path = folder.join(CONFIG);
    let text = fs::read(&path).map_err(CheckpointError::io("reading what is said of adapters in", &path))?;
    let failed = |error: serde_json::Error| CheckpointError::Adapters { path: path.clone(), what: error.to_string() };
    let config = serde_json::from_slice(&text).map_err(failed)?;
    Ok((path, config))
}

impl Config {
    /// Why these are not the adapters that Burn's LoRA computes, if they are not.
    fn refused(&self) -> Option<String> {
        let asks = |field: &str| format!("`{field}` asks for adapters that Burn's LoRA does not compute");
        if self.peft_type != "LORA" {
            return Some(asks("peft_type"));
        }
        if self.r == 0 {
            return Some("`r` is 0, and adapters have a rank of 1 or more".to_owned());
        }
        let start = self.init_lora_weights.as_str().filter(|start| !STARTS.contains(&&*start.to_lowercase()));
        if let Some(start) = start {
            return Some(format!(
                "`init_lora_weights` is `{start}`, which changes the base too; convert the adapters to plain ones with \
                 PEFT (`save_pretrained` with `path_initial_model_for_weight_conversion`)"
            ));
        }
        let is_on = |field: &&&str| self.others.get(**field).is_some_and(|value| !is_off(value));
        OTHERS.iter().find(is_on).map(|field| match *field {
            "modules_to_save" => format!(
                "`modules_to_save` lists {}: whole layers that were trained beside the adapters; merge all into the \
                 base with PEFT (`merge_and_unload`), and load that (`Pretrained::folder`)",
                self.others[*field]
            ),
            field => asks(field),
        })
    }
}

/// Returns true if a field asks for nothing.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text == "none",
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

impl Adapters {
    /// Reads a folder's `adapter_config.json`. `fan_in_fan_out` is ignored: it only says how the base is stored.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if it cannot be read, or its adapters are not those that Burn's LoRA computes: of
    /// another kind (DoRA, aLoRA and others), with ranks or scales by layer, beside biases or whole layers that were
    /// trained, or started in a way that changes the base (PiSSA, OLoRA and others).
    pub fn read(folder: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let (path, config) = config(folder.as_ref())?;
        if let Some(what) = config.refused() {
            return Err(CheckpointError::Adapters { path, what });
        }
        let Config { r: rank, lora_alpha, base_model_name_or_path: base, use_rslora, .. } = config;
        // RSLoRA divides by the root of the rank.
        let alpha = if use_rslora { lora_alpha * (rank as f64).sqrt() } else { lora_alpha };
        Ok(Self { rank, alpha, base })
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
            let what = "`target_modules` is no list of layers; write the names of the layers there".to_owned();
            CheckpointError::Adapters { path, what }
        })
    }

    /// Refuses a factor of the model's whose adapter has another rank or scale. `scales` has those of the stage's
    /// adapters, by the path of the weight that each adapts.
    pub(in crate::train::checkpoint) fn compare(
        &self,
        weight: &NamedWeight,
        scales: &BTreeMap<String, f64>,
    ) -> Result<(), CheckpointError> {
        let Some((adapted, dimension)) = adapted_by(&weight.path) else { return Ok(()) };
        let differs = |what, own, said| {
            let name = weight.names[0].clone();
            Err(CheckpointError::AdapterDiffers { name, what, own, said })
        };
        let rank = weight.value.shape()[dimension];
        if rank != self.rank {
            return differs("rank", rank as f64, self.rank as f64);
        }
        let said = self.alpha / self.rank as f64;
        match scales.get(adapted) {
            // The model's was rounded to f32.
            Some(&own) if (own - said).abs() > 1e-5 * said.abs() => differs("scale", own, said),
            _ => Ok(()),
        }
    }

    /// Writes it for adapters of these names in PEFT.
    pub(in crate::train::checkpoint) fn write<'a>(
        &self,
        folder: &Path,
        task: Option<&str>,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<(), CheckpointError> {
        let targets: BTreeSet<&str> = names.filter_map(layer_of).collect();
        let config = json!({
            "peft_type": "LORA",
            "task_type": task,
            "base_model_name_or_path": self.base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "target_modules": targets,
            "bias": "none",
            "use_rslora": false,
            "use_dora": false,
            "rank_pattern": {},
            "alpha_pattern": {},
            "fan_in_fan_out": false,
        });
        write_durably(&folder.join(CONFIG), format!("{config:#}\n").as_bytes())
    }
}
