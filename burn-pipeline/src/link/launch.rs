//! Reads this process's rank from the environment variables that launchers set.
//!
//! Guarantees: nothing is started or connected. The first launcher, in the order of [`Launcher`], whose variables
//! are set counts (`launcher.rs` lists them). An unusable value is an error that names the variable.
//!
//! `MASTER_ADDR` and `MASTER_PORT` are the address of rank 0. torchrun sets them, and a user can. Without them:
//!
//! - under Slurm, rank 0 is on the first machine of `SLURM_STEP_NODELIST`, and the port follows from
//!   `SLURM_JOB_ID`;
//! - if all ranks are on one machine (`OMPI_COMM_WORLD_LOCAL_SIZE`, `MPI_LOCALNRANKS`, `LOCAL_WORLD_SIZE`), rank 0
//!   is on this one.
//!
//! `BURN_PIPELINE_SECRET` is the secret by which ranks recognise each other ([`Admission::Secret`]): any bytes, at
//! least 16. A blank or shorter secret is an error. Without it, ranks use the random key that Open MPI's `mpirun`
//! gives the processes of a job, unless that key follows from the job's number. Without both, only this machine's
//! processes may join; if the launcher says that all ranks are on this machine, they then meet on its loopback
//! address, whatever `MASTER_ADDR` is.
//!
//! If `TORCHELASTIC_USE_AGENT_STORE` is `True`, torchrun's own store listens at `MASTER_PORT`, and ranks use the
//! next port.

use super::launcher::{Launcher, STEP, first_host, is_guessable, is_one_host};
use super::rendezvous::{Admission, Rendezvous, Secret};
use std::ffi::OsString;

#[cfg(test)]
mod tests;

/// The port if the environment sets none: torchrun's default.
const PORT: u16 = 29500;
/// The variable with the user's secret.
const SECRET: &str = "BURN_PIPELINE_SECRET";
/// The fewest bytes of a secret. Anyone who sees the proof of a shorter one can find the secret by trying.
const SHORTEST: usize = 16;

/// Why the environment cannot be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum LaunchError {
    /// A variable is not a number.
    #[error("{variable}={value} is not a number; let {launcher} set it, or set RANK and WORLD_SIZE by hand")]
    NotANumber { variable: &'static str, value: String, launcher: Launcher },
    /// A variable is not text.
    #[error("{variable} is not UTF-8; set it to a text, on all ranks")]
    NotText { variable: &'static str },
    /// The secret is blank, or so short that it can be guessed.
    #[error(
        "BURN_PIPELINE_SECRET has {bytes} byte(s){}; give all ranks the same secret of at least {SHORTEST} bytes \
         (`openssl rand -hex 32`), or unset it if only this machine's processes may join",
        if *blank { ", all of them blank" } else { "" }
    )]
    Secret { bytes: usize, blank: bool },
    /// The rank is set, but the number of ranks is not.
    #[error("{there} is set, but {missing} is not")]
    Missing { there: &'static str, missing: &'static str },
    /// The environment has no address of rank 0.
    #[error(
        "the environment has no address of rank 0; set MASTER_ADDR and MASTER_PORT to its host and a free port, \
         on all ranks"
    )]
    NoRendezvous,
    /// The port is out of range.
    #[error("MASTER_PORT={port} is not a port; choose one from 1 to 65535")]
    Port { port: usize },
    /// The rank is not below the number of ranks.
    #[error("rank {rank} is not one of {ranks} rank(s), counted from 0")]
    OutOfRange { rank: usize, ranks: usize },
}

burn_pipeline_plan::debug_as_text!(LaunchError);

