//! The layers of a model, measured on the model itself: what partitioners and planner cut by.
//!
//! Guarantees: nothing of the model is kept or changed, and one layer at a time is in memory; numbers that could not be
//! had are 0, and [`MeasuredLayers::uncaptured`] says of which layers and why.
//!
//! 1. The pipeline's own factory makes the model's finest cut: one layer a stage. Embedding and head are layers like any
//!    other.
//! 2. Layers run one after the other on one device, with a rank's number of compute threads, each on what the one before
//!    put out, values that go past neighbours included.
//! 3. FLOPs of the forward, and the bytes that it leaves behind, are counted in the layer's capture (see
//!    [`program`](crate::program)): no formula for each architecture.
//! 4. Seconds of `F`, `I`, `W` and `B` are medians over some rounds, run the way that the builder's pipeline would run
//!    them. The first round, which captures and compiles, is not counted.
//! 5. Parameters, buffers among them, are counted by element type.

use crate::cost::{Dtype, Layer, LayerKind, Layers, PartitionError};
use crate::execute::panic_message;
use crate::stage::{
    AnyTensor, Batch, ErasedStage, ForwardCall, ForwardOutput, Gradients, MicrobatchError, Payload, SplitBackward,
    StageError, loss_seed,
};
use crate::train::choose::profile::median;
use crate::train::setup::{Builder, StageContext};
use burn::tensor::{DType, Device};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// What measuring a model's layers gave.
#[derive(Clone, Debug)]
pub struct MeasuredLayers {
    /// The layers.
    pub layers: Layers,
    /// Layers of which FLOPs and activation bytes are not known, and why: they could not be captured.
    pub uncaptured: Vec<(usize, String)>,
}

/// Why layers could not be measured.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MeasureError {
    /// Nothing says how layers are made.
    #[error("no stages were given; call `Builder::stages` with a factory that can make one layer a stage")]
    NoStages,
    /// A layer refused what the one before put out, or its device reported an error.
    #[error("layer {layer} of {layers}: {source}")]
    Stage {
        /// The layer, from 0.
        layer: usize,
        /// How many there are.
        layers: usize,
        /// What went wrong.
        source: StageError,
    },
    /// A layer's code panicked.
    #[error("layer {layer} of {layers}: its code panicked: {message}")]
    Panic {
        /// The layer, from 0.
        layer: usize,
        /// How many there are.
        layers: usize,
        /// What the panic said.
        message: String,
    },
    /// The microbatch does not hold what a layer reads.
    #[error(transparent)]
    Batch(#[from] MicrobatchError),
    /// There is no layer, or there are too many.
    #[error(transparent)]
    Layers(#[from] PartitionError),
    /// There are no threads to compute on.
    #[error("no compute threads: {0}")]
    Threads(String),
}

impl Builder {
    /// Measures every layer of the model on one microbatch: the builder's factory is called for as many stages as
    /// there are `kinds`, which describe the layers in order, and each must then make one layer. With `rounds` of 0
    /// nothing is timed; [`Layer::estimated`] makes seconds of FLOPs. Devices, threads, edges past neighbours and the
    /// way to split are the builder's, schedule and optimizer play no part.
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
        kinds: &[LayerKind],
        rounds: usize,
    ) -> Result<MeasuredLayers, MeasureError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).build();
        let pool = pool.map_err(|error| MeasureError::Threads(error.to_string()))?;
        pool.install(|| Probe::new(self, &microbatch, kinds.len(), rounds).run(kinds))
    }
}

/// Goes through the layers in order.
struct Probe<'a> {
    builder: &'a Builder,
    batch: &'a Batch,
    layers: usize,
    rounds: usize,
    device: Device,
    /// Values under way past neighbours, by the stages at both ends.
    past: BTreeMap<(usize, usize), Payload>,
    uncaptured: Vec<(usize, String)>,
}

/// Seconds of a layer's operations, round by round.
#[derive(Default)]
struct Seconds {
    forward: Vec<f64>,
    input: Vec<f64>,
    weight: Vec<f64>,
    backward: Vec<f64>,
}

