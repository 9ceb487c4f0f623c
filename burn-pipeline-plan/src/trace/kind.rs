//! The kinds of tasks in drawings, each with a colour and a category, and the lanes in which they are drawn.
//!
//! The colours are Okabe and Ito's, which people with any colour vision can distinguish. The chunks of a rank are
//! shades of them.

use super::event::{Event, Track};
use crate::named::named;
use crate::plan::{Op, StageId, Task};
use std::collections::BTreeSet;

named! {
    /// The kind of a task, those that compute first, with its entry in the legend.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    pub(crate) enum Kind, words {
        Forward => "F forward",
        Backward => "B backward",
        Input => "I backward for the input",
        Weight => "W backward for the weights",
        Piece => "S T IF IB pieces of the vocabulary",
        Transfer => "transfer",
        Collective => "collective",
        Wait => "wait",
    }
}

impl Kind {
    pub(crate) fn of(task: Task) -> Self {
        match task.op() {
            Op::Forward => Kind::Forward,
            Op::Backward => Kind::Backward,
            Op::BackwardInput => Kind::Input,
            Op::BackwardWeight => Kind::Weight,
            op if op.is_piece() => Kind::Piece,
            op if op.is_transfer() => Kind::Transfer,
            op if op.is_wait() => Kind::Wait,
            _ => Kind::Collective,
        }
    }

    /// The colour of the first chunk, as red, green and blue.
    pub(crate) fn colour(self) -> [u8; 3] {
        match self {
            Kind::Forward => [0, 114, 178],
            Kind::Backward => [213, 94, 0],
            Kind::Input => [230, 159, 0],
            Kind::Weight => [0, 158, 115],
            Kind::Piece => [86, 180, 233],
            Kind::Transfer => [130, 130, 130],
            Kind::Collective => [204, 121, 167],
            Kind::Wait => [190, 190, 190],
        }
    }

    /// Returns true if it moves data instead of computing.
    pub(crate) fn moves(self) -> bool {
        matches!(self, Kind::Transfer | Kind::Collective | Kind::Wait)
    }

    /// The category in a Chrome trace.
    pub(super) fn category(self) -> &'static str {
        if self.moves() { "communication" } else { "computation" }
    }

    /// The closest of the colours that Chrome's trace viewer knows by name.
    pub(super) fn chrome_name(self) -> &'static str {
        match self {
            Kind::Forward => "rail_response",
            Kind::Backward => "terrible",
            Kind::Input => "thread_state_iowait",
            Kind::Weight => "good",
            Kind::Piece => "rail_load",
            Kind::Transfer => "grey",
            Kind::Collective => "rail_animation",
            Kind::Wait => "white",
        }
    }
}

/// Returns true if the event computes, and so occupies its rank, rather than moves data.
pub(super) fn is_compute(event: &Event) -> bool {
    event.action.tasks().any(|task| task.op().is_work())
}

/// For each rank, the stages that compute on it, in model order. A stage's position in the list is its chunk.
pub(crate) fn chunks(track: &Track) -> Vec<Vec<StageId>> {
    let mut stages = vec![BTreeSet::new(); track.rows()];
    for event in &track.events {
        stages[event.rank].extend(event.action.tasks().filter(|task| task.op().is_compute()).map(Task::stage));
    }
    stages.into_iter().map(|stages| stages.into_iter().collect()).collect()
}

/// The transfers and collectives of a track, each with its lane, counted from 0 on each rank. They may run beside
/// computations and beside each other: each rank gets as many lanes as drawing them without overlap needs.
pub(super) fn lanes(track: &Track) -> Vec<(usize, &Event)> {
    let mut events: Vec<&Event> =
        track.events.iter().filter(|event| !is_compute(event) && !event.action.is_idle()).collect();
    events.sort_by(|a, b| a.start.total_cmp(&b.start));
    let mut free: Vec<Vec<f64>> = vec![Vec::new(); track.rows()];
    let place = |event: &Event| {
        let lanes = &mut free[event.rank];
        let lane = lanes.iter().position(|&end| end <= event.start).unwrap_or(lanes.len());
        if lane == lanes.len() {
            lanes.push(0.0);
        }
        lanes[lane] = event.end;
        lane
    };
    let placed: Vec<usize> = events.iter().copied().map(place).collect();
    placed.into_iter().zip(events).collect()
}
