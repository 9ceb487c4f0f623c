//! Vocabulary-parallel collectives: starting them, and receiving their messages.

use crate::execute::error::ExecuteError;
use crate::execute::executor::Executor;
use crate::execute::run_state::RunState;
use crate::execute::transfer::Transfer;
use crate::link::{Header, Link, Message, MessageKind};
use crate::payload::Payload;
use burn_pipeline_plan::plan::{MicrobatchTask, Op, Task};

impl Executor {
    /// Posts all messages that the other ranks will send to this one, if the plan is vocabulary parallel.
    pub(in crate::execute) fn announce(&self, state: &mut RunState<'_>) {
        if self.groups.vocabulary.is_nothing() {
            return;
        }
        let (plan, own) = (state.plan(), self.grid().pipeline_rank());
        for peer in (0..plan.ranks()).filter(|&peer| peer != own) {
            let sent = |task: Task| match Transfer::of(plan.placement(), task) {
                Some(transfer) => (task.op().is_send() && transfer.peer == own).then_some(transfer.header),
                None => {
                    let collective = task.of_microbatch().filter(|task| task.op().is_rank_collective())?;
                    gives(state, collective, peer, own).then(|| header(collective, peer))
                }
            };
            let sent = plan.tasks(peer).filter_map(sent).collect();
            state.values.announce(self.grid().rank_of(peer), sent);
        }
    }

    /// Starts a collective: sends this rank's message.
    pub(in crate::execute) fn start_collective(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<(), ExecuteError> {
        let Some(payload) = state.vocabulary.given.remove(&task) else { return Ok(()) };
        let (own, deadline, ranks) = (self.grid().pipeline_rank(), self.deadline(), state.plan().ranks());
        let (header, holder) = (header(task, own), state.plan().placement().rank_of(task.stage()));
        let receivers: Vec<usize> = (0..ranks).filter(|&to| gives(state, task, own, to)).collect();
        for to in receivers {
            // Only the last stage needs the parts of the gradient.
            let payload = match task.op() {
                Op::ReduceHead if to != holder => Payload::from_parts(payload.parts().take(1).cloned()),
                _ => payload.clone(),
            };
            if to == own {
                state.values.keep(self.rank(), header, payload);
                continue;
            }
            let sent = self.link.send(self.grid().rank_of(to), Message { header, payload }, deadline);
            sent.map_err(|source| self.link_error(Some(task.into()), source))?;
        }
        Ok(())
    }

    /// Takes a pipeline rank's message of a collective, for a task that needs it.
    pub(super) fn take_given(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        collective: MicrobatchTask,
        from: usize,
    ) -> Result<Payload, ExecuteError> {
        let (header, sender) = (header(collective, from), self.grid().rank_of(from));
        if sender != self.rank() {
            self.arrive(state, task.into(), header, sender)?;
        }
        let given = state.values.take(sender, header).ok_or_else(|| self.no_input(task.into()))?;
        let what = match collective.op() {
            Op::BroadcastHidden => "last stage's output",
            Op::ReduceHead => "numbers of the head",
            Op::ReduceEmbedding => "vectors of the embedding",
            _ => "gradient of the first stage's input",
        };
        state.note(task, what, Some((collective.stage(), sender)), &given);
        // The task itself starts when its input has arrived.
        state.started = state.now();
        Ok(given)
    }

    /// Takes all pipeline ranks' messages of a collective, in rank order.
    pub(super) fn take_all(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        collective: MicrobatchTask,
    ) -> Result<Vec<Payload>, ExecuteError> {
        let ranks = 0..state.plan().ranks();
        let given = ranks.map(|from| self.take_given(state, task, collective, from)).collect();
        state.close(collective.into());
        given
    }
}

/// The header of a pipeline rank's message of a collective.
fn header(collective: MicrobatchTask, from: usize) -> Header {
    let kind = match collective.op() {
        Op::BroadcastHidden => MessageKind::Hidden,
        Op::ReduceHead => MessageKind::HeadPart { from },
        Op::ReduceEmbedding => MessageKind::EmbeddingPart { from },
        _ => MessageKind::EmbeddingGradient,
    };
    Header { kind, stage: collective.stage(), microbatch: collective.microbatch() }
}

/// Returns true if the head runs, because there is a target.
pub(super) fn scores(state: &RunState<'_>) -> bool {
    state.run.batch.has_target()
}

/// Returns true if pipeline rank `to` needs the message of rank `from` in a collective.
fn gives(state: &RunState<'_>, collective: MicrobatchTask, from: usize, to: usize) -> bool {
    let holder = state.plan().placement().rank_of(collective.stage());
    match collective.op() {
        Op::BroadcastHidden => from == holder && scores(state),
        // An evaluation only needs the loss.
        Op::ReduceHead => scores(state) && (to == holder || state.run.trains()),
        Op::ReduceEmbedding => to == holder,
        Op::BroadcastGradient => from == holder,
        _ => false,
    }
}
