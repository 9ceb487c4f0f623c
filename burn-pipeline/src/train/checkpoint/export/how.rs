//! The form in which a model is exported.

use crate::stage::NamedWeight;
use crate::train::checkpoint::error::CheckpointError;
use crate::train::checkpoint::manifest::Turn;
use crate::train::checkpoint::pretrained::{
    Adapters, Given, Pretrained, Rules, Source, adapts_rows_of, as_of_embedding, is_adapter, is_of_embedding,
};
use burn::store::burn_pack::Tensor as Stored;
use burn::store::{IdentityAdapter, ModuleAdapter};
use std::collections::{BTreeMap, BTreeSet};

/// How [`Pipeline::export_as`](crate::train::Pipeline::export_as) writes a model: through an adapter, which alone is
/// one, too.
///
/// ```no_run
/// # fn export(pipeline: &mut burn_pipeline::Pipeline, weights: &burn_pipeline::train::Pretrained)
/// # -> Result<(), burn_pipeline::train::CheckpointError> {
/// use burn::store::{BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter};
/// use burn::tensor::DType;
/// use burn_pipeline::train::Export;
///
/// let bf16 = BurnToPyTorchAdapter.chain(FloatCastAdapter::to(DType::BF16));
/// pipeline.export_as("tuned", Export::from(bf16).like(weights).sharded(5_000_000_000))
/// # }
/// ```
#[derive(Clone)]
pub struct Export {
    adapter: Box<dyn ModuleAdapter>,
    rules: Rules,
    /// The weights whose rules are undone.
    like: Option<Pretrained>,
    shard: Option<u64>,
    /// Set if adapters alone are written.
    adapters: Option<Adapters>,
    /// What PEFT's Auto classes load adapters for.
    task: Option<String>,
    /// Whether adapters are added to the weights that they adapt.
    merged: bool,
    /// The parameters whose rotary rows were reordered when they were loaded, and how.
    turned: BTreeMap<String, Turn>,
}

/// What is known of tensors beside their names, when they are exported.
#[derive(Default)]
pub(super) struct Noted {
    /// Those that are written under the name of another copy.
    pub(super) again: BTreeSet<String>,
    /// Factors of embeddings' adapters.
    pub(super) of_embeddings: BTreeSet<String>,
}

impl Noted {
    /// Notes a weight that is called `name` now.
    pub(super) fn note(&mut self, weight: &NamedWeight, name: &str, copies: &BTreeSet<String>) {
        if copies.contains(&weight.names[0]) {
            self.again.insert(name.to_owned());
        }
        if is_of_embedding(weight) {
            self.of_embeddings.insert(name.to_owned());
        }
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("rules", &self.rules).field("shard", &self.shard).finish_non_exhaustive()
    }
}

impl<A: ModuleAdapter + 'static> From<A> for Export {
    fn from(adapter: A) -> Self {
        Self {
            adapter: Box::new(adapter),
            rules: Rules::default(),
            like: None,
            shard: None,
            adapters: None,
            task: None,
            merged: false,
            turned: BTreeMap::new(),
        }
    }
}

impl Export {
    /// Writes adapters alone (`Module::apply_lora`), into a new folder as PEFT does: `adapter_model.safetensors` and
    /// `adapter_config.json`. With [`Export::like`], renames and the order of rotary rows are undone; rules that split
    /// or join weights are refused.
    ///
    /// An export also fails if a trained parameter is no adapter, if rank or scale are not the model's, or if PEFT
    /// cannot hold an adapter, because what it adapts is not called `weight`.
    pub fn adapters(adapters: Adapters) -> Self {
        let mut rules = Rules::default();
        rules.end_as_peft();
        Self { rules, adapters: Some(adapters), ..Self::from(IdentityAdapter) }
    }

    /// Adds the task that adapters are for, such as `CAUSAL_LM`, by which PEFT's Auto classes choose a model.
    pub fn task_type(mut self, task: impl Into<String>) -> Self {
        self.task = Some(task.into());
        self
    }

    /// Undoes, after the adapter, the rules with which weights were loaded: names, fused tensors, and the order of
    /// rotary rows are those of the other program again. A name gets the first one of the table that
    /// [`Pretrained::rename`] would turn into it. Tensors that were ignored are not written.
    pub fn like(mut self, weights: &Pretrained) -> Self {
        self.rules = weights.rules().reversed();
        self.like = Some(weights.clone());
        if self.adapters.is_some() {
            self.rules.end_as_peft();
        }
        self
    }

