//! Programs as text: one operation per line, with its tensors' numbers, element types and shapes, and its scalars.
//!
//! `!` after a tensor marks its last use. A program without operations and edges prints only its head.

use super::part::{Phase, Program};
use super::stage_programs::StagePrograms;
use burn::backend::ir::{IrVisitorMut, OperationIr, ScalarIr, TensorIr, TensorStatus};
use burn_pipeline_compile::operation_name;
use std::fmt::{Display, Formatter, Result};

impl Display for Phase {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Phase::Forward => "F",
            Phase::Input => "I",
            Phase::Weight => "W",
            Phase::Backward => "B",
        })
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let count = self.operations().count();
        let (mflop, mib) = (self.flops as f64 / 1e6, |bytes: f64| bytes / (1 << 20) as f64);
        write!(f, "{}: {count} operations, {mflop:.3} MFLOP, {:.3} MiB moved, ", self.phase, mib(self.bytes as f64))?;
        writeln!(f, "{:.3} MiB at most, {:.3} MiB held after it", mib(self.peak as f64), mib(self.held as f64))?;
        list(f, "  takes", &self.feeds)?;
        for op in &self.operations {
            if let OperationIr::Drop(tensor) = op {
                writeln!(f, "  drop %{}", tensor.id.value())?;
                continue;
            }
            let outputs = op.outputs().map(text).collect::<Vec<_>>().join(", ");
            let inputs = op.inputs().map(text).chain(scalars(op)).collect::<Vec<_>>().join(", ");
            let gives = if outputs.is_empty() { "" } else { " = " };
            writeln!(f, "  {outputs}{gives}{}({inputs})", operation_name(op))?;
        }
        list(f, "  gives", &self.takes)
    }
}

impl Display for StagePrograms {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}{}{}", self.forward(), self.input(), self.weight())
    }
}

fn list(f: &mut Formatter<'_>, what: &str, tensors: &[TensorIr]) -> Result {
    match tensors.is_empty() {
        true => Ok(()),
        false => writeln!(f, "{what} {}", tensors.iter().map(text).collect::<Vec<_>>().join(", ")),
    }
}

fn text(tensor: &TensorIr) -> String {
    let last = if tensor.status == TensorStatus::ReadWrite { "!" } else { "" };
    format!("%{}{last} {:?}{:?}", tensor.id.value(), tensor.dtype, tensor.shape.to_vec())
}

fn scalars(op: &OperationIr) -> Vec<String> {
    let mut scalars = Scalars::default();
    op.clone().visit_mut(&mut scalars);
    scalars.0
}

#[derive(Default)]
struct Scalars(Vec<String>);

impl IrVisitorMut for Scalars {
    fn visit_scalar_mut(&mut self, scalar: &mut ScalarIr) {
        self.0.push(match scalar {
            ScalarIr::Float(value) => value.to_string(),
            ScalarIr::Int(value) => value.to_string(),
            ScalarIr::UInt(value) => value.to_string(),
            ScalarIr::Bool(value) => value.to_string(),
        });
    }
}
