//! Checkpoints: what a training job needs to be resumed, on the same ranks or on others.
//!
//! Guarantees: a checkpoint is complete or absent, wherever saving was stopped; a damaged one is refused before anything
//! of the model changes, with the file that is damaged; a resumed job has the same losses, bit for bit, as one that was
//! never stopped, where both add numbers in the same order. Where forwards draw random numbers, they must draw from a
//! seed ([`Builder::seed`](crate::train::Builder::seed)).
//!
//! 1. A checkpoint is a folder: one safetensors file a stage, with weights by their names in the model
//!    ([`Names`](crate::stage::Names)) and what the optimizer keeps for each; and a manifest in JSON with progress,
//!    sizes and checksums. See `folder` for how it gets there.
//! 2. With [`Pipeline::save`](crate::train::Pipeline::save) every rank writes its own stages, whether ranks are threads
//!    or processes.
//! 3. [`Pipeline::load`](crate::train::Pipeline::load) finds every parameter by name, in any of the files: ranks, chunks,
//!    placement and schedule may differ, and so may the number of ranks that hold a stage together: files hold whole parameters. All ranks
//!    read and compare first, then all adopt.
//! 4. [`Checkpoint::load_module`] and [`Checkpoint::load_optimizer`] do the same for any module, such as the unpipelined
//!    model.
//! 5. [`Pipeline::export`](crate::train::Pipeline::export) and [`Checkpoint::export`] write the whole model's weights into
//!    one safetensors file, for other programs.
//! 6. [`Pipeline::load_pretrained`](crate::train::Pipeline::load_pretrained) takes the weights that another program stored,
//!    [`Pipeline::export_as`](crate::train::Pipeline::export_as) gives them back in its layout.
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

mod branch;
mod error;
mod export;
mod folder;
mod load;
mod lock;
mod manifest;
mod pretrained;
mod save;
mod stored;
mod tensors;

pub(crate) use branch::Branch;
pub use error::CheckpointError;
pub use folder::Checkpoints;
pub use manifest::ParameterEntry;
pub use pretrained::Pretrained;
pub use stored::Checkpoint;
