//! The whole of `train_moe`, from its arguments to its exit code.
//!
//! Guarantees: as those of `train_gpt`: with `--log json`, standard output holds the steps' JSON lines and nothing
//! else; flags that no run can have end it with one message and code 2, a run that fails with one message and code 1.

use crate::expert_load;
use crate::moe_options::{MoeOptions, MoeOptionsError};
use crate::moe_training::{MoeStepRecord, MoeTrainError, MoeTrainer};
use crate::options::LogFormat;
use crate::step_log::StepLog;
use crate::traces::TraceError;
use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Instant;

/// Steps at the end over which loads are told.
const LAST: usize = 50;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum MoeRunError {
    /// Flags that no run can have.
    #[error(transparent)]
    Options(#[from] MoeOptionsError),
    /// Training failed.
    #[error(transparent)]
    Train(#[from] MoeTrainError),
    /// A file cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Standard output or standard error is closed.
    #[error("the output cannot be written: {0}")]
    Output(#[from] io::Error),
}

/// Parses the arguments and runs; gives the exit code.
pub fn main(arguments: impl Iterator<Item = OsString>, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let options = match MoeOptions::from_arguments(arguments) {
        Ok(options) => options,
        Err(error) => {
            // Help and version go to standard output, refusals to standard error; a closed one is no news.
            let _ = if error.use_stderr() { write!(err, "{error}") } else { write!(out, "{error}") };
            return error.exit_code() as u8;
        }
    };
    match run(options, out, err) {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(err, "error: {error}");
            if matches!(error, MoeRunError::Options(_)) { 2 } else { 1 }
        }
    }
}

/// Trains, evaluates, and writes the timeline and the experts' load.
///
/// # Errors
/// [`MoeRunError`].
pub fn run(options: MoeOptions, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), MoeRunError> {
    let setup = options.check()?;
    setup.common.trace.prepare()?;
    let format = setup.common.options.log;
    let mut trainer = MoeTrainer::new(setup)?;
    introduce(&trainer, if format == LogFormat::Text { out } else { err })?;
    let began = Instant::now();
    let mut records = Vec::new();
    {
        let mut log = StepLog::new(format, trainer.setup().common.options.steps, out);
        while let Some(record) = trainer.step()? {
            log.step_with(&record.step, &record, &more(&record))?;
            records.push(record);
        }
    }
    let told: &mut dyn Write = if format == LogFormat::Text { out } else { err };
    conclude(&mut trainer, &records, began.elapsed().as_secs_f64(), told)
}

/// What follows a step's line.
fn more(record: &MoeStepRecord) -> String {
    let worst = record.imbalance.iter().copied().fold(1.0, f64::max);
    format!("  balance {:.3}  z {:.2}  max/mean load {worst:.2}", record.load_balance, record.router_z)
}

fn introduce(trainer: &MoeTrainer, told: &mut dyn Write) -> io::Result<()> {
    let setup = trainer.setup();
    let (plan, model) = (&setup.common.plan, &setup.model);
    let (ranks, stages, microbatches) = (plan.ranks(), plan.stages(), plan.total_microbatches());
    let name = plan.name();
    writeln!(told, "{name} over {ranks} rank(s), {stages} stage(s), {microbatches} microbatch(es)")?;
    let (pattern, experts, top_k) = (&model.pattern, model.experts, model.top_k);
    writeln!(told, "blocks {pattern}, {experts} experts, {top_k} a token; auxiliary losses: {:?}", model.injection)
}

fn conclude(
    trainer: &mut MoeTrainer,
    records: &[MoeStepRecord],
    seconds: f64,
    told: &mut dyn Write,
) -> Result<(), MoeRunError> {
    let options = &trainer.setup().common.options;
    let (steps, tokens) = (records.len(), records.len() * options.batch * options.seq);
    writeln!(told, "\n{steps} steps in {seconds:.1} s: {:.0} tokens/s", tokens as f64 / seconds)?;
    let evaluation = trainer.evaluate()?;
    let (loss, bigram, bytes) = (evaluation.loss, evaluation.bigram, evaluation.bytes);
    writeln!(told, "held-out loss {loss:.4} nats a byte over {bytes} bytes; a table of byte pairs has {bigram:.4}")?;
    if records.is_empty() {
        return Ok(());
    }
    for (layer, imbalance) in expert_load::imbalance(records, LAST).into_iter().enumerate() {
        writeln!(
            told,
            "layer {layer} with experts: max/mean load {imbalance:.2} over the last {} steps",
            steps.min(LAST)
        )?;
    }
    let (paths, measured, (profile, predicted)) =
        (trainer.setup().common.trace.clone(), trainer.timeline(), trainer.predicted()?);
    paths.write(&measured, &predicted, &profile)?;
    let path = paths.svg.with_file_name("expert_load.svg");
    let title = format!("Load of experts, auxiliary losses of stages: {:?}", trainer.setup().model.injection);
    let written = std::fs::write(&path, expert_load::svg(&title, records, LAST));
    written.map_err(|source| TraceError { path: path.clone(), source })?;
    writeln!(told, "{}: {}, {}", measured.name, paths.chrome.display(), paths.svg.display())?;
    writeln!(told, "load of experts: {}", path.display())?;
    Ok(())
}
