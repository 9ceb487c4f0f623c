//! The form in which a model is exported.

use crate::train::checkpoint::error::CheckpointError;
use crate::train::checkpoint::pretrained::{Pretrained, Rules, Source};
use burn::store::ModuleAdapter;
use burn::store::burn_pack::Tensor as Stored;

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
    shard: Option<u64>,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("rules", &self.rules).field("shard", &self.shard).finish_non_exhaustive()
    }
}

impl<A: ModuleAdapter + 'static> From<A> for Export {
    fn from(adapter: A) -> Self {
        Self { adapter: Box::new(adapter), rules: Rules::default(), shard: None }
    }
}

impl Export {
    /// Undoes, after the adapter, the rules with which weights were loaded: names, fused tensors, and the order of
    /// rotary rows are those of the other program again. A name gets the first one of the table that
    /// [`Pretrained::rename`] would turn into it.
    pub fn like(mut self, weights: &Pretrained) -> Self {
        self.rules = weights.rules().reversed();
        self
    }

    /// Writes a folder as Hugging Face's `transformers` does: files of at most this many bytes of tensors (a larger
    /// tensor has its own), and `model.safetensors.index.json`; or `model.safetensors` alone, if one is enough. The
    /// folder must not exist or be empty, and appears when it is complete.
    pub fn sharded(mut self, bytes: u64) -> Self {
        self.shard = Some(bytes);
        self
    }

    pub(super) fn adapter(&self) -> &dyn ModuleAdapter {
        self.adapter.as_ref()
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.rules
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
