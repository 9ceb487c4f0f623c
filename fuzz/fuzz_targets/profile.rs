//! Any text, read as the JSON of a profile or of a model's layers, gives one or an error. What is read is stored
//! and read again bit for bit, and can be cut, merged and simulated without a panic.
#![no_main]

use burn_pipeline_plan::cost::{Layers, LinkCosts, Partition, PartitionOptions, PartitionReport, Pattern, Profile};
use burn_pipeline_plan::plan::Placement;
use burn_pipeline_plan::schedule::{OneFOneB, Schedule, Size};
use burn_pipeline_plan::simulate::{Bounds, SimulateOptions, simulate};
use libfuzzer_sys::fuzz_target;

/// Searching a cut for larger models takes long, which is no fault.
const MOST: usize = 12;

fuzz_target!(|text: &str| {
    if let Ok(profile) = Profile::from_json(text) {
        assert_eq!(Profile::from_json(&profile.to_json()).expect("a profile's own JSON is a profile"), profile);
        let merged = Profile::median(&[profile.clone(), profile.clone()]).expect("alike profiles can be merged");
        assert_eq!(merged.stages().len(), profile.stages().len());
        step(&profile);
        if let Ok(layers) = Layers::of_profile(&profile) {
            cut(&layers);
        }
    }
    if let Ok((layers, pattern)) = Layers::from_json(text) {
        let json = layers.to_json().expect("checked layers can be stored");
        assert_eq!(Layers::from_json(&json).expect("their own JSON are layers").0, layers);
        if let Some(pattern) = pattern {
            assert_eq!(pattern.to_string().parse::<Pattern>().expect("a pattern's own text is a pattern"), pattern);
            let _ = pattern.partition_of(&layers);
        }
        cut(&layers);
    }
});

/// A step of 1F1B with these costs and one rank per stage.
fn step(profile: &Profile) {
    let stages = profile.stages().len();
    if stages > MOST {
        return;
    }
    let plan = OneFOneB.build(Size::new(stages, 3)).expect("1F1B takes any size");
    let plan = plan.with_skips(profile.skips().to_vec()).expect("a profile's edges are valid");
    // A link may name a rank that the placement does not have.
    if let (Ok(step), Ok(bounds)) = (simulate(&plan, profile, &SimulateOptions::default()), Bounds::new(&plan, profile))
    {
        // Sums of the largest numbers are infinite.
        let (time, bound) = (step.makespan, bounds.makespan());
        assert!(!time.is_finite() || bound <= time * (1.0 + 1e-9), "{bound} > {time}");
    }
}

fn cut(layers: &Layers) {
    let stages = layers.len().min(3);
    let Ok(placement) = Placement::looped(stages, 1) else { return };
    let even = Partition::even(layers.len(), stages).expect("there are as many layers as stages");
    let _ = even.profile(layers, LinkCosts::default());
    let report = PartitionReport::new(layers, &even, &placement).expect("the cut is of these layers");
    assert!(report.to_string().lines().count() > stages);
    let text = Pattern::new(layers, &even).expect("the cut is of these layers").to_string();
    assert_eq!(text.parse::<Pattern>().expect("a pattern's own text is a pattern").partition(), even);
    // Sums of the largest numbers are infinite, and then no cut is better than another.
    let finite = layers.all().iter().map(|layer| layer.seconds()).sum::<f64>().is_finite();
    if layers.len() <= MOST && finite {
        let best = Partition::optimal(layers, &placement, &PartitionOptions::default());
        assert_eq!(best.expect("without a cap every model can be cut").partition.stages(), stages);
    }
}
