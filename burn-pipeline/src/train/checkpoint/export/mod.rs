//! The weights of the whole model for other programs: one safetensors file, or a folder.
//!
//! Guarantees: the bytes are the same for any cut, and whether ranks are threads or processes. If something cannot be
//! written, every rank gets an error, and nothing hangs.
//!
//! 1. The adapter gives each weight the other program's layout and last part of the name; then the rules with which
//!    weights were loaded are undone ([`Export`]).
//!    Adapters alone are first compared with the model (`alone`).
//! 2. If ranks are threads, the caller's thread writes all tensors (`write`); if they are processes, rank 0 does, with
//!    what the others send (`transfer`).

mod alone;
mod announce;
mod how;
mod transfer;
mod write;

pub use how::Export;

use super::error::CheckpointError;
use super::pretrained::Source;
use crate::train::pipeline::Pipeline;
use alone::{Alike, Alone};
use burn::store::IdentityAdapter;
use how::Formed;
use std::collections::BTreeSet;
use std::path::Path;
use transfer::Gathered;
use write::{item, write};

impl Pipeline {
    /// Writes the weights of the whole model into one safetensors file, by their names. An existing file is replaced.
    /// When ranks are processes, all make the call, and rank 0 writes the file at its path.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if two stages claim a parameter's name, or the file cannot be written.
    pub fn export(&mut self, path: impl AsRef<Path>) -> Result<(), CheckpointError> {
        self.export_as(path, IdentityAdapter)
    }

    /// Like [`Pipeline::export`], in the form of another program: with `BurnToPyTorchAdapter`, the layout of PyTorch;
    /// with an [`Export`], also its names and fused tensors, or a folder of several files. A model that was loaded with
    /// [`Pipeline::load_pretrained`] is written under its original names, in their order of rotary rows, with
    /// [`Export::like`]; without it, names and order are the model's. A tied parameter is written once, under the name
    /// of its first copy, as `transformers` does; [`Pipeline::load_pretrained`] finds its copies there.
    ///
    /// # Errors
    /// Same as [`Pipeline::export`]. Also fails if a rule of [`Export::like`] does not fit the model, the folder of
    /// [`Export::sharded`] is not empty, or [`Export::adapters`] would leave out what changed since it was loaded.
    pub fn export_as(&mut self, path: impl AsRef<Path>, how: impl Into<Export>) -> Result<(), CheckpointError> {
        self.refuse_same_names()?;
        let (path, how) = (path.as_ref(), how.into().for_model_given(&self.branch.given));
        self.ask(Alike)?;
        let copies = match &how.adapters {
            None => self.stages.named_copies(how.merged),
            Some(adapters) => {
                let (adapters, loaded) = (adapters.clone(), self.branch.given.loaded.clone());
                self.ask(Alone { adapters, loaded })?.into_iter().collect::<Result<(), _>>()?;
                BTreeSet::new()
            }
        };
        if self.ranks.processes {
            return self.ask(Gathered { path: path.to_owned(), how, copies })?.into_iter().collect();
        }
        let weights = if how.merged { self.merged_weights() } else { self.named_weights() };
        let all = weights?.into_iter().flatten();
        let Formed { weights, table, matched } = how.form(all, |weight| weight.value.shape(), &copies)?;
        how.all_matched(&matched)?;
        let made = |(name, source): (String, Source)| {
            let tensor = |name| weights.get(name).map(|(_, tensor)| tensor.clone());
            let needed = source.names().into_iter().filter_map(tensor).collect();
            how.made(&name, &source, needed).map(item)
        };
        let items = table.into_iter().map(made).collect::<Result<_, CheckpointError>>()?;
        write(path, items, &how)
    }
}
