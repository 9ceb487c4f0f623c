//! Exports when ranks are processes: rank 0 writes what all ranks send.
//!
//! Guarantees: rank 0 holds few tensors of other ranks at a time. If the file cannot be written, or a rule does not
//! fit, every rank gets an error, and nothing hangs.
//!
//! 1. All ranks exchange the names, element types and shapes of the tensors that they will send, so all know the order
//!    in which rank 0 writes them (`announce`).
//! 2. All ranks go through that order: the rank that holds a tensor sends it to rank 0, which writes it when it
//!    arrives. For weights that are cut, the holders join the pieces first, and the first of them sends.
//! 3. After every [`IN_FLIGHT`] bytes all ranks wait for each other, so no rank gets further ahead of the disk.
//! 4. If rank 0 fails to write, it still receives what is sent, so no sender blocks; then it reports the error.

use super::announce::{Entry, Own, Row, joined, own_tensors};
use super::how::Export;
use super::write::{data, write};
use crate::execute::ExecuteError;
use crate::link::{Activity, Header, MessageKind};
use crate::payload::{AnyTensor, Payload};
use crate::stage::NamedWeight;
use crate::train::checkpoint::error::CheckpointError;
use crate::train::checkpoint::pretrained::adapted;
use crate::train::checkpoint::tensors::Item;
use crate::train::control::{Call, Command, gather_results};
use crate::train::step::Rank;
use crate::vocabulary::StageGroups;
use burn::tensor::{Device, TensorData};
use burn_pipeline_plan::plan::StageId;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The most bytes in flight to rank 0.
const IN_FLIGHT: usize = 64 << 20;

/// Writes the whole model on rank 0; the other ranks send their tensors there.
pub(super) struct Gathered {
    pub(super) path: PathBuf,
    pub(super) how: Export,
    /// The names of parameters that are written under the name of another copy.
    pub(super) copies: BTreeSet<String>,
}

impl Command for Gathered {
    type Reply = Result<(), CheckpointError>;
    const NAME: &'static str = "exporting the model";

    fn call(&self) -> Call {
        let (merged, alone) = (self.how.merged, self.how.adapters.is_some());
        Call::Shared(format!("{} (adapters merged: {merged}, adapters alone: {alone})", Self::NAME))
    }

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        rank.with_whole_weights(Self::NAME, |rank| export(rank, self))
    }

    fn exchange(&self, rank: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        gather_results(rank, own, CheckpointError::elsewhere)
    }
}

/// The outer error ends the call on all ranks; the inner one is this rank's reply, and the pipeline goes on.
fn export(rank: &mut Rank, asked: &Gathered) -> Result<Result<(), CheckpointError>, ExecuteError> {
    let Gathered { path, how, copies } = asked;
    let me = rank.number();
    let groups = rank.executor.groups().clone();
    let mut own = BTreeMap::new();
    let row = own_tensors(rank, (how, copies), &groups, &mut own);
    let rows = gather_results(rank, row, CheckpointError::elsewhere)?.into_iter().collect::<Result<Vec<Row>, _>>();
    let order = match rows.and_then(|rows| joined(rows, how)) {
        Ok(order) => order,
        Err(error) => return Ok(Err(error)),
    };
    let transfer = Transfer { rank, how, groups, order, own, next: 0, in_flight: 0, failed: None };
    let exported = match me {
        0 => transfer.write(path),
        _ => transfer.send().map(Ok),
    }?;
    rank.executor.link().set_activity(Activity::Idle);
    Ok(exported)
}

/// One rank's pass over all tensors.
struct Transfer<'a> {
    rank: &'a mut Rank,
    how: &'a Export,
    groups: StageGroups,
    order: Vec<(usize, Entry)>,
    own: BTreeMap<String, Own>,
    next: usize,
    in_flight: usize,
    /// An error between ranks.
    failed: Option<ExecuteError>,
}

