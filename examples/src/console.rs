//! The output of a training: its plan, its steps, their time, the held-out loss, the files, a sample.
//!
//! Guarantees: with `--log json`, standard output holds the steps' JSON lines and nothing else. Only the leading
//! rank prints.

use crate::options::LogFormat;
use crate::setup::Setup;
use crate::step_log::StepLog;
use crate::traces::{Measured, TraceError, TracePaths};
use crate::training::Evaluation;
use std::io::{self, Write};

/// A rank's output.
pub struct Console<'a> {
    leads: bool,
    format: LogFormat,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
}

impl std::fmt::Debug for Console<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console").field("leads", &self.leads).finish_non_exhaustive()
    }
}

impl<'a> Console<'a> {
    /// The console of the leading rank, or one that prints nothing.
    pub fn new(leads: bool, format: LogFormat, out: &'a mut dyn Write, err: &'a mut dyn Write) -> Self {
        Self { leads, format, out, err }
    }

    /// Returns true if this rank prints and writes files.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Prints one line besides the steps: on standard output, or on standard error if the steps are JSON.
    ///
    /// # Errors
    /// If the output is closed.
    pub fn line(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        match (self.leads, self.format) {
            (false, _) => Ok(()),
            (true, LogFormat::Text) => writeln!(self.out, "{text}"),
            (true, LogFormat::Json) => writeln!(self.err, "{text}"),
        }
    }

    /// A log of `steps` steps.
    pub fn steps(&mut self, steps: usize) -> StepLog<'_> {
        let out: Option<&mut dyn Write> = if self.leads { Some(&mut *self.out) } else { None };
        StepLog::new(self.format, steps, out)
    }

    /// Prints what will run: plan, data and the model's size.
    ///
    /// # Errors
    /// If the output is closed.
    pub fn introduce(&mut self, setup: &Setup, parameters: usize) -> io::Result<()> {
        let (options, plan) = (&setup.options, &setup.plan);
        let (ranks, stages, microbatches) = (plan.ranks(), plan.stages(), plan.total_microbatches());
        let sharded = if options.sharded { ", parameters sharded" } else { "" };
        let replicas = match options.data_parallel {
            1 => String::new(),
            replicas => format!(", in each of {replicas} replicas{sharded}"),
        };
        self.line(format_args!(
            "{} over {ranks} rank(s), {stages} stage(s), {microbatches} microbatch(es){replicas}; \
             {} compute thread(s) per rank",
            plan.name(),
            options.threads
        ))?;
        if setup.auto.is_some() {
            self.line("measures a few steps, then the planner's best schedule takes over")?;
        }
        if options.plan.is_none() && microbatches < options.microbatches {
            let batch = options.batch;
            self.line(format_args!("a batch of {batch} windows makes only {microbatches} microbatches"))?;
        }
        let (training, held_out) = (setup.corpus.training().len(), setup.corpus.held_out().len());
        self.line(format_args!("{parameters} parameters; {training} training bytes, {held_out} held out"))
    }

    /// Prints how long this run's steps took.
    ///
    /// # Errors
    /// If the output is closed.
    pub fn elapsed(&mut self, setup: &Setup, steps: usize, seconds: f64) -> io::Result<()> {
        let tokens = steps * setup.options.batch * setup.options.seq;
        match steps {
            0 => self.line("\nall steps were already done"),
            _ => self.line(format_args!("\n{steps} steps in {seconds:.1} s: {:.0} tokens/s", tokens as f64 / seconds)),
        }
    }

    /// Prints the loss on held-out text beside that of a byte-pair table.
    ///
    /// # Errors
    /// If the output is closed.
    pub fn held_out(&mut self, Evaluation { loss, bigram, bytes }: Evaluation) -> io::Result<()> {
        self.line(format_args!(
            "held-out loss {loss:.4} nats per byte over {bytes} bytes; {bigram:.4} for a byte-pair table"
        ))
    }

    /// Writes the timeline of the last steps, measured and predicted, and prints its files.
    ///
    /// # Errors
    /// If a file cannot be written, or the output is closed.
    pub fn timeline(&mut self, paths: &TracePaths, measured: &Measured) -> Result<(), TraceError> {
        if self.leads {
            paths.write(measured)?;
        }
        let closed = |source| TraceError { path: "the output".into(), source };
        let (page, chrome, svg) = (paths.page.display(), paths.chrome.display(), paths.svg.display());
        self.line(format_args!("prediction and measurement: {page}")).map_err(closed)?;
        self.line(format_args!("{}: {chrome} (open it in ui.perfetto.dev), {svg}", measured.track.name))
            .map_err(closed)?;
        let profile = paths.profile.display();
        self.line(format_args!("costs for `burn-pipeline simulate --profile`: {profile}")).map_err(closed)
    }

    /// Prints a text that the model wrote. Bytes other than printable ASCII become dots.
    ///
    /// # Errors
    /// If the output is closed.
    pub fn sample(&mut self, temperature: f64, text: &[u8]) -> io::Result<()> {
        let show =
            |&byte: &u8| if byte == b'\n' || byte == b' ' || byte.is_ascii_graphic() { byte as char } else { '.' };
        let text: String = text.iter().map(show).collect();
        self.line(format_args!("\na sample at temperature {temperature}:\n{text}"))
    }
}
