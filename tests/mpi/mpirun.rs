//! Runs `mpirun` with a time limit, and lists what it leaves behind.

use pipeline_examples::mpirun;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time limit of a run.
const LIMIT: Duration = Duration::from_secs(300);
/// How long other processes may hold the output open after `mpirun` has ended.
const OUTPUT_LIMIT: Duration = Duration::from_secs(5);

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Run {
    /// `mpirun`'s exit code, or `None` if a signal or the time limit ended it.
    pub(crate) code: Option<i32>,
    /// The standard output of all ranks.
    pub(crate) out: String,
    /// The standard error of all ranks and of `mpirun`.
    pub(crate) err: String,
    /// The processes and shared memory that remained after `mpirun` ended.
    pub(crate) left: Vec<String>,
    /// True if `mpirun` crashed, or did not end although its processes had.
    pub(crate) mpirun_failed: bool,
}

/// Runs `ranks` ranks of the test program. If all of them end but `mpirun` hangs or crashes
/// ([`pipeline_examples::mpirun`]), the exit code is unknown, and they run again.
pub(crate) fn mpirun(ranks: usize, flags: &[&str], arguments: &[&str]) -> Run {
    let mut again = 0..4;
    loop {
        let run = mpirun_once(ranks, flags, arguments);
        if !run.mpirun_failed || again.next().is_none() {
            return run;
        }
    }
}

/// Like [`mpirun`], but never runs again.
pub(crate) fn mpirun_once(ranks: usize, flags: &[&str], arguments: &[&str]) -> Run {
    let mark = Mark::new();
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string(), "--oversubscribe", "--allow-run-as-root"]).args(flags);
    command.arg(env!("CARGO_BIN_EXE_ranks")).args(arguments).arg(&mark.argument);
    let began = Instant::now();
    let run = run(&mut command);
    let failed = if run.mpirun_failed { "mpirun itself failed: " } else { "" };
    println!("{failed}{:.1} s: {ranks} ranks, {arguments:?}", began.elapsed().as_secs_f64());
    Run { left: mark.left(), ..run }
}

/// Marks a run's processes, and remembers what existed before it.
pub(crate) struct Mark {
    /// The last argument of every process of the run.
    pub(crate) argument: String,
    before: BTreeSet<String>,
}

impl Mark {
    pub(crate) fn new() -> Self {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let argument = format!("mark-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        Self { argument, before: shared_memory() }
    }

    /// The processes and shared memory that remain after the run.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        // A killed process takes a moment to disappear.
        for _ in 0..250 {
            left = processes(&self.argument).iter().map(|path| format!("process {}", path.display())).collect();
            let ours = |name: &&String| !self.before.contains(*name) && !in_use(name);
            left.extend(shared_memory().iter().filter(ours).map(|name| format!("shared memory {name}")));
            if left.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        left
    }

    /// The process of rank `rank` of `ranks`.
    pub(crate) fn process_of(&self, rank: usize, ranks: usize) -> Option<u32> {
        let variables = [format!("OMPI_COMM_WORLD_RANK={rank}"), format!("OMPI_COMM_WORLD_SIZE={ranks}")];
        let is_it = |path: &PathBuf| {
            let environment = std::fs::read(path.join("environ")).unwrap_or_default();
            let has =
                |variable: &String| environment.split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes());
            variables.iter().all(has)
        };
        processes(&self.argument).into_iter().find(is_it)?.file_name()?.to_str()?.parse().ok()
    }
}

/// Runs a command to its end or to the time limit, without looking for what it leaves behind. At the limit,
/// standard error says what each of its processes was doing.
pub(crate) fn run(command: &mut Command) -> Run {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let out = Output::read(child.stdout.take().unwrap());
    let err = Output::read(child.stderr.take().unwrap());
    let (done, waited) = channel();
    let id = child.id();
    std::thread::spawn(move || done.send(mpirun::wait(&mut child).unwrap()));
    let status = waited.recv_timeout(LIMIT);
    let mut stuck = String::new();
    if status.is_err() {
        stuck = family(id).into_iter().map(doing).collect();
        for process in family(id) {
            let _ = Command::new("kill").args(["-KILL", &process.to_string()]).status();
        }
    }
    let (out, err) = (out.end(), err.end() + &stuck);
    let mpirun_failed = status.is_ok_and(|status| status.is_none_or(|status| status.code().is_none()));
    Run { code: status.ok().flatten().and_then(|status| status.code()), out, err, left: Vec::new(), mpirun_failed }
}

/// A stream's text so far.
struct Output {
    text: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
}

impl Output {
    fn read(mut stream: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let read = text.clone();
        let reading = std::thread::spawn(move || {
            let mut piece = [0; 1 << 12];
            while let Ok(length @ 1..) = stream.read(&mut piece) {
                read.lock().unwrap().extend_from_slice(&piece[..length]);
            }
        });
        Self { text, reading }
    }

    /// All of the text, or the text so far if another process has held the stream open for too long.
    fn end(self) -> String {
        let since = Instant::now();
        while !self.reading.is_finished() && since.elapsed() < OUTPUT_LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        let text = self.text.lock().unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// A process and all its descendants.
fn family(process: u32) -> Vec<u32> {
    std::iter::once(process).chain(mpirun::children(process).into_iter().flat_map(family)).collect()
}

/// What a process's threads wait for in the kernel.
fn doing(process: u32) -> String {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let folder = PathBuf::from(format!("/proc/{process}"));
    let tasks = std::fs::read_dir(folder.join("task")).into_iter().flatten().flatten();
    let tasks = tasks.map(|task| [read(task.path().join("comm")), read(task.path().join("wchan"))]);
    let tasks: Vec<String> = tasks.map(|[name, waits]| format!("{} in {waits}", name.trim())).collect();
    format!("\nstill there: {process} {}: {}", read(folder.join("cmdline")).replace('\0', " "), tasks.join(", "))
}

/// The processes that carry the mark and are not zombies.
fn processes(mark: &str) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let alive = |path: PathBuf| {
        let line = std::fs::read_to_string(path.join("cmdline")).ok()?;
        let state = std::fs::read_to_string(path.join("stat")).ok()?;
        let dead = state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
        // Compares whole arguments: one mark may be a prefix of another.
        (line.split('\0').any(|argument| argument == mark) && !dead).then_some(path)
    };
    processes.filter_map(|process| alive(process.path())).collect()
}

/// Returns true if a process uses this piece of shared memory, which then belongs to another job on this machine.
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
