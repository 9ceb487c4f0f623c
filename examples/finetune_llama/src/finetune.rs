//! The program: loads a base, trains adapters, stores them, and generates text from what it has stored.
//!
//! 1. `open` reads the model's sizes, its tokenizer and the text, and checks the flags against them.
//! 2. `train` builds the pipeline, loads the base and the latest checkpoint or given adapters, steps, and stores the
//!    adapters.
//! 3. `tuned` loads the base and the stored adapters into a forward-only pipeline. It stores the merged model, if
//!    requested, and `write_texts` continues the prompt.

use crate::config::Llama;
use crate::error::FinetuneError;
use crate::generate::{Choice, continued};
use crate::model::{PLACE, Tuning};
use crate::options::{Options, PrecisionName, RunFlags};
use crate::output;
use crate::text::{Text, ids};
use crate::weights;
use burn::module::ParamGroup;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn_pipeline::stage::Precision;
use burn_pipeline::train::{AutoOptions, AutoPipeline, Builder, CheckpointError, Checkpoints, EvalResults, Pretrained};
use burn_pipeline::{Batch, Pipeline, Size};
use burn_pipeline_moe::cache::CachePlace;
use pipeline_examples::corpus::{Corpus, SHAKESPEARE, Windows};
use pipeline_examples::learning_rate::learning_rates;
use pipeline_examples::options::LogFormat;
use pipeline_examples::saved::same_flags;
use pipeline_examples::step_log::StepLog;
use pipeline_examples::training::record;
use std::io::Write;
use std::path::PathBuf;

/// What a run needs of its files.
struct Files {
    llama: Llama,
    text: Text,
    tokens: Vec<u32>,
    prompt: Vec<u32>,
    device: Device,
}

/// The whole run.
///
/// # Errors
/// Returns a [`FinetuneError`] for invalid flags and files, or if a rank fails.
pub fn finetune(options: &Options, out: &mut dyn Write) -> Result<(), FinetuneError> {
    let files = open(options)?;
    let tuning = match &options.adapters {
        Some(folder) => weights::stored_tuning(folder, options.seed)?,
        None => Tuning {
            rank: options.rank,
            alpha: options.alpha.unwrap_or(2.0 * options.rank as f64),
            targets: options.target.clone(),
            seed: options.seed,
        },
    };
    let adapters = match options.steps {
        0 => options.adapters.clone(),
        _ => Some(train(options, &files, &tuning, out)?),
    };
    let mut pipeline = tuned(options, &files, &tuning, adapters)?;
    if options.merge {
        weights::merge(options, &mut pipeline, out)?;
    }
    write_texts(options, &files, &mut pipeline, out)
}

fn open(options: &Options) -> Result<Files, FinetuneError> {
    let folder = options.base();
    let llama = Llama::read(&folder)?;
    let text = Text::open(&folder, llama.vocab)?;
    let prompt = text.tokens(&options.prompt, true)?;
    options.check(prompt.len(), llama.window)?;
    output::check(options)?;
    let words = match &options.text {
        Some(path) => std::fs::read_to_string(path).map_err(FinetuneError::reading(path))?,
        None => String::from_utf8_lossy(&SHAKESPEARE[SHAKESPEARE.len() / 2..]).into_owned(),
    };
    let tokens = if options.steps > 0 { text.tokens(&words, false)? } else { Vec::new() };
    Ok(Files { llama, text, tokens, prompt, device: options.device.open()? })
}

/// Everything of a pipeline but its schedule.
fn builder(options: &Options, files: &Files, tuning: Option<&Tuning>) -> Builder {
    let half = options.precision == PrecisionName::Bf16;
    let builder = Pipeline::builder()
        .layers(files.llama.model(tuning, half))
        .devices(vec![files.device.clone()])
        .compile(options.compile);
    let builder = match files.llama.shared() {
        Some(shared) => builder.share(shared),
        None => builder,
    };
    match half {
        // What is not an adapter has no masters: matrices are bf16 by themselves, and norms stay f32.
        true => builder.precision(Precision::bf16().keep(ParamGroup::from_predicate("norm"))),
        false => builder,
    }
}

/// Trains adapters, and stores them; returns their folder.
fn train(options: &Options, files: &Files, tuning: &Tuning, out: &mut dyn Write) -> Result<PathBuf, FinetuneError> {
    let corpus = Corpus::new(files.tokens.as_slice());
    corpus.fits(options.seq)?;
    let rates = learning_rates(options.lr, options.steps)?;
    let optimizer = AdamWConfig::new().with_weight_decay(0.01);
    let builder = builder(options, files, Some(tuning)).optimizer(move || optimizer.init()).clip_norm(1.0);
    let size = Size { ranks: options.ranks, chunks: options.chunks, microbatches: options.microbatches };
    let mut pipeline = match options.schedule.eq_ignore_ascii_case("auto") {
        true => AutoPipeline::new(builder, size, AutoOptions::default())?,
        false => AutoPipeline::fixed(builder.schedule(options.schedule.as_str(), size).build()?),
    };
    let flags = options.run_flags(tuning);
    let done = start(options, &flags, pipeline.pipeline())?;
    if done > 0 {
        writeln!(out, "resuming after step {done}")?;
    }
    introduce(options, files, tuning, &mut pipeline, out)?;
    let before = held_out(options, files, &corpus, pipeline.pipeline())?;
    writeln!(out, "held-out loss {before:.4} before training")?;
    let mut log = StepLog::new(LogFormat::Text, options.steps, Some(&mut *out));
    for (step, &rate) in rates.iter().enumerate().skip(done) {
        let windows = corpus.batch(options.seed, step, options.batch, options.seq);
        let report = pipeline.step(batch(&windows, &files.device), rate)?;
        log.step(&record(step + 1, report.loss, rate, windows.inputs.len(), &report))?;
        if options.save_every.is_some_and(|every| (step + 1).is_multiple_of(every)) {
            pipeline.pipeline().save(&checkpoints(options), &flags)?;
        }
    }
    drop(log);
    let after = held_out(options, files, &corpus, pipeline.pipeline())?;
    writeln!(out, "held-out loss {after:.4} after training")?;
    weights::store(options, tuning, pipeline.pipeline(), out)
}

