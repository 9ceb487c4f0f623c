//! An identity whose backward calls a function, which may fail or run another backward.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
use std::sync::Arc;

/// The function to call.
#[derive(Clone)]
pub(crate) struct Hook(Arc<dyn Fn() + Send + Sync>);

impl Hook {
    pub(crate) fn new(hook: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

/// Returns the tensor; its backward calls the hook first.
pub(crate) fn hooked<const D: usize>(tensor: Tensor<D>, hook: Hook) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::hooked(tensor.into_dispatch(), hook))
}

#[backend_extension(Flex, Autodiff)]
pub(crate) trait HookedOps: Backend {
    fn hooked(tensor: FloatTensor<Self>, hook: Hook) -> FloatTensor<Self> {
        let _ = hook;
        tensor
    }
}

impl HookedOps for Flex {}

#[derive(Debug)]
struct Identity;

impl<B: Backend> Backward<B, 1> for Identity {
    type State = Hook;

    fn backward(self, ops: Ops<Hook, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        (ops.state.0)();
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, gradient);
        }
    }
}

impl<B: Backend + HookedOps, C: CheckpointStrategy> HookedOps for Autodiff<B, C> {
    fn hooked(tensor: FloatTensor<Self>, hook: Hook) -> FloatTensor<Self> {
        let (value, node) = tensor.into_parts();
        match Identity.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(hook, value),
            OpsKind::UnTracked(prep) => prep.finish(value),
        }
    }
}