impl Transfer<'_> {
    /// Rank 0 writes its own tensors and those that arrive. It receives all of them, even if writing fails.
    fn write(self, path: &Path) -> Result<Result<(), CheckpointError>, ExecuteError> {
        let (order, how) = (self.order.clone(), self.how);
        let exchange = RefCell::new(self);
        let item = |(_, entry): &(usize, Entry)| Item {
            name: entry.name.clone(),
            dtype: entry.dtype,
            shape: entry.shape.clone(),
            read: Box::new(|| exchange.borrow_mut().take()),
        };
        let written = write(path, order.iter().map(item).collect(), how);
        let mut exchange = exchange.into_inner();
        while exchange.failed.is_none() && exchange.next < order.len() {
            // The error of the file is returned below.
            let _ = exchange.take();
        }
        exchange.failed.map_or(Ok(written), Err)
    }

    /// Other ranks send their tensors.
    fn send(mut self) -> Result<(), ExecuteError> {
        while self.next < self.order.len() {
            self.step()?;
        }
        Ok(())
    }

    /// The next tensor, on rank 0.
    fn take(&mut self) -> Result<TensorData, String> {
        match self.step() {
            Ok(Some(data)) => data,
            Ok(None) => Err("its rank sent no tensor".to_owned()),
            Err(error) => {
                let message = error.to_string();
                self.failed = Some(error);
                Err(message)
            }
        }
    }

    /// A tensor's weights, joined from the pieces of all their holders; and, for the rank that sends it, its values
    /// and its device.
    fn whole(&self, name: &str, own: Own, sends: bool) -> Option<(Result<TensorData, String>, Device)> {
        let holders = self.groups.of(own.stage);
        let join = |weight: NamedWeight| match holders.joins([weight.id]) {
            true => NamedWeight { value: holders.whole(weight.id, weight.value.clone()), ..weight },
            false => weight,
        };
        let joined: Vec<NamedWeight> = own.weights.into_iter().map(join).collect();
        let device = joined.first().filter(|_| sends)?.value.device();
        let as_written = |weight: NamedWeight| {
            let shape = weight.value.shape();
            adapted(weight, shape, self.how.adapter.as_ref())
        };
        let tensor = self.how.made(name, &own.source, joined.into_iter().map(as_written).collect());
        Some((tensor.map_err(|error| error.to_string()).and_then(data), device))
    }

    /// Moves the next tensor to rank 0, which gets its values, or the error of reading them from their device.
    fn step(&mut self) -> Result<Option<Result<TensorData, String>>, ExecuteError> {
        let Some((holder, entry)) = self.order.get(self.next).cloned() else { return Ok(None) };
        let (me, deadline) = (self.rank.number(), self.rank.executor.deadline());
        let header = Header::of(MessageKind::Tensors { index: self.next });
        let link = self.rank.executor.link();
        link.set_activity(Activity::Saving);
        self.next += 1;
        if holder != 0 {
            self.in_flight += entry.bytes();
        }
        if self.in_flight > IN_FLIGHT {
            self.in_flight = 0;
            link.barrier(deadline).map_err(|source| self.rank.link_error(source))?;
        }
        // All ranks that have pieces of a weight join it, and the first of them sends it.
        let grid = self.rank.executor.grid();
        let beside = grid.pipeline_rank_of(holder) == grid.pipeline_rank();
        let together = |stage: StageId| beside || self.groups.of(stage).contains(holder);
        let together = self.own.get(&entry.name).is_some_and(|own| together(own.stage));
        let own = if together { self.own.remove(&entry.name) } else { None };
        let own = own.and_then(|own| self.whole(&entry.name, own, holder == me));
        match (me, own) {
            (0, None) if holder != 0 => {
                let payload = self.rank.executor.receive_from(holder, header)?;
                // It is written next, which may take long.
                self.rank.executor.link().set_activity(Activity::Saving);
                Ok(payload.tensors().next().map(AnyTensor::to_data))
            }
            (0, own) => Ok(own.map(|(data, _)| data)),
            (_, Some((data, device))) => {
                let data = data.map_err(|message| ExecuteError::Device { rank: me, message })?;
                let mut payload = Payload::default();
                payload.push_tensor(AnyTensor::from_data(data, &device));
                self.rank.executor.send_to(0, header, payload)?;
                Ok(None)
            }
            (_, None) => Ok(None),
        }
    }
}
