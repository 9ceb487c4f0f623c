//! The messages that follow from stages' declared metadata.
//!
//! 1. A stage's output is cut at its marks, as the real output is: one piece for the next stage, one for each skip edge
//!    that starts at the stage.
//! 2. The gradients of its input are cut alike. Metadata does not say which of them will be present, so every float
//!    tensor is taken to have one. Where an output is not used, the first message differs from the expected one, which
//!    costs that message its header and nothing else.
//! 3. What crosses to a group of another size is re-cut, as the real value is.

use super::recut::{Recut, cuts, marked};
use super::transfer::{Transfer, skip_peers};
use crate::group::Grid;
use crate::link::ExpectedMessage;
use crate::plan::{Op, Plan, StageId, Task};
use crate::stage::{PayloadSpec, SpecPart, StageMetadata, TensorKind};
use std::collections::BTreeMap;

/// The messages that a rank will send to others of its pipeline, by the declared metadata of its stages.
pub(crate) fn expected_messages(
    plan: &Plan,
    grid: &Grid,
    declared: &BTreeMap<StageId, StageMetadata>,
) -> Vec<ExpectedMessage> {
    let mut messages = Vec::new();
    let (from, own) = (grid.rank(), grid.pipeline_rank());
    let mut expect = |send: Task, value: &PayloadSpec| {
        let Some(Transfer { header, peer, .. }) = Transfer::of(plan.placement(), send) else { return };
        if peer == own {
            return;
        }
        let recut = Recut::between(grid, own, peer);
        let parts = match send.op() {
            Op::SendBackward => gradients(value, recut),
            _ => value.parts().to_vec(),
        };
        // What cannot be re-cut is refused where it is sent.
        let sent = recut.cut(grid.member(), parts, false).unwrap_or_default();
        messages.extend(grid.counterparts(peer).zip(sent).map(|(to, parts)| {
            let spec = PayloadSpec::from_parts(parts);
            ExpectedMessage { from, to, header, spec }
        }));
    };
    for (&stage, known) in declared {
        if let Some(output) = &known.output {
            let (to_next, skipping) = output.split_skips();
            expect(Task::new(stage, Op::SendForward, 0), &to_next);
            for (peer, piece) in skip_peers(plan, stage, false).into_iter().zip(skipping) {
                expect(Task::skip(stage, Op::SendForward, 0, peer.index()), &piece);
            }
        }
        if let Some(input) = &known.input {
            let (from_previous, skipping) = input.split_skips();
            expect(Task::new(stage, Op::SendBackward, 0), &from_previous);
            for (peer, piece) in skip_peers(plan, stage, true).into_iter().zip(skipping) {
                expect(Task::skip(stage, Op::SendBackward, 0, peer.index()), &piece);
            }
        }
    }
    messages
}

/// The spec of the gradients of all float tensors: a list of optional tensors, as
/// `Gradients::into_payload` writes it, with marks where they are re-cut.
fn gradients(spec: &PayloadSpec, recut: Recut) -> Vec<SpecPart> {
    let tensors = spec.parts().iter().filter_map(|part| match part {
        SpecPart::Tensor(tensor) => Some(tensor),
        SpecPart::Host(_) | SpecPart::Tag(_) => None,
    });
    let mut parts = vec![SpecPart::Tag(tensors.clone().count())];
    for tensor in tensors {
        match tensor.kind {
            TensorKind::Float => parts.extend([SpecPart::Tag(1), SpecPart::Tensor(tensor.clone())]),
            TensorKind::Int | TensorKind::Bool => parts.push(SpecPart::Tag(0)),
        }
    }
    if recut.is_even() { parts } else { marked(parts, &cuts(spec.parts())) }
}
