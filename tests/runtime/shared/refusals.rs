//! Anything that would let copies diverge unnoticed is refused, with the place.

use super::model::{SMALL, Size, Text, Tied, loss, part, stage, table, vector};
use super::{PlanSize, RATE};
use burn::module::{Param, ParamGroup};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_pipeline::execute::ExecuteError;
use burn_pipeline::schedule::GPipe;
use burn_pipeline::stage::{ReplaceError, SharedError, StageBox};
use burn_pipeline::train::{BuildError, Builder, Pipeline, PipelineError, SharedParameter, StageContext};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

type Factory = fn(&StageContext) -> StageBox;

fn builder(factory: impl Fn(&StageContext) -> StageBox + Send + Sync + 'static) -> Builder {
    let builder = Pipeline::builder().schedule(GPipe, PlanSize::new(2, 2)).devices(vec![Device::flex()]);
    builder.stages(factory).optimizer(|| AdamWConfig::new().init())
}

fn refused(builder: Builder) -> SharedError {
    match builder.build() {
        Err(BuildError::Stages(error)) => shared(*error),
        other => panic!("{other:?}"),
    }
}

fn shared(error: PipelineError) -> SharedError {
    match error.of_rank() {
        Some(ExecuteError::Shared { source, .. }) => (**source).clone(),
        other => panic!("{other:?}"),
    }
}

fn tables() -> SharedParameter {
    SharedParameter::new("table").at("token").at("scores")
}

/// The usual stages, with `change` applied to the last one.
fn changed(change: fn(&mut Tied, &StageContext)) -> impl Fn(&StageContext) -> StageBox + Send + Sync + 'static {
    move |at| {
        let mut last = part(SMALL, at);
        if !at.is_last() {
            return StageBox::new(last);
        }
        change(&mut last, at);
        StageBox::with_loss(last, loss)
    }
}

#[test]
fn a_path_that_leads_nowhere_is_refused_with_some_that_do() {
    let error = refused(builder(stage(SMALL)).share(tables().at("score")));
    let SharedError::NotFound { name, path, there } = &error else { panic!("{error}") };
    assert_eq!((name.as_str(), path.as_str()), ("table", "score"));
    assert!(there.contains("`bias`") && there.contains("`blocks.0.weight`"), "{there}");
    let error = refused(builder(stage(SMALL)).share(SharedParameter::new("nothing")));
    assert!(matches!(error, SharedError::NotFound { .. }), "{error}");
}

#[test]
fn a_parameter_that_is_declared_twice_is_refused() {
    let error = refused(builder(stage(SMALL)).share(tables()).share(SharedParameter::new("again").at("token")));
    let expected =
        SharedError::DeclaredTwice { stage: 0, path: "token".into(), first: "table".into(), second: "again".into() };
    assert_eq!(error, expected);
}

#[test]
fn copies_of_other_shape_are_refused() {
    let other = changed(|last, at| last.scores = Some(table(3, SMALL.width, SMALL.vocab, &at.device)));
    let error = refused(builder(other).share(tables()));
    let said = "shared parameter `table`: `scores` of stage 1 is [6, 11] of F32, trained, but `token` of stage 0 is \
                [11, 6] of F32, trained; copies must be alike";
    assert_eq!(error.to_string(), said);
}

#[test]
fn a_copy_that_is_frozen_while_others_are_trained_is_refused() {
    let frozen = changed(|last, _| {
        last.scores = last.scores.take().map(|scores| scores.set_require_grad(false));
    });
    let error = refused(builder(frozen).share(tables()));
    assert!(matches!(&error, SharedError::Unlike { got, .. } if got.ends_with("frozen")), "{error}");
}

static ONE: LazyLock<Param<Tensor<2>>> =
    LazyLock::new(|| table(1, SMALL.vocab, SMALL.width, &Device::flex().autodiff()));

/// Parts of a whole model, whose one table is at both ends.
fn stages_of_one(at: &StageContext, change: fn(Param<Tensor<2>>) -> Param<Tensor<2>>) -> StageBox {
    let (mut part, table) = (part(SMALL, at), change(ONE.clone()));
    match at.is_last() {
        false => {
            part.token = Some(table);
            StageBox::new(part)
        }
        true => {
            part.scores = Some(table);
            StageBox::with_loss(part, loss)
        }
    }
}

#[test]
fn one_identifier_on_two_stages_without_a_declaration_is_refused() {
    let stages = |at: &StageContext| stages_of_one(at, |table| table);
    let error = refused(builder(stages));
    let expected =
        SharedError::Undeclared { first_stage: 0, first_path: "token".into(), stage: 1, path: "scores".into() };
    assert_eq!(error, expected);
    // Frozen on both stages they stay equal, but one cannot be trained later.
    let mut frozen = builder(|at| stages_of_one(at, |table| table.set_require_grad(false))).build().unwrap();
    let thawed = frozen.replace_module(0, |mut part: Tied, _: &StageContext| {
        part.token = part.token.map(|table| table.set_require_grad(true));
        part
    });
    let Err(PipelineError::Replace { source: ReplaceError::Elsewhere { path }, .. }) = thawed else {
        panic!("{thawed:?}")
    };
    assert_eq!(path, "token");
    // Declared as tied, it trains.
    let mut pipeline = builder(stages).share(tables()).build().unwrap();
    pipeline.step(Text::new(SMALL, 4, 1).batch(), RATE).unwrap();
}

