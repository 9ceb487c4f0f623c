//! What a row exchanges with the other data-parallel replicas of its stages; see
//! [`data_parallel`](crate::data_parallel).

use super::error::ExecuteError;
use super::executor::Executor;
use super::run::{ReplicaShare, Run};
use super::run_state::RunState;
use crate::data_parallel::{ReplicaGroup, Values};
use crate::link::{Activity, Link};
use crate::ranks::poll_deadline;
use burn_pipeline_plan::plan::{Op, Task};
use std::time::Instant;

impl Executor {
    /// `UNSHARD`, `RESHARD`, `REDUCE_GRAD`, and the waits for them. Without replicas all parameters and gradients are
    /// already here: the same plan runs, and these tasks do nothing. For a stage that is not sharded, `UNSHARD` and
    /// `RESHARD` do nothing.
    pub(super) fn exchange(&mut self, state: &mut RunState<'_>, task: Task) -> Result<(), ExecuteError> {
        let stage = task.stage();
        match task.op() {
            Op::ReduceGrad => self.start_reduction(state, task),
            Op::WaitReduceGrad => {
                self.exchanging(None, |group, stages| group.finish_reduction(stages, stage))?;
                state.close(Task::whole_stage(stage, Op::ReduceGrad));
                Ok(())
            }
            Op::Unshard => {
                self.exchanging(Some(task), |group, stages| group.start_gather(stages, stage, Values::Computed))
            }
            Op::WaitUnshard => self.await_parameters(state, task),
            Op::Reshard => {
                // If the replicas' plans differ, they gathered everything before their rows, and release it after
                // them.
                if state.run.share.same_plan {
                    self.await_parameters(state, task)?;
                    if let Some(held) = self.stages.get_mut(&stage) {
                        self.group.release(stage, held.as_mut());
                    }
                }
                Ok(())
            }
            // All others belong to a microbatch, and `run_task` handles them.
            _ => Ok(()),
        }
    }

    /// Returns true if the operation that a task started is still in progress.
    pub(super) fn is_under_way(&self, task: Task) -> bool {
        match task.op() {
            Op::ReduceGrad => self.group.reducing().contains(&task.stage()),
            Op::Unshard => self.group.is_gathering(task.stage()),
            // Until this rank needs the others' messages.
            op if op.is_rank_collective() => true,
            _ => false,
        }
    }

    fn start_reduction(&mut self, state: &RunState<'_>, task: Task) -> Result<(), ExecuteError> {
        let stage = task.stage();
        let ReplicaShare { reduce, reduce_shards, .. } = state.run.share;
        let reduces = if self.group.is_sharded(stage) { reduce_shards } else { reduce };
        if !(reduces && state.run.trains()) {
            return Ok(());
        }
        self.exchanging(Some(task), |group, stages| group.start_reduction(stages, stage))
    }

    /// Advances the started reductions as far as possible without waiting. Returns the ranks that have still to
    /// send and from which nothing has arrived.
    pub(super) fn advance(&mut self, state: &mut RunState<'_>) -> Result<Vec<usize>, ExecuteError> {
        let (done, silent) = self.exchanging(None, ReplicaGroup::advance)?;
        done.into_iter().for_each(|stage| state.close(Task::whole_stage(stage, Op::ReduceGrad)));
        Ok(silent)
    }

    /// Advances the started reductions until a message from the rank `from` has arrived, no reduction is left, or
    /// it is time to block in the link (see [`poll_deadline`]).
    pub(super) fn advance_until_message(
        &mut self,
        state: &mut RunState<'_>,
        from: usize,
        deadline: Instant,
    ) -> Result<(), ExecuteError> {
        let until = poll_deadline(deadline);
        while self.group.is_reducing() && from != self.rank() {
            // Only silent ranks: a rank that sent a message for later would end every wait at once.
            let mut ranks = self.advance(state)?;
            ranks.push(from);
            let arrived = self.link.probe(&ranks, until).map_err(|source| self.link_error(None, source))?;
            if arrived.is_none_or(|(rank, _)| rank == from) {
                break;
            }
        }
        Ok(())
    }

    /// Finishes the exchanges that the row started, and releases gathered parameters.
    pub(super) fn end_exchanges(&mut self, state: &mut RunState<'_>) -> Result<(), ExecuteError> {
        let (rank, mut start) = (self.rank(), state.now());
        // All sums are sent before the first is awaited: other replicas wait for them in the same place.
        self.exchanging(None, |group, _| group.sum_all())?;
        for stage in self.group.reducing() {
            self.exchanging(None, |group, stages| group.finish_reduction(stages, stage))?;
            state.record(rank, Task::whole_stage(stage, Op::WaitReduceGrad).into(), start);
            state.close(Task::whole_stage(stage, Op::ReduceGrad));
            start = state.now();
        }
        // A gather that no task has awaited would be taken for the next row's.
        self.exchanging(None, ReplicaGroup::finish_gathers)?;
        self.release_all();
        Ok(())
    }

