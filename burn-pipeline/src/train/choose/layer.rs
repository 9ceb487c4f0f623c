//! The costs of one layer: counted in its capture, and timed.
//!
//! 1. FLOPs of the forward, and its saved activation bytes, are counted in the layer's capture (see
//!    [`program`](crate::program)), so no formula per architecture is needed.
//! 2. Seconds of `F`, `I`, `W` and `B` are medians over several rounds, run as the builder's pipeline would run them.
//!    The first round, which captures and compiles, is not counted.

use super::profile::median;
use crate::payload::{AnyTensor, Payload, TensorKind};
use crate::stage::{BackwardCall, ErasedStage, ForwardCall, ForwardOutput, Gradients, SplitBackward, StageError};
use crate::train::setup::Builder;
use burn::tensor::Device;
use burn_pipeline_plan::cost::Layer;
use std::time::Instant;

pub(super) struct MeasuredLayer<'a> {
    pub(super) held: Box<dyn ErasedStage>,
    pub(super) call: ForwardCall,
    pub(super) device: &'a Device,
    /// The costs known so far.
    pub(super) costs: Layer,
}

impl MeasuredLayer<'_> {
    /// Captures the layer and counts; returns the reason if it cannot be captured.
    pub(super) fn count(&mut self) -> Result<Option<String>, StageError> {
        self.held.choose(SplitBackward::Captured, true, false);
        self.held.gradients().begin(Some(0));
        match self.held.forward(self.call.clone()) {
            Ok(_) => {}
            Err(StageError::Unsupported(reason)) => return Ok(Some(reason)),
            Err(error) => return Err(error),
        }
        if let Some(programs) = self.held.engine().report().programs.first() {
            self.costs.flops = programs.forward().flops() as f64;
        }
        if let Some(bytes) = self.held.engine().activation() {
            self.costs.activation_bytes = bytes.after_forward as f64;
            self.costs.recomputed_bytes = bytes.recomputed as f64;
            let held = (bytes.after_forward + bytes.recomputed) as f64;
            self.costs.freed_at_input_bytes = held - bytes.after_input as f64;
        }
        self.held.clear();
        Ok(None)
    }

    /// Times the layer, and returns its output.
    pub(super) fn time(&mut self, builder: &Builder, rounds: usize) -> Result<Payload, StageError> {
        self.held.choose(builder.split, true, builder.tuning.keep_outputs);
        let (held, call, device) = (self.held.as_mut(), &self.call, self.device);
        let [mut forward, mut input, mut weight, mut backward] = [const { Vec::new() }; 4];
        let mut output = Payload::default();
        for round in 0..=rounds {
            held.gradients().begin(Some(0));
            let (result, first) = timed(device, || held.forward(call.clone()))?;
            let seeds = seeds(&result);
            let backward_call = |whole| BackwardCall { microbatch: 0, seeds: seeds.clone(), whole };
            if let ForwardOutput::Activations(payload) = result {
                output = payload;
            }
            if rounds == 0 {
                held.clear();
                return Ok(output);
            }
            let (_, split_input) = timed(device, || held.backward(backward_call(false)))?;
            let ((), split_weight) = timed(device, || held.backward_weight(0))?;
            held.gradients().begin(Some(0));
            let (_, second) = timed(device, || held.forward(call.clone()))?;
            let (_, whole) = timed(device, || held.backward(backward_call(true)))?;
            held.clear();
            if round > 0 {
                forward.extend([first, second]);
                input.push(split_input);
                weight.push(split_weight);
                backward.push(whole);
            }
        }
        let costs = &mut self.costs;
        (costs.forward, costs.input, costs.weight) = (median(&mut forward), median(&mut input), median(&mut weight));
        costs.backward = Some(median(&mut backward));
        Ok(output)
    }
}

/// A gradient for every output that can have one. The values do not matter.
pub(super) fn seeds(output: &ForwardOutput) -> Gradients {
    match output {
        ForwardOutput::Loss(loss) => vec![Some(loss.seed(1.0))],
        ForwardOutput::Activations(payload) => {
            let seed = |tensor: &AnyTensor| (tensor.kind() == TensorKind::Float).then(|| tensor.clone());
            payload.tensors().map(seed).collect()
        }
    }
}

/// Runs `run` and waits for the device. Returns its result and the seconds.
fn timed<T>(device: &Device, run: impl FnOnce() -> Result<T, StageError>) -> Result<(T, f64), StageError> {
    let began = Instant::now();
    let done = run()?;
    device.sync().map_err(|error| StageError::Device(error.to_string()))?;
    Ok((done, began.elapsed().as_secs_f64()))
}

/// Moves a payload to the device, without autodiff.
pub(super) fn on_device(payload: Payload, device: &Device) -> Payload {
    let device = device.clone().inner();
    payload.map(|_, tensor| tensor.inner().to_device(&device))
}
