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
//! | Slurm `srun` | `SLURM_PROCID` | `SLURM_STEP_NUM_TASKS`, else `SLURM_NTASKS` | `SLURM_LOCALID` |
//!
//! A batch script of Slurm's has `SLURM_PROCID` and `SLURM_NTASKS` too, though it runs once: only where a variable of a step
//! (`SLURM_STEP_ID`, say) is there as well has `srun` started the process.
//!
//! Where rank 0 is, `MASTER_ADDR` and `MASTER_PORT` say, which torchrun sets and anybody can. Without them:
//!
//! - under Slurm, rank 0 is on the first machine of `SLURM_STEP_NODELIST`, and the port follows from `SLURM_JOB_ID`;
//! - where all ranks are on one machine (`OMPI_COMM_WORLD_LOCAL_SIZE`, `MPI_LOCALNRANKS`, `LOCAL_WORLD_SIZE`), rank 0 is
//!   here.
//!
//! torchrun's own store holds `MASTER_PORT` while `TORCHELASTIC_USE_AGENT_STORE` is `True`: the next port is taken then.

use super::Place;
use std::fmt;

/// The port where nobody says one: torchrun's own default.
const PORT: u16 = 29500;

/// Variables that Slurm sets in the steps of a job alone. The first is how many processes the step has.
const STEP: [&str; 4] = ["SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST"];

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

    /// Has it started the process that has these variables?
    fn has_started(self, get: &impl Fn(&str) -> Option<String>) -> bool {
        let has = |variable: &&str| get(variable).is_some();
        has(&self.variables()[0]) && (self != Launcher::Slurm || STEP.iter().any(has))
    }

    /// The variable that says how many ranks are on this machine.
    fn local_ranks(self) -> &'static str {
        match self {
            Launcher::OpenMpi => "OMPI_COMM_WORLD_LOCAL_SIZE",
            Launcher::Mpich => "MPI_LOCALNRANKS",
            Launcher::Torchrun => "LOCAL_WORLD_SIZE",
            Launcher::Slurm => "SLURM_NTASKS_PER_NODE",
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
    /// Nothing says where rank 0 is.
    #[error("nothing says where rank 0 is; set MASTER_ADDR and MASTER_PORT to its host and a free port, for all ranks")]
    NoRendezvous,
    /// A port that there is not.
    #[error("MASTER_PORT={port} is no port; choose one from 1 to 65535")]
    Port {
        /// What the variable holds.
        port: usize,
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
    /// Address and port of rank 0, where the environment says.
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
        let port = number("MASTER_PORT")?;
        let port = port.map(|port| u16::try_from(port).ok().filter(|&p| p > 0).ok_or(LaunchError::Port { port }));
        let taken = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        let port = port.transpose()?.map(|port| if taken { port.saturating_add(1) } else { port });
        let nodes = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"].into_iter().find_map(&get);
        // Some launchers say more than a number here, which then says nothing of one machine.
        let here = get(launcher.local_ranks()).and_then(|count| count.parse().ok()) == Some(ranks);
        let named = get("MASTER_ADDR").filter(|host| !host.trim().is_empty());
        let master = match (named, launcher, nodes) {
            (Some(host), ..) => Some((host, port.unwrap_or(PORT))),
            (None, Launcher::Slurm, Some(nodes)) => {
                let job = number("SLURM_JOB_ID")?.unwrap_or(0);
                Some((first_host(&nodes), port.unwrap_or(PORT + (job % 1000) as u16)))
            }
            _ if here => Some(("127.0.0.1".to_owned(), port.unwrap_or(PORT))),
            _ => None,
        };
        Ok(Some(Self { launcher, rank, ranks, local_rank, master }))
    }

    /// Where the ranks meet, for [`TcpLink::connect`](super::TcpLink::connect).
    ///
    /// # Errors
    /// If nothing says where rank 0 is.
    pub fn place(&self) -> Result<Place, LaunchError> {
        let meeting = self.master.clone().ok_or(LaunchError::NoRendezvous)?;
        Ok(Place { rank: self.rank, ranks: self.ranks, meeting })
    }
}

