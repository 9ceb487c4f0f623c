//! The weights of the whole model in one safetensors file.
//!
//! Guarantees: the file is the same, byte for byte, for any cut, and whether ranks are threads or processes. Rank 0
//! holds few tensors of other ranks at a time. If the file cannot be written, every rank gets an error, and nothing
//! hangs.
//!
//! When ranks are processes:
//!
//! 1. All ranks exchange the names, element types and shapes of their tensors, so all know the order in which rank 0
//!    writes them.
//! 2. All ranks go through that order: the rank that holds a tensor sends it to rank 0, which writes it when it
//!    arrives. For a tensor that is cut, the holders join the pieces first, and the first of them sends.
//! 3. After every [`IN_FLIGHT`] bytes all ranks wait for each other, so no rank gets further ahead of the disk.
//! 4. If rank 0 fails to write, it still receives what is sent, so no sender blocks; then it reports the error.

use super::error::CheckpointError;
use super::pretrained::adapted;
use super::tensors::{Item, in_file_order, write_model};
use crate::execute::ExecuteError;
use crate::link::{Activity, Header, Message, MessageKind};
use crate::payload::{AnyTensor, Payload};
use crate::plan::StageId;
use crate::stage::NamedWeight;
use crate::train::control::{Command, gather_all, gather_results};
use crate::train::pipeline::Pipeline;
use crate::train::step::{Rank, caught};
use crate::vocabulary::StageGroups;
use burn::store::burn_pack::Tensor as Stored;
use burn::store::{IdentityAdapter, ModuleAdapter, bridge};
use burn::tensor::{DType, Device, TensorData};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The most bytes in flight to rank 0.
const IN_FLIGHT: usize = 64 << 20;

impl Pipeline {
    /// Writes the weights of the whole model into one safetensors file, by their names. When ranks are processes, all
    /// make the call, and rank 0 writes the file at its path.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if two stages claim a parameter's name, or the file cannot be written.
    pub fn export(&mut self, path: impl AsRef<Path>) -> Result<(), CheckpointError> {
        self.export_as(path, IdentityAdapter)
    }

    /// Like [`Pipeline::export`], in the layout of another framework: with `BurnToPyTorchAdapter`, that of PyTorch. A
    /// model that was loaded with [`Pipeline::load_pretrained`] is written under its original names. A tied parameter
    /// is written once for each name that its copies have: give them one name
    /// ([`Names::renamed`](crate::stage::Names::renamed)).
    ///
    /// # Errors
    /// Same as [`Pipeline::export`].
    pub fn export_as(
        &mut self,
        path: impl AsRef<Path>,
        adapter: impl ModuleAdapter + 'static,
    ) -> Result<(), CheckpointError> {
        if let Some((name, first, second)) = self.stages.claimed_twice() {
            return Err(CheckpointError::SameName { name, first, second });
        }
        if !self.ranks.are_processes() {
            let mut known = BTreeSet::new();
            let weights = self.named_weights()?.into_iter().flatten();
            let weights = weights.filter(|weight| known.insert(weight.names[0].clone()));
            let shaped = |weight: NamedWeight| (weight.value.shape(), weight);
            let items = weights.map(shaped).map(|(shape, weight)| item(adapted(weight, shape, &adapter)));
            return write_model(path.as_ref(), items.collect());
        }
        self.ask(Export { path: path.as_ref().to_owned(), adapter: Box::new(adapter) })?.into_iter().collect()
    }
}

fn item<'a>(tensor: Stored) -> Item<'a> {
    let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.to_vec());
    Item { name, dtype, shape, read: Box::new(|| data(tensor)) }
}

fn data(tensor: Stored) -> Result<TensorData, String> {
    bridge::into_data(tensor).map_err(|error| error.to_string())
}

/// A tensor that a rank holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    stage: usize,
    name: String,
    dtype: DType,
    shape: Vec<usize>,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.shape.iter().fold(self.dtype.size(), |bytes, &size| bytes.saturating_mul(size))
    }
}

/// Writes the whole model's file on rank 0; the other ranks send their tensors there.
struct Export {
    path: PathBuf,
    adapter: Box<dyn ModuleAdapter>,
}

impl Command for Export {
    type Reply = Result<(), CheckpointError>;
    const NAME: &'static str = "exporting the model";

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        let number = rank.number();
        let export = || rank.with_whole_weights(|rank| export(rank, &self.path, self.adapter.as_ref()));
        caught(number, || Self::NAME.to_owned(), export)
    }

    fn exchange(&self, rank: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        gather_results(rank, own, CheckpointError::elsewhere)
    }
}