impl<'a> Probe<'a> {
    fn new(builder: &'a Builder, batch: &'a Batch, layers: usize, rounds: usize) -> Self {
        let device = builder.devices.first().cloned().unwrap_or_default();
        let device = if device.is_autodiff() { device } else { device.autodiff() };
        Self { builder, batch, layers, rounds, device, past: BTreeMap::new(), uncaptured: Vec::new() }
    }

    fn run(mut self, kinds: &[LayerKind]) -> Result<MeasuredLayers, MeasureError> {
        let mut value = self.brought(self.batch.whole_input().clone());
        let mut layers = Vec::with_capacity(kinds.len());
        for (index, &kind) in kinds.iter().enumerate() {
            let measured = catch_unwind(AssertUnwindSafe(|| self.layer(index, kind, std::mem::take(&mut value))));
            let (layer, output) = measured.unwrap_or_else(|panic| {
                let message = panic_message(panic.as_ref());
                Err(MeasureError::Panic { layer: index, layers: self.layers, message })
            })?;
            tracing::info!(index, flops = layer.flops, seconds = layer.seconds(), "layer measured");
            (value, _) = (output, layers.push(layer));
        }
        let layers = Layers::new(layers)?.with_skips(self.builder.skips.clone())?;
        Ok(MeasuredLayers { layers, uncaptured: self.uncaptured })
    }

    /// One layer's numbers, and what it hands on.
    fn layer(&mut self, index: usize, kind: LayerKind, input: Payload) -> Result<(Layer, Payload), MeasureError> {
        let factory = self.builder.factory.as_ref().ok_or(MeasureError::NoStages)?;
        let context = StageContext { index, stages: self.layers, rank: 0, device: self.device.clone() };
        let mut held = factory(&context).into_inner();
        let call = self.call(held.as_ref(), index, input)?;
        let mut layer = Layer::new(kind);
        self.count(held.as_mut(), &call, index, &mut layer)?;
        let failed = |source| MeasureError::Stage { layer: index, layers: self.layers, source };
        let output = self.time(held.as_mut(), &call, &mut layer).map_err(failed)?;
        for weight in held.named_weights() {
            let value = &weight.value;
            let (count, bytes) = (value.shape().num_elements() as u64, value.bytes() as u64);
            layer.parameters += count;
            *layer.bytes.entry(dtype(value.dtype())).or_default() += bytes;
        }
        let (output, past) = output.split_skips();
        layer.output_bytes = output.bytes() as f64;
        let edges = self.builder.skips.iter().filter(|edge| edge.from == index).map(|edge| edge.to);
        let mut ends: Vec<usize> = edges.collect();
        ends.sort_unstable();
        if ends.len() != past.len() {
            return Err(failed(StageError::SkipCount { got: past.len(), expected: ends.len() }));
        }
        layer.skip_bytes = past.iter().map(Payload::bytes).max().unwrap_or(0) as f64;
        self.past.extend(ends.into_iter().map(|to| (index, to)).zip(past));
        Ok((layer, output))
    }

    /// What a layer's forward gets.
    fn call(&mut self, held: &dyn ErasedStage, index: usize, input: Payload) -> Result<ForwardCall, MeasureError> {
        let mut arriving: Vec<(usize, usize)> = self.past.keys().copied().filter(|(_, to)| *to == index).collect();
        arriving.sort_unstable();
        let past = arriving.iter().filter_map(|edge| self.past.remove(edge)).collect();
        let extra = self.brought(self.batch.whole_extra(index, &held.extras())?);
        let ends_route = index + 1 == self.layers && held.batch_checks().target.is_some();
        let target = self.batch.whole_target().filter(|_| ends_route).cloned().map(|target| self.brought(target));
        let input = input.join_skips(past);
        Ok(ForwardCall { microbatch: 0, input, extra, target, ends_route, wants_input_gradient: index > 0 })
    }

