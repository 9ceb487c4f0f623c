//! Cached keys and values: the output chunk by chunk equals the output of the whole sequence, in a block and
//! through a pipeline, over random shapes. Tokens that do not continue the cached ones are refused.

use crate::cases::noise;
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::schedule::{ForwardOnly, Size};
use burn_pipeline::stage::{Batch, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Pipeline, StageContext};
use burn_pipeline_moe::cache::{CacheError, CachePlace, KeyValueCache, LayerCache};
use burn_pipeline_moe::layers::{
    AttentionConfig, AttentionContext, Block, BlockConfig, BlockKind, MixtureOfExpertsConfig,
};
use burn_pipeline_moe::router::Capacity;
use proptest::prelude::{ProptestConfig, any};
use proptest::{prop_assert, proptest};

const D: usize = 8;
const VOCAB: usize = 11;
/// The allowed difference of logits: matmuls of other shapes round differently.
const TOLERANCE: f32 = 1e-5;

fn block(kind: BlockKind, window: Option<usize>, capacity: Capacity, seed: u64, device: &Device) -> Block {
    let attention = AttentionConfig::new(D, 2).with_window(window).with_rotary(true);
    let mixture = MixtureOfExpertsConfig::new(D, 6, 4).with_capacity(capacity);
    let config = BlockConfig::new(attention, 12, mixture);
    // Initial weights are so small that attention would be nearly uniform.
    init_seeded(seed, device, |device| config.init(kind, device)).map(&mut Larger)
}

/// Multiplies weights, not biases.
struct Larger;

impl ModuleMapper for Larger {
    fn map_float<const R: usize>(&mut self, param: Param<Tensor<R>>) -> Param<Tensor<R>> {
        if R > 1 { param.map(|weight| weight.mul_scalar(25.0)) } else { param }
    }
}

fn floats(seed: u64, shape: [usize; 3]) -> Tensor<3> {
    let values = Tensor::<1>::from_floats(&*noise(seed, shape.iter().product()), &Device::flex());
    values.reshape(shape).mul_scalar(10.0)
}

