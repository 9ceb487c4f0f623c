//! The report of a cut by stage and by rank, as values and as a table.

use super::cut::Partition;
use crate::cost::dtype::Dtype;
use crate::cost::layer::Layer;
use crate::cost::layers::Layers;
use crate::cost::partition_error::PartitionError;
use crate::plan::{Placement, StageId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// The costs of one stage. Seconds, FLOPs and activation bytes are for one microbatch.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StageReport {
    /// The ranks of the stage: one, or two in a bidirectional placement.
    pub ranks: Vec<usize>,
    /// Its range of layers.
    pub layers: Range<usize>,
    /// The number of layers of each kind.
    pub kinds: BTreeMap<char, usize>,
    /// The number of parameters.
    pub parameters: u64,
    /// Bytes of parameters by element type.
    pub bytes: BTreeMap<Dtype, u64>,
    /// Floating-point operations of the forward.
    pub flops: f64,
    /// Seconds of `F`, `I` and `W`.
    pub seconds: f64,
    /// Bytes of activations that the forward saves for the backward.
    pub activation_bytes: f64,
    /// Bytes of the message to the next stage.
    pub output_bytes: f64,
}

/// A cut, by stage and by rank. As text it is a table, as JSON its fields.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PartitionReport {
    /// One entry per stage, in model order.
    pub stages: Vec<StageReport>,
    /// The seconds of one microbatch on each rank. In a bidirectional placement each route takes half of the
    /// microbatches, so half of a stage's seconds count on each of its ranks.
    pub rank_seconds: Vec<f64>,
}

impl PartitionReport {
    /// The report of a cut over a placement.
    ///
    /// # Errors
    /// Returns [`PartitionError::Size`] if the number of layers differs between cut and model, or the number of
    /// stages between cut and placement.
    pub fn new(layers: &Layers, partition: &Partition, placement: &Placement) -> Result<Self, PartitionError> {
        partition.refuse_other(layers)?;
        if partition.stages() != placement.stages() {
            let (cut, given) = (partition.stages(), placement.stages());
            return Err(PartitionError::Size { what: "stages", cut, given });
        }
        let ranks = |stage| (0..placement.routes()).map(|r| placement.rank_of(StageId::in_route(r, stage))).collect();
        let stages: Vec<StageReport> =
            partition.ranges().enumerate().map(|(stage, range)| stage_report(layers, range, ranks(stage))).collect();
        let mut rank_seconds = vec![0.0; placement.ranks()];
        for stage in placement.all_stages() {
            rank_seconds[placement.rank_of(stage)] += stages[stage.index()].seconds / placement.routes() as f64;
        }
        Ok(Self { stages, rank_seconds })
    }

    /// The seconds of the busiest rank divided by the average over ranks: 1 is perfectly even.
    pub fn imbalance(&self) -> f64 {
        let total: f64 = self.rank_seconds.iter().sum();
        let largest = self.rank_seconds.iter().copied().fold(0.0, f64::max);
        if total > 0.0 { largest * self.rank_seconds.len() as f64 / total } else { 1.0 }
    }
}

fn stage_report(layers: &Layers, range: Range<usize>, ranks: Vec<usize>) -> StageReport {
    let inside = &layers.all()[range.clone()];
    let (mut kinds, mut bytes) = (BTreeMap::new(), BTreeMap::new());
    for layer in inside {
        *kinds.entry(layer.kind).or_insert(0) += 1;
        for (&dtype, &more) in &layer.bytes {
            let sum: &mut u64 = bytes.entry(dtype).or_default();
            *sum = sum.saturating_add(more);
        }
    }
    StageReport {
        ranks,
        layers: range,
        kinds,
        parameters: inside.iter().fold(0, |sum, layer| sum.saturating_add(layer.parameters)),
        bytes,
        flops: inside.iter().map(|layer| layer.flops).sum(),
        seconds: inside.iter().map(Layer::seconds).sum(),
        activation_bytes: inside.iter().map(|layer| layer.activation_bytes).sum(),
        output_bytes: inside.last().map_or(0.0, |layer| layer.output_bytes),
    }
}

/// Writes a table with one line per stage, then the seconds of each rank.
impl fmt::Display for PartitionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [stage, rank, layers, parameters, activations] = ["stage", "rank", "layers", "parameters", "activations"];
        writeln!(
            f,
            "{stage:>5} {rank:>5} {layers:>9} {parameters:>14} {:>10} {activations:>11} {:>10}  kinds  bytes",
            "FLOPs", "seconds"
        )?;
        for (stage, s) in self.stages.iter().enumerate() {
            let ranks = s.ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            let layers = format!("{}..{}", s.layers.start, s.layers.end);
            let kinds = s.kinds.iter().map(|(kind, n)| format!("{kind}{n}")).collect::<Vec<_>>().join(" ");
            let bytes = s.bytes.iter().map(|(dtype, n)| format!("{dtype} {n}")).collect::<Vec<_>>().join(", ");
            let (parameters, flops, activations) = (s.parameters, s.flops, s.activation_bytes);
            writeln!(
                f,
                "{stage:>5} {ranks:>5} {layers:>9} {parameters:>14} {flops:>10.3e} {activations:>11.3e} {:>10.4}  \
                 {kinds}  {bytes}",
                s.seconds
            )?;
        }
        for (rank, seconds) in self.rank_seconds.iter().enumerate() {
            writeln!(f, "rank {rank}: {seconds:.4} s per microbatch")?;
        }
        write!(f, "busiest rank over average: {:.4}", self.imbalance())
    }
}
