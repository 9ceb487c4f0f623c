//! Launchers, and the environment variables by which they are recognised.
//!
//! A Slurm batch script has `SLURM_PROCID` and `SLURM_NTASKS` too, but runs once. `srun` started the process only if a
//! variable of a step, such as `SLURM_STEP_ID`, is set as well. Slurm's PMI sets `PMI_RANK` and `PMI_SIZE` in steps,
//! also in processes that MPICH did not start; MPICH sets `MPI_LOCALRANKID` too.

use std::fmt;

/// Variables that Slurm sets only in the steps of a job. The first has the number of processes of the step.
pub(super) const STEP: [&str; 4] = ["SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST"];

/// The program that started the processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Launcher {
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// `mpiexec` of MPICH and its relatives.
    Mpich,
    /// torchrun, or variables set by hand.
    Torchrun,
    /// Slurm's `srun`.
    Slurm,
}

impl Launcher {
    pub(super) const ALL: [Launcher; 4] = [Launcher::OpenMpi, Launcher::Mpich, Launcher::Torchrun, Launcher::Slurm];

    /// The variables with rank, number of ranks, and rank on this machine.
    pub(super) fn variables(self) -> [&'static str; 3] {
        match self {
            Launcher::OpenMpi => ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
            Launcher::Mpich => ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
            Launcher::Torchrun => ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
            Launcher::Slurm => ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
        }
    }

    /// Returns true if this launcher started the process that has these variables.
    pub(super) fn has_started<V>(self, get: &impl Fn(&str) -> Option<V>) -> bool {
        let has = |variable: &&str| get(variable).is_some();
        let [rank, _, local] = self.variables();
        let in_step = || STEP.iter().any(has);
        has(&rank)
            && match self {
                // Slurm's PMI sets the first two variables for every process of a step.
                Launcher::Mpich => has(&local) || !in_step(),
                Launcher::Slurm => in_step(),
                Launcher::OpenMpi | Launcher::Torchrun => true,
            }
    }

    /// The variable with the random key that the launcher makes for each job, if it makes one; see
    /// [`is_guessable`].
    pub(super) fn secret(self) -> Option<&'static str> {
        (self == Launcher::OpenMpi).then_some("OMPI_MCA_orte_precondition_transports")
    }

    /// The variable with the number of ranks on this machine.
    pub(super) fn local_ranks(self) -> &'static str {
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

/// Returns true if a key of Open MPI's is blank, or follows from the job's number as under `srun`. Both of its
/// numbers are then short, and anyone can try them all.
pub(super) fn is_guessable(key: &str) -> bool {
    let short = |part: &str| u64::from_str_radix(part, 16).is_ok_and(|number| number <= u64::from(u32::MAX));
    key.trim().is_empty() || key.trim().split('-').all(short)
}

/// Returns true if a list in Slurm's format has one host.
pub(super) fn is_one_host(list: &str) -> bool {
    !list.trim().is_empty() && !list.contains([',', '['])
}

/// The first host of a list in Slurm's format: `gpu[07-09,12],cpu1` begins with `gpu07`.
pub(super) fn first_host(list: &str) -> String {
    match list.split_once('[') {
        Some((prefix, rest)) if !prefix.contains(',') => {
            let (inside, after) = rest.split_once(']').unwrap_or((rest, ""));
            let number = inside.split(['-', ',']).next().unwrap_or_default();
            format!("{prefix}{number}{}", after.split(',').next().unwrap_or_default())
        }
        _ => list.split(',').next().unwrap_or_default().to_owned(),
    }
}
