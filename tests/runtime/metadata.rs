//! Stage boundaries are known before training, from declarations or from a run on zeros. Tensors that differ from
//! them are reported with stage, microbatch and tensor.

use crate::cases::{Case, Text, read, small_gpt};
use crate::parity::{assert_parity, builder};
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::execute::ExecuteError;
use burn_pipeline::payload::{PayloadSpec, StageMetadata, StagePort, Validate};
use burn_pipeline::plan::StageId;
use burn_pipeline::schedule::{GPipe, OneFOneB, Size, by_name};
use burn_pipeline::stage::{Batch, SplitBackward, Stage, StageBox, StageError, init_seeded};
use burn_pipeline::train::{BuildError, Builder, Pipeline, PipelineError, StageContext};
use pipeline_examples::gpt::Signal;

fn text(form: Option<&PayloadSpec>) -> String {
    form.map_or("unknown".to_owned(), PayloadSpec::to_string)
}

fn known(pipeline: &mut Pipeline, batch: Batch) -> Vec<(StageId, StageMetadata)> {
    pipeline.metadata(batch).unwrap()
}

/// Returns true if the stages ran on zeros: declarations include no gradients.
fn ran_on_zeros(known: &[(StageId, StageMetadata)]) -> bool {
    known.iter().any(|(_, known)| known.input_gradients.is_some())
}

#[test]
fn a_run_on_zeros_finds_forms_and_gradients_at_every_boundary() {
    // Width 8, sequences of 6, 17 tokens. A hidden state is variant 1 of the boundary's enum, tokens are variant 0.
    let hidden = "(tag 1; float F32 [?, 6, 8])";
    let (one, none) = ("(tag 1; tag 1; float F32 [?, 6, 8])", "(tag 1; tag 0)");
    for (schedule, chunks) in [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBV", 2), ("DualPipe", 1)] {
        for ranks in [2, 4] {
            let size = Size { ranks, chunks, microbatches: 4 };
            let mut pipeline = builder::<Text>(by_name(schedule).unwrap().as_ref(), size).build().unwrap();
            let stages = known(&mut pipeline, Text::new(5).batch());
            assert_eq!(stages.len(), pipeline.placement().slots());
            for (stage, known) in stages {
                let (first, last) = (stage.index() == 0, stage.index() + 1 == ranks * chunks);
                let said = [StagePort::Input, StagePort::Output, StagePort::OutputGradient, StagePort::InputGradient];
                let said = said.map(|port| text(known.at(port)));
                let expected = [
                    if first { "(tag 0; int I32 [?, 6])" } else { hidden },
                    if last { "unknown" } else { hidden },
                    if last { "unknown" } else { one },
                    if first { none } else { one },
                ];
                assert_eq!(said, expected.map(|form| form.replace("I32", &int_type())), "{schedule}, stage {stage}");
            }
        }
    }
}

/// The device's integer type.
fn int_type() -> String {
    format!("{:?}", Tensor::<1, Int>::zeros([1], &Device::flex()).dtype())
}

#[test]
fn validation_changes_no_number() {
    for validate in [Validate::FirstStep, Validate::EveryMicrobatch] {
        for (schedule, chunks) in [("GPipe", 1), ("ZBV", 2)] {
            let size = Size { ranks: 2, chunks, microbatches: 3 };
            let builder = builder::<Text>(by_name(schedule).unwrap().as_ref(), size).validate(validate);
            let builder = builder.accumulation(burn_pipeline::stage::Accumulation::Ordered);
            // Four samples in three microbatches: two sizes.
            assert_parity(&Text::new(4), &builder, 3, 4, schedule);
        }
    }
}

#[test]
fn learning_in_the_midst_of_a_step_keeps_the_gradients_gathered() {
    let weights = |learn: bool| {
        let mut pipeline = builder::<Text>(&OneFOneB, Size::new(2, 2)).build().unwrap();
        pipeline.accumulate(Text::new(2).batch()).unwrap();
        if learn {
            known(&mut pipeline, Text::new(3).batch());
        }
        pipeline.step(Text::new(4).batch(), 0.1).unwrap();
        pipeline.weights().unwrap().iter().flatten().map(read).collect::<Vec<_>>()
    };
    assert_eq!(weights(true), weights(false));
}

/// A layer with an optional norm that keeps running statistics.
#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    norm: Option<BatchNorm>,
}

impl Stage for Layer {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let y = self.linear.forward(x);
        self.norm.as_ref().map_or(y.clone(), |norm| norm.forward(y))
    }
}

type Change = fn(StageBox, &StageContext) -> StageBox;

