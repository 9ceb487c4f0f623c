//! Weights that another program stored, fitted to a model.
//!
//! Guarantees: every parameter and buffer of the model gets a stored tensor, and every stored tensor is used, except
//! those that the user excludes. One error lists everything that does not fit. A tensor is read only if a stage needs
//! it.
//!
//! 1. Every rank opens the stores, which list names, shapes and element types and map the files; of a folder with an
//!    index, only the files that it needs (`files`).
//! 2. The user's rules make the model's tensors of the stored ones: other names, fused projections, rotary halves
//!    (`rules`).
//! 3. A parameter is looked up by its names in the model ([`Names`](crate::stage::Names)), then by those that the
//!    adapter gives it (`gamma` is PyTorch's `weight`). A copy of a tied parameter that is not stored takes what is
//!    stored for another copy; all copies must get one value (`fit`).
//! 4. The adapter changes its layout according to the surrounding module: PyTorch's linear layers are transposed. It
//!    sees the parameter's name in the model, so code for one layer works with any cut. An adapter that changes nothing
//!    anywhere is an error, because it was written for other names.
//! 5. The values are converted to the type of the parameter, or of its master (`Builder::precision`). One that this
//!    type cannot hold is an error.
//! 6. Adapters that are not stored keep their values: a model gains them after its base was stored. PEFT's folders hold
//!    adapters alone (`adapters`), whose rank and scale must be the model's.

mod adapters;
mod factors;
mod files;
mod fit;
mod given;
mod opened;
mod pattern;
mod renames;
mod rules;
mod source;

pub use adapters::Adapters;
pub(super) use adapters::{CONFIG, FILE as ADAPTERS};
pub(super) use factors::{adapts_rows_of, as_of_embedding, is_adapter, is_of_embedding};
pub(super) use files::INDEX;
pub(super) use fit::Fit;
pub(super) use given::Given;
pub(super) use opened::{Opened, adapted};
pub(super) use rules::Rules;
pub(super) use source::Source;

use burn::store::{ModuleAdapter, ModuleStore};
use files::{File, in_folder};
use pattern::Pattern;
use rules::{Fused, Rule};
use std::path::PathBuf;
use std::sync::Arc;

type Open = Arc<dyn Fn() -> Result<Vec<File>, String> + Send + Sync>;
/// What checkpoints call a store that the user's code opens.
const OPENED: &str = "a store that the program opens";
type Which = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Weights that another program stored, for [`Pipeline::load_pretrained`](crate::train::Pipeline::load_pretrained).
///
/// ```no_run
/// # fn load(pipeline: &mut burn_pipeline::Pipeline) -> Result<(), burn_pipeline::train::CheckpointError> {
/// use burn::store::PyTorchToBurnAdapter;
/// use burn_pipeline::train::Pretrained;
///
/// let weights = Pretrained::folder("Llama-3.2-1B")
///     .rename("model.layers.{i}", "blocks.{i}")
///     .adapter(PyTorchToBurnAdapter)
///     .ignored(|name| name.ends_with("rotary_emb.inv_freq"));
/// pipeline.load_pretrained(&weights)
/// # }
/// ```
///
/// The rules ([`rename`](Self::rename), [`split`](Self::split), [`join`](Self::join),
/// [`halves_to_pairs`](Self::halves_to_pairs), [`pairs_to_halves`](Self::pairs_to_halves)) apply in the order in which
/// they are given, each to what the ones before it made, and before the adapter; renames in a row are one table, of
/// which the first line that matches a name counts. Patterns are the first parts of a name, in which a hole such as
/// `{i}` stands for any text without dots. A rule that matches nothing is an error.
/// [`Export::like`](crate::train::Export::like) undoes them, from the last to the first.
#[derive(Clone)]
pub struct Pretrained {
    stores: Vec<Open>,
    /// What each store is called.
    pub(super) called: Vec<String>,
    /// From stored tensors to the model's.
    pub(super) rules: Rules,
    adapter: Option<Box<dyn ModuleAdapter>>,
    optional: Which,
    ignored: Option<Which>,
    /// The folder of PEFT's, if these are adapters alone.
    adapters: Option<PathBuf>,
}

impl std::fmt::Debug for Pretrained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stores, adapted) = (self.stores.len(), self.adapter.is_some());
        f.debug_struct("Pretrained").field("stores", &stores).field("adapted", &adapted).finish_non_exhaustive()
    }
}

impl Pretrained {
    /// Loads from a Burn store (`SafetensorsStore`, `PytorchStore`, `BurnpackStore`). Every rank opens one. Of the
    /// store's settings only renaming has an effect; filters and adapters have none.
    ///
    /// A `PytorchStore` numbers the layers of its file anew from 0, without gaps, unless it is told not to
    /// (`map_indices_contiguous(false)`). Tell it so for one of several files, whose layers would become others', and
    /// for a model whose numbers have gaps on purpose. [`Pretrained::folder`] does.
    pub fn new<S: ModuleStore>(open: impl Fn() -> S + Send + Sync + 'static) -> Self {
        Self::none().and(open)
    }

    fn none() -> Self {
        let (stores, called, rules) = (Vec::new(), Vec::new(), Rules::default());
        Self { stores, called, rules, adapter: None, optional: Arc::new(is_adapter), ignored: None, adapters: None }
    }

    /// Loads from a folder as Hugging Face's `transformers` writes it: `model.safetensors`, or the files that
    /// `model.safetensors.index.json` lists; else `pytorch_model.bin`, or the files of its index (with the feature
    /// `pytorch`). A rank opens only the files that an index names for its stages.
    pub fn folder(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let called = path.display().to_string();
        Self::none().store(called, move || in_folder(&path))
    }

