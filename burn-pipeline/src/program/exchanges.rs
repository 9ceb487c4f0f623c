//! The exchanges of a stage, for the ranks that hold it together to compare.

use super::op_name::name;
use super::part::Phase;
use super::recording::Recording;
use super::slices::slices;
use burn::backend::ir::OperationIr;

impl Recording {
    /// The exchanges of `F` and then of `I` in the order in which they are started, each with the program, its name, and what it reads.
    pub(crate) fn exchanges(&self) -> Vec<String> {
        let parts = slices(self);
        let described = |phase: Phase, op: &OperationIr| {
            let reads = op.inputs().map(|input| format!("{:?} {:?}", input.shape.to_vec(), input.dtype));
            format!("{phase}, {} of {}", name(op), reads.collect::<Vec<_>>().join(", "))
        };
        let places = parts.forward.into_iter().map(|place| (Phase::Forward, place));
        let places = places.chain(parts.input.into_iter().map(|place| (Phase::Input, place)));
        let operations = places.map(|(phase, place)| (phase, &self.operations[place]));
        let exchanges = operations.filter(|(_, op)| self.custom.is_collective(op));
        exchanges.map(|(phase, op)| described(phase, op)).collect()
    }
}