    /// Writes a folder as Hugging Face's `transformers` does: files of at most this many bytes of tensors (a larger
    /// tensor has its own), and `model.safetensors.index.json`; or `model.safetensors` alone, if one is enough. The
    /// folder must not exist or be empty, and appears when it is complete.
    pub fn sharded(mut self, bytes: u64) -> Self {
        self.shard = Some(bytes);
        self
    }

    /// Adds adapters to the weights that they adapt (`Module::materialize`), and writes none beside them: a model for
    /// programs that know no adapters. An adapted weight gets the adapter's type: f32, if adapters have masters.
    pub fn merged(mut self) -> Self {
        self.merged = true;
        self
    }

    /// The same form, for a model that got its weights so.
    pub(super) fn for_model_given(self, given: &Given) -> Self {
        let turned = given.turned.iter().filter_map(|(name, turn)| Some((name.clone(), (*turn)?)));
        Self { turned: turned.collect(), ..self }
    }

    pub(super) fn merges(&self) -> bool {
        self.merged
    }

    pub(super) fn adapter(&self) -> &dyn ModuleAdapter {
        self.adapter.as_ref()
    }

    /// The table that the rules make of tensors with these names, and for each rule whether it matched one, or undoes
    /// what was made of ignored tensors ([`Pretrained::ignored`]), which the model does not have. What would be made of
    /// copies alone is left out. Factors of embeddings get their names in PEFT.
    ///
    /// # Errors
    /// Returns [`CheckpointError::Rule`] if a rule does not fit.
    pub(super) fn apply(
        &self,
        names: impl Iterator<Item = String>,
        noted: &Noted,
    ) -> Result<(BTreeMap<String, Source>, Vec<bool>), CheckpointError> {
        let (mut table, mut matched) = self.rules.apply(names)?;
        table.retain(|_, source| !source.names().into_iter().all(|name| noted.again.contains(name)));
        let of_embedding = |source: &Source| source.names().into_iter().any(|name| noted.of_embeddings.contains(name));
        let named = |(name, source): (String, Source)| match of_embedding(&source) {
            true => (as_of_embedding(&name), source),
            false => (name, source),
        };
        let table: BTreeMap<String, Source> = table.into_iter().map(named).collect();
        for (name, source) in table.iter().filter(|_| self.adapters.is_some()) {
            let turned = |name: &&str| {
                let wanted = self.turned.get(*name).map(|&(heads, to_pairs)| (heads, !to_pairs));
                wanted.is_some() && source.turn() != wanted
            };
            if let Some(adapted) = source.names().into_iter().filter_map(adapts_rows_of).find(turned) {
                let message =
                    format!("the rows of `{adapted}` were reordered when it was loaded; undo that (`Export::like`)");
                return Err(CheckpointError::Rule { rule: format!("writes `{name}`"), message });
            }
        }
        if let Some(like) = self.like.as_ref().filter(|_| matched.contains(&false)) {
            matched.iter_mut().zip(like.only_ignored()).for_each(|(matched, ignored)| *matched |= ignored);
        }
        Ok((table, matched))
    }

    /// Returns true if a tensor of this name in the model is written.
    pub(super) fn takes(&self, name: &str) -> bool {
        self.adapters.is_none() || is_adapter(name)
    }

    /// The task that adapters are for.
    pub(super) fn task(&self) -> Option<&str> {
        self.task.as_deref()
    }

    /// What is said beside adapters, if these alone are written.
    pub(super) fn only_adapters(&self) -> Option<&Adapters> {
        self.adapters.as_ref()
    }

    /// Checks that every rule matched a tensor. Where adapters alone are written, renames of other layers need not.
    ///
    /// # Errors
    /// Returns [`CheckpointError::Rule`] for the first that did not, or if there is no adapter.
    pub(super) fn all_matched(&self, matched: &[bool]) -> Result<(), CheckpointError> {
        match (&self.adapters, matched.last()) {
            (Some(_), Some(true)) => Ok(()),
            _ => self.rules.all_matched(matched),
        }
    }

    /// The most bytes in a file of a folder; `None` for one file.
    pub(super) fn shard(&self) -> Option<u64> {
        self.shard
    }

    /// The tensor that the rules make of these, which the adapter has made.
    ///
    /// # Errors
    /// Returns [`CheckpointError::Rule`] if sizes do not fit.
    pub(super) fn made(&self, name: &str, source: &Source, needed: Vec<Stored>) -> Result<Stored, CheckpointError> {
        let failed = |message| CheckpointError::Rule { rule: format!("makes `{name}`"), message };
        let mut tensor = source.tensor(&mut needed.into_iter()).map_err(failed)?;
        name.clone_into(&mut tensor.name);
        Ok(tensor)
    }
}
