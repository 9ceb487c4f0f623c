//! Any text of a name and numbers, as on a command line: the schedule, ranks, stages per rank, microbatches. Every
//! plan that is built passes the check, lowered too; everything else is refused with a reason.
#![no_main]

use burn_pipeline_plan::cost::Pattern;
use burn_pipeline_plan::pass::overlap::OverlapPass;
use burn_pipeline_plan::plan::CheckOptions;
use burn_pipeline_plan::schedule::{Size, by_name};
use libfuzzer_sys::fuzz_target;

/// The most forwards of a plan that is built here.
const MOST: usize = 512;

fuzz_target!(|text: &str| {
    if let Ok(pattern) = text.parse::<Pattern>() {
        assert_eq!(pattern.to_string().parse::<Pattern>().expect("a pattern's own text is a pattern"), pattern);
    }
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or_default();
    if let Some(pass) = OverlapPass::from_name(name) {
        assert_eq!(pass.name(), name);
    }
    let Ok(schedule) = by_name(name) else { return };
    let mut number = || words.next().and_then(|word| word.parse::<usize>().ok());
    let (Some(ranks), Some(chunks), Some(microbatches)) = (number(), number(), number()) else { return };
    // The schedule refuses large sizes, or takes long to build them.
    let forwards = ranks.saturating_mul(chunks).saturating_mul(microbatches.saturating_add(ranks));
    if (MOST..1 << 40).contains(&forwards) {
        return;
    }
    match schedule.build(Size { ranks, chunks, microbatches }) {
        Ok(plan) => {
            let lowered = plan.with_transfers().expect("a schedule's plan can be lowered");
            for plan in [plan, lowered] {
                plan.check(&CheckOptions::default()).expect("a schedule's plan is complete and cannot deadlock");
            }
        }
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    }
});
