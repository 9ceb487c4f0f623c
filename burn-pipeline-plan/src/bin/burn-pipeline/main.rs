//! The command line: builds, checks, simulates, compares, plans and draws pipeline schedules.
//!
//! 1. Each subcommand is a file. They share the flags for a plan ([`source`]) and its costs ([`costs`]), and the
//!    parsers of flags and files ([`values`]).
//! 2. Results go to standard output. A failure writes one message to standard error.
//! 3. Exit codes: 0 for success; 1 if the plan is refused (it cannot be built, does not pass the check, deadlocks); 2
//!    if the input is invalid (a bad flag, an unreadable file, malformed CSV or JSON).
//! 4. If the reader of standard output goes away (`| head`), the program ends without an error.

mod check;
mod compare;
mod costs;
mod failure;
mod overlap;
mod partition;
mod plan;
mod report;
mod schedule;
mod schedules;
mod simulate;
mod source;
mod values;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Builds, checks, simulates, compares and plans schedules for pipeline parallelism.
///
/// A plan lists, for each rank (device), the actions that it runs: F (forward), I and W (backward for the input and for
/// the weights), B (both), sends and receives. A model is cut into stages; a rank has one or several of them (chunks).
/// Start with `schedules`, then `schedule --name 1F1B --ranks 4 --microbatches 8 --format grid`.
#[derive(Parser, Debug)]
#[command(name = "burn-pipeline", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// List the schedules: name, placement, chunks per rank, accepted microbatches, source.
    Schedules,
    /// Build a plan from a schedule and print it as CSV, a grid or JSON.
    Schedule(schedule::Arguments),
    /// Prove that a plan is complete and cannot deadlock, or say why not (exit code 1).
    Check(check::Arguments),
    /// Simulate a plan under given costs: makespan, bubbles and their causes, memory, timeline.
    Simulate(simulate::Arguments),
    /// Move a plan's sends, receives and waits to where computation hides them.
    Overlap(overlap::Arguments),
    /// Compare all schedules under the same costs.
    Compare(compare::Arguments),
    /// Cut a model's layers into stages, and report what each stage holds.
    Partition(partition::Arguments),
    /// Find the fastest schedule, cut and number of microbatches for a model, under a memory cap.
    Plan(Box<plan::Arguments>),
    /// Show a measured trace as one HTML page: timelines, idle time by cause, exposed communication.
    Report(report::Arguments),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // `--help` and `--version` come here too, with exit code 0. A closed pipe is not a failure.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let run = match arguments.command {
        Command::Schedules => schedules::run(&mut out),
        Command::Schedule(arguments) => schedule::run(&arguments, &mut out),
        Command::Check(arguments) => check::run(&arguments, &mut out),
        Command::Simulate(arguments) => simulate::run(&arguments, &mut out),
        Command::Overlap(arguments) => overlap::run(&arguments, &mut out),
        Command::Compare(arguments) => compare::run(&arguments, &mut out),
        Command::Partition(arguments) => partition::run(&arguments, &mut out),
        Command::Plan(arguments) => plan::run(&arguments, &mut out),
        Command::Report(arguments) => report::run(&arguments, &mut out),
    };
    match run.and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            // Keep the output printed before the failure. If it cannot be written, the failure is still reported.
            let _ = out.flush();
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
