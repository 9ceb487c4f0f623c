//! Parameters cut by a group and sharded by replicas: each rank keeps a shard of its piece, and trains as the plain
//! loop does.

use crate::model::{Grid, builder_of};
use crate::parity::{ENGINES, SAMPLES, assert_close, plain, schedules, trained};
use crate::plain::{SEQUENCE, SMALL};
use burn_pipeline::stage::{Accumulation, StageBox};

const GRIDS: [Grid; 2] = [(1, 2, 2), (2, 2, 2)];

#[test]
fn every_schedule_and_engine_with_shards_of_pieces_trains_as_the_plain_loop_does() {
    for config in [SMALL, SEQUENCE] {
        let expected = plain(config, SAMPLES);
        for grid in GRIDS {
            for schedule in schedules(grid.0) {
                for (engine, split, compile) in ENGINES {
                    let builder = builder_of(config, schedule, grid).sharded(true).split(split).compile(compile);
                    let place = format!("{schedule:?} on {grid:?}, {engine}");
                    assert_close(&trained(&config, builder, SAMPLES), &expected, &place);
                }
            }
        }
    }
}

#[test]
fn ordered_sums_and_one_sharded_stage_train_as_the_plain_loop_does() {
    let expected = plain(SMALL, SAMPLES);
    let ordered = builder_of(SMALL, ("ZBVZeroBubble", 2), (2, 2, 2)).sharded(true).accumulation(Accumulation::Ordered);
    assert_close(&trained(&SMALL, ordered, SAMPLES), &expected, "ordered");
    let one = builder_of(SMALL, ("1F1B", 1), (2, 2, 2)).stages(|at| -> StageBox {
        let stage = crate::model::stage(SMALL, at);
        if at.is_first() { stage.sharded(true) } else { stage }
    });
    assert_close(&trained(&SMALL, one, SAMPLES), &expected, "one stage");
}
