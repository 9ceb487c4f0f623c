//! The messages and channels of a simulation, the two ends of a transfer, and the collectives of all ranks.

use super::report::IdleCause;
use crate::cost::Costs;
use crate::plan::vocabulary::VocabularyLayers;
use crate::plan::{MicrobatchTask, Op, Plan, Task};
use std::collections::HashMap;

/// The time of an event that has not happened yet. It is NaN, so every comparison with it is false.
pub(super) const NEVER: f64 = f64::NAN;

/// The times at which a value is made, its transfer starts, and it arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) made: f64,
    pub(super) sent: f64,
    pub(super) arrived: f64,
    /// Why a rank idles until `made`.
    pub(super) cause: IdleCause,
}

/// The times of one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    /// When its receive was posted.
    pub(super) wanted: f64,
    /// When its value was made.
    pub(super) made: f64,
    /// When its transfer started.
    pub(super) sent: f64,
    /// When its last byte left.
    pub(super) left: f64,
    /// When it arrived.
    pub(super) arrived: f64,
    /// True for the sender and for the receiver if they have a wait for it.
    pub(super) awaited: [bool; 2],
}

const NO_MESSAGE: Message =
    Message { wanted: NEVER, made: NEVER, sent: NEVER, left: NEVER, arrived: NEVER, awaited: [false; 2] };

/// A message posted on a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) send: MicrobatchTask,
    pub(super) at: f64,
}

/// The messages from one rank to another, in the order of their sends.
#[derive(Clone, Debug, Default)]
pub(super) struct Channel {
    pub(super) messages: Vec<Posted>,
    /// The number of messages that have started.
    pub(super) started: usize,
    /// The time at which the link is free.
    pub(super) free: f64,
}

/// All messages and channels of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Transfers {
    inputs: Vec<Message>,
    gradients: Vec<Message>,
    /// The messages over skip edges that a row sends or receives, by entry and direction. A table would be large, as a
    /// plan may have a hundred skip edges for each stage.
    past: HashMap<(usize, bool), Message>,
    pub(super) channels: HashMap<(usize, usize), Channel>,
}

impl Transfers {
    /// No message is posted. Entries from `entries` on are those of skip edges.
    pub(super) fn new(entries: usize) -> Self {
        let (inputs, gradients) = (vec![NO_MESSAGE; entries], vec![NO_MESSAGE; entries]);
        Self { inputs, gradients, past: HashMap::new(), channels: HashMap::new() }
    }

    /// The arrival of the message that a stage's computation uses.
    pub(super) fn arrival(&self, at: usize, forward: bool) -> Option<Arrival> {
        let to_next = if forward { &self.inputs } else { &self.gradients };
        let &Message { made, sent, arrived, .. } = to_next.get(at).or_else(|| self.past.get(&(at, forward)))?;
        (!arrived.is_nan()).then_some(Arrival { made, sent, arrived, cause: IdleCause::of_value(forward) })
    }

    pub(super) fn message(&mut self, at: usize, forward: bool) -> &mut Message {
        let to_next = if forward { &mut self.inputs } else { &mut self.gradients };
        match to_next.get_mut(at) {
            Some(message) => message,
            None => self.past.entry((at, forward)).or_insert(NO_MESSAGE),
        }
    }
}

pub(super) fn is_forward(task: MicrobatchTask) -> bool {
    matches!(task.op(), Op::SendForward | Op::ReceiveForward)
}

/// The transfer at the other end. `validate` has checked that there is one.
pub(super) fn other_end(task: MicrobatchTask) -> Task {
    task.other_end().unwrap_or(*task)
}

/// One collective of a parallel vocabulary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// The number of ranks that have started it.
    pub(super) started: usize,
    /// The time at which the last of them started it.
    pub(super) last: f64,
    /// The times at which it began and ended; NaN before.
    pub(super) begun: f64,
    pub(super) over: f64,
}

/// All collectives of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Rounds {
    pub(super) vocabulary: VocabularyLayers,
    pub(super) rounds: Vec<Round>,
    /// Seconds of each kind of collective, in the order of the kinds in `Op`.
    pub(super) seconds: [f64; 4],
    /// The time at which the communicator is free.
    pub(super) free: f64,
}

impl Rounds {
    pub(super) fn new(plan: &Plan, costs: &Costs<'_>) -> Self {
        let vocabulary = VocabularyLayers::of(plan);
        let round = Round { started: 0, last: 0.0, begun: NEVER, over: NEVER };
        let seconds = Op::RANK_COLLECTIVES.map(|op| costs.collective_seconds(op));
        Self { vocabulary, rounds: vec![round; vocabulary.collectives()], seconds, free: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Profile, UniformCosts};
    use crate::plan::Placement;
    use crate::simulate::SimulateOptions;
    use crate::simulate::state::Engine;

    #[test]
    fn skip_edges_take_no_room_before_a_row_names_them() {
        let edges = (0..64usize).flat_map(|from| (from + 2..64).map(move |to| (from, to).into()));
        let rows = vec![vec!["0SEND_F0".parse().unwrap()], Vec::new()];
        let plan = Plan::new("edges", Placement::looped(2, 32).unwrap(), vec![8], rows).unwrap();
        let plan = plan.with_skips(edges.collect()).unwrap();
        let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
        let costs = profile.costs(plan.placement()).unwrap();
        let transfers = Engine::new(&plan, costs, SimulateOptions::default()).transfers;
        assert_eq!((transfers.inputs.len(), transfers.gradients.len(), transfers.past.len()), (512, 512, 0));
    }
}
