//! The operations in a stage that is captured for a device with kernels. Each is recorded as one operation, forward and
//! backward, and its kernel runs when the capture is replayed.
//!
//! A capture for another device records the composed operations, which any device can replay and which can be sliced
//! more finely.

use super::backend::MoeOps;
use super::kernel_device::captured_for_kernels;
use super::options::{InjectedWeights, RouteOptions};
use super::specs::{self, Spec};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Capture, Dispatch, DispatchTensor};
use burn::tensor::DType;
use burn_pipeline::program::{CapturedOp, record_op};

/// One of the methods of [`MoeOps`], with its options.
///
/// Two values are the same operation if their debug texts are equal; the text contains all options.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kernel {
    InjectedGradients { weights: InjectedWeights, dtype: DType },
    ZLoss,
    ZLossBackward,
    Route(RouteOptions),
    RouteBackward(RouteOptions),
    Place { capacity: usize },
    Permute,
    PermuteBackward { tokens: usize },
    Unpermute,
    UnpermuteRowsBackward,
    UnpermuteGatesBackward,
    GroupedMatmul,
    GroupedMatmulInput,
    GroupedMatmulWeight,
}

/// Records an operation as one node; `None` if it must be composed.
pub(super) fn recorded<const INPUTS: usize, const OUTPUTS: usize>(
    kernel: Kernel,
    inputs: [&FloatTensor<Capture>; INPUTS],
) -> Option<[FloatTensor<Capture>; OUTPUTS]> {
    if !captured_for_kernels() {
        return None;
    }
    record_op(kernel, inputs.map(Clone::clone).into())?.try_into().ok()
}

/// The inner dimension of a grouped matmul: the length of each sum.
fn inner(kernel: Kernel, inputs: &[Spec]) -> Option<u64> {
    let width = match kernel {
        Kernel::GroupedMatmul | Kernel::GroupedMatmulInput => inputs.first()?.0[1],
        Kernel::GroupedMatmulWeight => inputs.first()?.0[0],
        _ => return None,
    };
    Some(width as u64)
}

impl CapturedOp for Kernel {
    fn name(&self) -> String {
        format!("moe::{self:?}")
    }

    fn outputs(&self, inputs: &[Spec]) -> Vec<Spec> {
        let shape = |at: usize| &inputs[at].0;
        let spec = |at: usize| inputs[at].clone();
        let like = |at: usize, shape| vec![(shape, inputs[at].1)];
        match self {
            Self::InjectedGradients { dtype, .. } => specs::injected(*dtype).into(),
            Self::ZLoss => specs::z_loss(&spec(0)).into(),
            Self::Route(options) => specs::route(&spec(0), options).into(),
            Self::Place { .. } => specs::place(shape(0), shape(1)).into(),
            Self::ZLossBackward | Self::RouteBackward(_) => vec![spec(0)],
            Self::Permute => like(0, specs::rows(shape(1), shape(0))),
            Self::PermuteBackward { tokens } => like(0, specs::tokens(shape(0), tokens)),
            Self::Unpermute => like(0, specs::rows(shape(1), shape(0))),
            Self::UnpermuteRowsBackward => like(0, specs::rows(shape(2), shape(0))),
            Self::UnpermuteGatesBackward => like(0, specs::gates(shape(0), shape(1))),
            Self::GroupedMatmul => like(0, specs::product(shape(0), shape(1))),
            Self::GroupedMatmulInput => like(0, specs::product_input(shape(0), shape(1))),
            Self::GroupedMatmulWeight => like(0, specs::product_weight(shape(0), shape(1), shape(2))),
        }
    }

    fn flops(&self, inputs: &[Spec], outputs: &[Spec]) -> u64 {
        let elements = |(shape, _): &Spec| shape.num_elements() as u64;
        match (inner(*self, inputs), self, outputs.first()) {
            // Each row is multiplied with one matrix, so the gradients of all matrices cost as much as one matmul over
            // all rows.
            (Some(rows), Self::GroupedMatmulWeight, Some(of_weight)) => {
                2 * rows * (of_weight.0[1] * of_weight.0[2]) as u64
            }
            (Some(width), _, Some(output)) => 2 * width * elements(output),
            _ => inputs.iter().chain(outputs).map(elements).max().unwrap_or(0),
        }
    }

    fn run(&self, inputs: Vec<DispatchTensor>) -> Vec<DispatchTensor> {
        let at = |at: usize| inputs[at].clone();
        match *self {
            Self::InjectedGradients { weights, dtype } => {
                <[_; 3]>::from(Dispatch::injected_gradients(at(0), weights, dtype)).into()
            }
            Self::ZLoss => <[_; 2]>::from(Dispatch::z_loss(at(0))).into(),
            Self::ZLossBackward => vec![Dispatch::z_loss_backward(at(0), at(1), at(2))],
            Self::Route(options) => <[_; 3]>::from(Dispatch::route(at(0), at(1), options)).into(),
            Self::RouteBackward(options) => vec![Dispatch::route_backward(at(0), at(1), at(2), options)],
            Self::Place { capacity } => <[_; 3]>::from(Dispatch::place(at(0), at(1), capacity)).into(),
            Self::Permute => vec![Dispatch::permute(at(0), at(1), at(2))],
            Self::PermuteBackward { tokens } => vec![Dispatch::permute_backward(at(0), at(1), tokens)],
            Self::Unpermute => vec![Dispatch::unpermute(at(0), at(1), at(2), at(3))],
            Self::UnpermuteRowsBackward => vec![Dispatch::unpermute_rows_backward(at(0), at(1), at(2))],
            Self::UnpermuteGatesBackward => vec![Dispatch::unpermute_gates_backward(at(0), at(1), at(2))],
            Self::GroupedMatmul => vec![Dispatch::grouped_matmul(at(0), at(1), at(2))],
            Self::GroupedMatmulInput => vec![Dispatch::grouped_matmul_input(at(0), at(1), at(2))],
            Self::GroupedMatmulWeight => vec![Dispatch::grouped_matmul_weight(at(0), at(1), at(2))],
        }
    }
}
