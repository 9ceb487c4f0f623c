//! Why NCCL cannot be used, or failed.

use burn::tensor::DType;
use burn_pipeline::link::{LinkError, TcpError};

/// Why NCCL cannot be used, or failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NcclError {
    /// No driver.
    #[error("there is no CUDA driver on this machine (libcuda.so); use --link mpi, tcp or threads here")]
    NoDriver,
    /// No NCCL.
    #[error(
        "libnccl.so is not found; put its folder into LD_LIBRARY_PATH (where there is only libnccl.so.2, make a link of the first name to it)"
    )]
    NoLibrary,
    /// An NCCL that is too old.
    #[error("NCCL's version is {version}, and 21800 (2.18) or newer is needed")]
    Old {
        /// The version, as NCCL counts: 21800 is 2.18.0.
        version: i32,
    },
    /// The driver lacks marks over a whole context.
    #[error("the driver knows no events over a whole context (CUDA 12.5 or newer does); choose Ordering::Host")]
    NoContextMarks,
    /// Another device.
    #[error("{device} is no CUDA device of this build; links over NCCL take Device::cuda")]
    NoCudaDevice {
        /// What was given.
        device: String,
    },
    /// The ranks did not find each other.
    #[error(transparent)]
    Meeting(#[from] TcpError),
    /// A rank failed, or was lost, before all had joined.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A thread cannot be started.
    #[error("the thread that serves the GPU's transfers cannot be started, or has ended: {0}")]
    Thread(String),
    /// The driver refused something.
    #[error("{what}: {error}")]
    Driver {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        error: String,
    },
    /// NCCL refused something, or found an error later.
    #[error("NCCL, {what}: {error} (NCCL_DEBUG=WARN says more)")]
    Failed {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        error: String,
    },
    /// The deadline passed.
    #[error("{what} did not end in time; is every rank running, and does NCCL_SOCKET_IFNAME name the right network?")]
    Late {
        /// What did not end.
        what: &'static str,
    },
    /// Another rank failed meanwhile.
    #[error("{what} was given up: {reason}")]
    Stopped {
        /// What was given up.
        what: &'static str,
        /// Why.
        reason: String,
    },
    /// Elements that NCCL cannot add.
    #[error("NCCL cannot add elements of {dtype:?}; cast them")]
    Elements {
        /// The element type.
        dtype: DType,
    },
    /// A tensor's memory is not there.
    #[error("a tensor's memory cannot be had: {error}")]
    Memory {
        /// What CubeCL said.
        error: String,
    },
}
