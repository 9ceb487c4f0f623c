//! Generates text with a trained model, byte by byte, through the pipeline's own forward pass.
//!
//! Several texts go through the ranks as microbatches. [`Generator`]s cache keys and values, so that each byte runs
//! once. Each byte is drawn from the model's scores divided by the temperature; the random numbers depend only on
//! the seed.

use crate::corpus::Windows;
use crate::gpt::{GptConfig, GptPart, Signal};
use crate::random::SplitMix64;
use crate::training::{TrainError, tokens};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_pipeline::stage::{Batch, Names, Stage, StageBox};
use burn_pipeline::train::{Pipeline, StageContext};
use burn_pipeline_moe::cache::{CachePlace, KeyValueCache, LayerCache};
use std::sync::atomic::{AtomicUsize, Ordering};

/// How to draw.
#[derive(Debug, Clone)]
pub struct Sampling {
    /// The number of bytes to draw.
    pub length: usize,
    /// The number of texts.
    pub texts: usize,
    /// Above 0; below 1, likely bytes become likelier.
    pub temperature: f64,
    /// The seed of the first text's random numbers. Each further text uses the next number.
    pub seed: u64,
}

/// Continues `prompt`, of which the model gets the last `seq` bytes. Returns each text's new bytes.
///
/// # Errors
/// Returns a [`TrainError`] if a rank fails, or the model's output is not scores.
pub fn generate(
    pipeline: &mut Pipeline,
    device: &Device,
    seq: usize,
    prompt: &[u8],
    sampling: &Sampling,
) -> Result<Vec<Vec<u8>>, TrainError> {
    continued(seq, prompt, sampling, |seen| {
        Ok(pipeline.eval(Batch::new(tokens(&seen.inputs, seen.seq, device)))?.output()?)
    })
}

/// Like [`generate`], over a pipeline of [`Generator`]s: each byte runs once until the text fills the window. After
/// that, each new byte shifts the positions of all others, and the whole window runs.
///
/// # Errors
/// As [`generate`].
pub fn generate_cached(
    pipeline: &mut Pipeline,
    device: &Device,
    seq: usize,
    prompt: &[u8],
    sampling: &Sampling,
) -> Result<Vec<Vec<u8>>, TrainError> {
    let (mut held, number) = (0, TEXTS.fetch_add(1, Ordering::Relaxed));
    continued(seq, prompt, sampling, |seen| {
        let start = if seen.seq > held { held } else { 0 };
        held = seen.seq;
        let text = |(slot, row): (usize, &[u8])| {
            let new = Signal::Tokens(tokens(&row[start..], seen.seq - start, device));
            Batch::new(new).extra(PLACE, CachePlace { slot, text: number, start })
        };
        let texts = seen.inputs.chunks(seen.seq).enumerate().map(text).collect();
        match pipeline.eval(Batch::from_microbatches(texts))?.output()? {
            Signal::Logits(scores) | Signal::Hidden(scores) => Ok(scores),
            Signal::Tokens(_) => Err(TrainError::NoScores),
        }
    })
}

/// How many texts each slot has had.
static TEXTS: AtomicUsize = AtomicUsize::new(0);

/// The extra with the text that a microbatch continues, and the position.
const PLACE: &str = "place";

/// A part of the model that caches keys and values.
#[derive(Module, Debug)]
pub struct Generator {
    part: GptPart,
    #[module(skip)]
    cache: KeyValueCache,
}

impl Generator {
    /// A stage of the model, for generating text.
    pub fn stage(model: &GptConfig, at: &StageContext) -> StageBox {
        let names = Names::default().layers_from("part.blocks", at.layers(model.layers).start);
        let names = names.renamed(|name| name.strip_prefix("part.").unwrap_or(name).to_owned());
        StageBox::new(Self { part: model.part(at), cache: KeyValueCache::new() }).named(names)
    }
}

impl Stage for Generator {
    type Input = Signal;
    type Extra = CachePlace;
    type Output = Signal;

    fn extras(&self) -> Vec<&'static str> {
        vec![PLACE]
    }

    fn forward(&self, input: Signal, place: CachePlace) -> Signal {
        let run = |caches: &mut [LayerCache]| self.part.forward_cached(input, place.start, caches);
        self.cache.run(place, self.part.blocks(), run).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Like [`generate`], with scores `[texts, bytes, vocab]` from any function of the text so far, which is passed as
/// windows without targets, one per text.
///
/// # Errors
/// Returns the error of `scores`.
pub fn continued<E>(
    seq: usize,
    prompt: &[u8],
    sampling: &Sampling,
    mut scores: impl FnMut(&Windows) -> Result<Tensor<3>, E>,
) -> Result<Vec<Vec<u8>>, E> {
    let random = |text| SplitMix64::new(sampling.seed.wrapping_add(text as u64));
    let mut texts: Vec<(Vec<u8>, SplitMix64)> = (0..sampling.texts).map(|i| (prompt.to_vec(), random(i))).collect();
    for added in 0..sampling.length {
        let length = prompt.len() + added;
        let from = length.saturating_sub(seq);
        let inputs: Vec<u8> = texts.iter().flat_map(|(text, _)| &text[from..]).copied().collect();
        let scores = scores(&Windows { seq: length - from, inputs, targets: Vec::new() })?;
        let [rows, seen, bytes] = scores.dims();
        let last = scores.slice([0..rows, seen - 1..seen]).into_data();
        let scores: Vec<f64> = last.iter::<f64>().collect();
        for ((text, random), scores) in texts.iter_mut().zip(scores.chunks_exact(bytes)) {
            text.push(draw(scores, sampling.temperature, random) as u8);
        }
    }
    Ok(texts.into_iter().map(|(mut text, _)| text.split_off(prompt.len())).collect())
}

/// Draws an index with probabilities proportional to `exp(score / temperature)`.
pub fn draw(scores: &[f64], temperature: f64, random: &mut SplitMix64) -> usize {
    let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| ((score - highest) / temperature).exp()).collect();
    let mut left = random.unit() * weights.iter().sum::<f64>();
    let drawn = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    // Rounding can leave nothing to draw at the very end: then it is the last index with a positive weight.
    let last = || weights.iter().rposition(|&weight| weight > 0.0).unwrap_or(0);
    drawn.unwrap_or_else(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_drawn_as_often_as_their_scores_say() {
        // Weights 1, 2 and 5 at temperature 1, and their squares at temperature one half.
        let scores = [1f64.ln(), 2f64.ln(), 5f64.ln()];
        for (temperature, weights) in [(1.0, [1.0, 2.0, 5.0]), (0.5, [1.0, 4.0, 25.0])] {
            let (mut counts, mut random) = ([0.0; 3], SplitMix64::new(9));
            (0..100_000).for_each(|_| counts[draw(&scores, temperature, &mut random)] += 1.0);
            let total: f64 = weights.iter().sum();
            for (count, weight) in counts.iter().zip(weights) {
                // Six standard deviations at most.
                assert!((count / 100_000.0 - weight / total).abs() < 0.01, "{counts:?} at {temperature}");
            }
        }
    }

    #[test]
    fn a_low_temperature_takes_the_highest_score() {
        let mut random = SplitMix64::new(0);
        assert!((0..1000).all(|_| draw(&[3.0, -1.0, 3.5, 0.0], 0.01, &mut random) == 2));
    }

    #[test]
    fn impossible_bytes_are_never_drawn() {
        let (mut random, no) = (SplitMix64::new(0), f64::NEG_INFINITY);
        assert!((0..1000).all(|_| draw(&[no, 0.0, no], 1.0, &mut random) == 1));
    }
}
