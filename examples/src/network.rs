//! The link between processes started by a launcher, over TCP or NCCL.
//!
//! The rendezvous is at `MASTER_ADDR` and `MASTER_PORT`, or at the launcher's address. Under an MPI that does not
//! tell the address of rank 0, ranks with GPUs find each other over MPI, if the build has it.

#[cfg(feature = "nccl")]
use crate::options::LinkName;
use crate::setup::Setup;
use burn_pipeline::link::{Launch, LaunchError, Link, TcpError, TcpLink};
#[cfg(all(feature = "nccl", feature = "mpi"))]
use burn_pipeline_mpi::{Mpi, MpiError};
#[cfg(feature = "nccl")]
use burn_pipeline_nccl::{NcclError, NcclLink, NcclOptions};
use std::time::Duration;

/// How long ranks may take to find each other.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Why the other ranks cannot be reached.
#[derive(thiserror::Error)]
pub enum NetworkError {
    /// The address of rank 0 is unknown.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The rendezvous failed.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// NCCL cannot be used.
    #[cfg(feature = "nccl")]
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// MPI, which the rendezvous uses, cannot be used.
    #[cfg(all(feature = "nccl", feature = "mpi"))]
    #[error(transparent)]
    Mpi(#[from] MpiError),
}

burn_pipeline::debug_as_text!(NetworkError);

/// This rank's end of the requested link.
///
/// # Errors
/// Returns a [`NetworkError`] if the other ranks cannot be reached.
pub fn open(setup: &Setup, launch: &Launch) -> Result<Box<dyn Link>, NetworkError> {
    #[cfg(feature = "nccl")]
    if setup.options.link == LinkName::Nccl {
        return over_nccl(setup, launch);
    }
    Ok(Box::new(TcpLink::connect(&launch.rendezvous()?, setup.device.clone(), TIMEOUT)?))
}

#[cfg(feature = "nccl")]
fn over_nccl(setup: &Setup, launch: &Launch) -> Result<Box<dyn Link>, NetworkError> {
    let options = NcclOptions { timeout: TIMEOUT, ..NcclOptions::default() };
    #[cfg(feature = "mpi")]
    if launch.master.is_none() {
        let mpi = Mpi::connect(TIMEOUT)?;
        let mut first = mpi.link(burn::tensor::Device::flex())?;
        return Ok(Box::new(NcclLink::by_link(&mut first, setup.device.clone(), options)?));
    }
    Ok(Box::new(NcclLink::connect(&launch.rendezvous()?, setup.device.clone(), options)?))
}
