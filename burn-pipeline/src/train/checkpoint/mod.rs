//! Checkpoints: everything needed to resume a training job, on the same ranks or on others.
//!
//! Guarantees: saving is atomic. A damaged checkpoint is refused before the model changes, with an error that names the
//! damaged file. A resumed job has the same losses, bit for bit, as an uninterrupted one, if both add numbers in the
//! same order. If forwards draw random numbers, they must be seeded ([`Builder::seed`](crate::train::Builder::seed)).
//!
//! 1. A checkpoint is a folder: one safetensors file per stage, with weights by their names in the model
//!    ([`Names`](crate::stage::Names)) and the optimizer state of each; and a JSON manifest with progress, sizes and
//!    checksums. `folder` writes it atomically. A checkpoint over a base leaves out what is not trained (`base`).
//! 2. With [`Pipeline::save`](crate::train::Pipeline::save) every rank writes its own stages, whether ranks are threads
//!    or processes.
//! 3. [`Pipeline::load`](crate::train::Pipeline::load) finds every parameter by name, in any of the files. Ranks,
//!    chunks, placement, schedule and the sizes of tensor-parallel groups may differ, because files hold whole
//!    parameters. All ranks read and compare first, then all adopt.
//! 4. [`Checkpoint::load_module`] and [`Checkpoint::load_optimizer`] do the same for any module, such as the
//!    unpipelined model.
//! 5. [`Pipeline::export`](crate::train::Pipeline::export) and [`Checkpoint::export`] write the whole model's weights
//!    into one safetensors file, for other programs.
//! 6. [`Pipeline::load_pretrained`](crate::train::Pipeline::load_pretrained) loads weights that another program stored,
//!    and [`Pipeline::export_as`](crate::train::Pipeline::export_as) writes them in its form.
//!
//! ```no_run
//! # fn take(pipeline: &mut burn_pipeline::train::Pipeline) -> Result<(), Box<dyn std::error::Error>> {
//! use burn_pipeline::train::Checkpoints;
//!
//! let checkpoints = Checkpoints::new("runs/checkpoints").keep(3);
//! let epoch = 7;
//! pipeline.save(&checkpoints, &epoch)?;
//!
//! let checkpoint = checkpoints.latest()?;
//! pipeline.load(&checkpoint)?;
//! let (epoch, steps) = (checkpoint.beside::<u32>()?, checkpoint.progress().steps);
//! # let _ = (epoch, steps);
//! # Ok(())
//! # }
//! ```

mod base;
mod branch;
mod durable;
mod error;
mod export;
mod folder;
mod load;
mod lock;
mod manifest;
mod pretrained;
mod save;
mod scales;
mod stage_file;
mod stored;
mod tensors;
mod types;

pub(crate) use branch::Branch;
pub use error::CheckpointError;
pub use export::Export;
pub use folder::Checkpoints;
pub use manifest::ParameterEntry;
pub use pretrained::{Adapters, Pretrained};
pub use stored::Checkpoint;
