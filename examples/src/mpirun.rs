//! Waits for `mpirun`, which can outlive its processes forever.
//!
//! Guarantees: the wait ends when `mpirun` does, or 10 s after the last process that `mpirun` had started.
//!
//! Open MPI 4 over PMIx 4, as packaged by Debian, may deadlock or crash at its own end if a rank calls `MPI_Abort`
//! after another one has finalised MPI: `PMIx_server_finalize` joins a thread that waits for a destroyed lock. By
//! then all ranks have ended, and all their output was forwarded.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// How long `mpirun` may outlive its processes.
const ALONE: Duration = Duration::from_secs(10);
/// The time between two checks.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits for `mpirun`. If it outlives its processes, it is killed and the result is `None`.
///
/// # Errors
/// Returns an error if the process cannot be waited for.
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

/// The running child processes of a process; none if the system does not list them (Linux does).
pub fn children(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let runs = |child: &u32| {
        let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        // The state follows the program's name in parentheses: Z is a process that has ended and was not waited
        // for.
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
        // Starts one process, and turns into a process that does not end.
        let (mut outlives, began) = (started("sleep 0.2; exec sleep 60"), Instant::now());
        assert_eq!(wait_for(&mut outlives, longest).unwrap(), None);
        assert!(began.elapsed() >= longest && began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        // Waits for its process, or has not started any yet.
        for ends in ["sleep 1; exit 7", "exec sleep 1"] {
            assert!(wait_for(&mut started(ends), longest).unwrap().is_some(), "{ends}");
        }
    }
}