/// Two stages, of widths 3, 5 and 2.
fn layers(norm: bool, change: impl Fn(StageBox, &StageContext) -> StageBox + Send + Sync + 'static) -> Builder {
    let stage = move |at: &StageContext| {
        let [from, to] = if at.is_first() { [3, 5] } else { [5, 2] };
        let linear = burn_pipeline::stage::init_seeded(at.index as u64, &at.device, |device| {
            LinearConfig::new(from, to).init(device)
        });
        let norm = norm.then(|| BatchNormConfig::new(to).init(&at.device));
        let layer = Layer { linear, norm };
        let stage = match at.is_last() {
            true => StageBox::with_loss(layer, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean()),
            false => StageBox::new(layer),
        };
        change(stage, at)
    };
    let builder = Pipeline::builder().schedule(GPipe, Size::new(2, 2)).devices(vec![Device::flex()]);
    builder.stages(stage).optimizer(|| SgdConfig::new().init())
}

fn rows(samples: usize, width: usize) -> Tensor<2> {
    Tensor::ones([samples, width], &Device::flex())
}

fn batch(samples: usize) -> Batch {
    Batch::new(rows(samples, 3)).target(rows(samples, 2))
}

fn form(width: usize) -> PayloadSpec {
    PayloadSpec::of(rows(1, width)).free(0)
}

const ALL: Change = |stage, at| match at.is_first() {
    true => stage.declare(form(3), Some(form(5))),
    false => stage.declare(form(5), None),
};

#[test]
fn running_statistics_do_not_see_the_zeros() {
    let statistics = |validate| {
        let mut pipeline = layers(true, |stage, _| stage).validate(validate).build().unwrap();
        let losses: Vec<f64> = (0..3).map(|_| pipeline.step(batch(4), 0.1).unwrap().loss).collect();
        (losses, pipeline.weights().unwrap().iter().flatten().map(read).collect::<Vec<_>>())
    };
    assert_eq!(statistics(Validate::EveryMicrobatch), statistics(Validate::Off));
}

#[test]
fn declarations_count_only_if_every_stage_declared_its_specs() {
    let ran = |change| ran_on_zeros(&known(&mut layers(false, change).build().unwrap(), batch(4)));
    assert!(!ran(ALL));
    assert!(ran(|stage, _| stage));
    assert!(ran(|stage, at| if at.is_first() { ALL(stage, at) } else { stage }));
    assert!(ran(|stage, at| if at.is_first() { stage } else { ALL(stage, at) }));
}

/// The stage, the microbatch, and the difference.
fn differs(error: PipelineError) -> (usize, usize, StageError) {
    let of_rank = error.of_rank().unwrap();
    let ExecuteError::Stage { stage, microbatch, source, .. } = of_rank.cause() else { panic!("{error}") };
    (stage.index(), *microbatch, source.clone())
}

#[test]
fn a_declaration_that_a_run_on_zeros_refutes_is_refused() {
    let wrong: Change = |stage, at| if at.is_first() { stage.declare(form(3), Some(form(6))) } else { stage };
    let error = layers(false, wrong).build().unwrap().metadata(batch(4)).unwrap_err();
    let (stage, _, source) = differs(error);
    assert_eq!(stage, 0);
    let said = "tensor 0 of the stage's output: expected float F32 [?, 6], got float F32 [?, 5]; correct the \
                stage that computes it, or declare the size free (`PayloadSpec::free`)";
    assert_eq!(source.to_string(), said);
}

#[test]
fn both_the_sender_and_the_receiver_compare() {
    let sender: Change = |stage, at| if at.is_first() { stage.declare(form(3), Some(form(6))) } else { ALL(stage, at) };
    let receiver: Change = |stage, at| if at.is_first() { ALL(stage, at) } else { stage.declare(form(6), None) };
    for (change, expected_stage, expected_port) in [(sender, 0, StagePort::Output), (receiver, 1, StagePort::Input)] {
        for validate in [Validate::FirstStep, Validate::EveryMicrobatch] {
            let mut pipeline = layers(false, change).validate(validate).build().unwrap();
            let (stage, microbatch, source) = differs(pipeline.step(batch(4), 0.1).unwrap_err());
            assert_eq!((stage, microbatch), (expected_stage, 0));
            let StageError::Metadata { port, tensor, expected, got } = source else { panic!("{source}") };
            assert_eq!((port, tensor), (expected_port, Some(0)));
            assert_eq!((expected.as_str(), got.as_str()), ("float F32 [?, 6]", "float F32 [2, 5]"));
        }
        layers(false, change).build().unwrap().step(batch(4), 0.1).unwrap();
    }
}