/// A process of a job: its rank, and how it was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// What started the job.
    pub launcher: Launcher,
    /// This process's rank.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// This process's index among those of its machine, and the index of its GPU; 0 if the launcher sets none.
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
    /// Returns [`LaunchError`] if a variable is missing or cannot be used.
    pub fn from_environment() -> Result<Option<Self>, LaunchError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// As [`Launch::from_environment`], from any source of variables; values need not be valid text.
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
    pub fn from_variables<V: Into<OsString>>(get: impl Fn(&str) -> Option<V>) -> Result<Option<Self>, LaunchError> {
        let get = |name: &str| get(name).map(Into::into);
        let Some(launcher) = Launcher::ALL.into_iter().find(|launcher| launcher.has_started(&get)) else {
            return Ok(None);
        };
        let number = |variable: &'static str| {
            let parse = |value: OsString| {
                let value = value.to_string_lossy().into_owned();
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
        let admission = Self::admission(launcher, &get)?;
        let master = Self::master((launcher, ranks, &admission), &get, number)?;
        Ok(Some(Self { launcher, rank, ranks, local_rank, master, admission }))
    }

    /// Which processes may join: those that know the user's secret, or else the launcher's.
    fn admission(launcher: Launcher, get: &impl Fn(&str) -> Option<OsString>) -> Result<Admission, LaunchError> {
        if let Some(secret) = get(SECRET).map(OsString::into_encoded_bytes) {
            let (bytes, blank) = (secret.len(), secret.trim_ascii().is_empty());
            return match blank || bytes < SHORTEST {
                true => Err(LaunchError::Secret { bytes, blank }),
                false => Ok(Admission::Secret(Secret::new(secret))),
            };
        }
        let key = launcher.secret().and_then(get).filter(|key| !is_guessable(&key.to_string_lossy()));
        Ok(key.map_or(Admission::ThisMachine, |key| Admission::Secret(Secret::new(key.into_encoded_bytes()))))
    }

    /// Address and port of rank 0; `None` if the environment does not have them.
    fn master(
        (launcher, ranks, admission): (Launcher, usize, &Admission),
        get: &impl Fn(&str) -> Option<OsString>,
        number: impl Fn(&'static str) -> Result<Option<usize>, LaunchError>,
    ) -> Result<Option<(String, u16)>, LaunchError> {
        let port = number("MASTER_PORT")?;
        let port = port.map(|port| u16::try_from(port).ok().filter(|&p| p > 0).ok_or(LaunchError::Port { port }));
        let taken = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        let port = port.transpose()?.map(|port| if taken { port.saturating_add(1) } else { port });
        let text = |variable: &'static str| {
            let text = get(variable).map(OsString::into_string).transpose();
            text.map_err(|_| LaunchError::NotText { variable })
        };
        let nodes = match text("SLURM_STEP_NODELIST")? {
            None => text("SLURM_JOB_NODELIST")?,
            nodes => nodes,
        };
        let nodes = nodes.filter(|_| launcher == Launcher::Slurm);
        // A launcher may set more than a number here (`4(x2)`); then the ranks are on several machines. Slurm's is a
        // limit of the job, so its list of machines counts.
        let local = get(launcher.local_ranks()).and_then(|count| count.to_str()?.parse().ok());
        let here = nodes.as_deref().map_or(local == Some(ranks), is_one_host);
        let named = text("MASTER_ADDR")?.filter(|host| !host.trim().is_empty());
        let (host, own_port) = match (named, nodes) {
            (Some(host), _) => (Some(host), PORT),
            (None, Some(nodes)) => {
                (Some(first_host(&nodes)), PORT + (number("SLURM_JOB_ID")?.unwrap_or(0) % 1000) as u16)
            }
            (None, None) => (None, PORT),
        };
        // If only this machine's processes may join, and all of them are here, the other addresses are of no use.
        let loopback =
            (here && (host.is_none() || *admission == Admission::ThisMachine)).then(|| "127.0.0.1".to_owned());
        Ok(loopback.or(host).map(|host| (host, port.unwrap_or(own_port))))
    }

    /// Returns where the ranks find each other, for [`TcpLink::connect`](super::TcpLink::connect).
    ///
    /// # Errors
    /// Returns [`LaunchError::NoRendezvous`] if the environment has no address of rank 0.
    pub fn rendezvous(&self) -> Result<Rendezvous, LaunchError> {
        let address = self.master.clone().ok_or(LaunchError::NoRendezvous)?;
        Ok(Rendezvous { rank: self.rank, ranks: self.ranks, address, admission: self.admission.clone() })
    }
}
