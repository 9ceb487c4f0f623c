//! A pipeline whose model is a list of layers.
//!
//! Guarantees: every cut of the list gets the skip edges that it needs.

use super::builder::Builder;
use crate::layers::{LayerGroups, LayersError, Model};
use crate::train::context::StageContext;
use crate::train::error::BuildError;
use crate::train::plans::Source;
use burn_pipeline_plan::cost::{self, LinkCosts, Partition, PartitionError};
use burn_pipeline_plan::plan::SkipEdge;
use std::ops::Range;
use std::sync::Arc;

impl Builder {
    /// Sets the model, as a list of layers, in place of [`Builder::stages`]. Stages are evenly many consecutive layers,
    /// or the parts of [`Builder::cut`]; the first and the last layer count like any other.
    ///
    /// A parameter's name begins with its layer's (`blocks.4.weight`), and [`Builder::share`] takes these names as
    /// paths. Ranks in processes compare the lists' names and seed, but not what the closures hold: put
    /// hyperparameters into [`Builder::model`], which they compare too.
    /// [`Pipeline::replace_layer`](crate::Pipeline::replace_layer) replaces a layer's module between two steps.
    /// The crate's [first page](crate) has an example.
    pub fn layers(mut self, model: Model) -> Self {
        let stages = model.clone();
        self.factory = Some(Arc::new(move |at: &StageContext| {
            let share = |index| StageContext { index, ..at.clone() }.layers(stages.layers());
            let cut: Vec<Range<usize>> = (0..at.stages).map(share).collect();
            let groups = LayerGroups { group: at.group.clone(), replicas: at.replicas.clone() };
            stages.stage(&cut, at.index, &at.device, &groups)
        }));
        self.layers = Some(model);
        self
    }

    /// The skip edges of a plan for this source.
    pub(crate) fn skips_of(&self, source: &Source) -> Result<Vec<SkipEdge>, BuildError> {
        let Some(model) = &self.layers else { return Ok(self.skips.clone()) };
        model.check()?;
        if !self.skips.is_empty() {
            return Err(LayersError::Edges.into());
        }
        let (layers, stages) = (model.layers(), source.stages()?);
        if layers < stages {
            return Err(LayersError::TooFew { layers, stages }.into());
        }
        if let Some(cut) = self.cut.as_ref().map(Partition::layers).filter(|&cut| cut != layers) {
            return Err(LayersError::OtherCut { cut, layers }.into());
        }
        Ok(self.skips_between(stages))
    }

    /// The skip edges between this many stages.
    pub(crate) fn skips_between(&self, stages: usize) -> Vec<SkipEdge> {
        let Some(model) = &self.layers else { return self.skips.clone() };
        let given = self.cut.clone().filter(|cut| cut.stages() == stages && cut.layers() == model.layers());
        // A number of stages that does not fit is refused when they are made.
        let cut = given.or_else(|| Partition::even(model.layers(), stages).ok());
        cut.map_or(Vec::new(), |cut| model.edges(&cut.ranges().collect::<Vec<_>>()))
    }

    /// Cuts the model in this way; skip edges between `layers` become those between stages.
    pub(crate) fn cut_with(&mut self, cut: Partition, layers: &cost::Layers) -> Result<(), PartitionError> {
        if self.layers.is_none() {
            self.skips = cut.profile(layers, LinkCosts::default())?.skips().to_vec();
        }
        self.cut = Some(cut);
        Ok(())
    }
}
