//! Orders compared with PyTorch's, cell by cell, without idle cells.

use crate::golden::{Golden, read};
use burn_pipeline_plan::plan::Plan;
use burn_pipeline_plan::schedule::{Size, by_name};

const ORDERS_2_7: &str = include_str!("goldens/orders-2.7.1.txt");
const ORDERS_2_15: &str = include_str!("goldens/orders-2.15.0.txt");

fn build(golden: &Golden) -> Result<Plan, String> {
    let size = Size::new(golden.ranks, golden.microbatches).with_chunks(golden.chunks);
    by_name(golden.schedule).unwrap().build(size).map_err(|error| error.to_string())
}

fn cells(plan: &Plan) -> Vec<Vec<String>> {
    let row = |row: &Vec<_>| row.iter().map(ToString::to_string).filter(|cell: &String| !cell.is_empty()).collect();
    plan.rows().iter().map(row).collect()
}

/// Compares every order of an archive. Returns how many there were.
fn compare(archive: &'static str) -> usize {
    let goldens = read(archive);
    let built = goldens.iter().filter(|g| g.rows.is_ok());
    let differs = |golden: &&Golden| match build(golden) {
        Ok(plan) => cells(&plan) != *golden.rows.as_ref().unwrap(),
        Err(_) => true,
    };
    let different: Vec<String> = built.clone().filter(differs).map(Golden::name).collect();
    assert!(different.is_empty(), "{} orders differ from PyTorch's: {different:?}", different.len());
    built.count()
}

#[test]
fn every_order_of_pytorch_2_7_1_comes_out() {
    let count = compare(ORDERS_2_7);
    println!("{count} orders of PyTorch 2.7.1 compared");
    assert_eq!(count, 559);
}

#[test]
fn every_multi_stage_order_of_pytorch_2_15_comes_out_dual_pipe_v_among_them() {
    let count = compare(ORDERS_2_15);
    println!("{count} orders of PyTorch 2.15.0 compared");
    assert_eq!(count, 154);
    let of_dual_pipe_v = read(ORDERS_2_15).iter().filter(|g| g.schedule == "DualPipeV" && g.rows.is_ok()).count();
    assert_eq!(of_dual_pipe_v, 25);
}

/// The cases that PyTorch refuses and this library builds: the schedule, PyTorch's message, and why it can be built.
const ACCEPTED_HERE: [(&str, &str, &str); 5] = [
    ("GPipe", "must be greater than or equal to the number of stages", "with fewer microbatches ranks only idle more"),
    ("1F1B", "must be greater than or equal to the number of stages", "the warm-up is capped at m"),
    ("Interleaved1F1B", "multiple of the number of rounds", "rounds may differ by one microbatch, larger ones first"),
    ("InterleavedZeroBubble", "multiple of the number of rounds", "rounds may differ by one microbatch, larger first"),
    ("DualPipeV", "at least as many microbatches as stages", "the order for 2p with what is not there dropped, as ZBV"),
];

#[test]
fn what_pytorch_refuses_is_refused_unless_the_table_says_why_not() {
    let (mut refused, mut accepted) = (0, [0; ACCEPTED_HERE.len()]);
    for golden in read(ORDERS_2_7).into_iter().chain(read(ORDERS_2_15)) {
        let Err(message) = golden.rows else { continue };
        let reason =
            ACCEPTED_HERE.iter().position(|(name, part, _)| *name == golden.schedule && message.contains(part));
        match (build(&golden), reason) {
            (Ok(_), Some(row)) => accepted[row] += 1,
            (Err(ours), None) => {
                assert!(ours.contains("exactly 2 chunks per rank"), "{}: {ours}", golden.name());
                refused += 1;
            }
            (ours, _) => panic!("{}: PyTorch says {message:?}, ours {:?}", golden.name(), ours.err()),
        }
    }
    println!("{refused} refusals shared with PyTorch; accepted here:");
    for ((name, _, why), count) in ACCEPTED_HERE.iter().zip(accepted) {
        println!("  {count} x {name}: {why}");
        assert!(count > 0, "{name}: a row of the table that nothing needs");
    }
}
