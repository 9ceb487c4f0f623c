//! Tasks on a whole stage: gathering and releasing its parameters, reducing its gradients, and the waits for these.

use super::refusals::refusal;
use super::state::{Reduction, Refusal, Scan, Shard};
use crate::plan::edges::Slot;
use crate::plan::op::Op;
use crate::plan::task::Task;

impl Scan<'_> {
    pub(super) fn whole_stage(&mut self, slot: usize, at: Slot, task: Task) -> Result<(), Refusal> {
        let shard = &mut self.shards[slot];
        match task.op() {
            Op::Unshard if shard.gathered => {
                return Err(refusal!(self, UnshardedTwice));
            }
            Op::Unshard => {
                let since = self.row.step;
                *shard = Shard { gathered: true, managed: true, used: false, awaited: false, since, ..*shard };
            }
            Op::Reshard if !shard.gathered => return Err(self.sharded(task)),
            Op::Reshard => {
                shard.gathered = false;
                if !shard.used {
                    shard.unused.get_or_insert(shard.since);
                }
            }
            Op::WaitUnshard => return self.wait_unshard(slot, task),
            Op::WaitReduceGrad => return self.wait_reduction(slot, task),
            _ => {
                let (done, microbatches) = (self.weights[slot], at.microbatches);
                self.refuse_twice(u8::from(self.reduced[slot] != Reduction::No), task)?;
                if done < microbatches {
                    return Err(refusal!(self, ReducedEarly { done, microbatches }));
                }
                self.reduced[slot] = Reduction::Started;
            }
        }
        Ok(())
    }

    pub(super) fn wait_unshard(&mut self, slot: usize, task: Task) -> Result<(), Refusal> {
        let shard = self.shards[slot];
        if !shard.gathered {
            return Err(self.unstarted(task, Op::Unshard));
        }
        self.refuse_twice(u8::from(shard.awaited), task)?;
        if shard.used {
            return Err(self.late_wait(task, self.last_use(task)));
        }
        self.shards[slot].awaited = true;
        Ok(())
    }

    pub(super) fn wait_reduction(&mut self, slot: usize, task: Task) -> Result<(), Refusal> {
        match self.reduced[slot] {
            Reduction::No => Err(self.unstarted(task, Op::ReduceGrad)),
            Reduction::Awaited => Err(self.duplicate(task)),
            Reduction::Started => {
                self.reduced[slot] = Reduction::Awaited;
                Ok(())
            }
        }
    }
}
