//! The command line: schedules as data, built, checked, simulated, compared and drawn.
//!
//! 1. Each subcommand is a file; they share where a plan comes from ([`source`]) and what it costs ([`costs`]).
//! 2. Results go to standard output, one message a failure to standard error.
//! 3. Exit codes: 0 done; 1 the plan was refused (it cannot be built, does not pass the check, deadlocks); 2 the input
//!    cannot be used (a bad flag, an unreadable file, malformed CSV or JSON).
//! 4. A reader that stops listening (`| head`) ends the program quietly.

mod check;
mod compare;
mod costs;
mod failure;
mod overlap;
mod partition;
mod plan;
mod schedule;
mod schedules;
mod simulate;
mod source;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Pipeline schedules as data: build, check, simulate, compare and draw them.
#[derive(Parser, Debug)]
#[command(name = "burn-pipeline", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// List the families: name, placement, chunks a rank, accepted microbatches, source.
    Schedules(schedules::Arguments),
    /// Build a schedule and print it as CSV, grid or JSON.
    Schedule(schedule::Arguments),
    /// Prove that a plan can be run, or say why not (exit code 1).
    Check(check::Arguments),
    /// Price a plan: makespan, bubbles and their causes, memory; draw it.
    Simulate(simulate::Arguments),
    /// Move communication where computation hides it, and say what each pass did.
    Overlap(overlap::Arguments),
    /// Set all families side by side under the same costs.
    Compare(compare::Arguments),
    /// Cut a model's layers into stages and report what each holds.
    Partition(partition::Arguments),
    /// Find the best schedule for a model, ranks, links and a memory cap.
    Plan(Box<plan::Arguments>),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are printed too, with exit code 0; a closed pipe changes nothing.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let run = match arguments.command {
        Command::Schedules(arguments) => schedules::run(&arguments, &mut out),
        Command::Schedule(arguments) => schedule::run(&arguments, &mut out),
        Command::Check(arguments) => check::run(&arguments, &mut out),
        Command::Simulate(arguments) => simulate::run(&arguments, &mut out),
        Command::Overlap(arguments) => overlap::run(&arguments, &mut out),
        Command::Compare(arguments) => compare::run(&arguments, &mut out),
        Command::Partition(arguments) => partition::run(&arguments, &mut out),
        Command::Plan(arguments) => plan::run(&arguments, &mut out),
    };
    match run.and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            // What was printed before the failure stays; if it cannot be, the failure is still told.
            let _ = out.flush();
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
