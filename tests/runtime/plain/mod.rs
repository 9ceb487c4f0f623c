//! Plain numbers and strings as extras and across boundaries: each microbatch's forward and backward use its own,
//! and a captured program never uses another microbatch's.

#[allow(dead_code, reason = "the tests over processes use all of it")]
pub(crate) mod model;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_pipeline::payload::{Boundary, BoundaryError, PayloadSpec, Validate};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, SingleStage, SplitBackward, Stage, StageBox, StageError};
use burn_pipeline::train::{Pipeline, PipelineError, StageContext};
use model::{MICROBATCHES, builder, plain_loop, train};

#[test]
fn each_microbatch_is_computed_with_its_own_numbers_and_strings() {
    let expected = plain_loop();
    for (schedule, chunks) in [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBH1", 1), ("ZBVZeroBubble", 2)] {
        for (split, recomputed, seed) in [
            (SplitBackward::Eager, false, None),
            (SplitBackward::Eager, true, Some(3)),
            (SplitBackward::Captured, false, None),
            (SplitBackward::Captured, false, Some(3)),
            (SplitBackward::Captured, true, None),
        ] {
            let size = Size::new(2, MICROBATCHES).with_chunks(chunks);
            let mut builder = builder(recomputed).schedule(schedule, size).split(split);
            builder = builder.validate(Validate::EveryMicrobatch);
            builder = if let Some(seed) = seed { builder.seed(seed) } else { builder };
            let given = train(&mut builder.build().unwrap());
            assert_eq!(given, expected, "{schedule}, {split:?}, recomputed: {recomputed}, {seed:?}");
        }
    }
}

/// Heats its input and ignores its name.
#[derive(Module, Debug)]
struct Heating {}

impl Stage for Heating {
    type Input = Tensor<2>;
    type Extra = (f64, String);
    type Output = (Tensor<2>, f64);

    fn extras(&self) -> Vec<&'static str> {
        vec!["heat", "name"]
    }

    fn forward(&self, x: Tensor<2>, (heat, name): (f64, String)) -> (Tensor<2>, f64) {
        assert!(!name.is_empty(), "every sample needs a name");
        (x.mul_scalar(heat as f32), heat)
    }
}

fn rows(width: usize) -> Tensor<2> {
    Tensor::ones([6, width], &Device::flex())
}

#[test]
fn programs_are_made_for_numbers_that_are_computed_with_and_no_others() {
    let mut stage = SingleStage::new(StageBox::new(Heating {}), SplitBackward::Captured, true);
    for (microbatch, heat) in [0.5, 2.0, 0.5, 2.0, 3.0].into_iter().enumerate() {
        let extra = (heat, format!("sample {microbatch}")).into_payload();
        let output = stage.forward(microbatch, rows(2).into_payload(), extra).unwrap();
        let (y, received) = <(Tensor<2>, f64)>::from_payload(output).unwrap();
        assert_eq!(y.into_data().iter::<f32>().collect::<Vec<_>>(), [heat as f32; 12]);
        assert_eq!(received, heat);
    }
    assert_eq!(stage.report().programs.len(), 3);
}

fn heating() -> Pipeline {
    crate::watchdog::quiet_ranks();
    let stages = |_: &StageContext| {
        StageBox::with_loss(Heating {}, |(y, _): (Tensor<2>, f64), target: Tensor<2>| (y - target).square().mean())
    };
    let builder = Pipeline::builder().schedule("1F1B", Size::new(1, 2)).devices(vec![Device::flex()]);
    builder.stages(stages).build().unwrap()
}

#[test]
fn a_number_of_another_type_is_refused_before_anything_runs_with_what_the_batch_holds() {
    let mut pipeline = heating();
    let batch = || Batch::new(rows(3)).target(rows(3)).extra("name", "a".to_owned());
    for (batch, expected, holds) in [
        (batch().extra("heat", 2i64), "a plain number (f64)", "(i64 2; string \"a\")"),
        (batch().extra("heat", "2".to_owned()), "a plain number (f64)", "(string \"2\"; string \"a\")"),
        (batch().extra("heat", rows(1)), "a plain number (f64)", "(float F32 [6, 1]; string \"a\")"),
        (batch().extra("heat", Some(2.0)), "a plain number (f64)", "(tag 1; f64 2; string \"a\")"),
        (batch().extra("heat", 2.0).extra("name", true), "a string", "(f64 2; bool true)"),
    ] {
        let error = pipeline.accumulate(batch).unwrap_err();
        let PipelineError::Refused { source: StageError::Extra { source, .. }, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*source, BoundaryError::Structure { expected });
        assert!(error.to_string().ends_with(&format!("; the batch holds {holds}")), "{error}");
    }
    pipeline.accumulate(batch().extra("heat", 2.0)).unwrap();
    // The same for a tensor: its type and shape are reported.
    let error = pipeline.accumulate(batch().extra("heat", 2.0).target(rows(3).unsqueeze_dim::<3>(1))).unwrap_err();
    assert!(error.to_string().ends_with("; the batch holds (float F32 [6, 1, 3])"), "{error}");
}

#[test]
fn an_error_tells_the_numbers_and_strings_that_the_stage_had_got() {
    let batch = Batch::new(rows(3)).target(rows(3)).extra("heat", 0.5).extra("name", String::new());
    let error = heating().accumulate(batch).unwrap_err().to_string();
    assert!(error.contains("every sample needs a name"), "{error}");
    for part in ["the input (float F32 [3, 3]) from the batch\n", "the extras (f64 0.5; string \"\") from the batch\n"]
    {
        assert!(error.contains(part), "{error} does not say {part}");
    }
}

#[test]
fn a_spec_expects_the_type_of_a_plain_value_and_not_its_value() {
    let spec = |value: (f64, i64, bool, String)| PayloadSpec::of(value).to_string();
    assert_eq!(spec((-0.0, -3, true, "a\"b".to_owned())), r#"(f64 -0; i64 -3; bool true; string "a\"b")"#);
}
