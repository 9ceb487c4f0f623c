//! Records one forward and its seeded backward of a stage.
//!
//! 1. Input, extra, target and parameters become placeholders on a capture device with the default element types of
//!    the stage's device. Parameters are not copied; constants of the module are.
//! 2. The stage's forward (and the loss, on the last stage) runs on the placeholders under autodiff. Then its
//!    backward runs from placeholders for the outputs' gradients ([`held_outputs`]). Gradients that are likely absent
//!    come last, so that the others are added as if they were alone.
//! 3. The identifiers of placeholders, outputs and gradients become the edges of the recording.
//!
//! All of this runs under `catch_unwind`: an operation that cannot be captured panics somewhere in Burn.

use super::output_spec::OutputSpec;
use super::parameters::{ParameterSpec, Parameters, captured_module, float_edges, lowered_module};
use crate::ops::OutputGradient;
use crate::panics::quietly;
use crate::payload::{AnyTensor, TensorKind};
use crate::program::{
    CustomOps, Edges, NO_REPLAY, Recording, backward, capturing, configured, edge, gradient, interpreter, leaf,
    placeholder,
};
use crate::stage::engine::call::{ForwardCall, Gradients, held_outputs};
use crate::stage::engine::function::{StageCode, has_read_microbatch, strategy_of};
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::random::{Drawn, drawing};
use burn::backend::DispatchTensor;
use burn::module::Module;
use burn::tensor::Device;

/// Why there is no recording.
#[derive(Debug)]
pub(in crate::stage::engine) enum Refusal {
    /// The call does not fit the stage: the error that a plain forward returns.
    Stage(StageError),
    /// The stage cannot be captured.
    Cannot(String),
}

impl From<StageError> for Refusal {
    fn from(error: StageError) -> Self {
        Refusal::Stage(error)
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        // A forward without a recording would fail too, or, on a CubeCL device, compute with the wrong bytes.
        match reason.contains("DTypeMismatch") || reason.contains("dtype mismatch") {
            true => Refusal::Stage(StageError::MixedTypes { reason }),
            false => Refusal::Cannot(reason),
        }
    }
}

/// A recorded call.
pub(in crate::stage::engine) struct Recorded {
    pub(in crate::stage::engine) recording: Recording,
    pub(in crate::stage::engine) output: OutputSpec,
    /// True if the forward changed a buffer. Then its backward is not recorded, since a replay would not change the
    /// buffer.
    pub(in crate::stage::engine) changes_buffers: bool,
    /// True if the forward read the number of its microbatch.
    pub(in crate::stage::engine) reads_microbatch: bool,
    /// The device that it is replayed on.
    pub(in crate::stage::engine) device: Device,
    /// What the layers of a tensor-parallel group drew.
    layer_draws: Drawn,
}

impl Recorded {
    /// What is drawn, in order.
    pub(in crate::stage::engine) fn drawn(&self) -> Drawn {
        self.recording.draws().map(|draw| draw.what()).collect()
    }

    /// Returns true if anything but the layers of a tensor-parallel group draws.
    pub(in crate::stage::engine) fn draws_outside_layers(&self) -> bool {
        self.drawn() != self.layer_draws
    }
}

/// Records a call of a stage, running the user's code once. The outputs at the indices in `unused` likely have no
/// gradient. `capture` keeps the capture device for the next call, since a process can open only a few.
pub(in crate::stage::engine) fn record<M: Stage>(
    capture: &mut Option<Device>,
    code: &StageCode<'_, M>,
    call: &ForwardCall,
    parameters: &Parameters,
    unused: &[usize],
) -> Result<Recorded, Refusal> {
    let device = parameters.device(call);
    if interpreter(&device, &CustomOps::default()).is_none() {
        return Err(Refusal::Cannot(NO_REPLAY.to_owned()));
    }
    let mut traced = Err(Refusal::Cannot("it was not run".to_owned()));
    let mut layer_draws = Drawn::new();
    let (recorded, custom) = quietly(|| {
        let capture = capture.get_or_insert_with(Device::capture).clone();
        let (scope, custom) = capturing(&device, || {
            capture.capture_scope(|scope| {
                let configured = configured(&capture, &device).map_err(Refusal::Cannot);
                let trace = || trace(&capture, code, call, parameters, unused);
                (traced, layer_draws) = drawing(None, || configured.and_then(|()| trace()));
                scope.complete([], [])
            })
        });
        scope.map(|scope| (scope, custom)).map_err(|error| error.to_string())
    })??;
    let (edges, output, changes_buffers) = traced?;
    let reads_microbatch = has_read_microbatch();
    let recording = Recording::new(recorded.graph.operations, recorded.values, edges, custom);
    Ok(Recorded { recording, output, changes_buffers, reads_microbatch, device, layer_draws })
}

