//! What crosses stage boundaries is known before anything trains, by declaration or by a run on zeros; and where
//! real tensors differ from it, that is said with stage, microbatch and tensor.

use crate::cases::{Case, Text, read, small_gpt};
use crate::parity::{assert_parity, builder};
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_pipeline::execute::ExecuteError;
use burn_pipeline::plan::StageId;
use burn_pipeline::schedule::{GPipe, OneFOneB, Size, by_name};
use burn_pipeline::stage::{
    Batch, Boundary, MetadataMode, PayloadSpec, SpecMismatch, SpecPart, Stage, StageBox, StageError, StageMetadata,
    StagePort, Validate,
};
use burn_pipeline::train::{BuildError, Builder, Pipeline, PipelineError, StageContext};
use pipeline_examples::gpt::Signal;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};

fn text(form: Option<&PayloadSpec>) -> String {
    form.map_or("unknown".to_owned(), PayloadSpec::to_string)
}

fn known(pipeline: &mut Pipeline, batch: Batch) -> (MetadataMode, Vec<(StageId, StageMetadata)>) {
    pipeline.metadata(batch).unwrap()
}

#[test]
fn a_run_on_zeros_finds_forms_and_gradients_at_every_boundary() {
    // Width 8, sequences of 6, 17 tokens; a hidden state is variant 1 of the boundary's enum, tokens variant 0.
    let hidden = "(tag 1; float F32 [?, 6, 8])";
    let (one, none) = ("(tag 1; tag 1; float F32 [?, 6, 8])", "(tag 1; tag 0)");
    for (family, chunks) in [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBV", 2), ("DualPipe", 1)] {
        for ranks in [2, 4] {
            let size = Size { ranks, chunks, microbatches: 4 };
            let mut pipeline = builder::<Text>(by_name(family).unwrap().as_ref(), size).build().unwrap();
            let (mode, stages) = known(&mut pipeline, Text::new(5).batch());
            assert_eq!(mode, MetadataMode::Dynamic);
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
                assert_eq!(said, expected.map(|form| form.replace("I32", &int_type())), "{family}, stage {stage}");
            }
        }
    }
}

/// What the device calls whole numbers.
fn int_type() -> String {
    format!("{:?}", Tensor::<1, Int>::zeros([1], &Device::flex()).dtype())
}

