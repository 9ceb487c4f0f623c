//! The link: everything that needs CUDA.

mod collect;
mod command;
mod communicator;
mod connect;
mod error;
mod exchange;
mod flight;
mod gpu;
mod inbox;
mod launch;
mod link;
mod options;
mod order;
mod own;
mod progress;
mod queue;
mod start;
mod tensors;

pub use error::NcclError;
pub use link::NcclLink;
pub use options::NcclOptions;
pub use order::Ordering;