fn values<const R: usize>(tensor: Tensor<R>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn farthest(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).fold(0.0, |max, (a, b)| max.max((a - b).abs()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_block_that_runs_chunk_by_chunk_gives_what_the_sequence_gives_at_once(
        batch in 1usize..4,
        chunks in proptest::collection::vec(1usize..4, 1..6),
        seed in any::<u64>(),
        window in proptest::option::of(1usize..6),
        experts in any::<bool>(),
    ) {
        let (kind, seq) = (if experts { BlockKind::Experts } else { BlockKind::Dense }, chunks.iter().sum());
        let block = block(kind, window, Capacity::Dropless, seed % 89, &Device::flex());
        let x = floats(seed, [batch, seq, D]);
        let starts: Vec<i64> = noise(seed ^ 1, batch * seq).iter().map(|x| i64::from(*x > 0.6)).collect();
        let documents = Tensor::<1, Int>::from_ints(&*starts, &Device::flex()).reshape([batch, seq]).cumsum(1);
        let (whole, _) = block.forward(x.clone(), &AttentionContext::new(documents.clone()));
        let (mut cache, mut start) = (LayerCache::default(), 0);
        for chunk in chunks {
            let new = AttentionContext::new(documents.clone().narrow(1, start, chunk)).starting_at(start);
            let (y, _) = block.forward_cached(x.clone().narrow(1, start, chunk), &new, &mut cache).unwrap();
            let off = farthest(&values(y), &values(whole.clone().narrow(1, start, chunk)));
            prop_assert!(off < 10.0 * TOLERANCE, "from {start}: {off}");
            start += chunk;
        }
        prop_assert!(cache.tokens() == seq);
    }
}

/// A stage of a small language model with experts: the first maps tokens to hidden states, the second those to
/// scores.
#[derive(Module, Debug)]
struct Part {
    embed: Option<Embedding>,
    block: Block,
    head: Option<Linear>,
    #[module(skip)]
    cache: KeyValueCache,
}

fn part(index: usize, stages: usize, device: &Device) -> Part {
    let embed = |device: &Device| EmbeddingConfig::new(VOCAB, D).init(device);
    let head = |device: &Device| LinearConfig::new(D, VOCAB).init(device);
    let kind = if index == 0 { BlockKind::Dense } else { BlockKind::Experts };
    Part {
        embed: (index == 0).then(|| init_seeded(1, device, embed)),
        block: block(kind, Some(5), Capacity::Dropless, 2 + index as u64, device),
        head: (index + 1 == stages).then(|| init_seeded(9, device, head)),
        cache: KeyValueCache::new(),
    }
}

impl Part {
    fn enter(&self, tokens: &Tensor<2, Int>, x: Tensor<3>) -> Tensor<3> {
        match &self.embed {
            Some(embed) => embed.forward(tokens.clone()).mul_scalar(3.0),
            None => x,
        }
    }

    fn leave(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.head {
            Some(head) => head.forward(x),
            None => x,
        }
    }
}

impl Stage for Part {
    type Input = (Tensor<2, Int>, Tensor<3>);
    type Extra = CachePlace;
    type Output = (Tensor<2, Int>, Tensor<3>);

    fn extras(&self) -> Vec<&'static str> {
        vec!["place"]
    }

    fn forward(&self, (tokens, x): Self::Input, place: CachePlace) -> Self::Output {
        let context = AttentionContext::new(Tensor::zeros_like(&tokens)).starting_at(place.start);
        let x = self.enter(&tokens, x);
        let y = self.cache.run(place, 1, |caches| Ok(self.block.forward_cached(x, &context, &mut caches[0])?.0));
        (tokens, self.leave(y.unwrap_or_else(|error| panic!("{error}"))))
    }
}

fn ints(rows: &[Vec<i64>], from: usize) -> Tensor<2, Int> {
    let new: Vec<i64> = rows.iter().flat_map(|row| &row[from..]).copied().collect();
    Tensor::<1, Int>::from_ints(&*new, &Device::flex()).reshape([rows.len(), rows[0].len() - from])
}

fn likeliest(scores: &[f32]) -> i64 {
    let best = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    best.0 as i64
}

/// The scores of each row's last token, from both parts without a pipeline or a cache.
fn uncached(model: &[Part], rows: &[Vec<i64>]) -> Vec<Vec<f32>> {
    let tokens = ints(rows, 0);
    let context = AttentionContext::new(Tensor::zeros_like(&tokens));
    let begin = Tensor::<3>::zeros([1, 1, 1], &Device::flex());
    let scores = model.iter().fold(begin, |x, part| {
        let x = part.enter(&tokens, x);
        part.leave(part.block.forward(x, &context).0)
    });
    let [batch, seq, vocab] = scores.dims();
    let last = values(scores.slice([0..batch, seq - 1..seq]));
    last.chunks(vocab).map(<[f32]>::to_vec).collect()
}

fn builder() -> Pipeline {
    let stage = |at: &StageContext| StageBox::new(part(at.index, at.stages, &at.device));
    let builder = Pipeline::builder().schedule(ForwardOnly, Size::new(2, 3)).stages(stage);
    builder.devices(vec![Device::flex()]).build().unwrap()
}

/// The tokens of each slot's first text from position `start` on.
fn batch(slots: &[Vec<Vec<i64>>], start: usize) -> Batch {
    let piece = |(slot, rows): (usize, &Vec<Vec<i64>>)| piece(rows, CachePlace { slot, text: 0, start });
    Batch::from_microbatches(slots.iter().enumerate().map(piece).collect())
}

fn piece(rows: &[Vec<i64>], place: CachePlace) -> Batch {
    let tokens = ints(rows, place.start);
    let [batch, seq] = tokens.dims();
    let nothing = Tensor::<3>::zeros([batch, seq, D], &Device::flex());
    Batch::new((tokens, nothing)).extra("place", place)
}

#[test]
fn a_pipeline_writes_the_tokens_that_the_model_writes_without_a_cache() {
    let device = Device::flex();
    let model: Vec<Part> = (0..2).map(|index| part(index, 2, &device)).collect();
    let mut pipeline = builder();
    let mut worst = 0.0f32;
    // A second round reuses the slots with prompts of another length.
    for (round, prompt) in [(0u64, 4usize), (1, 1)] {
        let token = |x: &f32| ((x + 1.0) / 2.0 * VOCAB as f32) as i64;
        let row = |seed: u64| noise(seed, prompt).iter().map(token).collect::<Vec<i64>>();
        // Three slots, of one, two and one sequence.
        let mut slots = vec![vec![row(round)], vec![row(round + 10), row(round + 20)], vec![row(round + 30)]];
        let mut start = 0;
        for _ in 0..12 {
            let report = pipeline.eval(batch(&slots, start)).unwrap();
            let outputs: Vec<(Tensor<2, Int>, Tensor<3>)> = report.outputs().unwrap();
            start = slots[0][0].len();
            for (rows, (_, scores)) in slots.iter_mut().zip(outputs) {
                let [batch, new, vocab] = scores.dims();
                let cached = values(scores.slice([0..batch, new - 1..new]));
                let expected = uncached(&model, rows);
                for ((row, cached), expected) in rows.iter_mut().zip(cached.chunks(vocab)).zip(expected) {
                    worst = worst.max(farthest(cached, &expected));
                    assert_eq!(likeliest(cached), likeliest(&expected));
                    row.push(likeliest(cached));
                }
            }
        }
    }
    assert!(worst < TOLERANCE, "{worst}");
    println!("logits differ by at most {worst:e}");
}

#[test]
fn tokens_that_do_not_follow_what_is_kept_are_refused() {
    let mut pipeline = builder();
    let slots = vec![vec![vec![1, 2, 3, 4]]];
    pipeline.eval(batch(&slots, 0)).unwrap();
    let error = pipeline.eval(batch(&slots, 2)).unwrap_err().to_string();
    assert!(error.contains("slot 0 has cached 4 tokens of text 0, but got tokens from position 2"), "{error}");

    let (cache, mut layer) = (KeyValueCache::new(), LayerCache::default());
    let place = |start| CachePlace { slot: 7, text: 0, start };
    assert_eq!(
        cache.run(place(1), 2, |_| Ok(())).unwrap_err(),
        CacheError::Place { slot: 7, text: 0, start: 1, held: 0 }
    );
    let key = |rows: usize| Tensor::<4>::zeros([rows, 1, 1, 2], &Device::flex());
    layer.extend(key(2), key(2)).unwrap();
    assert_eq!(layer.extend(key(3), key(3)).unwrap_err(), CacheError::Rows { held: 2, got: 3 });
    let tracked = Tensor::<4>::zeros([1, 1, 1, 2], &Device::flex().autodiff());
    assert_eq!(LayerCache::default().extend(tracked.clone(), tracked).unwrap_err(), CacheError::Tracked);

    let context = AttentionContext::new(Tensor::zeros([1, 2], &Device::flex()));
    for (kind, capacity, expected) in [
        (BlockKind::Experts, Capacity::Factor(1.0), CacheError::Capacity),
        (BlockKind::DenseDepths, Capacity::Dropless, CacheError::Depths),
    ] {
        let block = block(kind, None, capacity, 1, &Device::flex());
        let run = block.forward_cached(floats(1, [1, 2, D]), &context, &mut LayerCache::default());
        assert_eq!(run.unwrap_err(), expected);
    }
}

/// Both copies of a stage run the first call; slot 1's next text then runs on the other copy.
#[test]
fn a_slot_whose_text_another_copy_of_the_stage_has_run_is_refused() {
    let stage = |at: &StageContext| StageBox::new(part(at.index, at.stages, &at.device));
    let replicas = Pipeline::builder().schedule("1F1B", Size::new(2, 2)).data_parallel(2).stages(stage);
    let routes = Pipeline::builder().schedule("DualPipe", Size::new(2, 2)).stages(stage);
    for builder in [replicas, routes] {
        let mut pipeline = builder.devices(vec![Device::flex()]).build().unwrap();
        let (one, other) = (vec![vec![1, 2, 3, 4]], vec![vec![5, 6, 7, 8]]);
        let mut eval = |places: &[(usize, usize, usize, &Vec<Vec<i64>>)]| {
            let pieces = places.iter().map(|&(slot, text, start, rows)| {
                let rows: Vec<Vec<i64>> = rows.iter().map(|row| row[..start + 3 - 2 * start.min(1)].to_vec()).collect();
                piece(&rows, CachePlace { slot, text, start })
            });
            pipeline.eval(Batch::from_microbatches(pieces.collect()))
        };
        eval(&[(0, 0, 0, &one), (1, 0, 0, &one)]).unwrap();
        eval(&[(1, 1, 0, &other)]).unwrap();
        let error = eval(&[(0, 0, 3, &one), (1, 1, 3, &other)]).unwrap_err().to_string();
        assert!(error.contains("slot 1 has cached 0 tokens of text 1, but got tokens from position 3"), "{error}");
    }
}