/// The gradients of tensors of these widths; `None` for a tensor without one.
fn gradients(widths: &[Option<usize>]) -> Option<PayloadSpec> {
    let tensor = |width: &Option<usize>| width.map(|width| rows(1, width));
    Some(PayloadSpec::of(widths.iter().map(tensor).collect::<Vec<_>>()).free(0))
}

/// Both stages with their gradients: `between` for the boundary's hidden state, `first` for the model's input.
fn with_gradients(
    between: Option<usize>,
    first: Option<usize>,
) -> impl Fn(StageBox, &StageContext) -> StageBox + Copy + Send + Sync {
    move |stage, at| {
        let (between, first) = (gradients(&[between]), gradients(&[first]));
        stage.declare_metadata(match at.is_first() {
            true => StageMetadata {
                input: Some(form(3)),
                output: Some(form(5)),
                output_gradients: between,
                input_gradients: first,
            },
            false => StageMetadata { input: Some(form(5)), input_gradients: between, ..StageMetadata::default() },
        })
    }
}

#[test]
fn declared_gradients_are_those_that_a_run_on_zeros_finds_and_hold_in_every_microbatch() {
    let right = with_gradients(Some(5), None);
    let declared = known(&mut layers(false, right).build().unwrap(), batch(4));
    let found = known(&mut layers(false, |stage: StageBox, _: &StageContext| stage).build().unwrap(), batch(4));
    for ((_, declared), (stage, found)) in declared.iter().zip(&found) {
        let ports =
            [StagePort::OutputGradient, StagePort::InputGradient].map(|port| (declared.at(port), found.at(port)));
        for (declared, found) in ports {
            assert_eq!(text(declared), text(found), "stage {stage}");
        }
    }
    let mut pipeline = layers(false, right).validate(Validate::EveryMicrobatch).build().unwrap();
    pipeline.step(batch(4), 0.1).unwrap();
}

#[test]
fn a_gradient_that_is_there_or_missing_otherwise_than_declared_is_named() {
    // The model's input has no gradient, and the hidden state has one.
    for (wrong, stage, port) in [
        (with_gradients(Some(5), Some(3)), 0, StagePort::InputGradient),
        (with_gradients(None, None), 1, StagePort::InputGradient),
    ] {
        let mut pipeline = layers(false, wrong).validate(Validate::FirstStep).build().unwrap();
        let (at, _, source) = differs(pipeline.step(batch(4), 0.1).unwrap_err());
        assert!(matches!(&source, StageError::Metadata { port: found, .. } if *found == port), "{source}");
        assert_eq!(at, stage);
        // If only this stage has a declaration, the run on zeros refutes it.
        let one = move |other: StageBox, at: &StageContext| if at.index == stage { wrong(other, at) } else { other };
        let error = layers(false, one).build().unwrap().metadata(batch(4)).unwrap_err();
        assert!(matches!(differs(error), (found, _, StageError::Metadata { .. }) if found == stage));
        // Without validation nothing is compared, and declarations change no number.
        layers(false, wrong).build().unwrap().step(batch(4), 0.1).unwrap();
    }
}

#[test]
fn a_gradient_that_is_none_of_its_tensor_is_refused_at_build() {
    let int = || PayloadSpec::of(Tensor::<2, Int>::zeros([1, 3], &Device::flex())).free(0);
    let refused = |input: PayloadSpec, input_gradients: Option<PayloadSpec>| {
        let change = move |stage: StageBox, at: &StageContext| {
            let metadata = StageMetadata {
                input: Some(input.clone()),
                input_gradients: input_gradients.clone(),
                ..StageMetadata::default()
            };
            if at.is_first() { stage.declare_metadata(metadata) } else { stage }
        };
        layers(false, change).build().unwrap_err().to_string()
    };
    let cases = [
        (
            form(3),
            gradients(&[Some(4)]),
            "tensor 0 of the declared input's gradients: float F32 [?, 4], where it can be float F32 [?, 3]",
        ),
        (int(), gradients(&[Some(3)]), "where it can be none, as it is int"),
        (form(3), gradients(&[Some(3), None]), "where it can be a list of 1 optional tensor(s)"),
        (form(3), Some(form(3)), "where it can be a list of 1 optional tensor(s)"),
    ];
    for (input, gradients, says) in cases {
        let said = refused(input, gradients);
        assert!(said.contains("stage 0") && said.contains(says), "{said}");
    }
}

/// Sequences of this length for the small GPT.
fn tokens(length: usize) -> Batch {
    let tokens = Tensor::<2, Int>::zeros([2, length], &Device::flex());
    Batch::new(Signal::Tokens(tokens.clone())).target(tokens)
}

