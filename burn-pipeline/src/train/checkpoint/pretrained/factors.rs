//! The names of adapters' factors, as PEFT stores them and as Burn's LoRA holds them.
//!
//! PEFT names the factors of a layer `base_model.model.<layer>.lora_A.weight`, of shape `[rank, in]`, and `.lora_B`,
//! `[out, rank]`; those of an embedding `.lora_embedding_A`, `[rank, words]`, and `.lora_embedding_B`, `[width, rank]`.
//! Burn's parameters are `<layer>.weight.lora.a`, `[in, rank]`, and `.b`, `[rank, out]`, for both.

use crate::stage::NamedWeight;

const PREFIX: &str = "base_model.model.";
/// The ends of the factors' names: in Burn, after the name of the adapted weight; in PEFT, after the layer's; and in
/// PEFT if the layer is an embedding.
const FACTORS: [(&str, &str, &str); 2] =
    [(".lora.a", ".lora_A.weight", ".lora_embedding_A"), (".lora.b", ".lora_B.weight", ".lora_embedding_B")];

/// Returns true if this is the name of an adapter's parameter.
pub(in crate::train::checkpoint) fn is_adapter(name: &str) -> bool {
    FACTORS.iter().any(|(burn, ..)| name.ends_with(burn))
}

/// The name of the parameter that an adapter's second factor adapts, whose columns are that parameter's.
pub(in crate::train::checkpoint) fn adapts_rows_of(name: &str) -> Option<&str> {
    name.strip_suffix(FACTORS[1].0)
}

/// Returns true if this is a factor of an embedding's adapter.
pub(in crate::train::checkpoint) fn is_of_embedding(weight: &NamedWeight) -> bool {
    // Around a factor are the adapter, its place at the weight, and the layer.
    is_adapter(&weight.path) && weight.containers.iter().rev().nth(2).is_some_and(|layer| layer == "Struct:Embedding")
}

/// The name in Burn of what PEFT stores, or the reverse; `None` if it is not the name of an adapter. PEFT's files
/// cannot hold every adapter.
pub(super) fn renamed(name: &str, to_burn: bool) -> Result<Option<String>, String> {
    if to_burn {
        let in_burn = |(burn, peft, of_embedding): &(&str, &str, &str)| {
            let layer = name.strip_prefix(PREFIX)?;
            let layer = layer.strip_suffix(peft).or_else(|| layer.strip_suffix(of_embedding))?;
            Some(format!("{layer}.weight{burn}"))
        };
        return Ok(FACTORS.iter().find_map(in_burn));
    }
    let found = FACTORS.iter().find_map(|(burn, peft, _)| Some((name.strip_suffix(burn)?, peft)));
    let Some((weight, peft)) = found else { return Ok(None) };
    let layer = weight.strip_suffix(".weight").ok_or_else(|| {
        format!(
            "`{name}` adapts `{weight}`, and PEFT's files hold adapters of a layer's `weight` alone; rename it to one \
             (`Export::like`), adapt other parameters (`Lora::set_param_group`), or merge adapters (`Export::merged`)"
        )
    })?;
    Ok(Some(format!("{PREFIX}{layer}{peft}")))
}

/// The name in PEFT of an embedding's factor, from that of another layer's.
pub(in crate::train::checkpoint) fn as_of_embedding(name: &str) -> String {
    let renamed = FACTORS.iter().find_map(|(_, peft, own)| Some(format!("{}{own}", name.strip_suffix(peft)?)));
    renamed.unwrap_or_else(|| name.to_owned())
}

/// How PEFT's `target_modules` names a layer, from a factor's name in PEFT: by its last part, or by its whole name if
/// that part is an index, which other modules have too.
pub(super) fn layer_of(name: &str) -> Option<&str> {
    let mut ends = FACTORS.iter().flat_map(|(_, peft, of_embedding)| [*peft, *of_embedding]);
    let layer = ends.find_map(|end| name.strip_suffix(end))?;
    let last = layer.rsplit('.').next()?;
    let is_index = last.bytes().all(|digit| digit.is_ascii_digit());
    Some(if is_index { layer.strip_prefix(PREFIX).unwrap_or(layer) } else { last })
}

/// The path of the weight that a factor adapts, and the factor's dimension that is the rank of both.
pub(super) fn adapted_by(path: &str) -> Option<(&str, usize)> {
    let [(a, ..), (b, ..)] = FACTORS;
    path.strip_suffix(a).map(|weight| (weight, 1)).or_else(|| Some((path.strip_suffix(b)?, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_that_is_an_entry_of_a_list_is_named_whole() {
        assert_eq!(layer_of("base_model.model.layers.0.q_proj.lora_A.weight"), Some("q_proj"));
        assert_eq!(layer_of("base_model.model.attn.to_out.0.lora_B.weight"), Some("attn.to_out.0"));
        assert_eq!(layer_of("base_model.model.words.lora_embedding_A"), Some("words"));
    }
}
