//! Known mistakes of other implementations, planted here: each makes the parity test of router gradients fail by
//! the expected amount. A schedule of each placement is enough to show that a wrong factor is noticed.

use crate::cases::{builder, config, distance, pipelined, plain};
use crate::parity::{ROUNDING, batches, schedules};
use burn::module::Module;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Names, Stage};
use burn_pipeline::train::StageContext;
use pipeline_examples::moe::part::MoeGptPart;
use pipeline_examples::moe::signal::{MoeExtras, MoeSignal};

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

/// Looped placements with one and two stages per rank, a V, and two routes.
const SCHEDULES: [&str; 4] = ["1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipe"];

/// The wrong scale of a stage, from the number of a batch's microbatches and of a step's batches.
type Factor = fn(&StageContext, f64, f64) -> f64;

/// Checks the distance of each schedule's router gradients with the mistake.
fn each_distance(accumulation: usize, microbatches: usize, factor: Factor, check: impl Fn(f64, &str)) {
    let (config, batches) = (config(), batches(accumulation, microbatches, false));
    let expected = plain(&config, &batches, microbatches);
    let (m, a) = (microbatches as f64, accumulation as f64);
    let schedules = schedules().into_iter().filter(|(schedule, _)| SCHEDULES.contains(&schedule.info().name));
    for (schedule, chunks) in schedules {
        let size = Size { ranks: 2, chunks, microbatches };
        let model = config.clone();
        let mistaken = move |at: &StageContext| {
            let part = Mistaken { part: model.part(at).unwrap(), factor: factor(at, m, a) };
            let names = Names::default().layers_from("part.blocks", model.layers(at).unwrap().start);
            model.stage(part, at).unwrap().named(names)
        };
        let builder = builder(schedule.as_ref(), size, &config, |part, _| part).stages(mistaken);
        let difference = distance(&config, &pipelined(builder, &batches, &config), &expected);
        let place = format!("{}, {microbatches} microbatches, {accumulation} batches", schedule.info().name);
        // The forward is unchanged: only gradients show the mistake.
        assert!(difference.observed < 1e-6 && difference.loss < 1e-5, "{place}: {difference:?}");
        check(difference.routers, &place);
    }
}

/// Asserts that each schedule fails with the mistake, for these accumulations and numbers of microbatches.
fn assert_noticed(accumulations: &[usize], microbatches: [usize; 2], factor: Factor) {
    for &accumulation in accumulations {
        for microbatches in microbatches {
            each_distance(accumulation, microbatches, factor, |difference, place| {
                assert!(difference > 1e3 * ROUNDING, "a planted mistake goes unnoticed: {difference:e} with {place}");
            });
        }
    }
}

#[test]
fn no_mistake_is_no_distance() {
    for accumulation in [1, 3] {
        each_distance(
            accumulation,
            4,
            |_, _, _| 1.0,
            |difference, place| assert!(difference < ROUNDING, "{place}: {difference:e}"),
        );
    }
}

// With one microbatch or one batch the divisor is one, so a missing division changes nothing.

#[test]
fn a_scale_that_is_not_divided_by_the_microbatches_is_noticed() {
    assert_noticed(&[1, 3], [2, 5], |_, m, _| m);
}

#[test]
fn a_scale_that_is_divided_by_the_microbatches_twice_is_noticed() {
    assert_noticed(&[1], [2, 5], |_, m, _| 1.0 / m);
}

#[test]
fn a_scale_that_forgets_accumulation_is_noticed() {
    assert_noticed(&[3], [1, 4], |_, _, a| a);
}

#[test]
fn a_scale_that_counts_accumulation_twice_is_noticed() {
    assert_noticed(&[3], [2, 5], |_, _, a| 1.0 / a);
}

#[test]
fn inner_stages_without_their_losses_are_noticed() {
    assert_noticed(&[1, 3], [1, 4], |at, _, _| if at.is_last() { 1.0 } else { 0.0 });
}
