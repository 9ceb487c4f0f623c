//! The growth of a pass's work with the length of the plan, counted rather than timed.

use crate::pricing::{same_stages, stage};
use burn_pipeline_plan::cost::{Profile, StageCost};
use burn_pipeline_plan::pass::overlap::{OverlapOptions, OverlapPass};
use burn_pipeline_plan::pass::{Placing, WaitOptions};
use burn_pipeline_plan::plan::Plan;
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::SimulateOptions;

/// Interleaved1F1B on 16 ranks with 4 chunks each, sharded, lowered, with late waits.
fn plan(microbatches: usize) -> Plan {
    let size = Size::new(16, microbatches).with_chunks(4);
    let built = by_name("Interleaved1F1B").unwrap().build(size).unwrap();
    let lowered = built.with_unshard(3).unwrap().with_transfers().unwrap();
    lowered.with_waits(&WaitOptions::all(Placing::Late))
}

/// Transfers that take as long as a computation, and memory for a few of them.
fn priced(plan: &Plan) -> (Profile, OverlapOptions) {
    let stage = StageCost { activation_bytes: 4.0, message_bytes: 1.0, ..stage(1.0, 1.0, 1.0) };
    let stage = StageCost { unshard: 1.0, unsharded_bytes: 2.0, ..stage };
    let simulate = SimulateOptions { overlap: false, ..SimulateOptions::default() };
    let options = OverlapOptions { simulate, extra_bytes: 8.0, ..OverlapOptions::default() };
    (same_stages(stage, plan.stages(), 0.5, Some(2.0)), options)
}

/// The factor by which a pass's work grows for a plan eight times as long.
fn growth(plans: &[Plan; 2], pass: OverlapPass, reach: usize) -> f64 {
    let work = |plan: &Plan| {
        let (profile, options) = priced(plan);
        let options = OverlapOptions { reach, ..options };
        let report = plan.run_passes(&profile, &[pass], &options).unwrap().reports.remove(0);
        let actions = plan.rows().iter().map(Vec::len).sum::<usize>() as f64;
        println!(
            "{} microbatches, reach {reach}: {} {:.1} an action",
            plan.total_microbatches(),
            report.pass,
            report.work as f64 / actions
        );
        (report.work as f64, actions)
    };
    let ((short, actions), (long, more)) = (work(&plans[0]), work(&plans[1]));
    assert!((7.5..8.5).contains(&(more / actions)));
    long / short
}

#[test]
fn every_pass_takes_at_most_a_quarter_more_an_action_for_plans_eight_times_as_long() {
    let plans = [32, 256].map(plan);
    for pass in OverlapPass::ALL {
        for reach in [2, 8] {
            let growth = growth(&plans, pass, reach);
            assert!(growth < 10.0, "{}, reach {reach}: {growth} times the work for 8 times the plan", pass.name());
        }
    }
}
