//! The messages that follow from the stages' declared metadata.
//!
//! 1. A stage's output is cut at its marks, like the real output: one piece for the next stage, one for each skip
//!    edge that starts at the stage.
//! 2. The gradients of its input are cut in the same way. If it is not declared which of them will be present,
//!    every float tensor is assumed to have one. If the stage then does not use a tensor, the first message differs
//!    from its expectation, which only costs that message its header.
//!    Stages before the first one that trains get none.
//! 3. Values that go to a group of another size are re-cut, like the real ones.

use super::recut::{Recut, cuts, marked};
use super::transfer::{Transfer, skip_peers};
use crate::link::ExpectedMessage;
use crate::payload::{PayloadSpec, SpecPart, StageMetadata, TensorKind};
use crate::ranks::Grid;
use burn_pipeline_plan::plan::{Op, Plan, StageId, Task};
use std::collections::BTreeMap;

/// The messages that a rank will send to others of its pipeline, from the declared metadata of its stages.
pub(crate) fn expected_messages(
    plan: &Plan,
    grid: &Grid,
    declared: &BTreeMap<StageId, StageMetadata>,
) -> Vec<ExpectedMessage> {
    let mut messages = Vec::new();
    let (from, own) = (grid.rank(), grid.pipeline_rank());
    // `present` says which tensors of the value have a gradient, if declared.
    let mut expect = |send: Task, value: &PayloadSpec, present: Option<&[bool]>| {
        let Some(Transfer { header, peer, peer_stage }) = Transfer::of(plan.placement(), send) else { return };
        let unused = send.op() == Op::SendBackward && peer_stage.index() < plan.first_trained();
        if peer == own || unused {
            return;
        }
        let recut = Recut::between(grid, own, peer);
        let parts = match send.op() {
            Op::SendBackward => gradients(value, present, recut),
            _ => value.parts().to_vec(),
        };
        // A value that cannot be re-cut is refused where it is sent.
        let sent = recut.cut(grid.member(), parts, false).unwrap_or_default();
        messages.extend(grid.counterparts(peer).zip(sent).map(|(to, parts)| {
            let spec = PayloadSpec::from_parts(parts);
            ExpectedMessage { from, to, header, spec }
        }));
    };
    for (&stage, known) in declared {
        if let Some(output) = &known.output {
            let (to_next, skipping) = output.split_skips();
            expect(Task::new(stage, Op::SendForward, 0), &to_next, None);
            for (peer, piece) in skip_peers(plan, stage, false).into_iter().zip(skipping) {
                expect(Task::skip(stage, Op::SendForward, 0, peer.index()), &piece, None);
            }
        }
        if let Some(input) = &known.input {
            let (from_previous, skipping) = input.split_skips();
            let declared = known.input_gradients.as_ref().and_then(PayloadSpec::optional_tensors);
            let declared: Option<Vec<bool>> = declared.map(|list| list.iter().map(Option::is_some).collect());
            // The list of gradients covers all of the input's tensors, piece by piece.
            let mut first = 0;
            let mut of = |piece: &PayloadSpec| {
                let range = first..first + piece.tensors().count();
                first = range.end;
                declared.as_ref().and_then(|declared| declared.get(range))
            };
            let present = of(&from_previous);
            expect(Task::new(stage, Op::SendBackward, 0), &from_previous, present);
            for (peer, piece) in skip_peers(plan, stage, true).into_iter().zip(skipping) {
                expect(Task::skip(stage, Op::SendBackward, 0, peer.index()), &piece, of(&piece));
            }
        }
    }
    messages
}

/// The spec of the gradients of all float tensors, or of those that are present: a list of optional tensors, as
/// `Gradients::into_payload` writes it, with marks where they are re-cut.
fn gradients(spec: &PayloadSpec, present: Option<&[bool]>, recut: Recut) -> Vec<SpecPart> {
    let tensors = spec.tensors();
    let mut parts = vec![SpecPart::Tag(tensors.clone().count())];
    for (place, tensor) in tensors.enumerate() {
        let present = present.and_then(|present| present.get(place)).copied();
        match present.unwrap_or(tensor.kind == TensorKind::Float) {
            true => parts.extend([SpecPart::Tag(1), SpecPart::Tensor(tensor.clone())]),
            false => parts.push(SpecPart::Tag(0)),
        }
    }
    if recut.is_even() { parts } else { marked(parts, &cuts(spec.parts())) }
}
