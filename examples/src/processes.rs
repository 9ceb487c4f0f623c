//! Runs ranks as processes of this machine with one command, over MPI, and restarts them when one is lost.
//!
//! Guarantees: the processes run the program's own command line, with `--processes` replaced. A run that cannot
//! start, or that ends without losing a rank, is not repeated. Each loss leaves fewer ranks, so the repetition
//! ends.
//!
//! 1. `mpirun` starts `--processes` copies of this program, with `--link mpi` in place of that flag. It ends all of
//!    them when one is killed. Ranks end the job with [`LOST`] when one no longer answers. A run whose `mpirun`
//!    does not end counts as one that lost a rank ([`mpirun`]). In a batch script or an interactive step of Slurm,
//!    the processes run on the machine that runs this program.
//! 2. With `--restart`, the remaining processes continue: one fewer, or as many as make whole replicas of the
//!    pipeline. They use the same schedule if it supports this many ranks, else 1F1B, and the last checkpoint
//!    (`--resume` replaces that flag). Without a checkpoint they start from the beginning. The number of replicas
//!    shrinks only if too few processes are left. A given `--cut` is left out if it is for another number of stages.
//! 3. Steps after that checkpoint run and are printed again.
//!
//! To use several machines, call `mpirun` with a hostfile.

use crate::cut::Cut;
use crate::mpirun;
use crate::options::Options;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::{Command, ExitStatus};

/// The exit code of a run in which a rank failed or was lost, and which can be resumed.
pub const LOST: u8 = 3;

/// Why the processes could not run.
#[derive(thiserror::Error)]
pub enum ProcessesError {
    /// `mpirun` cannot be started.
    #[error("`mpirun` cannot be started: {0}; install Open MPI (Debian: openmpi-bin)")]
    Start(io::Error),
    /// The path of this program is unknown.
    #[error("this program's own file cannot be found: {0}")]
    Program(io::Error),
}

burn_pipeline::debug_as_text!(ProcessesError);

/// Runs the processes, and again after each loss with `--restart`; returns the exit code. `arguments` are those of
/// this process, without its name.
///
/// # Errors
/// Returns an error if `mpirun` cannot be started.
pub fn run(
    options: &Options,
    processes: usize,
    arguments: &[OsString],
    err: &mut dyn Write,
) -> Result<u8, ProcessesError> {
    let program = std::env::current_exe().map_err(ProcessesError::Program)?;
    let (mut running, mut crew) = (processes, None);
    loop {
        let mut command = Command::new("mpirun");
        command.args(["-n", &running.to_string(), "--oversubscribe"]).arg(&program);
        command.args(rewritten(arguments, crew));
        // In a Slurm job, `mpirun` would distribute them over all of its machines.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SLURM_")) {
            command.env_remove(name);
        }
        let mut started = command.spawn().map_err(ProcessesError::Start)?;
        let status = mpirun::wait(&mut started).map_err(ProcessesError::Start)?;
        let again = options.restart && running > 1 && was_lost(status);
        if !again {
            return Ok(exit_code(status));
        }
        let next = Crew::of(options, running - 1);
        (running, crew) = (next.ranks * next.replicas, Some(next));
        let how = status.map_or_else(|| "`mpirun` did not end and was killed".to_owned(), |status| status.to_string());
        let cut = if next.keeps_cut { "" } else { ", without --cut, which is for another number of stages" };
        // A closed standard error is ignored.
        let _ = writeln!(err, "a rank was lost ({how}); continuing with {running} of {processes} processes{cut}");
    }
}

/// What the remaining processes run after a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Crew {
    ranks: usize,
    replicas: usize,
    schedule: Schedule,
    /// False if `--cut` gives the stages, and there are others now.
    keeps_cut: bool,
}

/// The schedule for fewer ranks than requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Schedule {
    /// The schedule of the flags.
    AsAsked,
    /// 1F1B, which supports any number of ranks.
    Plain,
}