#[test]
fn an_optimizer_that_treats_copies_differently_is_refused_after_the_first_step() {
    let made = AtomicUsize::new(0);
    let uneven = move || match made.fetch_add(1, Ordering::Relaxed) {
        0 => AdamWConfig::new().init(),
        _ => SgdConfig::new().init(),
    };
    let mut pipeline = builder(stage(SMALL)).share(tables()).optimizer(uneven).build().unwrap();
    let error = shared(pipeline.step(Text::new(SMALL, 4, 1).batch(), RATE).unwrap_err());
    let expected = SharedError::Diverged {
        name: "table".into(),
        stage: 1,
        path: "scores".into(),
        first_stage: 0,
        first_path: "token".into(),
    };
    assert_eq!(error, expected);
}

#[test]
fn all_copies_are_stepped_by_the_group_of_the_first_one_s_name() {
    let losses = |ranks, group: &'static str| {
        let grouped = move || {
            AdamWConfig::new().init().with_group(ParamGroup::from_predicate(group), SgdConfig::new().build(), None)
        };
        let bias = SharedParameter::new("bias").at("bias");
        let builder = builder(stage(SMALL)).schedule(GPipe, PlanSize::new(ranks, 2)).share(tables()).share(bias);
        let mut pipeline = builder.optimizer(grouped).build().unwrap();
        let step = |step| pipeline.step(Text::new(SMALL, 4, step).batch(), RATE).unwrap().loss;
        (0..4).map(step).collect::<Vec<f64>>()
    };
    for group in ["token", "scores"] {
        let (one, two) = (losses(1, group), losses(2, group));
        assert!(one.iter().zip(&two).all(|(one, two)| (one - two).abs() < 1e-5), "{group}: {one:?}, {two:?}");
    }
    assert_ne!(losses(2, "token"), losses(2, "scores"));
}

/// A part that holds one parameter in two places of its module.
#[test]
fn one_parameter_in_two_places_of_a_stage_is_stepped_in_both() {
    let twice: Factory = |at| {
        let mut part = part(SMALL, at);
        part.scores = part.token.clone();
        StageBox::with_loss(part, loss)
    };
    let run = |factory: Factory| {
        let plan = PlanSize::new(1, 2);
        let builder = Pipeline::builder().schedule(GPipe, plan).devices(vec![Device::flex()]);
        let mut pipeline = builder.stages(factory).optimizer(|| AdamWConfig::new().init()).build().unwrap();
        let losses: Vec<f64> =
            (0..5).map(|step| pipeline.step(Text::new(SMALL, 4, step).batch(), RATE).unwrap().loss).collect();
        (losses, pipeline.module::<Tied>(0).unwrap())
    };
    let (losses, module) = run(twice);
    let once: Factory = |at| StageBox::with_loss(part(SMALL, at), loss);
    let (expected, _) = run(once);
    assert_eq!(losses, expected);
    let read = |table: Option<Param<Tensor<2>>>| table.unwrap().val().into_data().iter::<f32>().collect::<Vec<f32>>();
    assert_eq!(read(module.token), read(module.scores));
}

#[test]
fn what_is_frozen_everywhere_may_be_shared_and_starts_equal() {
    let size = Size { layers: 2, ..SMALL };
    let frozen = move |at: &StageContext| {
        let mut part = part(size, at);
        part.bias = vector(60 + at.index as u64, size.width, &at.device).set_require_grad(false);
        match at.is_last() {
            true => StageBox::with_loss(part, loss),
            false => StageBox::new(part),
        }
    };
    let bias = SharedParameter::new("bias").at("bias");
    let mut pipeline = builder(frozen).share(tables()).share(bias).build().unwrap();
    assert!(pipeline.shared()[1].to_string().ends_with("frozen, nothing to sum"));
    pipeline.step(Text::new(size, 4, 1).batch(), RATE).unwrap();
    let copies = super::copies(&mut pipeline, "bias");
    assert_eq!(copies[0], copies[1]);
    assert_eq!(copies[0], crate::cases::noise(60, size.width));
}

#[test]
fn copies_of_which_one_is_sharded_are_refused() {
    let one = |at: &StageContext| stage(SMALL)(at).sharded(at.is_last());
    let error = refused(builder(one).share(tables()).share(SharedParameter::new("bias").at("bias")).data_parallel(2));
    assert!(
        matches!(&error, SharedError::HalfSharded { name, stage: 1, first_stage: 0 } if name == "table"),
        "{error}"
    );
    // A shape declared for both copies, or for neither, is accepted.
    for sharded in [false, true] {
        let both = move |at: &StageContext| stage(SMALL)(at).sharded(sharded);
        let shared = builder(both).share(tables()).share(SharedParameter::new("bias").at("bias"));
        assert!(shared.data_parallel(2).build().is_ok(), "{sharded}");
    }
}
