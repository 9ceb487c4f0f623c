//! Where `train_gpt` cuts its model: by number of blocks, as written, or by what its layers take.
//!
//! Costs are those of the model itself: each layer runs as a stage of its own for some rounds
//! ([`Builder::measure_layers`](burn_pipeline::train::Builder::measure_layers)). They can be kept in a file, which the
//! command line reads as well (`burn-pipeline partition --layers FILE`).

use crate::gpt::GptConfig;
use burn_pipeline::cost::{Layers, Partition, PartitionError, PartitionOptions, Pattern};
use burn_pipeline::plan::Placement;
use burn_pipeline::stage::Batch;
use burn_pipeline::train::{Builder, MeasureError};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Rounds over which a layer's seconds are taken.
const ROUNDS: usize = 5;

/// How the model is cut.
#[derive(Debug, Clone, PartialEq)]
pub enum Cut {
    /// As many blocks in each stage; the embedding goes with the first, the head with the last.
    Even,
    /// The busiest rank is the least busy, by the layers' costs.
    Optimal,
    /// As written: `EAA|AAL`.
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
                given.map_err(|error| format!("it is `even`, `optimal`, or stages such as EAA|AAL: {error}"))
            }
        }
    }
}

/// Why there is no cut.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum CutError {
    /// The layers cannot be measured.
    #[error("the layers cannot be measured: {0}")]
    Measure(#[from] MeasureError),
    /// The layers cannot be cut like that.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The text is of another model.
    #[error("--cut has the layers {given}, and the model is {model} (embedding, blocks, head)")]
    OtherModel { given: String, model: String },
    /// The costs are of another model.
    #[error("{} holds {found} layers, and the model has {layers}; measure anew into another file", path.display())]
    OtherCosts { path: PathBuf, found: usize, layers: usize },
    /// The number of stages is another.
    #[error("--cut makes {cut} stages, and the schedule runs {stages}")]
    Stages { cut: usize, stages: usize },
    /// Every process would measure something else.
    #[error(
        "where ranks are processes, an optimal cut needs costs that all processes read; write them with --costs FILE and --link threads first"
    )]
    NoCosts,
    /// The file of costs cannot be read or written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
}

burn_pipeline::debug_as_text!(CutError);

impl Cut {
    /// The cut for a placement; `None` where blocks are counted. `costs` is the file of the layers' costs; `measure` is
    /// asked for them where there is none.
    ///
    /// # Errors
    /// [`CutError`].
    pub fn partition(
        &self,
        model: &GptConfig,
        placement: &Placement,
        costs: Option<&Path>,
        measure: impl FnOnce(&[char]) -> Result<Layers, CutError>,
    ) -> Result<Option<Partition>, CutError> {
        let kinds: Pattern = model.kinds().parse()?;
        let cut = match self {
            Cut::Even => return Ok(None),
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
            true => Ok(Some(cut)),
            false => Err(CutError::Stages { cut: cut.stages(), stages: placement.stages() }),
        }
    }
}

/// The layers' costs: from the file if it is there, else measured and, where a file was named, written.
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

/// Measures the model's layers on one microbatch, with the builder's devices and threads.
///
/// # Errors
/// [`CutError::Measure`].
pub fn measured(model: &GptConfig, builder: &Builder, kinds: &[char], microbatch: Batch) -> Result<Layers, CutError> {
    let (model, finest) = (model.clone(), Partition::even(model.all_layers(), model.all_layers())?);
    let builder = builder.clone().stages(move |at| model.stage_of(at, &finest));
    Ok(builder.measure_layers(microbatch, kinds, ROUNDS)?.layers)
}
