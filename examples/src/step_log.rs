//! Prints steps while they run: a progress bar and occasional lines, or JSON lines.

use crate::options::LogFormat;
use crate::training::StepRecord;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::{self, Write};

/// The number of steps between two lines of text.
const EVERY: usize = 50;

/// Prints steps for a user (`Text`, with a bar on standard error) or a program (`Json`).
pub struct StepLog<'a> {
    format: LogFormat,
    steps: usize,
    bar: ProgressBar,
    out: Option<&'a mut (dyn Write + 'a)>,
}

impl std::fmt::Debug for StepLog<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepLog").field("format", &self.format).finish_non_exhaustive()
    }
}

impl<'a> StepLog<'a> {
    /// A log of `steps` steps. Lines go to `out`, or nowhere.
    pub fn new(format: LogFormat, steps: usize, out: Option<&'a mut (dyn Write + 'a)>) -> Self {
        let target = match format {
            // Draws nothing unless standard error is a terminal.
            LogFormat::Text if out.is_some() => ProgressDrawTarget::stderr(),
            _ => ProgressDrawTarget::hidden(),
        };
        let template = "{bar:32} {pos}/{len} steps, {elapsed} + {eta} | {msg}";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target).with_style(style);
        Self { format, steps, bar, out }
    }

    /// Prints one step.
    ///
    /// # Errors
    /// If the line cannot be written.
    pub fn step(&mut self, record: &StepRecord) -> io::Result<()> {
        self.step_with(record, record, "")
    }

    /// Prints one step with more than a plain record: `whole` is the JSON object, `more` follows the line of text.
    ///
    /// # Errors
    /// If the line cannot be written.
    pub fn step_with(&mut self, record: &StepRecord, whole: &impl Serialize, more: &str) -> io::Result<()> {
        let Some(out) = &mut self.out else { return Ok(()) };
        match self.format {
            LogFormat::Json => {
                let line = serde_json::to_string(whole).map_err(io::Error::other)?;
                writeln!(out, "{line}")?;
                out.flush()
            }
            LogFormat::Text => {
                self.bar.set_message(format!("loss {:.4}, {:.0} tokens/s", record.loss, record.tokens_per_second));
                self.bar.set_position(record.step as u64);
                let due = record.step == 1 || record.step.is_multiple_of(EVERY) || record.step == self.steps;
                if due || record.skipped.is_some() {
                    let line = format!("{}{more}\n", text_line(record));
                    return self.bar.suspend(|| out.write_all(line.as_bytes()));
                }
                Ok(())
            }
        }
    }
}

impl Drop for StepLog<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn text_line(record: &StepRecord) -> String {
    let StepRecord { step, loss, learning_rate, tokens_per_second, skipped, .. } = record;
    let skipped = skipped.as_ref().map(|reason| format!("  skipped: {reason}")).unwrap_or_default();
    format!(
        "step {step:>5}  loss {loss:.4}  learning rate {learning_rate:.2e}  {tokens_per_second:>7.0} tokens/s{skipped}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: usize) -> StepRecord {
        let (learning_rate, gradient_norm) = (1e-3, 0.5);
        let (step_seconds, tokens_per_second) = (0.25, 8192.0);
        StepRecord { step, loss: 2.5, learning_rate, gradient_norm, step_seconds, tokens_per_second, skipped: None }
    }

    fn logged(format: LogFormat, steps: usize) -> String {
        let mut out = Vec::new();
        let mut log = StepLog::new(format, steps, Some(&mut out));
        (1..=steps).for_each(|step| log.step(&record(step)).unwrap());
        drop(log);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn json_is_one_object_a_step_with_what_machines_compare() {
        let text = logged(LogFormat::Json, 3);
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        for (index, line) in lines.iter().enumerate() {
            assert_eq!(line["step"], index + 1);
            assert_eq!((&line["loss"], &line["step_seconds"]), (&2.5.into(), &0.25.into()));
            assert_eq!(line["tokens_per_second"], 8192.0);
        }
    }

    #[test]
    fn a_skipped_step_has_a_line_of_its_own_with_the_reason() {
        let mut out = Vec::new();
        let mut log = StepLog::new(LogFormat::Text, 120, Some(&mut out));
        log.step(&StepRecord { skipped: Some("an overflow".to_owned()), ..record(7) }).unwrap();
        log.step(&record(8)).unwrap();
        drop(log);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("step     7") && text.ends_with("skipped: an overflow\n"), "{text}");
    }

    #[test]
    fn text_tells_the_first_the_last_and_every_fiftieth_step() {
        let text = logged(LogFormat::Text, 120);
        let steps: Vec<&str> = text.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
        assert_eq!(steps, ["1", "50", "100", "120"]);
    }
}