/// Runs the stage on placeholders, in an open scope. Returns true if the forward changed a buffer.
fn trace<M: Stage>(
    device: &Device,
    code: &StageCode<'_, M>,
    call: &ForwardCall,
    parameters: &Parameters,
    unused: &[usize],
) -> Result<(Edges, OutputSpec, bool), Refusal> {
    let strategy = strategy_of(code.module);
    let (module, leaves) = captured_module(code.module, parameters, device, strategy)?;
    let mut edges = Edges { parameters: leaves.iter().map(edge).collect::<Result<_, _>>()?, ..Edges::default() };
    let (call, inputs) = call.clone().with_leaves(|tensor, wanted| {
        let plain = placeholder(&tensor.shape(), tensor.dtype(), device);
        edges.inputs.push(edge(&plain)?);
        Ok::<_, String>(AnyTensor::from_dispatch(leaf(plain, strategy, wanted)))
    })?;
    let computed = code.function.train(&module, call)?;
    let changes_buffers = changes_buffers(module, parameters, &leaves);
    let outputs = computed.roots();
    let (output, given) = OutputSpec::of(computed);
    edges.outputs = given.tensors().map(|tensor| edge(tensor.as_dispatch())).collect::<Result<_, _>>()?;
    drop(given);
    if !changes_buffers {
        trace_backward(device, outputs, &inputs, (&leaves, &parameters.specs), unused, &mut edges)?;
    }
    Ok((edges, output, changes_buffers))
}

/// Runs the backward from placeholders for the gradients of the outputs.
fn trace_backward(
    device: &Device,
    outputs: Vec<AnyTensor>,
    inputs: &Gradients,
    (leaves, specs): (&[DispatchTensor], &[ParameterSpec]),
    unused: &[usize],
    edges: &mut Edges,
) -> Result<(), String> {
    edges.input_gradients = vec![None; inputs.len()];
    let Some(nodes) = held_outputs(outputs.clone()) else {
        edges.seeds = vec![None; outputs.len()];
        return Ok(());
    };
    let mut given = Vec::new();
    for (place, output) in outputs.iter().enumerate() {
        let float = output.kind() == TensorKind::Float;
        let seed = float.then(|| placeholder(&output.shape(), output.dtype(), device));
        edges.seeds.push(seed.as_ref().map(edge).transpose()?);
        let likely_unused = unused.contains(&place);
        given.extend(seed.map(|gradient| Some(OutputGradient { gradient, likely_unused })));
    }
    drop(outputs);
    let Some(root) = nodes.seed(given) else { return Ok(()) };
    let gradients = backward(&root)?;
    let of = |leaf: &Option<AnyTensor>| gradient(leaf.as_ref()?.as_dispatch(), &gradients);
    edges.input_gradients = inputs.iter().map(of).collect();
    for (place, (leaf, spec)) in leaves.iter().zip(specs).enumerate() {
        if spec.trainable && spec.same_as.is_none() {
            edges.weight_gradients.extend(gradient(leaf, &gradients).map(|gradient| (place, gradient)));
        }
    }
    Ok(())
}

/// Returns true if the forward changed a buffer.
///
/// Burn's `RunningState` keeps its updates aside until it is next read. `valid` reads it, and panics if the update is
/// a tensor of the capture's autodiff. So that panic means that a buffer changed.
fn changes_buffers<M: Module>(module: M, parameters: &Parameters, leaves: &[DispatchTensor]) -> bool {
    if parameters.specs.iter().all(|spec| spec.trainable) {
        return false;
    }
    let read = quietly(|| lowered_module(module, parameters).valid());
    // An update that does not come from autodiff (a counter) is read without a panic, and is a different tensor.
    let kept = |module: M| {
        let after = float_edges(&module)?;
        let mut frozen =
            leaves.iter().zip(&parameters.specs).filter(|(_, spec)| !spec.trainable && spec.dtype.is_float());
        frozen.all(|(leaf, _)| edge(leaf).is_ok_and(|leaf| after.contains(&leaf.id))).then_some(())
    };
    read.ok().and_then(kept).is_none()
}
