//! Which rank this process is, from the environment variables that launchers set.
//!
//! Guarantees: nothing is started or connected. The first launcher of [`Launcher`]'s order whose variables are set counts
//! (`launcher.rs` lists them). A value that cannot be used is an error with the variable's name.
//!
//! `MASTER_ADDR` and `MASTER_PORT` are the address of rank 0. torchrun sets them, and a user can. Without them:
//!
//! - under Slurm, rank 0 is on the first machine of `SLURM_STEP_NODELIST`, and the port follows from `SLURM_JOB_ID`;
//! - if all ranks are on one machine (`OMPI_COMM_WORLD_LOCAL_SIZE`, `MPI_LOCALNRANKS`, `LOCAL_WORLD_SIZE`), rank 0 is on this
//!   one.
//!
//! `BURN_PIPELINE_SECRET` is the secret by which ranks know each other ([`Admission::Secret`]). Without it, the random key that
//! Open MPI's `mpirun` gives the processes of a job takes its place. Without both, only this machine's processes may join.
//!
//! While `TORCHELASTIC_USE_AGENT_STORE` is `True`, torchrun's own store listens at `MASTER_PORT`, and the next port is used.

use super::admission::{Admission, Secret};
use super::launcher::{Launcher, STEP, first_host};
use super::rendezvous::Rendezvous;

#[cfg(test)]
mod tests;

/// The port if the environment has none: torchrun's default.
const PORT: u16 = 29500;

/// Why the environment cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum LaunchError {
    /// A variable is not a number.
    #[error("{variable}={value} is not a number; {launcher} sets it, or set RANK and WORLD_SIZE by hand")]
    NotANumber { variable: &'static str, value: String, launcher: Launcher },
    /// The rank is set, but the number of ranks is not.
    #[error("{there} is set, but {missing} is not")]
    Missing { there: &'static str, missing: &'static str },
    /// The environment has no address of rank 0.
    #[error(
        "the environment has no address of rank 0; set MASTER_ADDR and MASTER_PORT to its host and a free port, for all ranks"
    )]
    NoRendezvous,
    /// The port is out of range.
    #[error("MASTER_PORT={port} is not a port; choose one from 1 to 65535")]
    Port { port: usize },
    /// The rank is not below the number of ranks.
    #[error("rank {rank} is not one of {ranks} rank(s), counted from 0")]
    OutOfRange { rank: usize, ranks: usize },
}

/// A process of a job: its rank, and how it was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// What started the job.
    pub launcher: Launcher,
    /// This process's rank.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// This process's position among those of its machine, which is also the GPU that it uses; 0 if the launcher sets none.
    pub local_rank: usize,
    /// Address and port of rank 0, if the environment has them.
    pub master: Option<(String, u16)>,
    /// Which processes may join over TCP.
    pub admission: Admission,
}

impl Launch {
    /// Reads this process's environment; `None` if no launcher started it.
    ///
    /// # Errors
    /// If a variable is missing or cannot be used.
    pub fn from_environment() -> Result<Option<Self>, LaunchError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// As [`Launch::from_environment`], from any source of variables.
    ///
    /// ```
    /// use burn_pipeline::link::{Launch, Launcher};
    /// let variables = [("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")];
    /// let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string());
    /// let launch = Launch::from_variables(find)?.unwrap();
    /// assert_eq!((launch.launcher, launch.rank, launch.ranks, launch.local_rank), (Launcher::Torchrun, 3, 8, 1));
    /// # Ok::<(), burn_pipeline::link::LaunchError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Launch::from_environment`].
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, LaunchError> {
        let Some(launcher) = Launcher::ALL.into_iter().find(|launcher| launcher.has_started(&get)) else {
            return Ok(None);
        };
        let number = |variable: &'static str| {
            let parse = |value: String| {
                value.parse::<usize>().map_err(|_| LaunchError::NotANumber { variable, value, launcher })
            };
            get(variable).map(parse).transpose()
        };
        let [of_rank, of_ranks, of_local] = launcher.variables();
        let missing = |missing| LaunchError::Missing { there: of_rank, missing };
        let rank = number(of_rank)?.ok_or(missing(of_rank))?;
        let of_step = if launcher == Launcher::Slurm { number(STEP[0])? } else { None };
        let ranks = of_step.map_or_else(|| number(of_ranks), |ranks| Ok(Some(ranks)))?.ok_or(missing(of_ranks))?;
        if rank >= ranks {
            return Err(LaunchError::OutOfRange { rank, ranks });
        }
        let local_rank = number(of_local)?.unwrap_or(0);
        let master = Self::master(launcher, ranks, &get, number)?;
        Ok(Some(Self { launcher, rank, ranks, local_rank, master, admission: Self::admission(launcher, &get) }))
    }

    /// Which processes may join: those that know the user's secret, or the launcher's.
    fn admission(launcher: Launcher, get: &impl Fn(&str) -> Option<String>) -> Admission {
        let set = |variable| get(variable).filter(|text| !text.trim().is_empty());
        let secret = set("BURN_PIPELINE_SECRET").or_else(|| launcher.secret().and_then(set));
        secret.map_or(Admission::ThisMachine, |text| Admission::Secret(Secret::new(text)))
    }

    /// Address and port of rank 0; `None` if the environment does not have them.
    fn master(
        launcher: Launcher,
        ranks: usize,
        get: &impl Fn(&str) -> Option<String>,
        number: impl Fn(&'static str) -> Result<Option<usize>, LaunchError>,
    ) -> Result<Option<(String, u16)>, LaunchError> {
        let port = number("MASTER_PORT")?;
        let port = port.map(|port| u16::try_from(port).ok().filter(|&p| p > 0).ok_or(LaunchError::Port { port }));
        let taken = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        let port = port.transpose()?.map(|port| if taken { port.saturating_add(1) } else { port });
        let nodes = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"].into_iter().find_map(get);
        // A launcher may set more than a number here (`4(x2)`): then the ranks are on several machines.
        let here = get(launcher.local_ranks()).and_then(|count| count.parse().ok()) == Some(ranks);
        let named = get("MASTER_ADDR").filter(|host| !host.trim().is_empty());
        Ok(match (named, launcher, nodes) {
            (Some(host), ..) => Some((host, port.unwrap_or(PORT))),
            (None, Launcher::Slurm, Some(nodes)) => {
                let job = number("SLURM_JOB_ID")?.unwrap_or(0);
                Some((first_host(&nodes), port.unwrap_or(PORT + (job % 1000) as u16)))
            }
            _ if here => Some(("127.0.0.1".to_owned(), port.unwrap_or(PORT))),
            _ => None,
        })
    }

    /// Where the ranks find each other, for [`TcpLink::connect`](super::TcpLink::connect).
    ///
    /// # Errors
    /// [`LaunchError::NoRendezvous`] if the environment has no address of rank 0.
    pub fn rendezvous(&self) -> Result<Rendezvous, LaunchError> {
        let address = self.master.clone().ok_or(LaunchError::NoRendezvous)?;
        Ok(Rendezvous { rank: self.rank, ranks: self.ranks, address, admission: self.admission.clone() })
    }
}
