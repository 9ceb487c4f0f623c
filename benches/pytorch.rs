//! Pipelines of Burn compared with PyTorch's: one model, one machine, with alternating steps.
//!
//! `cargo bench -p benches --bench pytorch [-- [--rounds N] [--matmuls NAME] [--record-every N]]`. `--matmuls` is
//! `Builder::matmuls` of compiled stages: `f32`, `bf16`, `bf16x3` or `bf16x6`. With `bf16`, PyTorch runs under
//! `autocast`. The environment variable `PYTHON` names an interpreter that has PyTorch; without it, the first run
//! installs PyTorch into a virtual environment under `target/`.
//!
//! 1. Every contestant is built first: the loop on one device, and the schedules that both have over two ranks of
//!    one thread each; eager and compiled.
//! 2. Each round runs all contestants in turn, so that other load on the machine affects all alike. The first two
//!    rounds warm up.
//! 3. PyTorch's contestants are processes (`pytorch/step.py`) that wait in a read between their steps.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::flags::Flags;
use benches::gpt_step::{self, MICROBATCHES, Options, RATE, config};
use benches::plain::PlainLoop;
use benches::spread::Spread;
use benches::torch::PyTorch;
use burn_pipeline::Matmuls;
use burn_pipeline::schedule::{OneFOneB, by_name};
use std::cell::RefCell;
use std::error::Error;
use std::rc::Rc;
use std::time::Instant;

const WARM_UP: usize = 2;
const COLUMNS: [&str; 4] = ["Burn", "Burn, compiled", "PyTorch", "PyTorch, compiled"];
const UNPIPELINED: &str = "unpipelined";

type Step = Box<dyn FnMut() -> Result<f64, String>>;

/// A contestant, and the times of its steps.
struct Contestant {
    row: String,
    column: &'static str,
    step: Step,
    seconds: Result<Vec<f64>, String>,
}

impl Contestant {
    fn new(row: &str, column: &'static str, step: Step) -> Self {
        Self { row: row.to_owned(), column, step, seconds: Ok(Vec::new()) }
    }

    /// Runs one more step, unless a step has failed.
    fn round(&mut self) {
        let Ok(seconds) = &mut self.seconds else { return };
        match (self.step)() {
            Ok(took) => seconds.push(took),
            Err(error) => self.seconds = Err(error),
        }
    }

    fn spread(&self) -> Result<Spread, &str> {
        self.seconds.as_ref().map(|seconds| Spread::of(&seconds[WARM_UP..])).map_err(String::as_str)
    }
}

/// This workspace's contestants for a row of the table: eager and compiled.
fn own(row: &str, options: Options) -> Vec<Contestant> {
    let steps = COLUMNS[..2].iter().zip([false, true]);
    let pipelines = steps.filter_map(|(&column, compile)| {
        let step = if row == UNPIPELINED && !compile { plain() } else { pipeline(row, compile, options)? };
        Some(Contestant::new(row, column, step))
    });
    pipelines.collect()
}

/// Burn's own training loop.
fn plain() -> Step {
    let (mut plain, tokens) = (PlainLoop::new(config(), 1, MICROBATCHES), gpt_step::tokens());
    Box::new(move || Ok(plain.step(&tokens.0, &tokens.1, RATE)))
}

/// A schedule over two ranks, or the unpipelined row: 1F1B on one rank.
fn pipeline(schedule: &str, compile: bool, options: Options) -> Option<Step> {
    let (schedule, ranks) = match schedule {
        UNPIPELINED => (Box::new(OneFOneB) as _, 1),
        name => (by_name(name).ok()?, 2),
    };
    let size = gpt_step::size(&*schedule, ranks);
    let options = if compile { options } else { Options::default() };
    let mut pipeline = gpt_step::pipeline(schedule, size, options)?;
    let tokens = gpt_step::tokens();
    Some(Box::new(move || {
        let began = Instant::now();
        pipeline.step(gpt_step::batch(&tokens), RATE).map_err(|error| error.to_string())?;
        Ok(began.elapsed().as_secs_f64())
    }))
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::read(&[
        ("--rounds N", "rounds; 7 if absent"),
        ("--matmuls NAME", "`Builder::matmuls` of compiled stages; `bf16` is beside `autocast`; `f32` if absent"),
        ("--record-every N", "`Tuning::record_every` of compiled stages; 1 if absent"),
    ]);
    let (rounds, matmuls) = (flags.number("--rounds", 7), gpt_step::matmuls(flags.text("--matmuls").unwrap_or("f32"))?);
    let options =
        Options { compile: true, matmuls, record_every: flags.number("--record-every", 1), ..Options::default() };
    let flags: &[&str] = if matmuls == Matmuls::Bf16 { &["--bf16"] } else { &[] };
    let (torch, first) = PyTorch::start("step.py", flags, env!("CARGO_TARGET_TMPDIR"))?;
    let torch = Rc::new(RefCell::new(torch));
    let mut names = first.split('\t').map(str::to_owned);
    let version = names.next().unwrap_or_default();
    let names: Vec<String> = names.collect();
    let rows: Vec<&str> = names.iter().map(String::as_str).filter(|name| !name.ends_with(", compiled")).collect();
    let mut contestants: Vec<Contestant> = rows.iter().flat_map(|row| own(row, options)).collect();
    for name in &names {
        let (row, column) = match name.strip_suffix(", compiled") {
            Some(row) => (row, COLUMNS[3]),
            None => (name.as_str(), COLUMNS[2]),
        };
        let (torch, name) = (torch.clone(), name.clone());
        let step = Box::new(move || torch.borrow_mut().seconds(&name).map_err(|error| error.to_string()));
        contestants.push(Contestant::new(row, column, step));
    }
    for _ in 0..WARM_UP + rounds {
        contestants.iter_mut().for_each(Contestant::round);
    }
    println!("{version}; {rounds} rounds; ms per step: median (min..max)\n");
    print(&rows, &contestants);
    Ok(())
}

fn print(rows: &[&str], contestants: &[Contestant]) {
    println!("| | {} | compiled / PyTorch | compiled / PyTorch, compiled |", COLUMNS.join(" | "));
    println!("|---|---|---|---|---|---|---|");
    for row in rows {
        let spread = |column: &str| {
            let found = contestants.iter().find(|c| c.row == *row && c.column == column);
            found.map_or(Err("none"), Contestant::spread)
        };
        let cells = COLUMNS.map(|column| spread(column).map_or("fails".to_owned(), |spread| spread.to_string()));
        let ratio = |column: &str| match (spread(COLUMNS[1]), spread(column)) {
            (Ok(own), Ok(other)) => format!("{:.2}", own.median / other.median),
            _ => "-".to_owned(),
        };
        println!("| {row} | {} | {} | {} |", cells.join(" | "), ratio(COLUMNS[2]), ratio(COLUMNS[3]));
    }
    println!();
    for Contestant { row, column, seconds, .. } in contestants {
        if let Err(error) = seconds {
            println!("{row}, {column}: {error}");
        }
    }
}