/// The checkpoints of a run, which leave out what is in the base's folder.
fn checkpoints(options: &Options) -> Checkpoints {
    Checkpoints::new(options.out.join("checkpoints")).keep(2).over_pretrained()
}

/// Loads the base; then the latest checkpoint, if requested and if there is one, else the given adapters. Returns the
/// number of steps done.
fn start(options: &Options, flags: &RunFlags, pipeline: &mut Pipeline) -> Result<usize, FinetuneError> {
    pipeline.load_pretrained(&weights::base(options.base()))?;
    // A checkpoint that is not loaded may be damaged, or of another version.
    match options.resume.then(|| checkpoints(options).latest()).transpose() {
        Ok(Some(checkpoint)) => {
            same_flags(flags, &checkpoint.beside()?, "--out")?;
            pipeline.load(&checkpoint)?;
            return Ok(pipeline.progress().batches as usize);
        }
        Ok(None) | Err(CheckpointError::None { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    if let Some(folder) = &options.adapters {
        pipeline.load_pretrained(&Pretrained::adapters(folder))?;
    }
    Ok(0)
}

fn introduce(
    options: &Options,
    files: &Files,
    tuning: &Tuning,
    pipeline: &mut AutoPipeline,
    out: &mut dyn Write,
) -> Result<(), FinetuneError> {
    let (llama, plan) = (&files.llama, pipeline.current_plan()?);
    let Tuning { rank, targets, .. } = tuning;
    writeln!(
        out,
        "{}: {} blocks of width {}; adapters of rank {rank} on {}\n{} over {} rank(s), {} stage(s), {} microbatch(es); \
         {} tokens of text",
        options.base().display(),
        llama.blocks,
        llama.width,
        targets.join(", "),
        plan.plan().name(),
        plan.plan().ranks(),
        plan.plan().stages(),
        plan.plan().total_microbatches(),
        files.tokens.len(),
    )?;
    Ok(())
}

/// Windows of text as the first stage's input and the loss's target.
fn batch(windows: &Windows<u32>, device: &Device) -> Batch {
    let input = ids(&windows.inputs, windows.seq, device);
    Batch::new(input).extra(PLACE, None::<CachePlace>).target(ids(&windows.targets, windows.seq, device))
}

/// The mean loss over the first few held-out batches, in nats per token.
fn held_out(
    options: &Options,
    files: &Files,
    corpus: &Corpus<'_, u32>,
    pipeline: &mut Pipeline,
) -> Result<f64, FinetuneError> {
    let (mut sum, mut tokens) = (0.0, 0.0);
    for windows in corpus.held_out_batches(options.batch, options.seq).take(12) {
        let report = pipeline.eval_for(batch(&windows, &files.device), EvalResults::Loss)?;
        let count = windows.inputs.len() as f64;
        (sum, tokens) = (sum + report.loss.unwrap_or(f64::NAN) * count, tokens + count);
    }
    Ok(sum / tokens)
}

/// A forward-only pipeline with the base and stored adapters.
fn tuned(
    options: &Options,
    files: &Files,
    tuning: &Tuning,
    adapters: Option<PathBuf>,
) -> Result<Pipeline, FinetuneError> {
    let builder = builder(options, files, adapters.as_ref().map(|_| tuning));
    let mut pipeline = builder.schedule("ForwardOnly", Size::new(options.ranks, options.texts)).build()?;
    pipeline.load_pretrained(&weights::base(options.base()))?;
    if let Some(folder) = adapters {
        pipeline.load_pretrained(&Pretrained::adapters(folder))?;
    }
    Ok(pipeline)
}

/// Continues the prompt.
fn write_texts(
    options: &Options,
    files: &Files,
    pipeline: &mut Pipeline,
    out: &mut dyn Write,
) -> Result<(), FinetuneError> {
    let choice = Choice { length: options.length, temperature: options.temperature, seed: options.seed };
    let texts = continued(pipeline, &files.llama, &files.prompt, options.texts, &choice, &files.device)?;
    for new in texts {
        writeln!(out, "\n{}", files.text.continued(&options.prompt, &files.prompt, &new)?)?;
    }
    Ok(())
}