fn export(
    rank: &mut Rank,
    path: &Path,
    adapter: &dyn ModuleAdapter,
) -> Result<Result<(), CheckpointError>, ExecuteError> {
    let (me, timeout) = (rank.number(), rank.executor().timeout());
    let groups = rank.executor().groups().clone();
    let mut own: BTreeMap<String, (StageId, NamedWeight)> = BTreeMap::new();
    let mut entries = Vec::new();
    // Copies of a stage are equal, except for pieces: the first one's tensors are written.
    for (&stage, held) in rank.executor().stages().iter().filter(|(stage, _)| stage.route() == 0) {
        let holders = groups.of(stage);
        for weight in held.named_weights().into_iter().filter(|weight| holders.joins([weight.id])) {
            let shape = holders.whole_shape(weight.id, weight.value.shape());
            let tensor = adapted(weight.clone(), shape, adapter);
            let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.to_vec());
            if holders.is_first() {
                entries.push(Entry { stage: stage.index(), name: name.clone(), dtype, shape });
            }
            own.entry(name).or_insert((stage, weight));
        }
    }
    let table = gather_all(rank.executor().link(), &entries, timeout)?;
    let transfer = Transfer { rank, adapter, groups, order: order(table), own, next: 0, in_flight: 0, failed: None };
    let exported = match me {
        0 => transfer.write(path),
        _ => transfer.send().map(Ok),
    }?;
    rank.executor().link().set_activity(Activity::Idle);
    Ok(exported)
}

/// Every tensor once, with the rank that sends it, in writing order.
fn order(table: Vec<Vec<Entry>>) -> Vec<(usize, Entry)> {
    let all = table.into_iter().enumerate().flat_map(|(rank, row)| row.into_iter().map(move |entry| (rank, entry)));
    let mut all: Vec<(usize, Entry)> = all.collect();
    // Of a tied parameter's equal copies, use the first stage's.
    all.sort_by_key(|(_, entry)| entry.stage);
    let mut known = BTreeSet::new();
    all.retain(|(_, entry)| known.insert(entry.name.clone()));
    all.sort_by(|(_, a), (_, b)| in_file_order((a.dtype, &a.name), (b.dtype, &b.name)));
    all
}

/// One rank's pass over all tensors.
struct Transfer<'a> {
    rank: &'a mut Rank,
    adapter: &'a dyn ModuleAdapter,
    groups: StageGroups,
    order: Vec<(usize, Entry)>,
    own: BTreeMap<String, (StageId, NamedWeight)>,
    next: usize,
    in_flight: usize,
    /// An error between ranks.
    failed: Option<ExecuteError>,
}

impl Transfer<'_> {
    /// Rank 0 writes its own tensors and those that arrive. It receives all of them, even if writing fails.
    fn write(self, path: &Path) -> Result<Result<(), CheckpointError>, ExecuteError> {
        let order = self.order.clone();
        let exchange = RefCell::new(self);
        let item = |(_, entry): &(usize, Entry)| Item {
            name: entry.name.clone(),
            dtype: entry.dtype,
            shape: entry.shape.clone(),
            read: Box::new(|| exchange.borrow_mut().take()),
        };
        let written = write_model(path, order.iter().map(item).collect());
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

    /// A weight in the form in which it is written, joined from the pieces of all its holders, and its device.
    fn whole(&self, (stage, weight): (StageId, NamedWeight)) -> (Stored, Device) {
        let value = self.groups.of(stage).whole(weight.id, weight.value.clone());
        let (shape, device) = (value.shape(), value.device());
        (adapted(NamedWeight { value, ..weight }, shape, self.adapter), device)
    }

    /// Moves the next tensor to rank 0, which gets its values, or the error of reading them from their device.
    fn step(&mut self) -> Result<Option<Result<TensorData, String>>, ExecuteError> {
        let Some((holder, entry)) = self.order.get(self.next).cloned() else { return Ok(None) };
        let (me, deadline) = (self.rank.executor().rank(), self.rank.executor().deadline());
        let failed = |source| ExecuteError::Link { rank: me, task: None, source };
        let header = Header::of(MessageKind::Tensors { index: self.next });
        let link = self.rank.executor().link();
        link.set_activity(Activity::Saving);
        self.next += 1;
        if holder != 0 {
            self.in_flight += entry.bytes();
        }
        if self.in_flight > IN_FLIGHT {
            self.in_flight = 0;
            link.barrier(deadline).map_err(failed)?;
        }
        // All ranks that have pieces of a weight join it, and the first of them sends it.
        let grid = self.rank.executor().grid();
        let beside = grid.pipeline_rank_of(holder) == grid.pipeline_rank();
        let together = |stage: StageId| beside || self.groups.of(stage).contains(holder);
        let together = self.own.get(&entry.name).is_some_and(|(stage, _)| together(*stage));
        let own = if together { self.own.remove(&entry.name) } else { None };
        let own = own.map(|weight| self.whole(weight)).filter(|_| holder == me);
        let link = self.rank.executor().link();
        match (me, own) {
            (0, None) if holder != 0 => {
                let payload = link.receive(holder, header, deadline).map_err(failed)?;
                Ok(payload.tensors().next().map(AnyTensor::to_data))
            }
            (0, own) => Ok(own.map(|(tensor, _)| data(tensor))),
            (_, Some((tensor, device))) => {
                let data = data(tensor).map_err(|message| ExecuteError::Device { rank: me, message })?;
                let mut payload = Payload::default();
                payload.push_tensor(AnyTensor::from_data_exact(data, &device));
                link.send(0, Message { header, payload }, deadline).map_err(failed)?;
                Ok(None)
            }
            (_, None) => Ok(None),
        }
    }
}
