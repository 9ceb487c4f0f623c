//! Waits for `mpirun`, which can outlive its processes for ever.
//!
//! Guarantees: it ends when `mpirun` does, or 10 s after the last process that `mpirun` had started.
//!
//! Open MPI 4 over PMIx 4, as Debian has them, may wait for itself for ever at its own end, or crash there, when a rank calls
//! `MPI_Abort` after another one has finalised MPI: `PMIx_server_finalize` joins a thread that waits for a lock which is
//! gone. All ranks have ended by then, and all that they wrote was passed on.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// The longest that `mpirun` may take to end once its processes have.
const ALONE: Duration = Duration::from_secs(10);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits for `mpirun`. One that outlives its processes is killed: `None`.
///
/// # Errors
/// If it cannot be waited for.
pub fn wait(mpirun: &mut Child) -> io::Result<Option<ExitStatus>> {
    wait_for(mpirun, ALONE)
}

fn wait_for(mpirun: &mut Child, longest: Duration) -> io::Result<Option<ExitStatus>> {
    let (mut has_started, mut alone) = (false, Instant::now());
    loop {
        if let Some(status) = mpirun.try_wait()? {
            return Ok(Some(status));
        }
        if !children(mpirun.id()).is_empty() {
            (has_started, alone) = (true, Instant::now());
        }
        if has_started && alone.elapsed() >= longest {
            mpirun.kill()?;
            return mpirun.wait().map(|_| None);
        }
        std::thread::sleep(PAUSE);
    }
}

/// The processes that a process has started and that still run; none where the system does not say (Linux does).
pub fn children(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let runs = |child: &u32| {
        let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        // Behind the program's name, in parentheses: Z is a process that has ended and waits to be noticed.
        state.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z'))
    };
    children.collect::<String>().split_whitespace().filter_map(|child| child.parse().ok()).filter(runs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn started(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).spawn().unwrap()
    }

    #[test]
    fn a_starter_that_outlives_its_processes_is_ended_and_no_other_one() {
        let longest = Duration::from_millis(300);
        // It starts one process, and becomes one that does not end.
        let (mut outlives, began) = (started("sleep 0.2; exec sleep 60"), Instant::now());
        assert_eq!(wait_for(&mut outlives, longest).unwrap(), None);
        assert!(began.elapsed() >= longest && began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        // It waits for its process, or has not started any yet.
        for ends in ["sleep 1; exit 7", "exec sleep 1"] {
            assert!(wait_for(&mut started(ends), longest).unwrap().is_some(), "{ends}");
        }
    }
}
