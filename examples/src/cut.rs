//! Where `train_gpt` cuts its model: evenly by blocks, as given, or by its layers' measured costs.
//!
//! The model itself is measured: each layer runs as its own stage for some rounds
//! ([`Builder::measure_layers`](burn_pipeline::train::Builder::measure_layers)). The costs can be saved in a file,
//! which the command line also reads (`burn-pipeline partition --layers FILE`).

use crate::gpt::GptConfig;
use burn_pipeline::cost::{Layers, Partition, PartitionError, PartitionOptions, Pattern};
use burn_pipeline::plan::Placement;
use burn_pipeline::stage::Batch;
use burn_pipeline::train::{Builder, MeasureError};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The rounds whose median is a layer's time.
const ROUNDS: usize = 5;

/// How the model is cut.
#[derive(Debug, Clone, PartialEq)]
pub enum Cut {
    /// Equally many blocks in each stage, with the embedding in the first and the head in the last.
    Even,
    /// Minimises the busiest rank's work, by the layers' costs.
    Optimal,
    /// As given, such as `EAA|AAL`.
    Given(Pattern),
}

impl FromStr for Cut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "even" => Ok(Cut::Even),
            "optimal" => Ok(Cut::Optimal),
            text => {
                let given = text.parse::<Pattern>().map(Cut::Given);
                given.map_err(|error| format!("must be `even`, `optimal`, or stages such as EAA|AAL: {error}"))
            }
        }
    }
}

/// Why the model cannot be cut.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum CutError {
    /// The layers cannot be measured.
    #[error("the layers cannot be measured: {0}")]
    Measure(#[from] MeasureError),
    /// The layers cannot be cut like this.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The given layers are of another model.
    #[error("--cut has the layers {given}, and the model is {model} (embedding, blocks, head)")]
    OtherModel { given: String, model: String },
    /// The costs are of another model.
    #[error("{} holds {found} layers, but the model has {layers}; measure again into another file", path.display())]
    OtherCosts { path: PathBuf, found: usize, layers: usize },
    /// The cut has another number of stages than the schedule.
    #[error("--cut makes {cut} stages, and the schedule runs {stages}")]
    Stages { cut: usize, stages: usize },
    /// Each process would measure different costs.
    #[error(
        "with ranks in processes, an optimal cut needs costs that all processes read; \
         write them first with --costs FILE and --link threads"
    )]
    NoCosts,
    /// The file of costs cannot be read or written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
}

burn_pipeline::debug_as_text!(CutError);

impl Cut {
    /// The cut for a placement. `costs` is the file of the layers' costs; without it, `measure` measures them.
    ///
    /// # Errors
    /// Returns a [`CutError`] if the model cannot be cut.
    pub fn partition(
        &self,
        model: &GptConfig,
        placement: &Placement,
        costs: Option<&Path>,
        measure: impl FnOnce(&[char]) -> Result<Layers, CutError>,
    ) -> Result<Partition, CutError> {
        let kinds: Pattern = model.kinds().parse()?;
        let cut = match self {
            Cut::Even => return Ok(by_blocks(model, placement.stages())?),
            Cut::Given(given) if given.kinds() != kinds.kinds() => {
                let text = |kinds: &Pattern| kinds.kinds().iter().map(ToString::to_string).collect::<String>();
                return Err(CutError::OtherModel { given: text(given), model: text(&kinds) });
            }
            Cut::Given(given) => given.partition(),
            Cut::Optimal => {
                let layers = layers(model, costs, || measure(kinds.kinds()))?;
                Partition::optimal(&layers, placement, &PartitionOptions::default())?.partition
            }
        };
        match cut.stages() == placement.stages() {
            true => Ok(cut),
            false => Err(CutError::Stages { cut: cut.stages(), stages: placement.stages() }),
        }
    }
}

/// The layers' costs: from the file if it exists, else measured and, if a file was named, written to it.
fn layers(
    model: &GptConfig,
    costs: Option<&Path>,
    measure: impl FnOnce() -> Result<Layers, CutError>,
) -> Result<Layers, CutError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| CutError::File { path, source }
    };
    if let Some(path) = costs.filter(|path| path.exists()) {
        let text = std::fs::read_to_string(path).map_err(failed(path))?;
        let (layers, _) = Layers::from_json(&text)?;
        return match layers.len() == model.all_layers() {
            true => Ok(layers),
            false => {
                let (path, found, layers) = (path.to_owned(), layers.len(), model.all_layers());
                Err(CutError::OtherCosts { path, found, layers })
            }
        };
    }
    let layers = measure()?;
    if let Some(path) = costs {
        std::fs::write(path, layers.to_json()?).map_err(failed(path))?;
    }
    Ok(layers)
}

/// Equally many blocks in each stage.
fn by_blocks(model: &GptConfig, stages: usize) -> Result<Partition, PartitionError> {
    let blocks = Partition::even(model.layers, stages)?;
    // The embedding comes before the first block.
    let ends: Vec<usize> = blocks.ranges().take(stages - 1).map(|blocks| blocks.end + 1).collect();
    Partition::from_boundaries(model.all_layers(), &ends)
}

/// Measures the model's layers on one microbatch, with the builder's devices and threads.
///
/// # Errors
/// Returns [`CutError::Measure`] if a layer cannot be measured.
pub fn measured(builder: &Builder, kinds: &[char], microbatch: Batch) -> Result<Layers, CutError> {
    Ok(builder.measure_layers(microbatch, kinds, ROUNDS)?.layers)
}
