//! The errors of links over NCCL.

use burn::tensor::DType;
use burn_pipeline::link::{LinkError, TcpError};

/// The errors of links over NCCL.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum NcclError {
    /// There is no CUDA driver.
    #[error("there is no CUDA driver on this machine (libcuda.so); use MPI, TCP or threads here")]
    NoDriver,
    /// NCCL's library is not found.
    #[error(
        "libnccl.so is not found; put its folder into LD_LIBRARY_PATH (where there is only libnccl.so.2, make a link of the first name to it)"
    )]
    NoLibrary,
    /// NCCL is too old; it counts 2.18.0 as 21800.
    #[error("NCCL's version is {version}, and 21800 (2.18) or newer is needed")]
    Old { version: i32 },
    /// The driver lacks events over a whole context.
    #[error("the driver has no events over a whole context (CUDA 12.5 or newer does); choose Ordering::Host")]
    NoContextEvents,
    /// The device is not a CUDA device.
    #[error("{device} is not a CUDA device of this build; pass Device::cuda(index)")]
    NoCudaDevice { device: String },
    /// The ranks could not connect.
    #[error(transparent)]
    Connect(#[from] TcpError),
    /// A rank failed, or was lost, before all had joined.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The thread that serves the link cannot be started, or has ended.
    #[error("the thread that serves the GPU's transfers cannot be started, or has ended: {0}")]
    Thread(String),
    /// A call of the driver failed.
    #[error("{what}: {error}")]
    Driver { what: &'static str, error: String },
    /// A call of NCCL failed, or NCCL reported an error later.
    #[error("NCCL, {what}: {error} (NCCL_DEBUG=WARN says more)")]
    Failed { what: &'static str, error: String },
    /// A timeout passed.
    #[error("{what} did not end in time; is every rank running, and does NCCL_SOCKET_IFNAME name the right network?")]
    Timeout { what: &'static str },
    /// Another rank failed meanwhile, and the call was given up.
    #[error("{what} was given up: {reason}")]
    Stopped { what: &'static str, reason: String },
    /// NCCL cannot add elements of this type.
    #[error("NCCL cannot add elements of {dtype:?}; cast them")]
    Elements { dtype: DType },
    /// A tensor's memory cannot be accessed.
    #[error("a tensor's memory cannot be accessed: {error}")]
    Memory { error: String },
}

burn_pipeline::debug_as_text!(NcclError);

/// An error, and the rank with which it occurred.
pub(crate) struct PeerError {
    pub(crate) peer: usize,
    pub(crate) error: NcclError,
}

/// Names the rank of an error.
pub(crate) fn with(peer: usize) -> impl Fn(NcclError) -> PeerError {
    move |error| PeerError { peer, error }
}
