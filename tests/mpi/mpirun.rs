//! Running `mpirun`, never for longer than a limit, and looking for what it leaves behind.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest that any run may take.
const LIMIT: Duration = Duration::from_secs(300);

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Run {
    /// `mpirun`'s exit code; `None` if a signal ended it, or it was ended for taking too long.
    pub(crate) code: Option<i32>,
    /// What all ranks wrote to standard output.
    pub(crate) out: String,
    /// What all ranks and `mpirun` wrote to standard error.
    pub(crate) err: String,
    /// Processes and shared memory that were still there when `mpirun` had ended.
    pub(crate) left: Vec<String>,
}

/// Runs this many ranks of the test program. One run at a time: shared memory tells no run from another, and more
/// ranks than cores find their deadlines tight.
pub(crate) fn mpirun(ranks: usize, flags: &[&str], arguments: &[&str]) -> Run {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let before = shared_memory();
    let mark = format!("mark-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string(), "--oversubscribe", "--allow-run-as-root"]).args(flags);
    command.arg(env!("CARGO_BIN_EXE_ranks")).args(arguments).arg(&mark);
    let mut run = run(&mut command);
    // A killed process takes a moment to go.
    for _ in 0..50 {
        run.left = left(&mark);
        run.left.extend(shared_memory().difference(&before).map(|name| format!("shared memory {name}")));
        if run.left.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    run
}

fn run(command: &mut Command) -> Run {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let read = |mut stream: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            stream.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let out = read(Box::new(child.stdout.take().unwrap()));
    let err = read(Box::new(child.stderr.take().unwrap()));
    let began = Instant::now();
    let code = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if began.elapsed() > LIMIT => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    Run { code, out: out.join().unwrap(), err: err.join().unwrap(), left: Vec::new() }
}

/// Processes that carry the mark and are not merely waiting to be reaped.
fn left(mark: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let alive = |path: std::path::PathBuf| {
        let line = std::fs::read_to_string(path.join("cmdline")).ok()?;
        let state = std::fs::read_to_string(path.join("stat")).ok()?;
        let dead = state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
        (line.contains(mark) && !dead).then(|| format!("process {}", path.display()))
    };
    processes.filter_map(|process| alive(process.path())).collect()
}

/// Open MPI's pieces of shared memory.
fn shared_memory() -> BTreeSet<String> {
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("vader") || name.contains("ompi")).collect()
}
