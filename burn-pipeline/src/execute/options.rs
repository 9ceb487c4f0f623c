//! Options of runs.

use std::time::Duration;

/// Options of runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunOptions {
    /// The timeout of every wait.
    pub timeout: Duration,
    /// Wait for the device after every compute task, so that events show the time spent on the device.
    pub synchronize: bool,
    /// Run adjacent `W`s of one stage in one call, where that is faster.
    pub merge_weights: bool,
    /// How fused actions are run.
    pub fused: FusedActions,
    /// The most bytes that the plan was predicted to take on this rank.
    pub predicted: Option<u64>,
}

/// How an action that fuses a forward with a backward (`OVERLAP_F_B`) is run.
///
/// Interleaving first awaits the inputs of both parts. It then submits their operations to the device alternately,
/// from one thread, so both parts end together. Results are bitwise equal to running one part after the other. A
/// device that computes asynchronously can then fill the waits of one part (communication inside a layer, small
/// kernels) with work of the other. DualPipe requires the model's author to write this
/// (`overlapped_forward_backward`); here it works for every captured stage. Stages that were not captured run one
/// after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FusedActions {
    /// Interleaved on devices that compute asynchronously (all but Flex), in sequence elsewhere.
    #[default]
    Auto,
    /// One after the other, in the plan's order.
    Sequence,
    /// Interleaved wherever both stages were captured.
    Interleave,
}
