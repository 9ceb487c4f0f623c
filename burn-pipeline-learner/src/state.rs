//! A learner's whole state as bytes, to give rank 0's to all processes.
//!
//! Guarantees: after [`share`], every process's learner has rank 0's parameters, buffers and their ids, and the state
//! of its optimizer and scheduler. So initial values need no seed, and a checkpoint loaded by rank 0 applies to all.
//!
//! 1. Burn's optimizer is private to its learner and visible only to checkpointers, so in-memory files serve as
//!    checkpoints.
//! 2. Rank 0 sends lengths, then bytes in pieces, which bounds the memory beside the learner.

use crate::error::LearnError;
use burn::lr_scheduler::LrSchedulerRecord;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use burn_pipeline::link::Link;
use burn_train::checkpoint::{
    AsyncCheckpointer, Checkpoint, Checkpointer, CheckpointerError, CheckpointingAction, CheckpointingStrategy,
};
use burn_train::metric::store::EventStoreClient;
use burn_train::{Interrupter, Learner, LearnerModel, LearningCheckpointer};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most bytes sent at once.
const PIECE: usize = 1 << 26;

/// Model, optimizer and scheduler.
type State = [Vec<u8>; 3];

/// Gives every process the state of rank 0's learner, and rank 0's `numbers`. All processes call it together. No wait
/// takes longer than `timeout`.
pub(crate) fn share<M: LearnerModel, const N: usize>(
    link: &mut dyn Link,
    learner: &mut Learner<M>,
    numbers: [u64; N],
    store: &EventStoreClient,
    timeout: Duration,
) -> Result<[u64; N], LearnError> {
    let leads = link.rank() == 0;
    let own = if leads { state_of(learner, store)? } else { State::default() };
    let lengths = own.iter().map(|part| part.len() as u64);
    let header = numbers.into_iter().chain(lengths).flat_map(u64::to_le_bytes).collect();
    let header: Vec<u64> = from_first(link, header, timeout)?
        .chunks_exact(8)
        .map(|bytes| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        .collect();
    let Some((numbers, lengths)) = header.split_first_chunk::<N>().filter(|(_, lengths)| lengths.len() == 3) else {
        return Err(LearnError::State("rank 0 runs another version".to_owned()));
    };
    let mut state = State::default();
    for ((part, own), &length) in state.iter_mut().zip(own).zip(lengths) {
        while (part.len() as u64) < length {
            let rest = own.get(part.len()..).unwrap_or_default();
            let piece = from_first(link, rest[..rest.len().min(PIECE)].to_vec(), timeout)?;
            if piece.is_empty() {
                return Err(LearnError::State("rank 0 sent less than it announced".to_owned()));
            }
            part.extend(piece);
        }
    }
    if !leads {
        load(learner, state)?;
    }
    Ok(*numbers)
}

/// Returns rank 0's bytes, and drops those of others.
fn from_first(link: &mut dyn Link, own: Vec<u8>, timeout: Duration) -> Result<Vec<u8>, LearnError> {
    let own = if link.rank() == 0 { own } else { Vec::new() };
    Ok(link.all_gather(own, Instant::now() + timeout)?.into_iter().next().unwrap_or_default())
}

/// An in-memory file.
#[derive(Clone, Default)]
struct File(Arc<Mutex<Vec<u8>>>);

impl<R: Checkpoint> Checkpointer<R> for File {
    fn save(&self, _: usize, record: R) -> Result<(), CheckpointerError> {
        let bytes = record.checkpoint_into_bytes().map_err(CheckpointerError::Record)?;
        *self.0.lock() = bytes.to_vec();
        Ok(())
    }

    fn delete(&self, _: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _: usize) -> Result<R, CheckpointerError> {
        Err(CheckpointerError::Unknown("this file is write-only".to_owned()))
    }
}

/// Saves at every call.
struct Always;

impl CheckpointingStrategy for Always {
    fn checkpointing(&mut self, _: usize, _: &EventStoreClient) -> Vec<CheckpointingAction> {
        vec![CheckpointingAction::Save]
    }
}

fn state_of<M: LearnerModel>(learner: &Learner<M>, store: &EventStoreClient) -> Result<State, LearnError> {
    let (files, failed) = ([File::default(), File::default(), File::default()], Interrupter::new());
    let [model, optimizer, scheduler] = files.clone();
    let mut checkpointer = LearningCheckpointer::new(
        AsyncCheckpointer::new(model).with_interrupter(failed.clone()),
        AsyncCheckpointer::new(optimizer).with_interrupter(failed.clone()),
        AsyncCheckpointer::new(scheduler).with_interrupter(failed.clone()),
        Box::new(Always),
    );
    checkpointer.checkpoint(learner, 0, store);
    // Dropping waits for its threads.
    drop(checkpointer);
    match failed.error() {
        Some(error) => Err(LearnError::State(error.to_string())),
        None => Ok(files.map(|file| std::mem::take(&mut *file.0.lock()))),
    }
}

fn load<M: LearnerModel>(learner: &mut Learner<M>, [model, optimizer, scheduler]: State) -> Result<(), LearnError> {
    let unread = |error: burn::store::RecordError| LearnError::State(error.to_string());
    let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(model)).map_err(unread)?;
    // `Learner::load_model` panics if a record does not fit, so check first.
    learner.model().try_load_record(record.clone()).map_err(unread)?;
    learner.load_model(record);
    learner.load_optim(OptimizerRecord::from_bytes(Bytes::from_bytes_vec(optimizer)).map_err(unread)?);
    learner.load_scheduler(LrSchedulerRecord::from_bytes(Bytes::from_bytes_vec(scheduler)).map_err(unread)?);
    Ok(())
}