/// The first of hosts as Slurm writes them: `gpu[07-09,12],cpu1` begins with `gpu07`.
fn first_host(list: &str) -> String {
    match list.split_once('[') {
        Some((prefix, rest)) if !prefix.contains(',') => {
            let (inside, after) = rest.split_once(']').unwrap_or((rest, ""));
            let number = inside.split(['-', ',']).next().unwrap_or_default();
            format!("{prefix}{number}{}", after.split(',').next().unwrap_or_default())
        }
        _ => list.split(',').next().unwrap_or_default().to_owned(),
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
            let found = launch(&[(rank, "5"), (ranks, "8"), (local, "2"), ("SLURM_STEP_ID", "0")]).unwrap().unwrap();
            assert_eq!(found, Launch { launcher, rank: 5, ranks: 8, local_rank: 2, master: None });
        }
        assert_eq!(launch(&[("HOME", "/root")]), Ok(None));
    }

    #[test]
    fn mpirun_inside_a_slurm_job_counts_before_slurm() {
        let both = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "1"),
            ("SLURM_STEP_ID", "0"),
            ("RANK", "7"),
            ("WORLD_SIZE", "9"),
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

    fn meeting(variables: &[(&str, &str)]) -> Option<(String, u16)> {
        launch(variables).unwrap().unwrap().master
    }

    #[test]
    fn slurm_names_the_machines() {
        let of = |nodes: &str| {
            let all = [
                ("SLURM_PROCID", "1"),
                ("SLURM_NTASKS", "4"),
                ("SLURM_STEP_NODELIST", nodes),
                ("SLURM_JOB_ID", "7012"),
            ];
            meeting(&all).unwrap()
        };
        assert_eq!(of("gpu[07-09,12],cpu1"), ("gpu07".to_owned(), 29512));
        assert_eq!(of("a1,b[2-3]").0, "a1");
        assert_eq!(of("n[3,5]-ib").0, "n3-ib");
        assert_eq!(of("single").0, "single");
    }

    #[test]
    fn ranks_of_one_machine_meet_on_it_and_the_others_must_be_told() {
        let local = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
        assert_eq!(meeting(&local), Some(("127.0.0.1".to_owned(), 29500)));
        let spread =
            [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
        assert_eq!(launch(&spread).unwrap().unwrap().place(), Err(LaunchError::NoRendezvous));
        // Tasks of a Slurm job may be spread in ways that only the list of machines tells.
        let spread = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_NTASKS_PER_NODE", "4(x2)")];
        assert_eq!(meeting(&spread), None);
    }

    #[test]
    fn the_port_of_torchruns_own_store_is_left_alone() {
        let base = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")];
        let store = [&base[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(meeting(&store), Some(("node7".to_owned(), 29501)));
        let place = launch(&base).unwrap().unwrap().place().unwrap();
        assert_eq!(place, Place { rank: 0, ranks: 2, meeting: ("node7".to_owned(), 29500) });
        let odd = [&base[..3], &[("MASTER_PORT", "70000")]].concat();
        assert_eq!(launch(&odd), Err(LaunchError::Port { port: 70000 }));
    }

    #[test]
    fn a_batch_script_of_slurms_was_not_started_as_a_rank() {
        let script =
            [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_NODELIST", "a1")];
        assert_eq!(launch(&script), Ok(None));
        // A step of the job may have fewer processes than the job has room for.
        let step = [&script[..], &[("SLURM_STEP_ID", "3"), ("SLURM_STEP_NUM_TASKS", "2")]].concat();
        let found = launch(&step).unwrap().unwrap();
        assert_eq!((found.launcher, found.rank, found.ranks), (Launcher::Slurm, 0, 2));
        assert_eq!(found.master, Some(("a1".to_owned(), 29507)));
        // torchrun in a step: its own variables count.
        let torchrun = [&step[..], &[("RANK", "3"), ("WORLD_SIZE", "16"), ("LOCAL_RANK", "1")]].concat();
        let found = launch(&torchrun).unwrap().unwrap();
        assert_eq!((found.launcher, found.rank, found.ranks, found.local_rank), (Launcher::Torchrun, 3, 16, 1));
    }

    #[test]
    fn whatever_of_a_launchers_variables_is_no_number_is_named() {
        for launcher in Launcher::ALL {
            let names = launcher.variables();
            let sound = |name: &'static str| (name, if name == names[1] { "8" } else { "2" });
            let all = [sound(names[0]), sound(names[1]), sound(names[2]), ("SLURM_STEP_ID", "0"), ("MASTER_PORT", "1")];
            assert!(launch(&all).is_ok());
            for odd in [names[0], names[1], names[2], "MASTER_PORT"] {
                for value in ["", " 1", "-1", "1.0", "two", "99999999999999999999999"] {
                    let changed = all.map(|(name, sound)| (name, if name == odd { value } else { sound }));
                    let error = launch(&changed).unwrap_err();
                    assert!(matches!(error, LaunchError::NotANumber { variable, .. } if variable == odd), "{error}");
                    assert!(error.to_string().starts_with(&format!("{odd}={value} is not a number")), "{error}");
                }
            }
            let alone = [(names[0], "0"), ("SLURM_STEP_ID", "0")];
            assert_eq!(launch(&alone), Err(LaunchError::Missing { there: names[0], missing: names[1] }));
        }
    }

    #[test]
    fn an_empty_address_is_none() {
        let by_hand = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", " "), ("MASTER_PORT", "9")];
        assert_eq!(launch(&by_hand).unwrap().unwrap().place(), Err(LaunchError::NoRendezvous));
        assert_eq!(meeting(&[&by_hand[..], &[("LOCAL_WORLD_SIZE", "2")]].concat()), Some(("127.0.0.1".to_owned(), 9)));
    }

    #[test]
    fn variables_that_make_no_sense_are_named() {
        let said = |variables: &[(&str, &str)]| launch(variables).unwrap_err().to_string();
        let no_port = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "0")];
        assert_eq!(said(&no_port), "MASTER_PORT=0 is no port; choose one from 1 to 65535");
        assert!(said(&[("RANK", "first"), ("WORLD_SIZE", "2")]).contains("RANK=first is not a number"));
        assert_eq!(said(&[("RANK", "1")]), "RANK is set, but WORLD_SIZE is not");
        assert_eq!(said(&[("RANK", "2"), ("WORLD_SIZE", "2")]), "rank 2 is not one of 2 rank(s), counted from 0");
    }
}
