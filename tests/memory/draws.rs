//! With a seed, forwards draw the same random numbers whatever other threads draw meanwhile.

use crate::heap::turn;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};
use burn_pipeline::stage::{SplitBackward, Stage, StageBox, init_seeded};
use burn_pipeline::train::PipelineError;
use pipeline_tests::noisy;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Steps of four microbatches: enough to show a stage that draws past its seed.
const STEPS: usize = 9;

/// The losses of some steps, or the first error.
fn losses(schedule: &str, recomputed: bool, counts: bool) -> Result<Vec<f64>, PipelineError> {
    let stage = if counts { noisy::stage } else { noisy::drawing };
    let builder = noisy::builder(schedule).split(SplitBackward::Auto).seed(7);
    let mut pipeline = builder.stages(move |at| stage(at).recomputed(recomputed)).build().unwrap();
    (0..STEPS).map(|step| Ok(pipeline.step(noisy::batch(step), 1e-2)?.loss)).collect()
}

/// Runs `run` while another thread draws random numbers as fast as it can.
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

/// Draws on the host in its forward, not on its input's device.
#[derive(Module, Debug)]
struct Elsewhere {
    linear: Linear,
    /// Creates a layer instead of drawing a number.
    makes: bool,
}

impl Stage for Elsewhere {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let drawn = match self.makes {
            true => init_seeded(9, &Device::flex(), |device| LinearConfig::new(1, 1).init(device)).weight.val().sum(),
            false => Tensor::<1>::random([1], Distribution::Default, &Device::flex()),
        };
        x.clone() + self.linear.forward(x).mul_scalar(drawn.into_scalar::<f32>())
    }
}

fn elsewhere(split: SplitBackward, makes: bool, seed: Option<u64>) -> Result<Vec<f64>, PipelineError> {
    let builder = noisy::builder("1F1B").split(split).stages(move |at| {
        let linear = init_seeded(at.index as u64, &at.device, |device| LinearConfig::new(6, 6).init(device));
        let loss = |y: Tensor<2>, target: Tensor<2>| (y - target).square().mean();
        match at.is_last() {
            true => StageBox::with_loss(Elsewhere { linear, makes }, loss),
            false => StageBox::new(Elsewhere { linear, makes }),
        }
    });
    let mut pipeline = seed.into_iter().fold(builder, |builder, seed| builder.seed(seed)).build().unwrap();
    (0..STEPS).map(|step| Ok(pipeline.step(noisy::batch(step), 1e-2)?.loss)).collect()
}

#[test]
fn a_captured_forward_that_throws_coins_on_a_device_of_its_own_choice_is_refused() {
    let _turn = turn();
    let said = elsewhere(SplitBackward::Auto, false, Some(7)).unwrap_err().to_string();
    assert!(said.contains("its forwards draw on a device that they name themselves"), "{said}");
    // Without a seed, such stages are allowed.
    elsewhere(SplitBackward::Captured, false, None).unwrap();
}

#[test]
fn a_seeded_forward_that_makes_a_layer_does_not_wait_for_itself() {
    let _turn = turn();
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(elsewhere(SplitBackward::Eager, true, Some(7)).unwrap()));
    let seeded = wait.recv_timeout(Duration::from_secs(60)).expect("deadlock");
    assert_eq!(seeded, elsewhere(SplitBackward::Eager, true, None).unwrap());
}
