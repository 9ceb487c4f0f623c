//! Ranks on NVIDIA GPUs over NCCL (feature `nccl`): one process a GPU, or one thread a GPU in a process.
//!
//! Guarantees: tensors go from GPU to GPU, on a queue of their own, while ranks compute; a send never blocks the rank
//! that sends; messages of one rank to another keep their order; queues of different ranks never stand in a circle,
//! whatever is sent (`link/pairing.rs`, with a proof); every wait ends at its deadline, and a rank that fails or is
//! lost makes all others abort and return an error that names it.
//!
//! 1. The ranks meet over TCP, at `MASTER_ADDR` and `MASTER_PORT` ([`NcclLink::connect`]), or over a link that they have
//!    already, MPI's for example ([`NcclLink::by_link`]). The connections stay: frames, gathers, failures and questions
//!    travel on them, so that NCCL carries nothing but tensors' bytes, and who is gone is known without it. A message
//!    with tensors that are not on this rank's GPU goes there whole.
//! 2. Rank 0 makes NCCL's id, and all get it by a gather. Joining does not block: it ends at the deadline, or when one
//!    of the others is lost. Neighbours exchange a few bytes at once, since a first transfer makes the connection.
//! 3. A rank has one communicator and one queue, used by one thread (`progress.rs`). What is sent is offered to its
//!    receiver; pairs of ranks agree what goes next, and all that they have for each other then is one NCCL group, both
//!    ways.
//! 4. Between CubeCL's queues and ours, [`Ordering`] keeps order: on the host, or by events over the whole context.
//! 5. Sums over groups of ranks are NCCL's, on communicators split off in the order of [`Link::form_groups`].
//! 6. While anything is in the queue, errors that NCCL finds later are asked for, and time is counted: on either, the
//!    communicators are aborted, which wakes the queue, and all ranks are told.
//!
//! Nothing of CUDA is needed to build it: driver and NCCL are opened at run time (`libnccl.so`, by that name: the Python
//! wheel has only `libnccl.so.2`, make a link). Rules of CubeCL that matter here: its `to_device` and its collectives are
//! not used beside this link (their communicators would have to agree in order with ours), and a capture of Burn's
//! (`capture()`) must not run while [`Ordering::Context`] is used.
//!
//! [`Link::form_groups`]: crate::link::Link::form_groups

mod communicator;
mod gpu;
mod link;
mod order;
mod progress;
mod start;
mod tensors;
mod turn;

pub use link::NcclLink;
pub use order::Ordering;

use crate::link::{LinkError, TcpError};
use burn::tensor::DType;
use std::time::Duration;

/// How a link over NCCL is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NcclOptions {
    /// How the order between computing and transfers is kept.
    pub ordering: Ordering,
    /// The longest that ranks may take to meet and to join, and that a transfer may stand in the queue.
    pub timeout: Duration,
    /// Sums over groups are made by the lowest member, in rank order, as on other links: bit-equal to theirs, at the cost
    /// of all bytes going through one rank. Otherwise by NCCL, whose order depends on the number of members.
    pub ordered_sums: bool,
}

impl Default for NcclOptions {
    /// Order on the host, a minute, and NCCL's own sums.
    fn default() -> Self {
        Self { ordering: Ordering::Host, timeout: Duration::from_secs(60), ordered_sums: false }
    }
}

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