#[test]
fn a_shape_that_changes_is_noticed_as_late_as_was_asked_for() {
    let pipeline = |validate| {
        let mut pipeline = builder::<Text>(&GPipe, Size::new(2, 2)).validate(validate).build().unwrap();
        pipeline.step(tokens(4), 0.1).unwrap();
        pipeline
    };
    pipeline(Validate::Off).step(tokens(5), 0.1).unwrap();
    pipeline(Validate::FirstStep).step(tokens(5), 0.1).unwrap();
    pipeline(Validate::EveryMicrobatch).step(tokens(4), 0.1).unwrap();
    let (stage, microbatch, source) = differs(pipeline(Validate::EveryMicrobatch).step(tokens(5), 0.1).unwrap_err());
    assert_eq!((stage, microbatch), (0, 0));
    assert!(matches!(&source, StageError::Metadata { port: StagePort::Input, tensor: Some(0), .. }), "{source}");
    // Within one step, in its second microbatch.
    let piece = |length| tokens(length);
    let ready = Batch::from_microbatches(vec![piece(4), piece(5)]);
    let mut pipeline = builder::<Text>(&GPipe, Size::new(2, 2)).validate(Validate::FirstStep).build().unwrap();
    assert_eq!(differs(pipeline.step(ready, 0.1).unwrap_err()).1, 1);
}

#[test]
fn declared_free_sizes_may_change_in_every_microbatch() {
    let hidden = || PayloadSpec::of(Signal::Hidden(Tensor::zeros([1, 1, 8], &Device::flex()))).free(0).free(1);
    let ids = || PayloadSpec::of(Signal::Tokens(Tensor::zeros([1, 1], &Device::flex()))).free(0).free(1);
    let stage = move |at: &StageContext| match (at.is_first(), at.is_last()) {
        (true, _) => small_gpt().stage(at).declare(ids(), Some(hidden())),
        (_, true) => small_gpt().stage(at).declare(hidden(), None),
        _ => small_gpt().stage(at).declare(hidden(), Some(hidden())),
    };
    let builder = Pipeline::builder().schedule(OneFOneB, Size::new(3, 2)).devices(vec![Device::flex()]);
    let mut pipeline = builder.stages(stage).validate(Validate::EveryMicrobatch).build().unwrap();
    assert!(!ran_on_zeros(&known(&mut pipeline, tokens(3))));
    for lengths in [[3, 6], [1, 2]] {
        pipeline.accumulate(Batch::from_microbatches(lengths.map(tokens).to_vec())).unwrap();
    }
}

#[test]
fn a_batch_that_cannot_be_trained_on_teaches_nothing() {
    let mut pipeline = layers(false, ALL).build().unwrap();
    let error = pipeline.metadata(Batch::new(rows(4, 3))).unwrap_err();
    assert!(matches!(error, PipelineError::NoTarget), "{error}");
    assert!(matches!(BuildError::NoStages.to_string().as_str(), text if text.contains("Builder::stages")));
}

/// A stage that draws only with a seed: recomputation would otherwise draw other numbers.
#[derive(Module, Debug)]
struct Dropping {
    linear: Linear,
    dropout: Dropout,
}

impl Stage for Dropping {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.dropout.forward(self.linear.forward(x))
    }
}

#[test]
fn the_run_on_zeros_draws_from_the_seed() {
    for (split, name) in [(SplitBackward::Eager, "1F1B"), (SplitBackward::Captured, "ZBH1")] {
        let losses = [Validate::Off, Validate::FirstStep].map(|validate| {
            let builder = Pipeline::builder().schedule(name, Size::new(2, 2)).devices(vec![Device::flex()]);
            let builder = builder.optimizer(|| SgdConfig::new().init()).split(split).seed(7).validate(validate);
            let mut pipeline = builder
                .stages(|at| {
                    let linear =
                        init_seeded(at.index as u64, &at.device, |device| LinearConfig::new(4, 4).init(device));
                    let part = Dropping { linear, dropout: DropoutConfig::new(0.5).init() };
                    let stage = match at.is_last() {
                        true => StageBox::with_loss(part, |y: Tensor<2>, to: Tensor<2>| (y - to).square().mean()),
                        false => StageBox::new(part),
                    };
                    stage.recomputed(true)
                })
                .build()
                .unwrap();
            let ones = || Tensor::<2>::ones([4, 4], &Device::flex());
            [(); 2].map(|()| pipeline.step(Batch::new(ones()).target(ones()), 0.1).unwrap().loss)
        });
        assert_eq!(losses[0], losses[1], "{split:?}");
    }
}
