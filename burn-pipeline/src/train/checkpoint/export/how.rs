//! The form in which a model is exported.

use crate::stage::NamedWeight;
use crate::train::checkpoint::error::CheckpointError;
use crate::train::checkpoint::manifest::Turn;
use crate::train::checkpoint::pretrained::{
    Adapters, Given, Pretrained, Rules, Source, adapted, adapts_rows_of, as_of_embedding, is_adapter, is_of_embedding,
};
use burn::store::burn_pack::Tensor as Stored;
use burn::store::{IdentityAdapter, ModuleAdapter};
use burn::tensor::Shape;
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
    pub(super) adapter: Box<dyn ModuleAdapter>,
    rules: Rules,
    /// The weights whose rules are undone.
    like: Option<Pretrained>,
    /// The most bytes in a file of a folder; `None` for one file.
    pub(super) shard: Option<u64>,
    /// What is said beside adapters, if these alone are written.
    pub(super) adapters: Option<Adapters>,
    /// What PEFT's Auto classes load adapters for.
    pub(super) task: Option<String>,
    /// Whether adapters are added to the weights that they adapt.
    pub(super) merged: bool,
    /// The parameters whose rotary rows were reordered when they were loaded, and how.
    turned: BTreeMap<String, Turn>,
}

/// Weights in the form of an export.
pub(super) struct Formed {
    /// Each weight, and the tensor that the adapter makes of it, by that one's name.
    pub(super) weights: BTreeMap<String, (NamedWeight, Stored)>,
    /// What the rules make of these tensors.
    pub(super) table: BTreeMap<String, Source>,
    /// For each rule, whether it matched a tensor, or undoes what was made of ignored ones ([`Pretrained::ignored`]),
    /// which the model does not have.
    pub(super) matched: Vec<bool>,
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
    /// [`Pretrained::rename`] would turn into it. Tensors that were ignored are not written. If ranks are processes,
    /// the parts of a fused tensor must be in one stage; otherwise the export is refused.
    pub fn like(mut self, weights: &Pretrained) -> Self {
        self.rules = weights.rules.reversed();
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

    /// Weights in this form; `whole_shape` returns the shape of a whole one. What would be made alone of `copies`,
    /// which are written under the name of another copy, is left out. Factors of embeddings get their names in PEFT.
    pub(super) fn form(
        &self,
        all: impl IntoIterator<Item = NamedWeight>,
        whole_shape: impl Fn(&NamedWeight) -> Shape,
        copies: &BTreeSet<String>,
    ) -> Result<Formed, CheckpointError> {
        let (mut weights, mut again, mut of_embeddings) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for weight in all {
            let tensor = adapted(weight.clone(), whole_shape(&weight), self.adapter.as_ref());
            if copies.contains(&weight.names[0]) {
                again.insert(tensor.name.clone());
            }
            if is_of_embedding(&weight) {
                of_embeddings.insert(tensor.name.clone());
            }
            if self.adapters.is_none() || is_adapter(&tensor.name) {
                weights.entry(tensor.name.clone()).or_insert((weight, tensor));
            }
        }
        let (mut table, mut matched) = self.rules.apply(weights.keys().cloned())?;
        table.retain(|_, source| !source.names().into_iter().all(|name| again.contains(name)));
        let of_embedding = |source: &Source| source.names().into_iter().any(|name| of_embeddings.contains(name));
        let named = |(name, source): (String, Source)| match of_embedding(&source) {
            true => (as_of_embedding(&name), source),
            false => (name, source),
        };
        let table: BTreeMap<String, Source> = table.into_iter().map(named).collect();
        self.refuse_turned(&table)?;
        if let Some(like) = self.like.as_ref().filter(|_| matched.contains(&false)) {
            matched.iter_mut().zip(like.only_ignored()).for_each(|(matched, ignored)| *matched |= ignored);
        }
        Ok(Formed { weights, table, matched })
    }

    /// Refuses adapters alone, in the order of rotary rows in which the model has them.
    fn refuse_turned(&self, table: &BTreeMap<String, Source>) -> Result<(), CheckpointError> {
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
        Ok(())
    }

    /// Refuses a rule that matched no tensor. Where adapters alone are written, renames of other layers need not.
    pub(super) fn all_matched(&self, matched: &[bool]) -> Result<(), CheckpointError> {
        match (&self.adapters, matched.last()) {
            (Some(_), Some(true)) => Ok(()),
            _ => self.rules.all_matched(matched),
        }
    }

    /// The tensor that the rules make of these, which the adapter has made.
    pub(super) fn made(&self, name: &str, source: &Source, needed: Vec<Stored>) -> Result<Stored, CheckpointError> {
        let failed = |message| CheckpointError::Rule { rule: format!("makes `{name}`"), message };
        let mut tensor = source.tensor(&mut needed.into_iter()).map_err(failed)?;
        name.clone_into(&mut tensor.name);
        Ok(tensor)
    }
}
