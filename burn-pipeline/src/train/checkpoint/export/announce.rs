//! What ranks announce before an export: the tensors that they will send.
//!
//! Guarantees: all ranks know the same order, or the same error. Fused tensors are joined within a stage, so the
//! announcement does not depend on which stages a rank has.

use super::how::{Export, Formed};
use crate::stage::NamedWeight;
use crate::train::checkpoint::error::CheckpointError;
use crate::train::checkpoint::pretrained::Source;
use crate::train::checkpoint::tensors::in_file_order;
use crate::train::step::Rank;
use crate::vocabulary::StageGroups;
use burn::tensor::DType;
use burn_pipeline_plan::plan::StageId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A tensor that a rank holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) stage: usize,
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
}

impl Entry {
    pub(super) fn bytes(&self) -> usize {
        self.shape.iter().fold(self.dtype.size(), |bytes, &size| bytes.saturating_mul(size))
    }
}

/// A tensor to be written, and this rank's values or pieces of the weights that it is made of.
pub(super) struct Own {
    pub(super) stage: StageId,
    pub(super) source: Source,
    pub(super) weights: Vec<NamedWeight>,
}

/// What a rank announces: the tensors that it will send, and for each rule whether it matched.
pub(super) type Row = (Vec<Entry>, Vec<bool>);

/// Joins what all ranks announce: every tensor once, with the rank that sends it, in writing order. Refuses a rule that
/// matched nothing on any rank.
pub(super) fn joined(rows: Vec<Row>, how: &Export) -> Result<Vec<(usize, Entry)>, CheckpointError> {
    let (rows, seen): (Vec<Vec<Entry>>, Vec<Vec<bool>>) = rows.into_iter().unzip();
    let mut matched = Vec::new();
    seen.iter().for_each(|seen| add(&mut matched, seen));
    how.all_matched(&matched)?;
    Ok(order(rows))
}

/// Adds which rules matched on another rank or stage.
fn add(matched: &mut Vec<bool>, seen: &[bool]) {
    matched.resize(matched.len().max(seen.len()), false);
    matched.iter_mut().zip(seen).for_each(|(matched, seen)| *matched |= seen);
}

/// Lists the tensors of this rank's stages, as they are written, in `own`; returns those that it will send.
pub(super) fn own_tensors(
    rank: &mut Rank,
    (how, copies): (&Export, &BTreeSet<String>),
    groups: &StageGroups,
    own: &mut BTreeMap<String, Own>,
) -> Result<Row, CheckpointError> {
    let (mut entries, mut matched) = (Vec::new(), Vec::new());
    // Copies of a stage are equal, except for pieces: the first one's tensors are written.
    for (&stage, held) in rank.executor.stages().iter().filter(|(stage, _)| stage.route() == 0) {
        let holders = groups.of(stage);
        let all = if how.merged { held.merged_weights() } else { held.named_weights() };
        let whole_shape = |weight: &NamedWeight| holders.whole_shape(weight.id, weight.value.shape());
        let Formed { weights, table, matched: seen } = how.form(all, whole_shape, copies)?;
        add(&mut matched, &seen);
        for (name, source) in table {
            let needed = source.names().into_iter().filter_map(|name| weights.get(name).cloned());
            let (needed, tensors): (Vec<NamedWeight>, Vec<_>) = needed.unzip();
            if !holders.joins(needed.iter().map(|weight| weight.id)) {
                continue;
            }
            let tensor = how.made(&name, &source, tensors)?;
            if holders.is_first() {
                let (dtype, shape) = (tensor.dtype, tensor.shape.to_vec());
                entries.push(Entry { stage: stage.index(), name: name.clone(), dtype, shape });
            }
            own.entry(name).or_insert(Own { stage, source, weights: needed });
        }
    }
    Ok((entries, matched))
}

/// The order of all tensors; each once.
fn order(table: Vec<Vec<Entry>>) -> Vec<(usize, Entry)> {
    let all = table.into_iter().enumerate().flat_map(|(rank, row)| row.into_iter().map(move |entry| (rank, entry)));
    let mut all: Vec<(usize, Entry)> = all.collect();
    // Of a tied parameter's equal copies, use the first stage's.
    all.sort_by_key(|(_, entry)| entry.stage);
    let mut known = BTreeSet::new();
    all.retain(|(_, entry)| known.insert(entry.name.clone()));
    all.sort_by(|(_, a), (_, b)| in_file_order((a.dtype, &a.name), (b.dtype, &b.name)));
    all
}
