//! The changed lines that the guide shows are those of the example.

const GUIDE: &str = include_str!("../../../burn-pipeline/src/_guide/burns_training_loop.md");
const EXAMPLE: &str = include_str!("../../../examples/learner_cnn.rs");

/// The lines of the guide's diff: whether each is new, and its text.
fn diff() -> Vec<(bool, &'static str)> {
    let block = GUIDE.split("```diff\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of code");
    let lines = block.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| (line.starts_with("+ "), line.trim_start_matches('+').trim())).collect()
}

#[test]
fn the_guides_diff_has_the_lines_of_the_example_in_their_order() {
    let mut lines = EXAMPLE.lines().map(str::trim);
    for (_, line) in diff() {
        assert!(lines.any(|other| other == line), "not in the example, or not in this order: {line}");
    }
}

#[test]
fn every_line_of_the_example_that_chooses_the_pipeline_is_new_in_the_guides_diff() {
    let chooses = |line: &str| {
        line.starts_with("use burn_pipeline")
            || line.contains("PipelineStrategy::")
            || line.contains("Pipeline::builder")
    };
    let expected: Vec<&str> = EXAMPLE.lines().map(str::trim).filter(|line| chooses(line)).collect();
    let new: Vec<&str> = diff().into_iter().filter(|(new, _)| *new).map(|(_, line)| line).collect();
    assert_eq!(new, expected);
}
