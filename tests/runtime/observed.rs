//! The loss's seed, which the runtime passes as an extra, and numbers that a loss function reports as observed.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, LOSS_SEED, Loss, Reduction, SplitBackward, Stage, StageBox};
use burn_pipeline::train::{Pipeline, StageContext};

/// Passes on the seed of each stage beside the samples.
#[derive(Module, Debug)]
struct Observing {
    weight: Param<Tensor<1>>,
}

type Pair = (Tensor<2>, Option<Tensor<1>>);

impl Stage for Observing {
    type Input = Pair;
    type Extra = Tensor<1>;
    type Output = Pair;

    fn extras(&self) -> Vec<&'static str> {
        vec![LOSS_SEED]
    }

    fn forward(&self, (x, reported): Pair, seed: Tensor<1>) -> Pair {
        let reported = reported.map_or(seed.clone(), |reported| Tensor::cat(vec![reported.detach(), seed], 0));
        (x * self.weight.val().unsqueeze::<2>(), Some(reported))
    }
}

fn stage(reduction: Reduction, observes: bool) -> impl Fn(&StageContext) -> StageBox + Send + Sync + 'static {
    move |at| {
        let reported = Observing { weight: Param::from_tensor(Tensor::ones([1], &at.device)) };
        if !at.is_last() {
            return StageBox::new(reported);
        }
        StageBox::with_loss(reported, move |(y, reported): Pair, target: Tensor<2>| {
            let squares = (y - target).square();
            let loss = match reduction {
                Reduction::Mean => Loss::from(squares.mean()),
                Reduction::Sum => Loss::from(squares.sum()),
                Reduction::Weighted => Loss::weighted(squares.sum(), 2.0),
            };
            if observes { loss.observing(reported.unwrap()) } else { loss }
        })
    }
}

fn pipeline(name: &str, chunks: usize, reduction: Reduction, split: SplitBackward, observes: bool) -> Pipeline {
    let size = Size { ranks: 2, chunks, microbatches: 4 };
    let builder = Pipeline::builder().schedule(name, size).devices(vec![Device::flex()]);
    builder.reduction(reduction).split(split).stages(stage(reduction, observes)).build().unwrap()
}

fn batch(samples: usize) -> Batch {
    let x = Tensor::<2>::ones([samples, 3], &Device::flex());
    Batch::new((x.clone(), None::<Tensor<1>>)).target(x)
}

const CASES: [(&str, usize, SplitBackward, usize); 4] = [
    ("1F1B", 1, SplitBackward::Eager, 2),
    ("DualPipe", 1, SplitBackward::Eager, 2),
    ("ZBVZeroBubble", 2, SplitBackward::Captured, 4),
    ("ZBH1", 1, SplitBackward::Captured, 2),
];

#[test]
fn every_stage_gets_the_share_of_its_microbatch_relative_to_the_first_of_the_step() {
    for (name, chunks, split, stages) in CASES {
        let mut pipeline = pipeline(name, chunks, Reduction::Mean, split, true);
        let of = |sizes: [usize; 4], first: f64| sizes.map(|size| vec![(size as f64 / first) as f32 as f64; stages]);
        // The second batch's largest microbatch has two samples; its seeds still count in threes.
        assert_eq!(pipeline.accumulate(batch(9)).unwrap().observed, of([3, 2, 2, 2], 3.0), "{name}");
        assert_eq!(pipeline.accumulate(batch(7)).unwrap().observed, of([2, 2, 2, 1], 3.0), "{name}");
        // An evaluation counts as its own step, and so does what follows taken gradients.
        assert_eq!(pipeline.eval(batch(7)).unwrap().observed, of([2, 2, 2, 1], 2.0), "{name}");
        pipeline.take_gradients().unwrap();
        assert_eq!(pipeline.accumulate(batch(7)).unwrap().observed, of([2, 2, 2, 1], 2.0), "{name}");
    }
}

#[test]
fn sums_are_seeded_with_one() {
    for reduction in [Reduction::Sum, Reduction::Weighted] {
        for (name, chunks, split, stages) in CASES {
            let mut pipeline = pipeline(name, chunks, reduction, split, true);
            assert_eq!(pipeline.accumulate(batch(9)).unwrap().observed, vec![vec![1.0; stages]; 4], "{name}");
        }
    }
}

#[test]
fn nothing_is_observed_where_the_loss_function_gives_nothing() {
    let mut pipeline = pipeline("1F1B", 1, Reduction::Mean, SplitBackward::Eager, false);
    assert_eq!(pipeline.accumulate(batch(4)).unwrap().observed, vec![Vec::<f64>::new(); 4]);
}
