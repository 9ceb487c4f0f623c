//! The messages that follow from stages' declared forms.
//!
//! 1. What a stage hands on is cut at its marks, as its real output is: one piece for the next stage, one for each edge
//!    that starts there.
//! 2. What it hands back are the gradients of its input, cut alike. Nothing says which of them will be there: it is
//!    taken that all tensors of floats have one. Where an output is used by nobody, the first message is another than
//!    expected, which costs that message its header.

use super::skips::{peers, towards};
use crate::group::Grid;
use crate::link::{Direction, Expected, Header};
use crate::plan::{Plan, StageId};
use crate::stage::{PayloadSpec, SpecPart, StageMetadata, TensorKind};
use std::collections::BTreeMap;

/// What a rank will send to others of its pipeline, by the declarations of its stages.
pub(crate) fn expected_messages(plan: &Plan, grid: Grid, declared: &BTreeMap<StageId, StageMetadata>) -> Vec<Expected> {
    let mut messages = Vec::new();
    let from = grid.rank_of(grid.pipeline_rank());
    let mut expect = |header: Header, form: PayloadSpec| {
        let to = grid.rank_of(plan.placement().rank_of(header.stage));
        if to != from {
            messages.push(Expected { from, to, header, form });
        }
    };
    for (&stage, known) in declared {
        let next = plan.placement().next(stage);
        if let (Some(output), Some(next)) = (&known.output, next) {
            let (first, past) = output.split_skips();
            expect(Header { stage: next, microbatch: 0, direction: Direction::Forward }, first);
            for (peer, piece) in peers(plan, stage, false).into_iter().zip(past) {
                expect(towards(peer, stage, 0, true), piece);
            }
        }
        if let (Some(input), Some(previous)) = (&known.input, stage.previous()) {
            let (first, past) = input.split_skips();
            let header = Header { stage: previous, microbatch: 0, direction: Direction::Backward };
            expect(header, gradients(&first));
            for (peer, piece) in peers(plan, stage, true).into_iter().zip(past) {
                expect(towards(peer, stage, 0, false), gradients(&piece));
            }
        }
    }
    messages
}

/// The form of the gradients of all floats: a list of optional tensors.
fn gradients(form: &PayloadSpec) -> PayloadSpec {
    let tensors = form.parts().iter().filter_map(|part| match part {
        SpecPart::Tensor(tensor) => Some(tensor),
        SpecPart::Tag(_) => None,
    });
    let mut parts = vec![SpecPart::Tag(tensors.clone().count())];
    for tensor in tensors {
        match tensor.kind {
            TensorKind::Float => parts.extend([SpecPart::Tag(1), SpecPart::Tensor(tensor.clone())]),
            TensorKind::Int | TensorKind::Bool => parts.push(SpecPart::Tag(0)),
        }
    }
    PayloadSpec::from_parts(parts)
}
