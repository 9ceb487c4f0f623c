//! Running `mpirun`, never for longer than a limit, and looking for what it leaves behind.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
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
    let turn = Turn::new();
    let mark = turn.mark.clone();
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string(), "--oversubscribe", "--allow-run-as-root"]).args(flags);
    command.arg(env!("CARGO_BIN_EXE_ranks")).args(arguments).arg(&mark);
    let run = run(&mut command);
    Run { left: turn.left(), ..run }
}

/// A run's turn, and the mark of its processes.
pub(crate) struct Turn {
    /// The last argument of every process of the run.
    pub(crate) mark: String,
    before: BTreeSet<String>,
    _turn: MutexGuard<'static, ()>,
}

impl Turn {
    pub(crate) fn new() -> Self {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mark = format!("mark-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        Self { mark, before: shared_memory(), _turn: turn }
    }

    /// Processes and shared memory that are still there once the run has ended.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        // A killed process takes a moment to go.
        for _ in 0..50 {
            left = processes(&self.mark).iter().map(|path| format!("process {}", path.display())).collect();
            let ours = |name: &&String| !self.before.contains(*name) && !in_use(name);
            left.extend(shared_memory().iter().filter(ours).map(|name| format!("shared memory {name}")));
            if left.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        left
    }

    /// The process of a rank, of this many.
    pub(crate) fn process_of(&self, rank: usize, ranks: usize) -> Option<u32> {
        let variables = [format!("OMPI_COMM_WORLD_RANK={rank}"), format!("OMPI_COMM_WORLD_SIZE={ranks}")];
        let is_it = |path: &PathBuf| {
            let environment = std::fs::read(path.join("environ")).unwrap_or_default();
            let has =
                |variable: &String| environment.split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes());
            variables.iter().all(has)
        };
        processes(&self.mark).into_iter().find(is_it)?.file_name()?.to_str()?.parse().ok()
    }
}

/// Runs a command to its end, or to the limit; does not look for what it leaves behind.
pub(crate) fn run(command: &mut Command) -> Run {
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
fn processes(mark: &str) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let alive = |path: PathBuf| {
        let line = std::fs::read_to_string(path.join("cmdline")).ok()?;
        let state = std::fs::read_to_string(path.join("stat")).ok()?;
        let dead = state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
        // Whole arguments: one mark may begin with another.
        (line.split('\0').any(|argument| argument == mark) && !dead).then_some(path)
    };
    processes.filter_map(|process| alive(process.path())).collect()
}

/// Does a process have this piece of shared memory in use? Then it is of another job on this machine.
fn in_use(name: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| std::fs::read_to_string(process.path().join("maps")).ok())
        .any(|maps| maps.contains(name))
}

/// Open MPI's pieces of shared memory.
fn shared_memory() -> BTreeSet<String> {
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("vader") || name.contains("ompi")).collect()
}
