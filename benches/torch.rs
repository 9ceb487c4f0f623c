//! PyTorch beside a bench: a Python process that answers one line for each line that it is sent.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A Python process with PyTorch. Dropping it ends it.
#[derive(Debug)]
pub struct PyTorch {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl PyTorch {
    /// Starts a script of `benches/pytorch`. The environment variable `PYTHON` names an interpreter that has PyTorch;
    /// without it, the first call installs PyTorch into a virtual environment in `temporary`, the caller's
    /// `CARGO_TARGET_TMPDIR`. Returns the first line that the script prints, too.
    pub fn start(script: &str, flags: &[&str], temporary: &str) -> Result<(Self, String), Box<dyn Error>> {
        let script = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/pytorch")).join(script);
        let mut program = Command::new(interpreter(temporary)?);
        let mut child = program.arg(script).args(flags).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (asks, answers) = (child.stdin.take(), child.stdout.take());
        let (asks, answers) = asks.zip(answers).ok_or("the process has no pipes")?;
        let mut started = Self { child, asks, answers: BufReader::new(answers) };
        let first = started.line()?;
        Ok((started, first))
    }

    /// Sends a line; returns the seconds that the process answers.
    pub fn seconds(&mut self, line: &str) -> Result<f64, Box<dyn Error>> {
        writeln!(self.asks, "{line}")?;
        let answer = self.line()?;
        answer.parse().map_err(|_| answer.into())
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        match self.answers.read_line(&mut line)? {
            0 => Err("PyTorch's process has ended".into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

impl Drop for PyTorch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Python interpreter with PyTorch; installs it into a virtual environment if there is none.
fn interpreter(temporary: &str) -> Result<PathBuf, Box<dyn Error>> {
    if let Some(python) = std::env::var_os("PYTHON") {
        return Ok(python.into());
    }
    let folder = PathBuf::from(temporary).join("pytorch");
    let python = folder.join("bin/python");
    let run = |program: &mut Command| match program.status() {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("{program:?}: {other:?}; set PYTHON to an interpreter that has PyTorch")),
    };
    if !folder.join("installed").exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        run(Command::new(&python).args(["-m", "pip", "install", "-q", "torch", "numpy"]))?;
        std::fs::write(folder.join("installed"), "")?;
    }
    Ok(python)
}
