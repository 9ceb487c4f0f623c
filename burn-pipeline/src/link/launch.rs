//! Who this process is among the ones that were started together, from what launchers put into the environment.
//!
//! Guarantees: nothing is started or connected; the variables of the first launcher that is found count, in the
//! order of [`Launcher`], and numbers that make no sense are an error with the variable's name.
//!
//! | launcher | rank | ranks | rank on this machine |
//! |---|---|---|---|
//! | Open MPI `mpirun` | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` |
//! | MPICH, Intel MPI `mpiexec` | `PMI_RANK` | `PMI_SIZE` | `MPI_LOCALRANKID` |
//! | torchrun, and by hand | `RANK` | `WORLD_SIZE` | `LOCAL_RANK` |
//! | Slurm `srun` | `SLURM_PROCID` | `SLURM_NTASKS` | `SLURM_LOCALID` |
//!
//! torchrun also says where rank 0 is: `MASTER_ADDR` and `MASTER_PORT`.

use std::fmt;

/// What started the processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Launcher {
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// `mpiexec` of MPICH and its relatives.
    Mpich,
    /// torchrun, or variables that were set by hand.
    Torchrun,
    /// Slurm's `srun`.
    Slurm,
}

impl Launcher {
    const ALL: [Launcher; 4] = [Launcher::OpenMpi, Launcher::Mpich, Launcher::Torchrun, Launcher::Slurm];

    /// Variables of rank, ranks, and rank on this machine.
    fn variables(self) -> [&'static str; 3] {
        match self {
            Launcher::OpenMpi => ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
            Launcher::Mpich => ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
            Launcher::Torchrun => ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
            Launcher::Slurm => ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::OpenMpi => "Open MPI",
            Launcher::Mpich => "MPICH",
            Launcher::Torchrun => "torchrun",
            Launcher::Slurm => "Slurm",
        })
    }
}

/// Variables that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// Not a number.
    #[error("{variable}={value} is not a number; {launcher} sets it, or set RANK and WORLD_SIZE by hand")]
    NotANumber {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// Who sets it.
        launcher: Launcher,
    },
    /// The rank is set, but not how many there are.
    #[error("{there} is set, but {missing} is not")]
    Missing {
        /// The variable that is set.
        there: &'static str,
        /// The one that is not.
        missing: &'static str,
    },
    /// The rank is not below the number of ranks.
    #[error("rank {rank} is not one of {ranks} rank(s), counted from 0")]
    OutOfRange {
        /// The rank.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },
}

/// A process among the ones that were started together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Who started them.
    pub launcher: Launcher,
    /// This process.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// This process among those on its machine: which of its GPUs it takes. 0 where the launcher does not say.
    pub local_rank: usize,
    /// Address and port of rank 0, where the launcher says (torchrun).
    pub master: Option<(String, u16)>,
}

impl Launch {
    /// Reads this process's environment; `None` if no launcher has started it.
    ///
    /// # Errors
    /// If variables are there but make no sense.
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
        let Some(launcher) = Launcher::ALL.into_iter().find(|launcher| get(launcher.variables()[0]).is_some()) else {
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
        let ranks = number(of_ranks)?.ok_or(missing(of_ranks))?;
        if rank >= ranks {
            return Err(LaunchError::OutOfRange { rank, ranks });
        }
        let port = number("MASTER_PORT").ok().flatten().and_then(|port| u16::try_from(port).ok());
        let local_rank = number(of_local)?.unwrap_or(0);
        Ok(Some(Self { launcher, rank, ranks, local_rank, master: get("MASTER_ADDR").zip(port) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(variables: &[(&str, &str)]) -> Result<Option<Launch>, LaunchError> {
        Launch::from_variables(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        for launcher in Launcher::ALL {
            let [rank, ranks, local] = launcher.variables();
            let found = launch(&[(rank, "5"), (ranks, "8"), (local, "2")]).unwrap().unwrap();
            assert_eq!(found, Launch { launcher, rank: 5, ranks: 8, local_rank: 2, master: None });
        }
        assert_eq!(launch(&[("HOME", "/root")]), Ok(None));
    }

    #[test]
    fn mpirun_inside_a_slurm_job_counts_before_slurm() {
        let both = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "1"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
        ];
        let found = launch(&both).unwrap().unwrap();
        assert_eq!((found.launcher, found.rank, found.ranks, found.local_rank), (Launcher::OpenMpi, 1, 4, 0));
    }

    #[test]
    fn torchrun_says_where_rank_0_is() {
        let variables = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")];
        assert_eq!(launch(&variables).unwrap().unwrap().master, Some(("node7".to_owned(), 29500)));
    }

    #[test]
    fn variables_that_make_no_sense_are_named() {
        let said = |variables: &[(&str, &str)]| launch(variables).unwrap_err().to_string();
        assert!(said(&[("RANK", "first"), ("WORLD_SIZE", "2")]).contains("RANK=first is not a number"));
        assert_eq!(said(&[("RANK", "1")]), "RANK is set, but WORLD_SIZE is not");
        assert_eq!(said(&[("RANK", "2"), ("WORLD_SIZE", "2")]), "rank 2 is not one of 2 rank(s), counted from 0");
    }
}
