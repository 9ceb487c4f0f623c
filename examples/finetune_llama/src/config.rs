//! A Llama's sizes, from the `config.json` beside its weights; its last tokens also from `generation_config.json`.
//!
//! Guarantees: a setting that changes logits and that this crate does not compute is refused by name.

use crate::error::FinetuneError;
use crate::rotary::{Rotary, Scaling};
use serde::Deserialize;
use std::io::ErrorKind;
use std::path::Path;

/// The sizes of a Llama.
#[derive(Debug, Clone, PartialEq)]
pub struct Llama {
    /// The number of distinct tokens.
    pub vocab: usize,
    /// The width of the hidden state.
    pub width: usize,
    /// The width inside of the feed-forward layers.
    pub inner: usize,
    /// The number of blocks.
    pub blocks: usize,
    /// The number of heads of queries.
    pub heads: usize,
    /// The number of heads of keys and of values, which divides that of queries.
    pub kv_heads: usize,
    /// The width of a head, which is even.
    pub head: usize,
    /// What norms add to the mean square.
    pub epsilon: f64,
    /// True if the head is the transposed embedding.
    pub tied: bool,
    /// True if attention's projections have biases.
    pub attention_bias: bool,
    /// True if feed-forward projections have biases.
    pub mlp_bias: bool,
    /// The rotary positions.
    pub rotary: Rotary,
    /// The most tokens of a sequence.
    pub window: usize,
    /// The tokens after which a text ends.
    pub ends: Vec<u32>,
}

/// The fields of the file.
#[derive(Deserialize)]
struct File {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    hidden_act: String,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    /// Beside `rope_scaling` up to version 4 of `transformers`; from version 5 on, within `rope_parameters`.
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    rope_parameters: Option<Rope>,
    eos_token_id: Option<Ends>,
}

#[derive(Deserialize, Clone, Default)]
struct Rope {
    rope_type: Option<String>,
    /// The older name of `rope_type`; `transformers` writes both from version 4.43 on.
    #[serde(rename = "type")]
    old_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

/// The field of `generation_config.json`, which may be missing.
#[derive(Deserialize)]
struct Generation {
    eos_token_id: Option<Ends>,
}

/// One token, or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "`eos_token_id` is neither a token nor a list of tokens")]
enum Ends {
    One(u32),
    Many(Vec<u32>),
}

impl Llama {
    /// Reads a folder's `config.json`, and the tokens after which a text ends from its `generation_config.json`, if
    /// that names some, as `transformers` does.
    ///
    /// # Errors
    /// Returns a [`FinetuneError`] if one cannot be read, or if the first describes another model than a Llama.
    pub fn read(folder: &Path) -> Result<Self, FinetuneError> {
        let path = folder.join("config.json");
        let text = std::fs::read(&path).map_err(FinetuneError::reading(&path))?;
        let llama = Self::parse(&text).map_err(|message| FinetuneError::Config { path, message })?;
        Ok(match generation_ends(folder)? {
            Some(ends) => Self { ends: ends.tokens(), ..llama },
            None => llama,
        })
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        let file: File = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        for (field, value, known) in
            [("model_type", &file.model_type, "llama"), ("hidden_act", &file.hidden_act, "silu")]
        {
            if value != known {
                return Err(format!("`{field}` is `{value}`; this program computes `{known}`"));
            }
        }
        let (heads, width) = (file.num_attention_heads, file.hidden_size);
        let (kv_heads, head) =
            (file.num_key_value_heads.unwrap_or(heads), file.head_dim.unwrap_or(width / heads.max(1)));
        if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) || head == 0 || !head.is_multiple_of(2) {
            return Err(format!("{heads} heads of width {head} over {kv_heads} heads of keys are no attention"));
        }
        Ok(Self {
            rotary: file.rotary(head)?,
            vocab: file.vocab_size,
            width,
            inner: file.intermediate_size,
            blocks: file.num_hidden_layers,
            heads,
            kv_heads,
            head,
            epsilon: file.rms_norm_eps,
            tied: file.tie_word_embeddings,
            attention_bias: file.attention_bias,
            mlp_bias: file.mlp_bias,
            window: file.max_position_embeddings,
            ends: file.eos_token_id.map_or_else(Vec::new, Ends::tokens),
        })
    }

    /// The number of layers of the list: the embedding, the blocks, the last norm, the head.
    pub fn layers(&self) -> usize {
        self.blocks + 3
    }
}

/// The tokens after which a text ends, by a folder's `generation_config.json`.
fn generation_ends(folder: &Path) -> Result<Option<Ends>, FinetuneError> {
    let path = folder.join("generation_config.json");
    let text = match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(FinetuneError::reading(&path))?,
    };
    let file: Result<Generation, _> = serde_json::from_slice(&text);
    file.map(|file| file.eos_token_id).map_err(|error| {
        let message = format!("{error}; repair it, or remove it to use the tokens of config.json");
        FinetuneError::Config { path, message }
    })
}

impl Ends {
    fn tokens(self) -> Vec<u32> {
        match self {
            Ends::One(token) => vec![token],
            Ends::Many(tokens) => tokens,
        }
    }
}

