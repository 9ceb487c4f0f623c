//! Faults of PyTorch's own orders that this library's orders do not have.

use crate::event::{Costs, run};
use crate::pricing::sized;
use burn_pipeline_plan::plan::Plan;

/// Returns true if the plan runs to its end when each rank follows its row and waits for its inputs.
fn runs_in_order(plan: &Plan) -> bool {
    run(plan, Costs::new(1.0, 1.0, 1.0, 0.0)).is_ok()
}

#[test]
fn fewer_microbatches_than_ranks_run_to_the_end_where_pytorchs_time_steps_break() {
    for ranks in 2..=8 {
        for microbatches in 1..ranks {
            for chunks in 2..=4 {
                assert!(runs_in_order(&sized("Interleaved1F1B", ranks, chunks, microbatches)));
                assert!(runs_in_order(&sized("LoopedBFS", ranks, chunks, microbatches)));
            }
            for chunks in 1..=4 {
                assert!(runs_in_order(&sized("InterleavedZeroBubble", ranks, chunks, microbatches)));
            }
        }
    }
    // More microbatches than ranks fail there too.
    for (ranks, chunks, microbatches) in [(5, 4, 7), (8, 4, 11), (8, 4, 12), (8, 4, 13), (8, 5, 20)] {
        assert!(runs_in_order(&sized("Interleaved1F1B", ranks, chunks, microbatches)));
    }
}

#[test]
fn rows_carry_no_idle_cells_even_where_microbatches_were_dropped() {
    for name in ["ZBVZeroBubble", "DualPipeV", "VHalf"] {
        for (ranks, microbatches) in [(4, 1), (4, 3), (8, 5), (8, 16)] {
            let plan = sized(name, ranks, 2, microbatches);
            assert!(plan.rows().iter().flatten().all(|action| !action.is_idle()), "{name} p={ranks} m={microbatches}");
        }
    }
}

#[test]
fn the_last_rank_of_1f1b_goes_back_right_after_each_forward() {
    // PyTorch 2.15's table is wrong on this rank, and its own validator refuses it.
    let cells: Vec<String> = sized("1F1B", 4, 1, 3).row(3).iter().map(ToString::to_string).collect();
    assert_eq!(cells, ["3F0", "3B0", "3F1", "3B1", "3F2", "3B2"]);
}
