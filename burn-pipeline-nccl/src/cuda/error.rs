//! The errors of links over NCCL.

use burn::tensor::DType;
use burn_pipeline::link::kit::Mesh;
use burn_pipeline::link::{LinkError, Monitor, TcpError};

/// The errors of links over NCCL.
#[derive(Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum NcclError {
    /// There is no CUDA driver.
    #[error("there is no CUDA driver on this machine (libcuda.so); use MPI, TCP or threads here")]
    NoDriver,
    /// NCCL's library was not found.
    #[error(
        "libnccl.so was not found; add its folder to LD_LIBRARY_PATH (if it has only libnccl.so.2, make a link \
         named libnccl.so to it)"
    )]
    NoLibrary,
    /// NCCL is too old; it writes 2.18.0 as 21800.
    #[error("NCCL has version {version}, but 21800 (2.18) or newer is needed")]
    Old { version: i32 },
    /// The driver lacks events over a whole context.
    #[error("the driver has no events over a whole context (CUDA 12.5 or newer has); choose Ordering::Host")]
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
    #[error(
        "{what} did not end in time; check that every rank runs, and that NCCL_SOCKET_IFNAME names the right network"
    )]
    Timeout { what: &'static str },
    /// Another rank failed meanwhile, and the call was cancelled.
    #[error("{what} was cancelled: {reason}")]
    Stopped { what: &'static str, reason: String },
    /// NCCL cannot add elements of this type.
    #[error("NCCL cannot add elements of {dtype:?}; cast them")]
    Elements { dtype: DType },
    /// A tensor's memory cannot be accessed.
    #[error("a tensor's memory cannot be accessed: {error}")]
    Memory { error: String },
}

burn_pipeline::debug_as_text!(NcclError);

/// An error, and the peer with which it occurred.
pub(crate) struct PeerError {
    pub(crate) peer: usize,
    pub(crate) error: NcclError,
}

/// Adds the peer to an error.
pub(crate) fn with(peer: usize) -> impl Fn(NcclError) -> PeerError {
    move |error| PeerError { peer, error }
}

/// Why waits must end, if a rank has failed.
pub(super) fn stop_reason(mesh: &Mesh) -> Option<String> {
    mesh.failure().map(|failure| failure.message)
}
