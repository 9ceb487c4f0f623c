//! The exchanges of a stage, which the ranks that hold it compare.

use super::op_name::name;
use super::recording::Recording;
use super::slices::slices;
use burn_pipeline_plan::plan::{Collective, Collectives};

impl Recording {
    /// The exchanges of `F` and `I` in the order in which they start, each with its name and inputs. `W` has none.
    pub(crate) fn exchanges(&self) -> Collectives {
        let parts = slices(self);
        let described = |place: usize| {
            let op = &self.operations[place];
            let among = self.custom.ranks_of(op)?;
            let reads = op.inputs().map(|input| format!("{:?} {:?}", input.shape.to_vec(), input.dtype));
            let what = format!("{} of {}", name(op), reads.collect::<Vec<_>>().join(", "));
            Some(Collective { among, what })
        };
        let forward = parts.forward.into_iter().filter_map(described).collect();
        let input = parts.input.into_iter().filter_map(described).collect();
        Collectives { forward, input, weight: Vec::new() }
    }
}
