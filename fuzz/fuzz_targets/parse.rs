//! Any text: reading it as a plan gives a plan or an error, and what is read can be printed and read again,
//! drawn, rewritten by every pass and checked, all without a panic.
#![no_main]

use burn_pipeline_plan::pass;
use burn_pipeline_plan::plan::{Action, CheckOptions, Plan, Transport};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(action) = text.parse::<Action>() {
        assert_eq!(action.to_string().parse(), Ok(action));
    }
    if let Ok(plan) = Plan::from_csv("fuzz", text) {
        let again = Plan::from_csv("fuzz", &plan.to_csv()).expect("a plan's own text is a plan");
        assert_eq!(again.rows(), plan.rows());
        let json = serde_json::to_string(&plan).expect("a plan can be stored");
        assert_eq!(serde_json::from_str::<Plan>(&json).expect("a stored plan can be read"), plan);
        rewrite(&plan);
    }
    if let Ok(plan) = serde_json::from_str::<Plan>(text) {
        rewrite(&plan);
    }
});

fn rewrite(plan: &Plan) {
    // Printing a grid takes ranks times steps; texts of a few kilobytes stay small.
    let _ = plan.grid();
    let merged = pass::merge_backward(plan);
    assert_eq!(pass::merge_backward(&merged), merged);
    let aligned = pass::align_idle(plan);
    assert_eq!(pass::strip_idle(&aligned), pass::strip_idle(plan));
    let reduced = pass::insert_reduce_grad(plan);
    let _ = reduced.clone().check(&CheckOptions { activation_cap: Some(2.0), ..CheckOptions::default() });
    let _ = pass::insert_unshard(&reduced, 1);
    let Ok(sharded) = pass::insert_unshard(&reduced, 2) else { return };
    let Ok(lowered) = pass::insert_transfers(&sharded) else { return };
    for transport in [Transport::Rendezvous, Transport::Buffered(1), Transport::Unbounded] {
        let proof = lowered.clone().check(&CheckOptions { transport, received_cap: Some(3), ..CheckOptions::default() });
        if let Err(error) = proof {
            let _ = error.to_string();
        }
    }
}
