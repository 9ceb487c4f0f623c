//! Names of operations in Burn's IR, for reports and to compare programs.

use burn::backend::ir::OperationIr;
use std::fmt::Debug;

pub(super) fn name(op: &OperationIr) -> String {
    match op {
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => head(op),
        OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => head(op),
        OperationIr::Bool(op) => head(op),
        OperationIr::Int(op) => head(op),
        OperationIr::Float(_, op) => head(op),
        OperationIr::Module(op) => head(op),
        OperationIr::Activation(op) => head(op),
        OperationIr::Distributed(op) => head(op),
        OperationIr::Custom(op) => op.id.clone(),
        OperationIr::Init(_) => "Init".to_owned(),
        OperationIr::Drop(_) => "Drop".to_owned(),
    }
}

/// The variant's name: what an enum's debug text starts with.
fn head(op: &impl Debug) -> String {
    let text = format!("{op:?}");
    text.split(['(', ' ', '{']).next().unwrap_or_default().to_owned()
}
