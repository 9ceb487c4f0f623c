//! The operations of a plan, with PyTorch's symbols.
//!
//! Guarantees: every operation has a unique symbol, which parses back to it. `WAIT_SEND_F`, `WAIT_SEND_B` and
//! `WAIT_REDUCE_GRAD` are PyTorch 2.15's. `WAIT_RECV_F`, `WAIT_RECV_B` and `WAIT_UNSHARD` are additions of the same
//! form: PyTorch's runtime waits for these three where they are used. The vocabulary-parallel operations have the
//! names of Yeung et al., Balancing Pipeline Parallelism with Vocabulary Parallelism, 2024 (arXiv:2411.05288).

use crate::named::named;

named! {
    /// An operation of a plan, with PyTorch's symbols.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
    #[repr(u8)]
    pub enum Op, symbol {
        /// `F`: forward.
        Forward => "F",
        /// `I`: backward for the input.
        BackwardInput => "I",
        /// `W`: backward for the weights.
        BackwardWeight => "W",
        /// `B`: backward for both at once.
        Backward => "B",
        /// `SEND_F`: send the stage's output to the next stage's rank.
        SendForward => "SEND_F",
        /// `RECV_F`: receive the stage's input from the previous stage's rank.
        ReceiveForward => "RECV_F",
        /// `SEND_B`: send the gradient of the stage's input to the previous stage's rank.
        SendBackward => "SEND_B",
        /// `RECV_B`: receive the gradient of the stage's output from the next stage's rank.
        ReceiveBackward => "RECV_B",
        /// `UNSHARD`: gather the stage's sharded parameters.
        Unshard => "UNSHARD",
        /// `RESHARD`: free the gathered parameters.
        Reshard => "RESHARD",
        /// `REDUCE_GRAD`: reduce the stage's gradients over data-parallel replicas.
        ReduceGrad => "REDUCE_GRAD",
        /// `WAIT_SEND_F`: wait until the output that `SEND_F` sends may be freed.
        WaitSendForward => "WAIT_SEND_F",
        /// `WAIT_RECV_F`: wait until the input that `RECV_F` receives has arrived.
        WaitReceiveForward => "WAIT_RECV_F",
        /// `WAIT_SEND_B`: wait until the gradient that `SEND_B` sends may be freed.
        WaitSendBackward => "WAIT_SEND_B",
        /// `WAIT_RECV_B`: wait until the gradient that `RECV_B` receives has arrived.
        WaitReceiveBackward => "WAIT_RECV_B",
        /// `WAIT_UNSHARD`: wait until the gathered parameters have arrived.
        WaitUnshard => "WAIT_UNSHARD",
        /// `WAIT_REDUCE_GRAD`: wait until the reduced gradients have arrived.
        WaitReduceGrad => "WAIT_REDUCE_GRAD",
        /// `S`: forward of this rank's piece of the head, with a softmax over the piece alone and, in training, the
        /// piece's part of the input's gradient.
        HeadForward => "S",
        /// `T`: gradient of the weights of this rank's piece of the head.
        HeadBackward => "T",
        /// `IF`: forward of this rank's piece of the embedding.
        EmbeddingForward => "IF",
        /// `IB`: gradient of the weights of this rank's piece of the embedding.
        EmbeddingBackward => "IB",
        /// `BCAST_S`: send the last stage's output to all ranks.
        BroadcastHidden => "BCAST_S",
        /// `REDUCE_S`: combine the softmax's statistics on all ranks, and sum the parts of the input's gradient on
        /// the last stage's rank.
        ReduceHead => "REDUCE_S",
        /// `REDUCE_IF`: sum the outputs of the embedding's pieces on the first stage's rank.
        ReduceEmbedding => "REDUCE_IF",
        /// `BCAST_IB`: send the gradient of the first stage's input to all ranks.
        BroadcastGradient => "BCAST_IB",
    }
}

impl Op {
    /// The vocabulary-parallel collectives of all ranks, in declaration order.
    pub(crate) const RANK_COLLECTIVES: [Op; 4] =
        [Op::BroadcastHidden, Op::ReduceHead, Op::ReduceEmbedding, Op::BroadcastGradient];

    /// The operation with this symbol, if there is one.
    pub(crate) fn from_symbol(symbol: &str) -> Option<Self> {
        Op::ALL.into_iter().find(|op| op.symbol() == symbol)
    }

    /// Returns true if it runs the stage's module (`F`, `I`, `W`, `B`).
    pub fn is_compute(self) -> bool {
        matches!(self, Op::Forward | Op::BackwardInput | Op::BackwardWeight | Op::Backward)
    }

    /// Returns true if it runs a rank's piece of the head or of the embedding (`S`, `T`, `IF`, `IB`).
    pub fn is_piece(self) -> bool {
        matches!(self, Op::HeadForward | Op::HeadBackward | Op::EmbeddingForward | Op::EmbeddingBackward)
    }

    /// Returns true if it is a vocabulary-parallel collective of all ranks (`BCAST_S`, `REDUCE_S`, `REDUCE_IF`,
    /// `BCAST_IB`).
    pub fn is_rank_collective(self) -> bool {
        matches!(self, Op::BroadcastHidden | Op::ReduceHead | Op::ReduceEmbedding | Op::BroadcastGradient)
    }

