//! The measured costs of a model's stages, for the simulator and planners.
//!
//! 1. Every compute event counts for its stage and operation, on both routes of a bidirectional placement.
//! 2. Each cost is the median over all steps, so that one slow step (the first one compiles) does not distort it.
//! 3. A fused action that was interleaved counts only for the `overlap` of its forward's stage.
//! 4. The activation bytes that a microbatch leaves after `F` and after `I` are known for captured stages, and 0 for
//!    others; the peak of each action is known only for stages that are fully compiled.
//! 5. A receive event shows how long a rank waited, which depends on the schedule more than on the link. So links are
//!    measured separately (`Pipeline::measure_links`, `Profile::with_links`).

use crate::train::report::StepReport;
use burn_pipeline_plan::cost::{LinkCosts, Profile, ProfileError, StageCost};
use burn_pipeline_plan::plan::{Action, Op, Placement};
use std::collections::HashMap;

impl StepReport {
    /// Computes a profile from the timelines of some steps.
    ///
    /// Build the pipeline with `Tuning::synchronize` if the device computes asynchronously; otherwise events show how
    /// long it took to submit work.
    ///
    /// # Errors
    /// Returns [`ProfileError`] if a stage's forward never ran.
    pub fn profile(placement: &Placement, steps: &[StepReport]) -> Result<Profile, ProfileError> {
        let mut seconds: HashMap<(usize, Op), Vec<f64>> = HashMap::new();
        let mut overlaps: HashMap<usize, Vec<f64>> = HashMap::new();
        for event in steps.iter().flat_map(|step| &step.timeline.events) {
            let took = event.end - event.start;
            match event.action {
                Action::Single(task) if task.op().is_compute() => {
                    seconds.entry((task.stage().index(), task.op())).or_default().push(took);
                }
                Action::Overlap(a, b) => {
                    let forward = if a.op() == Op::Forward { a } else { b };
                    overlaps.entry(forward.stage().index()).or_default().push(took);
                }
                Action::Single(_) | Action::Idle => {}
            }
        }
        let mut cost = |index: usize, op: Op| seconds.get_mut(&(index, op)).map(|seconds| median(seconds));
        let stage = |index: usize| {
            let bytes = |of: fn(&StepReport) -> &[usize]| {
                steps.iter().filter_map(|step| of(step).get(index).copied()).max().unwrap_or(0) as f64
            };
            let held = steps.iter().filter_map(|step| step.activations.get(index).copied().flatten()).max();
            let held = held.unwrap_or_default();
            let peak = |at: usize| held.peaks.map(|peaks| peaks[at] as f64);
            StageCost {
                // NaN if it never ran, which `Profile::new` refuses.
                forward: cost(index, Op::Forward).unwrap_or(f64::NAN),
                input: cost(index, Op::BackwardInput),
                weight: cost(index, Op::BackwardWeight),
                backward: cost(index, Op::Backward),
                overlap: overlaps.get_mut(&index).map(|seconds| median(seconds)),
                activation_bytes: held.after_forward as f64,
                recomputed_bytes: held.recomputed as f64,
                freed_at_input_bytes: (held.after_forward + held.recomputed) as f64 - held.after_input as f64,
                forward_peak_bytes: peak(0),
                input_peak_bytes: peak(1),
                weight_peak_bytes: peak(2),
                backward_peak_bytes: peak(3),
                weight_bytes: bytes(|step| &step.weight_bytes),
                message_bytes: bytes(|step| &step.message_bytes),
                skip_bytes: bytes(|step| &step.skip_bytes),
                ..StageCost::default()
            }
        };
        let stages: Vec<StageCost> = (0..placement.stages()).map(stage).collect();
        let trained = steps.iter().flat_map(|step| &step.timeline.events).flat_map(|event| event.action.tasks());
        let trained = trained.filter(|task| task.op().is_backward()).map(|task| task.stage().index()).min();
        Profile::new(stages, LinkCosts::default())?.train_from(trained.unwrap_or(0))
    }
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}
