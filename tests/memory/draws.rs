//! With a seed, forwards draw what they draw alone, whatever other threads draw meanwhile.

use crate::heap::turn;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Accumulation, Batch, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Pipeline, PipelineError};
use std::sync::atomic::{AtomicBool, Ordering};

const WIDTH: usize = 16;

#[derive(Module, Debug)]
struct Noisy {
    linear: Linear,
    norm: Option<BatchNorm>,
    dropout: Dropout,
}

impl Stage for Noisy {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let y = self.dropout.forward(self.linear.forward(x.clone()));
        let y = self.norm.as_ref().map_or(y.clone(), |norm| norm.forward::<2>(y));
        x + self.dropout.forward(y)
    }
}

/// Losses of some steps, or the first error.
fn losses(schedule: &str, recomputed: bool, counts: bool) -> Result<Vec<f64>, PipelineError> {
    let chunks = if schedule == "ZBVZeroBubble" { 2 } else { 1 };
    let size = Size::new(2, 4).with_chunks(chunks);
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]).seed(7);
    let builder = builder.optimizer(|| SgdConfig::new().init()).accumulation(Accumulation::Ordered);
    let mut pipeline = builder
        .stages(move |at| {
            let noisy = init_seeded(at.index as u64, &at.device, |device| Noisy {
                linear: LinearConfig::new(WIDTH, WIDTH).init(device),
                norm: counts.then(|| BatchNormConfig::new(WIDTH).init(device)),
                dropout: DropoutConfig::new(0.5).init(),
            });
            let stage = match at.is_last() {
                true => StageBox::with_loss(noisy, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean()),
                false => StageBox::new(noisy),
            };
            stage.recomputed(recomputed)
        })
        .build()
        .unwrap();
    let rows = |step: usize| {
        let values = (0..8 * WIDTH).map(|i| ((i * 7 + step * 13) % 19) as f32 / 9.5 - 1.0).collect();
        Tensor::<2>::from_data(TensorData::new(values, [8, WIDTH]), &Device::flex())
    };
    (0..5).map(|step| Ok(pipeline.step(Batch::new(rows(step)).target(rows(step + 1)), 1e-2)?.loss)).collect()
}

/// Runs it while another thread draws as fast as it can.
fn disturbed<T>(run: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = Tensor::<1>::random([16], Distribution::Default, &Device::flex());
            }
        });
        let given = run();
        done.store(true, Ordering::Relaxed);
        given
    })
}

#[test]
fn captured_forwards_draw_from_generators_of_their_own_in_every_kind_of_plan() {
    let _turn = turn();
    for (schedule, same_as) in [("GPipe", "1F1B"), ("1F1B", "ZBH1"), ("ZBVZeroBubble", "ZBVZeroBubble")] {
        let expected = losses(same_as, false, false).unwrap();
        for recomputed in [false, true] {
            let given = disturbed(|| losses(schedule, recomputed, false).unwrap());
            assert_eq!(given, expected, "{schedule}, recomputed: {recomputed}");
        }
    }
}

#[test]
fn a_stage_that_cannot_be_captured_gives_the_numbers_of_its_seed_or_an_error() {
    let _turn = turn();
    for recomputed in [false, true] {
        let expected = losses("1F1B", recomputed, true).unwrap();
        assert_eq!(losses("ZBH1", recomputed, true).unwrap(), expected);
        match disturbed(|| losses("1F1B", recomputed, true)) {
            Ok(losses) => assert_eq!(losses, expected, "recomputed: {recomputed}"),
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains("cannot be proved to be those of `Builder::seed`"), "{said}");
            }
        }
    }
}