    /// Returns true if every rank runs it, whichever rank holds the stage. It names the last stage for the head,
    /// and the first stage for the embedding.
    pub fn is_vocabulary(self) -> bool {
        self.is_piece() || self.is_rank_collective()
    }

    /// Returns true for a vocabulary-parallel operation of the head, false for one of the embedding.
    pub(crate) fn is_of_head(self) -> bool {
        matches!(self, Op::HeadForward | Op::HeadBackward | Op::BroadcastHidden | Op::ReduceHead)
    }

    /// Returns true if it keeps its rank busy (`F`, `I`, `W`, `B`, and pieces).
    pub fn is_work(self) -> bool {
        self.is_compute() || self.is_piece()
    }

    /// Returns true if it is a backward (`I`, `W`, `B`).
    pub fn is_backward(self) -> bool {
        matches!(self, Op::BackwardInput | Op::BackwardWeight | Op::Backward)
    }

    /// Returns true if it produces the input's gradient (`I`, `B`).
    pub fn gives_input_gradient(self) -> bool {
        matches!(self, Op::BackwardInput | Op::Backward)
    }

    /// Returns true if it produces the weights' gradients (`W`, `B`).
    pub fn gives_weight_gradient(self) -> bool {
        matches!(self, Op::BackwardWeight | Op::Backward)
    }

    /// Returns true if it is a send or a receive.
    pub fn is_transfer(self) -> bool {
        matches!(self, Op::SendForward | Op::ReceiveForward | Op::SendBackward | Op::ReceiveBackward)
    }

    /// Returns true if it is a send.
    pub fn is_send(self) -> bool {
        matches!(self, Op::SendForward | Op::SendBackward)
    }

    /// The operation at the other end of a transfer: `RECV_F` for `SEND_F`. `None` for other operations.
    pub(crate) fn other_end(self) -> Option<Op> {
        match self {
            Op::SendForward => Some(Op::ReceiveForward),
            Op::ReceiveForward => Some(Op::SendForward),
            Op::SendBackward => Some(Op::ReceiveBackward),
            Op::ReceiveBackward => Some(Op::SendBackward),
            _ => None,
        }
    }

    /// The number of a transfer among the four kinds, in declaration order. `None` for other operations.
    pub(crate) fn transfer_kind(self) -> Option<usize> {
        self.is_transfer().then(|| self as usize - Op::SendForward as usize)
    }

    /// Returns true if the stage at the other end is a later one (`SEND_F`, `RECV_B` and their waits).
    pub(crate) fn is_towards_next(self) -> bool {
        matches!(self.awaits().unwrap_or(self), Op::SendForward | Op::ReceiveBackward)
    }

    /// Returns true if it is a wait (`WAIT_...`).
    pub fn is_wait(self) -> bool {
        self.awaits().is_some()
    }

    /// Returns true if it is the wait for a send or a receive.
    pub fn is_transfer_wait(self) -> bool {
        self.awaits().is_some_and(Op::is_transfer)
    }

    /// The operation that a wait waits for: `SEND_F` for `WAIT_SEND_F`.
    pub fn awaits(self) -> Option<Op> {
        match self {
            Op::WaitSendForward => Some(Op::SendForward),
            Op::WaitReceiveForward => Some(Op::ReceiveForward),
            Op::WaitSendBackward => Some(Op::SendBackward),
            Op::WaitReceiveBackward => Some(Op::ReceiveBackward),
            Op::WaitUnshard => Some(Op::Unshard),
            Op::WaitReduceGrad => Some(Op::ReduceGrad),
            _ => None,
        }
    }

    /// The wait for this operation: `WAIT_SEND_F` for `SEND_F`. `None` for an operation that cannot be awaited:
    /// computations, `RESHARD` and waits.
    pub fn wait(self) -> Option<Op> {
        match self {
            Op::SendForward => Some(Op::WaitSendForward),
            Op::ReceiveForward => Some(Op::WaitReceiveForward),
            Op::SendBackward => Some(Op::WaitSendBackward),
            Op::ReceiveBackward => Some(Op::WaitReceiveBackward),
            Op::Unshard => Some(Op::WaitUnshard),
            Op::ReduceGrad => Some(Op::WaitReduceGrad),
            _ => None,
        }
    }

    /// Returns true if it belongs to one microbatch: all operations but `UNSHARD`, `RESHARD`, `REDUCE_GRAD` and
    /// their waits.
    pub fn has_microbatch(self) -> bool {
        !matches!(self, Op::Unshard | Op::Reshard | Op::ReduceGrad | Op::WaitUnshard | Op::WaitReduceGrad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_and_its_wait_name_each_other() {
        for op in Op::ALL {
            assert_eq!(Op::from_symbol(op.symbol()), Some(op));
            assert!(
                op.wait().is_none_or(|wait| wait.awaits() == Some(op) && wait.has_microbatch() == op.has_microbatch())
            );
            assert!(op.awaits().is_none_or(|start| start.wait() == Some(op)));
        }
        assert_eq!(Op::ALL.into_iter().filter(|op| op.is_wait()).count(), 6);
    }
}
