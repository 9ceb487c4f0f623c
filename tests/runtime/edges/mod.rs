//! Everything that may cross a boundary, through whole pipelines: nested structs, integers, booleans, values
//! without gradient, unused outputs, frozen and parameterless stages, and extras that are each cut differently.

mod changing;
mod lookup;
mod rich;
mod unused;

use crate::cases::Case;
use crate::parity::{Plain, assert_equal, assert_equal_from_the_second_batch, builder};
use burn_pipeline::payload::Validate;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{Accumulation, SplitBackward};

fn over_every_kind_of_schedule<C: Case>(captured: bool, new: impl Fn(usize) -> C) {
    for (microbatches, samples) in [(1, 3), (3, 5), (4, 4)] {
        let case = new(samples);
        let plain = Plain::new(&case, microbatches, samples);
        for (schedule, chunks) in [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBV", 2)] {
            for ranks in 1..=4 {
                let size = Size { ranks, chunks, microbatches };
                let builder = builder::<C>(by_name(schedule).unwrap().as_ref(), size);
                let split = match microbatches {
                    3 => SplitBackward::Auto,
                    4 if captured => SplitBackward::Captured,
                    _ => SplitBackward::Eager,
                };
                // Validation checks every form at every port.
                let validate = if microbatches == 4 { Validate::EveryMicrobatch } else { Validate::Off };
                let builder = builder.accumulation(Accumulation::Ordered).split(split).validate(validate);
                let name = format!("{schedule} on {ranks} ranks with {chunks} chunks");
                let mut pipeline = builder.build().unwrap();
                match captured && split != SplitBackward::Eager {
                    true => assert_equal_from_the_second_batch(&case, &mut pipeline, &plain, &name),
                    false => assert_equal(&case, &mut pipeline, &plain, &name),
                }
            }
        }
    }
}

#[test]
fn nested_structs_unused_outputs_and_extras_of_their_own_cut_equal_the_plain_loop_bit_for_bit() {
    over_every_kind_of_schedule(false, rich::Rich::new);
}

#[test]
fn stages_without_parameters_and_inputs_without_gradients_equal_the_plain_loop_bit_for_bit() {
    over_every_kind_of_schedule(false, lookup::Lookup::new);
}

#[test]
fn outputs_that_nobody_uses_leave_weights_alone_as_on_one_device_bit_for_bit() {
    over_every_kind_of_schedule(true, unused::Unused::new);
}