    /// Loads adapters alone, from a folder of PEFT's (`adapter_model.safetensors` and `adapter_config.json`), into a
    /// model with the same adapters (`Module::apply_lora`; [`Adapters::read`] says with which rank and scale). All
    /// adapters of the model must be there; its other parameters keep their values. Further rules can rename, and
    /// reorder rotary rows: give those of the base.
    ///
    /// A load also fails with the errors of [`Adapters::read`], or if rank or scale are not the model's.
    pub fn adapters(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        let path = folder.join(ADAPTERS);
        let called = path.display().to_string();
        let mut weights = Self::none().store(called, move || Ok(vec![files::file(&path)?]));
        weights.rules.push(Rule::Adapters { to_burn: true });
        weights.adapters = Some(folder);
        weights.optional(|name| !is_adapter(name))
    }

    fn store(mut self, called: String, open: impl Fn() -> Result<Vec<File>, String> + Send + Sync + 'static) -> Self {
        self.called.push(called);
        self.stores.push(Arc::new(open));
        self
    }

    /// Adds another store, for models in several files. `PytorchStore`s of such files must keep the numbers of their
    /// layers (`map_indices_contiguous(false)`): otherwise the layers of each file are numbered from 0, and are refused
    /// as stored twice, or taken for others.
    pub fn and<S: ModuleStore>(self, open: impl Fn() -> S + Send + Sync + 'static) -> Self {
        self.store(OPENED.to_owned(), move || Ok(vec![File::of_store(open())?]))
    }

    /// Renames tensors: the parts of a name that match `from` become `to`, with the same text in the holes, and the
    /// rest of the name stays: `("model.layers.{i}.self_attn.{p}_proj", "blocks.{i}.attention.{p}")`. Both patterns
    /// must have the same holes.
    pub fn rename(mut self, from: &str, to: &str) -> Self {
        self.rules.rename(from, to);
        self
    }

    /// Splits stored tensors that the model has in parts: `("blocks.{i}.attention.qkv", 0, &[("query", 64), ("key",
    /// 16), ("value", 16)])`. The parts get their names in place of the pattern's last part. The sizes are along a
    /// dimension of the stored weight: 0 for PyTorch's linear layers, 1 for GPT-2's `Conv1D`. Biases are split too.
    pub fn split(mut self, whole: &str, dim: usize, parts: &[(&str, usize)]) -> Self {
        self.rules.push(Rule::Split(Fused::new(whole, dim, parts)));
        self
    }

    /// Joins tensors that are stored in parts, and that the model has as one; with the arguments of
    /// [`Pretrained::split`].
    pub fn join(mut self, whole: &str, dim: usize, parts: &[(&str, usize)]) -> Self {
        self.rules.push(Rule::Join(Fused::new(whole, dim, parts)));
        self
    }

    /// Reorders the rows (dimension 0) of stored queries or keys of this many heads, which rotate the two halves of a
    /// head (Hugging Face's), for a model that rotates neighbouring pairs (Burn's `RotaryEncoding`).
    pub fn halves_to_pairs(mut self, rows: &str, heads: usize) -> Self {
        self.rules.push(Rule::Turn { rows: Pattern::new(rows), heads, to_pairs: true });
        self
    }

    /// The inverse of [`Pretrained::halves_to_pairs`]: for stored pairs, and a model that rotates halves.
    pub fn pairs_to_halves(mut self, rows: &str, heads: usize) -> Self {
        self.rules.push(Rule::Turn { rows: Pattern::new(rows), heads, to_pairs: false });
        self
    }

    /// Sets an adapter that changes layouts and the names inside modules: `PyTorchToBurnAdapter` for PyTorch's files.
    /// It sees a tensor under the parameter's name in the whole model ([`Names`](crate::stage::Names)), with the last
    /// part as the module names it (`gamma`).
    pub fn adapter(mut self, adapter: impl ModuleAdapter + 'static) -> Self {
        self.adapter = Some(Box::new(adapter));
        self
    }

    /// Selects parameters, by their names in the model, that keep their values if none are stored: a new head, for
    /// example. By default these are adapters (`Module::apply_lora`).
    pub fn optional(mut self, which: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.optional = Arc::new(which);
        self
    }

    /// Selects stored tensors, by their names, that the model need not use.
    pub fn ignored(mut self, which: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.ignored = Some(Arc::new(which));
        self
    }

    /// Returns true if a stored tensor of this name need not be used.
    fn ignores(&self, name: &str) -> bool {
        self.ignored.as_ref().is_some_and(|ignored| ignored(name))
    }

    /// For each of the rules that undo these, whether it undoes only what was made of ignored tensors. Empty if none
    /// are ignored, or the stores cannot be listed.
    pub(super) fn only_ignored(&self) -> Vec<bool> {
        if self.ignored.is_none() {
            return Vec::new();
        }
        let files = self.stores.iter().filter_map(|open| open().ok()).flatten();
        let stored: Vec<String> = files.flat_map(|file| file.names).collect();
        let matched = |names: Vec<String>| {
            let (table, _) = self.rules.apply(names.into_iter()).ok()?;
            Some(self.rules.reversed().apply(table.into_keys()).ok()?.1)
        };
        let used = matched(stored.iter().filter(|name| !self.ignores(name)).cloned().collect());
        let pairs = matched(stored).zip(used).into_iter().flat_map(|(all, used)| all.into_iter().zip(used));
        pairs.map(|(all, used)| all && !used).collect()
    }
}
