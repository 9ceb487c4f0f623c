//! The graph nodes that differentiated operations record.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend};
use std::fmt::Debug;

/// The gradient of an operand, from the state of the forward, the gradient of the output and the operand's index.
type Gradient<B, S> = fn(S, FloatTensor<B>, usize) -> FloatTensor<B>;

/// Records an operation with its output. `operands` are the nodes of what is differentiated; the backward calls
/// `gradient` for those of them that need one.
pub(super) fn record<B: Backend, C: CheckpointStrategy, S: Clone + Debug + Send + 'static, const N: usize>(
    operands: [NodeGuard; N],
    state: S,
    output: FloatTensor<B>,
    gradient: Gradient<B, S>,
) -> FloatTensor<Autodiff<B, C>> {
    match Recorded(gradient).prepare::<C>(operands).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(state, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

#[derive(Debug)]
struct Recorded<B: Backend, S>(Gradient<B, S>);

impl<B: Backend, S: Clone + Debug + Send + 'static, const N: usize> Backward<B, N> for Recorded<B, S> {
    type State = S;

    fn backward(self, ops: Ops<S, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let of_output = grads.consume::<B>(&ops.node);
        let operands = ops.parents.into_iter().enumerate();
        let needed: Vec<_> = operands.filter_map(|(operand, node)| Some((operand, node?))).collect();
        // The last gets state and gradient themselves, which its operations may then overwrite.
        let given = std::iter::repeat_n((ops.state, of_output), needed.len());
        for ((operand, node), (state, of_output)) in needed.into_iter().zip(given) {
            grads.register::<B>(node.id, (self.0)(state, of_output, operand));
        }
    }
}
