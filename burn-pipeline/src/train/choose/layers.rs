//! The layers of a model, measured on the model itself: the costs that partitioners and the planner work with.
//!
//! Guarantees: nothing of the model is kept or changed, and one layer at a time is in memory; numbers that could not be
//! measured are 0, and [`MeasuredLayers::uncaptured`] names their layers with the reason.
//!
//! 1. The pipeline's own factory makes the model's finest cut: one layer a stage. Embedding and head are layers like any
//!    other.
//! 2. Layers run one after the other on one device, with a rank's number of compute threads, each on the output of the
//!    one before, and on values that skip edges bring.
//! 3. Each layer is counted and timed; see `layer`.
//! 4. Parameters and buffers are counted by element type.

use super::layer::{MeasuredLayer, on_device};
use crate::cost::{Dtype, Layer, Layers, PartitionError};
use crate::execute::panic_message;
use crate::stage::{Batch, ErasedStage, ForwardCall, MicrobatchError, Payload, StageError};
use crate::train::context::StageContext;
use crate::train::setup::Builder;
use burn::tensor::{DType, Device};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What measuring a model's layers gave.
#[derive(Clone, Debug)]
pub struct MeasuredLayers {
    /// The layers.
    pub layers: Layers,
    /// Layers that could not be captured, and why: their FLOPs and activation bytes are 0.
    pub uncaptured: Vec<(usize, String)>,
}

/// Why layers could not be measured; they count from 0.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum MeasureError {
    /// No stages were given.
    #[error("no stages were given; call `Builder::stages` with a factory that can make one layer a stage")]
    NoStages,
    /// A layer refused the output of the one before, or its device reported an error.
    #[error("layer {layer} of {layers}: {source}")]
    Stage { layer: usize, layers: usize, source: StageError },
    /// A layer's code panicked.
    #[error("layer {layer} of {layers}: its code panicked: {message}")]
    Panic { layer: usize, layers: usize, message: String },
    /// The microbatch does not hold what a layer reads.
    #[error(transparent)]
    Batch(#[from] MicrobatchError),
    /// There is no layer, or there are too many.
    #[error(transparent)]
    Layers(#[from] PartitionError),
    /// The compute threads cannot be started.
    #[error("the compute threads cannot be started: {0}")]
    Threads(String),
}

impl Builder {
    /// Measures every layer of the model on one microbatch. `kinds` describes the layers in order; the builder's factory
    /// is called for as many stages, and must make one layer for each. With `rounds` of 0 nothing is timed, and
    /// [`Layer::estimated`] estimates seconds from FLOPs. Devices, threads, skip edges and the way to split backwards are
    /// the builder's; its schedule and optimizer are not used.
    ///
    /// # Errors
    /// [`MeasureError`] names the layer.
    ///
    /// ```
    /// use burn::module::Module;
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::{Device, Tensor};
    /// use burn_pipeline::cost::Pattern;
    /// use burn_pipeline::stage::{Batch, Stage, StageBox};
    /// use burn_pipeline::train::Pipeline;
    ///
    /// #[derive(Module, Debug)]
    /// struct Layer {
    ///     linear: Linear,
    /// }
    ///
    /// impl Stage for Layer {
    ///     type Input = Tensor<2>;
    ///     type Extra = ();
    ///     type Output = Tensor<2>;
    ///
    ///     fn forward(&self, x: Tensor<2>, _: ()) -> Tensor<2> {
    ///         self.linear.forward(x)
    ///     }
    /// }
    ///
    /// let builder = Pipeline::builder().devices(vec![Device::flex()]).stages(|at| {
    ///     StageBox::new(Layer { linear: LinearConfig::new(8, 8).with_bias(false).init(&at.device) })
    /// });
    /// let kinds: Pattern = "LLL".parse()?;
    /// let measured = builder.measure_layers(Batch::new(Tensor::<2>::ones([4, 8], &Device::flex())), kinds.kinds(), 1)?;
    /// let layer = &measured.layers.all()[1];
    /// // Two operations a multiply-add.
    /// assert_eq!((layer.flops, layer.parameters, layer.output_bytes), (2.0 * 4.0 * 64.0, 64, 4.0 * 8.0 * 4.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn measure_layers(
        &self,
        microbatch: Batch,
        kinds: &[char],
        rounds: usize,
    ) -> Result<MeasuredLayers, MeasureError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).build();
        let pool = pool.map_err(|error| MeasureError::Threads(error.to_string()))?;
        pool.install(|| Walk::new(self, &microbatch, kinds.len(), rounds).run(kinds))
    }
}