#[test]
fn validation_changes_no_number() {
    for validate in [Validate::FirstStep, Validate::EveryMicrobatch] {
        for (family, chunks) in [("GPipe", 1), ("ZBV", 2)] {
            let size = Size { ranks: 2, chunks, microbatches: 3 };
            let builder = builder::<Text>(by_name(family).unwrap().as_ref(), size).validate(validate);
            let builder = builder.accumulation(burn_pipeline::stage::Accumulation::Ordered);
            // Four samples in three microbatches: two sizes.
            assert_parity(&Text::new(4), &builder, 3, 4, family);
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

/// A layer, and on request a norm that keeps running statistics.
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

/// Two stages, from width 3 over 5 to 2.
fn layers(norm: bool, change: Change) -> Builder {
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
fn the_vote_is_static_only_if_every_stage_declared_its_forms() {
    let mode = |change| known(&mut layers(false, change).build().unwrap(), batch(4)).0;
    assert_eq!(mode(ALL), MetadataMode::Static);
    assert_eq!(mode(|stage, _| stage), MetadataMode::Dynamic);
    assert_eq!(mode(|stage, at| if at.is_first() { ALL(stage, at) } else { stage }), MetadataMode::Dynamic);
    assert_eq!(mode(|stage, at| if at.is_first() { stage } else { ALL(stage, at) }), MetadataMode::Dynamic);
}

/// The stage, microbatch, and what differs.
fn differs(error: PipelineError) -> (usize, usize, StageError) {
    match error {
        PipelineError::Rank(ExecuteError::Stage { stage, microbatch, source, .. }) => {
            (stage.index(), microbatch, source)
        }
        other => panic!("{other}"),
    }
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
    assert_eq!(known(&mut pipeline, tokens(3)).0, MetadataMode::Static);
    for lengths in [[3, 6], [1, 2]] {
        pipeline.step(Batch::from_microbatches(lengths.map(tokens).to_vec()), 0.1).unwrap();
    }
}

#[test]
fn a_batch_that_cannot_be_trained_on_teaches_nothing() {
    let mut pipeline = layers(false, ALL).build().unwrap();
    let error = pipeline.metadata(Batch::new(rows(4, 3))).unwrap_err();
    assert!(matches!(error, PipelineError::NoLoss { .. }), "{error}");
    assert!(matches!(BuildError::NoStages.to_string().as_str(), text if text.contains("Builder::stages")));
}

fn parts() -> impl Strategy<Value = PayloadSpec> {
    let device = Device::flex();
    let floats = (1usize..4, 1usize..4).prop_map(|(a, b)| PayloadSpec::of(Tensor::<2>::zeros([a, b], &Device::flex())));
    let ints = (1usize..4).prop_map(|a| PayloadSpec::of(Tensor::<1, Int>::zeros([a], &Device::flex())));
    let bools = PayloadSpec::of(Tensor::<1, Int>::zeros([2], &device).greater_elem(0));
    let number = (0usize..3).prop_map(|n| PayloadSpec::from_parts([SpecPart::Tag(n)]));
    let part = prop_oneof![floats, ints, Just(bools), number];
    proptest::collection::vec(part, 0..4)
        .prop_map(|forms| PayloadSpec::from_parts(forms.iter().flat_map(|form| form.parts().to_vec())))
}

proptest! {
    #[test]
    fn forms_fit_themselves_and_what_they_were_joined_to(one in parts(), other in parts()) {
        prop_assert_eq!(one.mismatch(&one), None);
        match one.join(&other) {
            Some(joined) => {
                prop_assert_eq!(one.mismatch(&joined), None);
                prop_assert_eq!(other.mismatch(&joined), None);
                prop_assert_eq!(one.mismatch(&other).is_some(), one != other);
                prop_assert_eq!(other.join(&one), Some(joined));
            }
            None => prop_assert!(one.mismatch(&other).is_some() && other.mismatch(&one).is_some()),
        }
    }

    #[test]
    fn the_first_tensor_that_differs_is_named(sizes in proptest::collection::vec(1usize..5, 1..6), at in 0usize..6) {
        let at = at % sizes.len();
        let list = |sizes: &[usize]| {
            sizes.iter().map(|&size| Tensor::<1>::zeros([size], &Device::flex())).collect::<Vec<_>>()
        };
        let mut other = sizes.clone();
        other[at] += 1;
        let (expected, got) = (PayloadSpec::of(list(&sizes)), PayloadSpec::of_payload(&list(&other).into_payload()));
        let SpecMismatch { tensor, expected, got } = got.mismatch(&expected).unwrap();
        prop_assert_eq!(tensor, Some(at));
        prop_assert_eq!(expected, format!("float F32 [{}]", sizes[at]));
        prop_assert_eq!(got, format!("float F32 [{}]", sizes[at] + 1));
    }
}

#[test]
fn a_missing_or_left_over_part_is_said_as_such() {
    let flag = || Tensor::<1, Bool>::from_data([true], &Device::flex());
    let (one, two) = (PayloadSpec::of(flag()), PayloadSpec::of((flag(), flag())));
    let missing = one.mismatch(&two).unwrap();
    assert_eq!((missing.tensor, missing.got.as_str()), (Some(1), "nothing"));
    let more = two.mismatch(&one).unwrap();
    assert_eq!((more.tensor, more.expected.as_str()), (Some(1), "nothing"));
    assert_eq!(PayloadSpec::of(Some(flag())).mismatch(&PayloadSpec::of(None::<Tensor<1, Bool>>)).unwrap().tensor, None);
}
