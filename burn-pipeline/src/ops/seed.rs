//! Backward of several outputs, seeded with gradients that arrive later, without touching the outputs' storage.
//!
//! Guarantees: the gradients equal those of `sum(output * gradient)` bit for bit, but no pass over the
//! activation is made, and each output's storage is free as soon as its last other holder lets go: only its
//! graph node is kept (what Megatron calls `deallocate_output_tensor`).
//!
//! 1. [`seed_root`] chains one binary operation an output, starting from a scalar that tracks nothing; each
//!    operation drops the output's primitive at once and remembers a [`GradientSlot`].
//! 2. Before `backward` of the root, the received gradients are put into the slots.
//! 3. In backward, each operation hands its slot's gradient to its output's node; an empty slot means that
//!    nothing downstream used the output, whose gradient is then zero.

use super::PipelineOps;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, DispatchKindConversion, DispatchTensor, TensorMetadata};
use burn::tensor::{DType, Shape};
use std::sync::{Arc, Mutex, PoisonError};

/// Where the gradient of one output is put before backward; clones share the slot.
#[derive(Debug, Clone, Default)]
pub struct GradientSlot(Arc<Mutex<Option<DispatchTensor>>>);

impl GradientSlot {
    /// Puts the gradient in: without autodiff, of the output's shape, element type and device.
    pub fn set(&self, gradient: DispatchTensor) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradient);
    }

    fn take(&self) -> Option<DispatchTensor> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The root of the backward of `outputs`, with one slot an output to seed it with.
///
/// Takes float outputs as they leave a stage (with autodiff). Returns `None` where no output depends on
/// anything that needs a gradient: there is then no backward to run.
pub fn seed_root(outputs: Vec<DispatchTensor>) -> Option<(DispatchTensor, Vec<GradientSlot>)> {
    let like = outputs.iter().find(|output| Dispatch::is_tracked(output))?;
    let zero = scalar_like(like);
    let slots: Vec<GradientSlot> = outputs.iter().map(|_| GradientSlot::default()).collect();
    let root = outputs
        .into_iter()
        .zip(&slots)
        .fold(zero, |chain, (output, slot)| Dispatch::seed_output(chain, output, slot.clone()));
    Some((root, slots))
}

/// A zero of shape `[1]` that tracks nothing, on the output's device and with its element type.
fn scalar_like(output: &DispatchTensor) -> DispatchTensor {
    use burn::backend::ops::FloatTensorOps;
    let zeros = Dispatch::float_zeros(Shape::new([1]), &output.device(), float_dtype(output.dtype()));
    DispatchTensor { autodiff: output.autodiff, ..zeros }
}

fn float_dtype(dtype: DType) -> burn::tensor::FloatDType {
    dtype.into()
}

#[derive(Debug)]
struct SeedOutput;

/// What backward needs of an output, its storage being gone.
#[derive(Debug, Clone)]
struct Seed<D> {
    slot: GradientSlot,
    shape: Shape,
    dtype: DType,
    device: D,
}

impl<B: Backend> Backward<B, 2> for SeedOutput
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Seed<B::Device>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let upstream = grads.consume::<B>(&ops.node);
        let [chain, output] = ops.parents;
        if let Some(node) = chain {
            grads.register::<B>(node.id, upstream);
        }
        if let Some(node) = output {
            let Seed { slot, shape, dtype, device } = ops.state;
            let received = slot.take().and_then(primitive::<B>);
            let gradient = received.unwrap_or_else(|| B::float_zeros(shape, &device, float_dtype(dtype)));
            grads.register::<B>(node.id, gradient);
        }
    }
}

/// The backend's own tensor inside a dispatched one; `None` for another backend's.
pub(super) fn primitive<B: Backend>(tensor: DispatchTensor) -> Option<B::FloatTensorPrimitive>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor).ok().map(|t| t.float())
}

/// Joins an output to a chain, giving the output's storage back.
pub(super) fn join<B: Backend, C: CheckpointStrategy>(
    chain: FloatTensor<Autodiff<B, C>>,
    output: FloatTensor<Autodiff<B, C>>,
    slot: GradientSlot,
) -> FloatTensor<Autodiff<B, C>>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let (chain, chain_node) = chain.into_parts();
    let (shape, dtype, device) = (output.shape(), output.dtype(), output.device());
    let (storage, output_node) = output.into_parts();
    // Here the storage is given back; the node's guard keeps the graph alive until the step is registered.
    drop(storage);
    match SeedOutput.prepare::<C>([chain_node, output_node]).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(Seed { slot, shape, dtype, device }, chain),
        OpsKind::UnTracked(prep) => prep.finish(chain),
    }
}
