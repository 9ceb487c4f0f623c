//! CSV files of PyTorch's runtime, with transfers, `UNSHARD`, `RESHARD` and `REDUCE_GRAD`, run unchanged: with and
//! without replicas, sharded or not, with the numbers of the plain loop.

use crate::cases::Stack;
use crate::parity::{Plain, assert_equal, builder};
use burn_pipeline::plan::{Op, Plan};
use burn_pipeline::schedule::{GPipe, Size};
use burn_pipeline::stage::{Accumulation, SplitBackward};
use pipeline_tests::mlp::LAYERS;

/// PyTorch's files, in blocks: a line `= name pass`, and a line per rank.
const WRITTEN: [&str; 2] = [
    include_str!("../../burn-pipeline-plan/tests/plan/goldens/passes/lowered_text_2.7.1.txt"),
    include_str!("../../burn-pipeline-plan/tests/plan/goldens/passes/comms_text_2.15.0.txt"),
];

/// The files with gathered parameters that have at most as many stages as the test's model has layers.
fn files() -> impl Iterator<Item = Plan> {
    let blocks =
        WRITTEN.into_iter().flat_map(|text| text.split("= ").skip(1)).filter_map(|block| block.split_once('\n'));
    let comms = blocks.filter(|(name, _)| name.ends_with(" comms"));
    let plans = comms.map(|(name, csv)| Plan::from_csv(name, csv).unwrap());
    plans.filter(|plan| plan.stages() <= LAYERS && plan.total_microbatches() <= 4)
}

#[test]
fn files_of_pytorchs_runtime_run_with_the_numbers_of_the_plain_loop() {
    let (mut run, mut reduce) = (0, 0);
    for (number, plan) in files().enumerate() {
        reduce += usize::from(plan.any_task(|task| task.op() == Op::ReduceGrad));
        for (replicas, sharded) in [(1, false), (2, number % 2 == 0)] {
            let microbatches = plan.total_microbatches() * replicas;
            let case = Stack::new(microbatches);
            let name = format!("{}, {replicas} replicas, sharded: {sharded}", plan.name());
            let builder = builder::<Stack>(&GPipe, Size::new(plan.ranks(), microbatches)).plan(plan.clone());
            let builder = builder.data_parallel(replicas).sharded(sharded).accumulation(Accumulation::Ordered);
            let builder = builder.split(SplitBackward::Eager);
            let plain = Plain::new(&case, microbatches, microbatches);
            assert_equal(&case, &mut builder.build().unwrap(), &plain, &name);
            run += 1;
        }
    }
    println!("{run} runs, {reduce} files with reductions");
    assert!(run >= 30 && reduce >= 5, "{run} runs, {reduce} files with reductions");
}