impl Crew {
    /// The crew of at most `processes` processes, which is at least one.
    fn of(options: &Options, processes: usize) -> Self {
        let replicas = options.data_parallel.clamp(1, processes);
        // Stages of a given cut may hold no block; those of an even one, which takes its place, hold at least one.
        let most = if matches!(options.cut, Cut::Given(_)) { options.layers } else { processes };
        let ranks = (processes / replicas).min(most);
        let fewer = Options { ranks: Some(ranks), data_parallel: replicas, ..options.clone() };
        let (schedule, stages) = match fewer.planned() {
            Ok(plan) if plan.ranks() == ranks => (Schedule::AsAsked, plan.stages()),
            _ => (Schedule::Plain, ranks),
        };
        let keeps_cut = !matches!(&options.cut, Cut::Given(given) if given.partition().stages() != stages);
        Self { ranks, replicas, schedule, keeps_cut }
    }

    /// The flags that replace the user's.
    fn flags(self) -> Vec<String> {
        let mut flags = vec!["--data-parallel".to_owned(), self.replicas.to_string()];
        if self.schedule == Schedule::Plain {
            flags.extend(["--schedule", "1F1B"].map(str::to_owned));
        }
        flags
    }
}

/// Returns true if a rank failed or was lost; false if the run ended for another reason, such as invalid flags.
fn was_lost(status: Option<ExitStatus>) -> bool {
    // 128 or more: the number of the signal that ended a process, as shells and `mpirun` report it.
    status.and_then(|status| status.code()).is_none_or(|code| code == i32::from(LOST) || code >= 128)
}

fn exit_code(status: Option<ExitStatus>) -> u8 {
    status.and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok()).unwrap_or(LOST)
}