    /// Captures the layer and counts.
    fn count(
        &mut self,
        held: &mut dyn ErasedStage,
        call: &ForwardCall,
        index: usize,
        layer: &mut Layer,
    ) -> Result<(), MeasureError> {
        let captured = held.choose(SplitBackward::Captured, true, false).and_then(|()| {
            held.gradients().begin(Some(0));
            held.forward(call.clone())
        });
        match captured {
            Ok(_) => {}
            Err(StageError::Unsupported(reason)) => {
                tracing::warn!(layer = index, reason, "FLOPs and activation bytes of a layer are not known");
                self.uncaptured.push((index, reason));
                return Ok(());
            }
            Err(source) => return Err(MeasureError::Stage { layer: index, layers: self.layers, source }),
        }
        if let Some(programs) = held.report().programs.first() {
            layer.flops = programs.forward().flops() as f64;
        }
        if let Some(bytes) = held.engine().activation() {
            layer.activation_bytes = bytes.after_forward as f64;
            layer.recomputed_bytes = bytes.recomputed as f64;
            layer.freed_at_input_bytes = (bytes.after_forward + bytes.recomputed) as f64 - bytes.after_input as f64;
        }
        held.clear();
        Ok(())
    }

    /// Times the layer, and gives what it hands on.
    fn time(&self, held: &mut dyn ErasedStage, call: &ForwardCall, layer: &mut Layer) -> Result<Payload, StageError> {
        held.choose(self.builder.split, true, self.builder.keep_outputs)?;
        held.prepare(self.builder.accumulation, None);
        let mut seconds = Seconds::default();
        let mut output = Payload::default();
        for round in 0..=self.rounds {
            held.gradients().begin(Some(0));
            let (outcome, forward) = self.timed(|| held.forward(call.clone()))?;
            let seeds = self.seeds(&outcome);
            if let ForwardOutput::Activations(payload) = outcome {
                output = payload;
            }
            if self.rounds == 0 {
                held.clear();
                return Ok(output);
            }
            let (_, input) = self.timed(|| held.backward_input(0, seeds.clone()))?;
            let ((), weight) = self.timed(|| held.backward_weight(0))?;
            held.gradients().begin(Some(0));
            let (_, again) = self.timed(|| held.forward(call.clone()))?;
            let (_, backward) = self.timed(|| held.backward(0, seeds))?;
            held.clear();
            if round > 0 {
                seconds.forward.extend([forward, again]);
                seconds.input.push(input);
                seconds.weight.push(weight);
                seconds.backward.push(backward);
            }
        }
        layer.forward = median(&mut seconds.forward);
        (layer.input, layer.weight) = (median(&mut seconds.input), median(&mut seconds.weight));
        layer.backward = Some(median(&mut seconds.backward));
        Ok(output)
    }

    /// A gradient for every output that can have one; what it holds does not matter.
    fn seeds(&self, outcome: &ForwardOutput) -> Gradients {
        match outcome {
            ForwardOutput::Loss(_) => vec![Some(loss_seed(1.0, &self.device))],
            ForwardOutput::Activations(payload) => {
                let seed =
                    |tensor: &AnyTensor| (tensor.kind() == crate::stage::TensorKind::Float).then(|| tensor.clone());
                payload.tensors().map(seed).collect()
            }
        }
    }

    /// Runs something to its end on the device.
    fn timed<T>(&self, run: impl FnOnce() -> Result<T, StageError>) -> Result<(T, f64), StageError> {
        let began = Instant::now();
        let done = run()?;
        self.device.sync().map_err(|error| StageError::Device(error.to_string()))?;
        Ok((done, began.elapsed().as_secs_f64()))
    }

    /// A payload on the device, without autodiff.
    fn brought(&self, payload: Payload) -> Payload {
        let device = self.device.clone().inner();
        let brought = payload.map_tensors(|_, tensor| {
            let tensor = tensor.inner();
            let there = tensor.device() == device;
            Ok::<_, std::convert::Infallible>(if there { tensor } else { tensor.to_device(&device) })
        });
        let Ok(brought) = brought;
        brought
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
