//! Running `mpirun`, never for longer than a limit.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest that any run may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Run {
    /// `mpirun`'s exit code; `None` if a signal ended it, or it was ended for taking too long.
    pub(crate) code: Option<i32>,
    /// What all ranks wrote to standard output.
    pub(crate) out: String,
    /// What all ranks and `mpirun` wrote to standard error.
    pub(crate) err: String,
}

/// Runs this many ranks of the test program.
pub(crate) fn mpirun(ranks: usize, flags: &[&str], arguments: &[&str]) -> Run {
    run(Command::new("mpirun").args(common(ranks)).args(flags).arg(env!("CARGO_BIN_EXE_ranks")).args(arguments))
}

/// More ranks than processors, as any user.
fn common(ranks: usize) -> [String; 4] {
    ["-n".to_owned(), ranks.to_string(), "--oversubscribe".to_owned(), "--allow-run-as-root".to_owned()]
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
    Run { code, out: out.join().unwrap(), err: err.join().unwrap() }
}