/// Walks through the layers in order.
struct Walk<'a> {
    builder: &'a Builder,
    batch: &'a Batch,
    layers: usize,
    rounds: usize,
    device: Device,
    /// Values on skip edges that have not arrived yet, by the stages at both ends.
    skipped: BTreeMap<(usize, usize), Payload>,
    uncaptured: Vec<(usize, String)>,
}

impl<'a> Walk<'a> {
    fn new(builder: &'a Builder, batch: &'a Batch, layers: usize, rounds: usize) -> Self {
        let device = builder.devices.first().cloned().unwrap_or_default();
        let device = if device.is_autodiff() { device } else { device.autodiff() };
        Self { builder, batch, layers, rounds, device, skipped: BTreeMap::new(), uncaptured: Vec::new() }
    }

    fn run(mut self, kinds: &[char]) -> Result<MeasuredLayers, MeasureError> {
        let mut value = on_device(self.batch.whole_input().clone(), &self.device);
        let mut layers = Vec::with_capacity(kinds.len());
        for (index, &kind) in kinds.iter().enumerate() {
            let measured = catch_unwind(AssertUnwindSafe(|| self.layer(index, kind, std::mem::take(&mut value))));
            let (layer, output) = measured.unwrap_or_else(|panic| {
                let message = panic_message(panic.as_ref());
                Err(MeasureError::Panic { layer: index, layers: self.layers, message })
            })?;
            tracing::info!(index, flops = layer.flops, seconds = layer.seconds(), "layer measured");
            layers.push(layer);
            value = output;
        }
        let layers = Layers::new(layers)?.with_skips(self.builder.skips.clone())?;
        Ok(MeasuredLayers { layers, uncaptured: self.uncaptured })
    }

    /// One layer's numbers, and its output.
    fn layer(&mut self, index: usize, kind: char, input: Payload) -> Result<(Layer, Payload), MeasureError> {
        let factory = self.builder.factory.as_ref().ok_or(MeasureError::NoStages)?;
        let context = StageContext { index, stages: self.layers, rank: 0, device: self.device.clone(), cut: None };
        let held = factory(&context).into_inner();
        let call = self.call(held.as_ref(), index, input)?;
        let failed = |source| MeasureError::Stage { layer: index, layers: self.layers, source };
        let mut measured = MeasuredLayer { held, call, device: &self.device, costs: Layer::new(kind) };
        if let Some(reason) = measured.count().map_err(failed)? {
            tracing::warn!(layer = index, reason, "FLOPs and activation bytes of a layer are not known");
            self.uncaptured.push((index, reason));
        }
        let output = measured.time(self.builder, self.rounds).map_err(failed)?;
        let MeasuredLayer { held, costs: mut layer, .. } = measured;
        for weight in held.named_weights() {
            let value = &weight.value;
            layer.parameters += value.shape().num_elements() as u64;
            *layer.bytes.entry(dtype(value.dtype())).or_default() += value.bytes() as u64;
        }
        let (output, skipped) = output.split_skips();
        layer.output_bytes = output.bytes() as f64;
        let edges = self.builder.skips.iter().filter(|edge| edge.from == index).map(|edge| edge.to);
        let mut ends: Vec<usize> = edges.collect();
        ends.sort_unstable();
        if ends.len() != skipped.len() {
            return Err(failed(StageError::SkipCount { got: skipped.len(), expected: ends.len() }));
        }
        layer.skip_bytes = skipped.iter().map(Payload::bytes).max().unwrap_or(0) as f64;
        self.skipped.extend(ends.into_iter().map(|to| (index, to)).zip(skipped));
        Ok((layer, output))
    }

    /// What a layer's forward gets.
    fn call(&mut self, held: &dyn ErasedStage, index: usize, input: Payload) -> Result<ForwardCall, MeasureError> {
        // In the order of the stages that they come from, as a stage expects them.
        let arriving: Vec<(usize, usize)> = self.skipped.keys().copied().filter(|(_, to)| *to == index).collect();
        let arrived = arriving.iter().filter_map(|edge| self.skipped.remove(edge)).collect();
        let extra = on_device(self.batch.whole_extra(index, &held.extras())?, &self.device);
        let ends_route = index + 1 == self.layers && held.batch_checks().target.is_some();
        let target = self.batch.whole_target().filter(|_| ends_route);
        let target = target.map(|target| on_device(target.clone(), &self.device));
        let (input, wants_input_gradient) = (input.join_skips(arrived), index > 0);
        Ok(ForwardCall { microbatch: 0, input, extra, target, ends_route, wants_input_gradient })
    }
}

/// An element type by name and width.
fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 | DType::Flex32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::Bf16,
        DType::I64 | DType::U64 => Dtype::I64,
        DType::I32 | DType::U32 => Dtype::I32,
        DType::I16 | DType::U16 => Dtype::I16,
        // Booleans and packed integers by their bytes.
        _ => Dtype::I8,
    }
}