    /// Gathers all sharded parameters before the row, if the plan has no `UNSHARD` or not all replicas run the same
    /// plan.
    pub(super) fn gather_unplanned(&mut self, run: &Run<'_>) -> Result<(), ExecuteError> {
        let planned = run.share.same_plan && run.plan.plan().any_task(|task| task.op() == Op::Unshard);
        match planned {
            true => Ok(()),
            false => self.exchanging(None, |group, stages| group.gather_all(stages, Values::Computed)),
        }
    }

    /// Announces a task and starts its clock, once its parameters have arrived.
    pub(super) fn start(&mut self, state: &mut RunState<'_>, task: Task) -> Result<(), ExecuteError> {
        if task.op().is_compute() {
            self.await_parameters(state, task)?;
        }
        self.link.set_activity(Activity::Task(task));
        state.started = state.now();
        Ok(())
    }

    /// Waits for the parameters of the task's stage, if they are being gathered.
    pub(super) fn await_parameters(&mut self, state: &mut RunState<'_>, task: Task) -> Result<(), ExecuteError> {
        let stage = task.stage();
        if !self.group.is_gathering(stage) {
            return Ok(());
        }
        let start = state.now();
        self.exchanging(Some(task), |group, stages| group.finish_gather(stages, stage))?;
        state.close(Task::whole_stage(stage, Op::Unshard));
        if task.op() != Op::WaitUnshard {
            state.record(self.rank(), Task::whole_stage(stage, Op::WaitUnshard).into(), start);
        }
        self.link.set_activity(Activity::Task(task));
        state.started = state.now();
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::data_parallel::Stages;
    use crate::execute::{Purpose, RunOptions, Seeding, Tuning};
    use crate::link::{SharedLink, on_threads};
    use crate::ranks::Grid;
    use crate::stage::{Batch, Reduction, Stage, StageBox, init_seeded};
    use crate::tensor_parallel::TensorGroup;
    use crate::vocabulary::StageGroups;
    use burn::module::Module;
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::{Device, Tensor};
    use burn_pipeline_plan::plan::{CheckOptions, Plan, StageId};
    use std::time::Duration;

    #[derive(Module, Debug)]
    struct Layer {
        linear: Linear,
    }

    impl Stage for Layer {
        type Input = Tensor<2>;
        type Extra = ();
        type Output = Tensor<2>;

        fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
            self.linear.forward(x)
        }
    }

    /// One of two replicas of a stage, which keeps only its own pieces.
    fn replica(rank: usize, link: SharedLink) -> Executor {
        let device = Device::flex();
        let layer =
            Layer { linear: init_seeded(1, &device.clone().autodiff(), |device| LinearConfig::new(4, 4).init(device)) };
        let stages = Stages::from([(StageId::new(0), StageBox::new(layer).into_inner())]);
        let timeout = Duration::from_secs(20);
        let options = RunOptions { timeout, tuning: Tuning::default(), predicted: None, input_gradients: false };
        let replicas = TensorGroup::new(rank, 0..2, link.stage_end(), timeout).of_replicas();
        let groups = StageGroups { replicas, ..StageGroups::default() };
        let mut executor = Executor::new(link, stages, device, options, Grid::new(rank, 2, 1.into()), groups);
        executor.shard(true).unwrap();
        executor
    }

    fn elements(executor: &mut Executor) -> usize {
        let weights = executor.stages().values().flat_map(|held| held.weights()).collect::<Vec<_>>();
        weights.into_iter().map(|(_, weight)| weight.shape().num_elements()).sum()
    }

    #[test]
    fn the_end_of_a_row_finishes_and_releases_what_no_task_has_used() {
        on_threads(2, |rank, link| {
            let mut executor = replica(rank, link);
            let pieces = elements(&mut executor);
            assert_eq!(pieces, 10, "half of 4 x 4 and 4");
            executor.refuse_gathered().unwrap();
            let unused = Task::whole_stage(0, Op::Unshard);
            executor
                .exchanging(Some(unused), |group, stages| group.start_gather(stages, unused.stage(), Values::Computed))
                .unwrap();
            let stepped = executor.refuse_gathered().unwrap_err();
            assert_eq!(stepped, ExecuteError::Gathered { rank, stage: StageId::new(0) });

            let plan = Plan::from_csv("one stage", "0F0,0B0\n").unwrap().check(&CheckOptions::default()).unwrap();
            let batch = Batch::new(Tensor::<2>::zeros([1, 4], &Device::flex())).cut(1).unwrap();
            let seeding = Seeding { reduction: Reduction::Mean, reference_samples: 1, factor: 1.0 };
            let (purpose, share, began) = (Purpose::Step(1), ReplicaShare::default(), Instant::now());
            let run = Run { plan: &plan, batch: &batch, seeding, purpose, began, share };
            executor.end_exchanges(&mut RunState::new(run)).unwrap();
            executor.refuse_gathered().unwrap();
            assert_eq!(elements(&mut executor), pieces);
            executor.gather_all_shards().unwrap();
            assert_eq!(elements(&mut executor), 20);
        });
    }
}