impl File {
    fn rotary(&self, head: usize) -> Result<Rotary, String> {
        let rope = self.rope_parameters.clone().or(self.rope_scaling.clone()).unwrap_or_default();
        let theta = rope.rope_theta.or(self.rope_theta).unwrap_or(10_000.0);
        let named = |field: &str, value: Option<f64>| value.ok_or(format!("rotary positions lack `{field}`"));
        let scaling = match rope.kind()? {
            "default" => Scaling::None,
            "linear" => Scaling::Linear { factor: named("factor", rope.factor)? },
            "llama3" => Scaling::Llama3 {
                factor: named("factor", rope.factor)?,
                low: named("low_freq_factor", rope.low_freq_factor)?,
                high: named("high_freq_factor", rope.high_freq_factor)?,
                window: named("original_max_position_embeddings", rope.original_max_position_embeddings)?,
            },
            other => {
                return Err(format!("rotary positions of type `{other}`; this program has default, linear, llama3"));
            }
        };
        Ok(Rotary::new(head, theta, scaling))
    }
}

impl Rope {
    /// The type of the positions, by either of its names.
    fn kind(&self) -> Result<&str, String> {
        match (&self.rope_type, &self.old_type) {
            (Some(new), Some(old)) if new != old => Err(format!(
                "rotary positions have the `rope_type` `{new}` and the `type` `{old}`; remove the one that is wrong"
            )),
            (new, old) => Ok(new.as_deref().or(old.as_deref()).unwrap_or("default")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama 3.2 1B's, as its folder has it.
    const LLAMA_3_2: &str = r#"{"architectures": ["LlamaForCausalLM"], "attention_bias": false,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256}"#;

    fn refused(from: &str, to: &str) -> String {
        assert!(LLAMA_3_2.contains(from));
        Llama::parse(LLAMA_3_2.replace(from, to).as_bytes()).unwrap_err()
    }

    #[test]
    fn the_file_of_a_published_model_is_understood() {
        let llama = Llama::parse(LLAMA_3_2.as_bytes()).unwrap();
        assert_eq!((llama.width, llama.heads, llama.kv_heads, llama.head, llama.layers()), (2048, 32, 8, 64, 19));
        assert_eq!((llama.tied, llama.ends), (true, vec![128_001, 128_008, 128_009]));
        let scaling = Scaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, window: 8192.0 };
        assert_eq!(llama.rotary, Rotary::new(64, 500_000.0, scaling));
    }

    #[test]
    fn a_text_ends_as_the_file_for_generation_says_if_it_does() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), LLAMA_3_2).unwrap();
        let read = |generation: &str| {
            std::fs::write(folder.path().join("generation_config.json"), generation).unwrap();
            Llama::read(folder.path())
        };
        let own: [u32; 3] = [128_001, 128_008, 128_009];
        assert_eq!(Llama::read(folder.path()).unwrap().ends, own);
        for (generation, ends) in [
            (r#"{"eos_token_id": 7, "do_sample": true}"#, &[7][..]),
            (r#"{"eos_token_id": [7, 9]}"#, &[7, 9]),
            (r#"{"eos_token_id": null}"#, &own),
            (r#"{"use_cache": true}"#, &own),
        ] {
            assert_eq!(read(generation).unwrap().ends, ends, "{generation}");
        }
        for (damaged, says) in [(r#"{"eos_token"#, "EOF"), (r#"{"eos_token_id": "7"}"#, "`eos_token_id` is neither")] {
            let message = read(damaged).unwrap_err().to_string();
            let named = message.contains("generation_config.json: ") && message.contains("remove it to use");
            assert!(named && message.contains(says), "{message}");
        }
    }

    #[test]
    fn the_first_llama_has_as_many_keys_as_queries_and_unscaled_positions() {
        let old = r#"{"model_type": "llama", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
            "max_position_embeddings": 2048, "num_attention_heads": 32, "num_hidden_layers": 32,
            "rms_norm_eps": 1e-06, "vocab_size": 32000, "eos_token_id": 2}"#;
        let llama = Llama::parse(old.as_bytes()).unwrap();
        assert_eq!((llama.kv_heads, llama.head, llama.tied, llama.ends), (32, 128, false, vec![2]));
        assert_eq!(llama.rotary, Rotary::new(128, 10_000.0, Scaling::None));
    }

    #[test]
    fn the_type_of_positions_has_an_older_name_beside_or_in_place_of_the_newer_one() {
        let new = r#""rope_type": "llama3""#;
        let expected = Llama::parse(LLAMA_3_2.as_bytes()).unwrap();
        for names in [r#""type": "llama3""#, r#""rope_type": "llama3", "type": "llama3""#] {
            assert_eq!(Llama::parse(LLAMA_3_2.replace(new, names).as_bytes()).unwrap(), expected, "{names}");
        }
        let message = refused(new, r#""rope_type": "llama3", "type": "linear""#);
        assert!(message.contains("`rope_type` `llama3` and the `type` `linear`; remove"), "{message}");
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        assert!(refused(r#""model_type": "llama""#, r#""model_type": "qwen2""#).contains("`qwen2`"));
        assert!(refused(r#""silu""#, r#""gelu""#).contains("`hidden_act` is `gelu`"));
        assert!(refused(r#""rope_type": "llama3""#, r#""rope_type": "yarn""#).contains("`yarn`"));
        assert!(refused(r#""factor": 32.0,"#, "").contains("lack `factor`"));
        assert!(refused(r#""num_key_value_heads": 8"#, r#""num_key_value_heads": 7"#).contains("7 heads of keys"));
    }
}
