//! Mistakes that others made, planted: each makes the parity of routers' gradients fail, and by how much it should.

use crate::cases::{builder, config, distance, pipelined, plain};
use crate::parity::{ROUNDING, batches, families};
use burn::module::Module;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::Stage;
use burn_pipeline::train::StageContext;
use pipeline_examples::moe_part::MoeGptPart;
use pipeline_examples::moe_signal::{MoeExtras, MoeSignal};

/// A part of the model that injects with a wrong scale.
#[derive(Module, Debug)]
struct Mistaken {
    part: MoeGptPart,
    factor: f64,
}

impl Stage for Mistaken {
    type Input = MoeSignal;
    type Extra = MoeExtras;
    type Output = MoeSignal;

    fn extras(&self) -> Vec<&'static str> {
        self.part.extras()
    }

    fn forward(&self, input: MoeSignal, extra: MoeExtras) -> MoeSignal {
        let seed = extra.seed.mul_scalar(self.factor);
        self.part.forward(input, MoeExtras { seed, ..extra })
    }
}

/// The distance of routers' gradients with the mistake, over all families.
fn distances(accumulation: usize, microbatches: usize, factor: fn(&StageContext, f64, f64) -> f64) -> Vec<f64> {
    let (config, batches) = (config(), batches(accumulation, microbatches, false));
    let expected = plain(&config, &batches, microbatches);
    let (m, a) = (microbatches as f64, accumulation as f64);
    let of = |(schedule, chunks): (Box<dyn burn_pipeline::schedule::Schedule>, usize)| {
        let size = Size { ranks: 2, chunks, microbatches };
        let mistaken = move |part, at: &StageContext| Mistaken { part, factor: factor(at, m, a) };
        let builder = builder(schedule.as_ref(), size, &config, mistaken);
        let apart = distance(&config, &pipelined(builder, &batches, &config), &expected);
        // The forward is untouched: only gradients tell.
        assert!(apart.observed < 1e-6 && apart.loss < 1e-5, "{apart:?}");
        apart.routers
    };
    families().into_iter().map(of).collect()
}

fn assert_noticed(distances: &[f64]) {
    assert!(distances.iter().all(|&apart| apart > 1e3 * ROUNDING), "a planted mistake goes unnoticed: {distances:?}");
}

#[test]
fn no_mistake_is_no_distance() {
    assert!(distances(3, 4, |_, _, _| 1.0).iter().all(|&apart| apart < ROUNDING));
}

#[test]
fn a_scale_that_is_not_divided_by_the_microbatches_is_noticed() {
    assert_noticed(&distances(1, 4, |_, m, _| m));
}

#[test]
fn a_scale_that_is_divided_by_the_microbatches_twice_is_noticed() {
    assert_noticed(&distances(1, 4, |_, m, _| 1.0 / m));
}

#[test]
fn a_scale_that_forgets_accumulation_is_noticed() {
    assert_noticed(&distances(3, 2, |_, _, a| a));
}

#[test]
fn a_scale_that_counts_accumulation_twice_is_noticed() {
    assert_noticed(&distances(3, 2, |_, _, a| 1.0 / a));
}

#[test]
fn inner_stages_without_their_losses_are_noticed() {
    assert_noticed(&distances(1, 3, |at, _, _| if at.is_last() { 1.0 } else { 0.0 }));
}
