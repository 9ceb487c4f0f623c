//! Continues a text over the ranks of a forward-only pipeline, token by token, with a cache of keys and values.

use crate::config::Llama;
use crate::error::FinetuneError;
use crate::model::PLACE;
use crate::text::ids;
use burn::tensor::{Device, Tensor};
use burn_pipeline::{Batch, Pipeline};
use burn_pipeline_moe::cache::CachePlace;
use pipeline_examples::generate::draw;
use pipeline_examples::random::SplitMix64;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How to choose tokens.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// The most tokens to add.
    pub length: usize,
    /// 0 takes the likeliest token; below 1, likely tokens become likelier.
    pub temperature: f64,
    /// The seed of the first text's random numbers. Each further text uses the next number.
    pub seed: u64,
}

/// How many texts each slot has had.
static TEXTS: AtomicUsize = AtomicUsize::new(0);

/// Returns what follows `prompt` in as many texts as the pipeline has microbatches, each up to its end
/// ([`Llama::ends`]).
///
/// # Errors
/// Returns a [`FinetuneError`] if a rank fails.
pub fn continued(
    pipeline: &mut Pipeline,
    llama: &Llama,
    prompt: &[u32],
    texts: usize,
    choice: &Choice,
    device: &Device,
) -> Result<Vec<Vec<u32>>, FinetuneError> {
    let mut rows: Vec<Vec<u32>> = vec![prompt.to_vec(); texts];
    let mut random: Vec<SplitMix64> = (0..texts as u64).map(|i| SplitMix64::new(choice.seed.wrapping_add(i))).collect();
    let (mut start, number) = (0, TEXTS.fetch_add(1, Ordering::Relaxed));
    let ended = |row: &[u32]| row[prompt.len()..].iter().any(|token| llama.ends.contains(token));
    while rows[0].len() < prompt.len() + choice.length && !rows.iter().all(|row| ended(row)) {
        let length = rows[0].len();
        let text = |(slot, row): (usize, &Vec<u32>)| {
            let place = CachePlace { slot, text: number, start };
            Batch::new(ids(&row[start..], length - start, device)).extra(PLACE, Some(place))
        };
        let batch = Batch::from_microbatches(rows.iter().enumerate().map(text).collect());
        let scores = pipeline.eval(batch)?.output::<Tensor<3>>()?;
        let last = scores.slice([0..texts, length - start - 1..length - start]).into_data();
        let scores: Vec<f64> = last.iter::<f64>().collect();
        for ((row, random), scores) in rows.iter_mut().zip(&mut random).zip(scores.chunks_exact(llama.vocab)) {
            row.push(chosen(scores, choice.temperature, random));
        }
        start = length;
    }
    let until_end = |row: Vec<u32>| {
        let new = row[prompt.len()..].iter().copied();
        new.take_while(|token| !llama.ends.contains(token)).collect()
    };
    Ok(rows.into_iter().map(until_end).collect())
}

fn chosen(scores: &[f64], temperature: f64, random: &mut SplitMix64) -> u32 {
    let likeliest = || scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(token, _)| token);
    let token = if temperature == 0.0 { likeliest() } else { draw(scores, temperature, random) };
    token as u32
}
