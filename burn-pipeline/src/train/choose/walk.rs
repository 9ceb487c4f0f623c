//! A walk through a model's stages on one device, which passes outputs on to later stages.
//!
//! Each stage runs on the output of the previous one and on the values of skip edges. Of a tensor-parallel stage, the
//! first member is measured, without the others.

use super::layer::on_device;
use crate::execute::{panic_message, received_by_first};
use crate::link::one_queue;
use crate::payload::Payload;
use crate::stage::{Batch, ErasedStage, ForwardCall, MicrobatchError, StageError};
use crate::tensor_parallel::TensorGroup;
use crate::train::context::StageContext;
use crate::train::features::NotTogether;
use crate::train::setup::Builder;
use burn::tensor::Device;
use burn_pipeline_plan::cost::{PartitionError, ProfileError};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(super) struct Walk<'a> {
    builder: &'a Builder,
    batch: &'a Batch,
    stages: usize,
    /// The tensor-parallel group size of each stage.
    sizes: Vec<usize>,
    pub(super) device: Device,
    /// Values on skip edges that have not arrived yet, by the stages at both ends.
    skipped: BTreeMap<(usize, usize), Payload>,
    /// The first stage with a trained parameter, if one has so far.
    pub(super) first_trained: Option<usize>,
}

impl<'a> Walk<'a> {
    /// Starts a walk through stages with these group sizes, as the first member of each group.
    pub(super) fn new(builder: &'a Builder, batch: &'a Batch, sizes: Vec<usize>) -> Self {
        let device = builder.devices.first().cloned().unwrap_or_default();
        let device = if device.is_autodiff() { device } else { device.autodiff() };
        // Measurements run on their own threads, as in a pipeline.
        one_queue();
        Self { builder, batch, stages: sizes.len(), sizes, device, skipped: BTreeMap::new(), first_trained: None }
    }

    pub(super) fn context(&self, index: usize) -> StageContext {
        // Every layer as a stage, whatever the cut.
        let cut = self.builder.cut.clone().filter(|cut| cut.layers() != self.stages);
        let device = self.device.clone();
        let (group, replicas) = (TensorGroup::without_others(self.sizes[index]), TensorGroup::alone());
        StageContext { index, stages: self.stages, rank: 0, device, cut, group, replicas }
    }

    pub(super) fn first_input(&self) -> Payload {
        on_device(self.batch.whole_input().clone(), &self.device)
    }

    pub(super) fn call(
        &mut self,
        held: &dyn ErasedStage,
        index: usize,
        input: Payload,
    ) -> Result<ForwardCall, MeasureError> {
        // Ordered by sending stage, as a stage expects them.
        let arriving: Vec<(usize, usize)> = self.skipped.keys().copied().filter(|(_, to)| *to == index).collect();
        let arrived = arriving.iter().filter_map(|edge| self.skipped.remove(edge)).collect();
        let extra = on_device(self.batch.whole_extra(index, &held.extras())?, &self.device);
        let ends_route = index + 1 == self.stages && held.batch_checks().target.is_some();
        let target = self.batch.whole_target().filter(|_| ends_route);
        let target = target.map(|target| on_device(target.clone(), &self.device));
        let (input, wants_input_gradient) = (input.join_skips(arrived), self.first_trained.is_some());
        self.first_trained = self.first_trained.or_else(|| held.trains().then_some(index));
        let (microbatch, extra_gradients) = (0, Vec::new());
        Ok(ForwardCall { microbatch, input, extra, target, ends_route, wants_input_gradient, extra_gradients })
    }

    /// The next stage's input from a stage's output, and the bytes of the largest value that skips it.
    pub(super) fn pass_on(&mut self, index: usize, output: Payload) -> Result<(Payload, usize), MeasureError> {
        let (output, skipped) = output.split_skips();
        let edges = self.builder.skips_between(self.stages);
        let edges = edges.iter().filter(|edge| edge.from == index).map(|edge| edge.to);
        let mut ends: Vec<usize> = edges.collect();
        ends.sort_unstable();
        if ends.len() != skipped.len() {
            let error = StageError::SkipCount { got: skipped.len(), expected: ends.len() };
            return Err(self.failed(index)(error));
        }
        let crossing = |to: usize, value| {
            let ranks = self.sizes.get(to).copied().unwrap_or(self.sizes[index]);
            received_by_first(self.sizes[index], ranks, value).map_err(self.failed(index))
        };
        let skipped: Vec<Payload> =
            ends.iter().zip(skipped).map(|(&to, value)| crossing(to, value)).collect::<Result<_, _>>()?;
        let bytes = skipped.iter().map(Payload::bytes).max().unwrap_or(0);
        let output = crossing(index + 1, output)?;
        self.skipped.extend(ends.into_iter().map(|to| (index, to)).zip(skipped));
        Ok((output, bytes))
    }

    /// Converts a stage's error to one with its place.
    pub(super) fn failed(&self, layer: usize) -> impl Fn(StageError) -> MeasureError + Copy + use<> {
        let layers = self.stages;
        move |source| MeasureError::Stage { layer, layers, source }
    }
}

/// Why layers or stages could not be measured. Their numbers count from 0.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum MeasureError {
    /// No stages were given.
    #[error(
        "no model was given; call `Builder::layers`, or `Builder::stages` with a factory that can make one layer per \
         stage"
    )]
    NoStages,
    /// The kinds are not those of the model's layers.
    #[error(
        "{kinds} kinds of layers were given, but the list of `Builder::layers` has {layers} layers; give one kind for \
         each, in order"
    )]
    Kinds { kinds: usize, layers: usize },
    /// A layer refused the previous output, or its device reported an error.
    #[error("layer {layer} of {layers}: {source}")]
    Stage { layer: usize, layers: usize, source: StageError },
    /// A layer's code panicked.
    #[error("layer {layer} of {layers}: its code panicked: {message}")]
    Panic { layer: usize, layers: usize, message: String },
    /// The microbatch lacks an input of a layer.
    #[error(transparent)]
    Batch(#[from] MicrobatchError),
    /// There are no layers, or too many.
    #[error(transparent)]
    Layers(#[from] PartitionError),
    /// Measuring does not go with a feature of the builder.
    #[error(transparent)]
    NotTogether(#[from] NotTogether),
    /// The builder's plan, which defines the stages, cannot be built.
    #[error("the stages to measure are those of the builder's plan: {0}")]
    Plan(String),
    /// The measurements do not give a profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The compute threads cannot be started.
    #[error("the compute threads cannot be started: {0}")]
    Threads(String),
}

burn_pipeline_plan::debug_as_text!(MeasureError);

/// Runs a stage's code; a panic becomes an error with the stage's place.
pub(super) fn caught<T>(
    layer: usize,
    layers: usize,
    run: impl FnOnce() -> Result<T, MeasureError>,
) -> Result<T, MeasureError> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(MeasureError::Panic { layer, layers, message: panic_message(panic.as_ref()) }))
}