/// The command line of the processes, with each flag of this helper replaced in its place. If there are fewer
/// processes than requested, the crew's flags replace the user's.
fn rewritten(arguments: &[OsString], crew: Option<Crew>) -> Vec<OsString> {
    let mut rewritten: Vec<OsString> = Vec::new();
    let plain = crew.is_some_and(|crew| crew.schedule == Schedule::Plain);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        let (flag, joined) = text.split_once('=').map_or((&*text, false), |(flag, _)| (flag, true));
        let mut skip_value = || {
            if !joined {
                arguments.next();
            }
        };
        match flag {
            "--processes" => {
                skip_value();
                rewritten.extend(["--link", "mpi"].map(OsString::from));
                rewritten.extend(crew.into_iter().flat_map(Crew::flags).map(OsString::from));
            }
            // Once, if both are given.
            "--restart" | "--resume" if rewritten.iter().any(|flag| flag == "--resume") => {}
            "--restart" => rewritten.push("--resume".into()),
            "--schedule" | "--plan" | "--chunks" if plain => skip_value(),
            "--cut" if crew.is_some_and(|crew| !crew.keeps_cut) => skip_value(),
            "--data-parallel" if crew.is_some() => skip_value(),
            // One replica cannot shard its parameters.
            "--sharded" if crew.is_some_and(|crew| crew.replicas == 1) => {}
            _ => rewritten.push(argument.clone()),
        }
    }
    rewritten
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn line(text: &str, crew: Option<Crew>) -> String {
        let arguments: Vec<OsString> = text.split(' ').map(OsString::from).collect();
        rewritten(&arguments, crew).join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn the_processes_get_the_command_line_with_the_helpers_flags_replaced_where_they_stand() {
        let asked = "--steps 9 --processes 4 --save f --restart --schedule=ZBH1 --chunks 1 --log json";
        let given = line(asked, None);
        assert_eq!(given, "--steps 9 --link mpi --save f --resume --schedule=ZBH1 --chunks 1 --log json");
        let plain = line(asked, Some(Crew { ranks: 3, replicas: 1, schedule: Schedule::Plain, keeps_cut: true }));
        assert_eq!(plain, "--steps 9 --link mpi --data-parallel 1 --schedule 1F1B --save f --resume --log json");
        assert_eq!(line("--processes=2 --lr 1", None), "--link mpi --lr 1");
        let replicas = "--processes=4 --data-parallel 2 --sharded --lr 1";
        let crew = |replicas| Some(Crew { ranks: 1, replicas, schedule: Schedule::AsAsked, keeps_cut: true });
        assert_eq!(line(replicas, crew(2)), "--link mpi --data-parallel 2 --sharded --lr 1");
        assert_eq!(line(replicas, crew(1)), "--link mpi --data-parallel 1 --lr 1");
    }

    #[test]
    fn a_run_that_resumes_and_restarts_resumes_once() {
        for asked in ["--processes 2 --restart --lr 1 --resume", "--processes 2 --resume --lr 1 --restart"] {
            let given = line(asked, None);
            assert_eq!(given, "--link mpi --resume --lr 1");
            assert!(Options::try_parse_from(format!("train_gpt {given} --save f").split(' ')).is_ok(), "{given}");
        }
    }

    #[test]
    fn a_given_cut_is_kept_while_it_makes_the_stages_of_those_who_are_left() {
        let options = |flags: &str| Options::try_parse_from(format!("train_gpt {flags}").split(' ')).unwrap();
        for (flags, processes, left) in [
            ("--processes 4 --cut EA|A|A|AL --lr 1", 3, "--link mpi --data-parallel 1 --lr 1"),
            ("--processes 4 --cut=EA|A|A|AL --lr 1", 3, "--link mpi --data-parallel 1 --lr 1"),
            ("--processes 4 --data-parallel 2 --cut EAA|AAL", 3, "--link mpi --data-parallel 2"),
            // Fewer replicas have the stages that they had.
            ("--processes 3 --data-parallel 3 --cut EAAAAL", 2, "--link mpi --data-parallel 2 --cut EAAAAL"),
            ("--processes 4 --cut optimal --costs f", 3, "--link mpi --data-parallel 1 --cut optimal --costs f"),
        ] {
            let crew = Crew::of(&options(flags), processes);
            assert_eq!(line(flags, Some(crew)), left, "{processes} of {flags}");
        }
        // Two blocks make two stages.
        assert_eq!(Crew::of(&options("--processes 4 --layers 2 --cut E|A|A|L"), 3).ranks, 2);
    }

    #[test]
    fn those_who_are_left_make_whole_replicas_and_fewer_of_them_only_where_there_must_be() {
        let options = |flags: &str| Options::try_parse_from(format!("train_gpt {flags}").split(' ')).unwrap();
        for (replicas, processes, expected) in
            [(1, 3, [3, 1]), (2, 7, [3, 2]), (2, 3, [1, 2]), (2, 2, [1, 2]), (2, 1, [1, 1]), (4, 3, [1, 3])]
        {
            let crew = Crew::of(&options(&format!("--processes 8 --data-parallel {replicas}")), processes);
            assert_eq!([crew.ranks, crew.replicas], expected, "{replicas} replicas, {processes} processes");
        }
    }

    #[test]
    fn the_asked_schedule_is_kept_where_it_can_be_built_for_the_ranks_that_are_left() {
        let options = |flags: &str| Options::try_parse_from(format!("train_gpt {flags}").split(' ')).unwrap();
        let of = |options: &Options, processes| Crew::of(options, processes).schedule;
        assert_eq!(of(&options("--processes 4"), 3), Schedule::AsAsked);
        assert_eq!(of(&options("--processes 4 --schedule DualPipe --microbatches 8"), 3), Schedule::Plain);
        let plan = std::env::temp_dir().join(format!("train-gpt-processes-{}.csv", std::process::id()));
        std::fs::write(&plan, "0F0,0B0\n1F0,1B0\n").unwrap();
        let planned = options(&format!("--processes 2 --plan {}", plan.display()));
        assert_eq!((of(&planned, 2), of(&planned, 1)), (Schedule::AsAsked, Schedule::Plain));
        std::fs::remove_file(plan).unwrap();
    }
}
