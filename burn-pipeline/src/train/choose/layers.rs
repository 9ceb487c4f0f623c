//! Measures a model's layers, for partitioners and the planner.
//!
//! Guarantees: the model is not kept or changed, and only one layer at a time is in memory. Numbers that could not be
//! measured are 0, and [`MeasuredLayers::uncaptured`] names their layers with the reason.
//!
//! 1. The pipeline's own factory makes the model's finest cut: one layer per stage. Embedding and head are layers too.
//! 2. Layers run one after the other on one device, with a rank's number of compute threads, each on the output of the
//!    previous one and on the values of skip edges.
//! 3. Each layer is counted and timed; see `layer`.
//! 4. Parameters and buffers are counted by element type.

use super::layer::MeasuredLayer;
use super::walk::{MeasureError, Walk, caught};
use crate::layers::Model;
use crate::payload::Payload;
use crate::stage::Batch;
use crate::train::features::Feature;
use crate::train::setup::Builder;
use burn::tensor::DType;
use burn_pipeline_plan::cost::{Dtype, Layer, Layers};

/// The measured costs of a model's layers.
#[derive(Clone, Debug)]
pub struct MeasuredLayers {
    /// The layers.
    pub layers: Layers,
    /// Layers that could not be captured, and why: their FLOPs and activation bytes are 0.
    pub uncaptured: Vec<(usize, String)>,
}

impl Builder {
    /// Measures every layer of the model on one microbatch. `kinds` describes the layers in order; the builder's
    /// factory is called for that many stages, and must make one layer for each. With `rounds` of 0 nothing is timed,
    /// and [`Layer::estimated`] estimates seconds from FLOPs. Layers run as the builder's stages do (devices, threads,
    /// precision, compiled or not); its schedule and groups are not used. A layer is measured whole; planners divide it
    /// over a tensor-parallel group if the layer gives the bytes that its members sum ([`Layer::summed_bytes`]).
    ///
    /// # Errors
    /// Returns [`MeasureError`], which names the layer.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::{Device, Tensor};
    /// use burn_pipeline::cost::Pattern;
    /// use burn_pipeline::layers::{Layer, LayerContext, Sequential};
    /// use burn_pipeline::{Batch, Pipeline};
    ///
    /// let linear = |at: &LayerContext| LinearConfig::new(8, 8).with_bias(false).init(&at.device);
    /// let model = Sequential::new().repeat(3, Layer::new("body", linear, Linear::forward::<2>)).without_loss();
    /// let builder = Pipeline::builder().devices(vec![Device::flex()]).layers(model);
    /// let kinds: Pattern = "LLL".parse()?;
    /// let microbatch = Batch::new(Tensor::<2>::ones([4, 8], &Device::flex()));
    /// let measured = builder.measure_layers(microbatch, kinds.kinds(), 1)?;
    /// let layer = &measured.layers.all()[1];
    /// // Two FLOPs per multiply-add.
    /// assert_eq!((layer.flops, layer.parameters, layer.output_bytes), (2.0 * 4.0 * 64.0, 64, 4.0 * 8.0 * 4.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn measure_layers(
        &self,
        microbatch: Batch,
        kinds: &[char],
        rounds: usize,
    ) -> Result<MeasuredLayers, MeasureError> {
        let layers = self.layers.as_ref().map(Model::layers);
        if let Some(layers) = layers.filter(|&layers| layers != kinds.len()) {
            return Err(MeasureError::Kinds { kinds: kinds.len(), layers });
        }
        self.measure_parts(microbatch, kinds, rounds)
    }

    /// Measures the parts of an even cut, one for each kind.
    pub(super) fn measure_parts(
        &self,
        microbatch: Batch,
        kinds: &[char],
        rounds: usize,
    ) -> Result<MeasuredLayers, MeasureError> {
        self.goes_with(Feature::Measuring)?;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).build();
        let pool = pool.map_err(|error| MeasureError::Threads(error.to_string()))?;
        let walk = Walk::new(self, &microbatch, vec![1; kinds.len()]);
        pool.install(|| Measuring { builder: self, rounds, walk, uncaptured: Vec::new() }.run(kinds))
    }
}

struct Measuring<'a> {
    builder: &'a Builder,
    rounds: usize,
    walk: Walk<'a>,
    uncaptured: Vec<(usize, String)>,
}

impl Measuring<'_> {
    fn run(mut self, kinds: &[char]) -> Result<MeasuredLayers, MeasureError> {
        let mut value = self.walk.first_input();
        let mut layers = Vec::with_capacity(kinds.len());
        for (index, &kind) in kinds.iter().enumerate() {
            let input = std::mem::take(&mut value);
            let (layer, output) = caught(index, kinds.len(), || self.layer(index, kind, input))?;
            tracing::info!(index, flops = layer.flops, seconds = layer.seconds(), "layer measured");
            layers.push(layer);
            value = output;
        }
        let first = self.walk.first_trained.unwrap_or(0);
        if first > 0 {
            // Measured without the gradient of its input, so its whole backward is that for its weights.
            let layer = &mut layers[first];
            (layer.weight, layer.input) = (layer.full_backward(), 0.0);
        }
        let layers = Layers::new(layers)?.with_skips(self.builder.skips_between(kinds.len()))?.train_from(first)?;
        Ok(MeasuredLayers { layers, uncaptured: self.uncaptured })
    }

    fn layer(&mut self, index: usize, kind: char, input: Payload) -> Result<(Layer, Payload), MeasureError> {
        let context = self.walk.context(index);
        let mut held = self.builder.make_stage(&context, true, false, None).ok_or(MeasureError::NoStages)?;
        // A layer that runs outside of a step has no seed, and costs the same.
        held.options_mut().seeded = false;
        let call = self.walk.call(held.as_ref(), index, input)?;
        let failed = self.walk.failed(index);
        let device = self.walk.device.clone();
        let mut measured = MeasuredLayer { held, call, device: &device, costs: Layer::new(kind) };
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
        for ((_, copy), (_, master)) in held.computed().into_iter().zip(held.weights()) {
            if copy.dtype() != master.dtype() {
                *layer.bytes.entry(dtype(copy.dtype())).or_default() += copy.bytes() as u64;
            }
        }
        let (output, skip_bytes) = self.walk.pass_on(index, output)?;
        (layer.output_bytes, layer.skip_bytes) = (output.bytes() as f64, skip_bytes as f64);
        Ok((layer, output))
    }
}

/// The cost model's element type for a tensor's.
fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 | DType::Flex32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::Bf16,
        DType::I64 | DType::U64 => Dtype::I64,
        DType::I32 | DType::U32 => Dtype::I32,
        DType::I16 | DType::U16 => Dtype::I16,
        // Booleans and packed integers count as bytes.
        _ => Dtype::I8,
    }
}
