//! Any text, read as a plan or as a trace, gives one or an error. What is read can be printed and read again,
//! drawn, rewritten by every pass, checked and simulated, all without a panic.
#![no_main]

use burn_pipeline_plan::cost::{Profile, UniformCosts};
use burn_pipeline_plan::page::Page;
use burn_pipeline_plan::pass::{Placing, WaitOptions};
use burn_pipeline_plan::plan::{Action, CheckOptions, Plan, Transport};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate, unit_steps};
use burn_pipeline_plan::trace::{chrome, read_chrome};
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
        let json = serde_json::to_string(&plan).expect("a plan can be stored");
        assert_eq!(serde_json::from_str::<Plan>(&json).expect("a stored plan can be read"), plan);
        rewrite(&plan);
    }
    // A short text may have a huge rank number, and drawing as many ranks takes long.
    for track in read_chrome(text).unwrap_or_default().iter().filter(|track| track.rows() <= 64) {
        let again = read_chrome(&chrome(std::slice::from_ref(track))).expect("a track's own trace is a trace");
        assert_eq!(again[0].events.len(), track.events.len());
        let _ = Page::new("fuzz").track(track).html();
    }
});

fn rewrite(plan: &Plan) {
    // A short text may have thousands of ranks, whose grid would take long.
    if plan.ranks() <= 64 {
        let _ = (plan.grid(), plan.grid_marked(1), plan.excerpt(plan.ranks() / 2, 1));
    }
    let merged = plan.merge_backward();
    assert_eq!(merged.merge_backward(), merged);
    assert_eq!(plan.without_idle().without_idle(), plan.without_idle());
    let reduced = plan.with_reduce_grad();
    let _ = reduced.clone().check(&CheckOptions { activation_cap: Some(2.0), ..CheckOptions::default() });
    let _ = reduced.with_unshard(1);
    let Ok(sharded) = reduced.with_unshard(2) else { return };
    let Ok(lowered) = sharded.with_transfers() else { return };
    let waits = lowered.with_waits(&WaitOptions::all(Placing::Late));
    for transport in [Transport::Rendezvous, Transport::Buffered(1), Transport::Unbounded] {
        for plan in [&lowered, &waits] {
            let options = CheckOptions { transport, received_cap: Some(3), ..CheckOptions::default() };
            match plan.clone().check(&options) {
                Ok(checked) => run(checked.plan(), transport),
                Err(error) => drop(error.to_string()),
            }
        }
    }
}

/// A checked plan also runs to its end in the simulator.
fn run(plan: &Plan, transport: Transport) {
    let costs = UniformCosts::new(1.0, 1.0, 1.0).with_transfer(0.5);
    let profile = Profile::uniform(plan.placement(), costs).expect("the costs are numbers");
    for overlap in [false, true] {
        let step = simulate(plan, &profile, &SimulateOptions { transport, overlap });
        assert!(step.expect("a checked plan runs to its end").makespan.is_finite());
    }
    let _ = unit_steps(plan);
}
