//! Features that do not work with vocabulary parallelism are refused, with what to do instead.

use crate::model::{BOTH, EMBEDDING, HEAD, NOTHING, batch, builder, vocabulary};
use crate::plain::{VOCABULARY, WIDTH, data, token};
use burn::grad_clipping::GradientClippingConfig;
use burn::nn::{EmbeddingConfig, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::cost::{Profile, UniformCosts, VocabularyCost};
use burn_pipeline::payload::Validate;
use burn_pipeline::stage::Reduction;
use burn_pipeline::train::{AutoOptions, SharedParameter};
use burn_pipeline::{AutoPipeline, Batch, Builder, Plan, Schedule, Size, Vocabulary};

fn parallel() -> Builder {
    builder(BOTH, ("1F1B", 1), 2, 4)
}

fn refused(builder: Builder) -> String {
    builder.build().unwrap_err().to_string()
}

#[test]
fn choices_that_do_not_work_together_are_refused_at_the_start() {
    for (builder, what) in [
        (parallel().tensor_parallel(2), "`Builder::vocabulary` does not work with `Builder::tensor_parallel`"),
        (parallel().share(SharedParameter::new("w")), "`Builder::share` does not work"),
        (parallel().validate(Validate::FirstStep), "`Builder::validate` does not work"),
        (parallel().reduction(Reduction::Weighted), "`Reduction::Weighted` does not work"),
        (parallel().vocabulary(Vocabulary::new()), "neither an embedding nor a head"),
        (builder(BOTH, ("DualPipe", 1), 2, 4), "its schedule is bidirectional"),
    ] {
        let error = refused(builder);
        assert!(error.contains(what), "{error}");
    }
    let error = AutoPipeline::new(parallel(), Size::new(2, 4), AutoOptions::default()).err().unwrap().to_string();
    assert!(error.contains("`AutoPipeline` does not work"), "{error}");
}

/// 1F1B with a parallel vocabulary, planned by the user.
fn plan() -> Plan {
    let plan = burn_pipeline::schedule::OneFOneB.build(Size::new(2, 4)).unwrap();
    let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
    let pieces = VocabularyCost { head_forward: 1.0, head_input: 1.0, head_weight: 1.0, ..VocabularyCost::default() };
    plan.with_vocabulary(&profile.with_vocabulary(pieces).unwrap()).unwrap()
}

#[test]
fn a_plan_that_spreads_other_layers_than_there_are_pieces_of_is_refused_and_its_own_is_run() {
    for (builder, said) in [
        (builder(NOTHING, ("1F1B", 1), 2, 4), "gives nothing"),
        (builder(EMBEDDING, ("1F1B", 1), 2, 4), "gives the embedding;"),
        (builder(HEAD, ("1F1B", 1), 2, 4), "gives the head;"),
    ] {
        let error = refused(builder.plan(plan()));
        let planned = "1F1B is vocabulary parallel for the embedding and the head";
        assert!(error.contains(planned) && error.contains(said), "{error}");
    }
    let mut given = parallel().plan(plan()).build().unwrap();
    let plan_text = given.plan(4).unwrap().plan().to_csv();
    assert_eq!(plan_text, plan().with_transfers().unwrap().to_csv());
    let (got, expected) =
        (given.step(batch(8), 0.1).unwrap(), parallel().build().unwrap().step(batch(8), 0.1).unwrap());
    assert_eq!(got.loss, expected.loss);
}

#[test]
fn costs_of_a_vocabulary_place_its_pieces() {
    let profile = Profile::uniform(plan().placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
    let pieces = VocabularyCost { head_forward: 9.0, head_input: 9.0, head_weight: 9.0, ..VocabularyCost::default() };
    let mut by_costs = parallel().planned_with(profile.clone().with_vocabulary(pieces).unwrap()).build().unwrap();
    let mut rough = parallel().build().unwrap();
    assert_ne!(by_costs.plan(4).unwrap().plan().to_csv(), rough.plan(4).unwrap().plan().to_csv());
    let error = refused(parallel().planned_with(profile));
    assert!(error.contains("does not fit the plan"), "{error}");
}

#[test]
fn stages_that_are_not_between_the_spread_layers_are_refused() {
    // The last stage of this model has its own head and loss.
    let error = refused(builder(EMBEDDING, ("1F1B", 1), 2, 4).vocabulary(vocabulary(BOTH)));
    assert!(error.contains("stage 1 was built with a loss, but the vocabulary-parallel head"), "{error}");
    let embedding = Vocabulary::new().embedding("spread", token);
    let no_loss = builder(HEAD, ("1F1B", 1), 2, 4).vocabulary(embedding).build();
    let error = no_loss.unwrap().step(batch(8), 0.1).unwrap_err().to_string();
    assert!(error.contains("stage 1") && error.contains("has no loss"), "{error}");
}

#[test]
fn layers_that_cannot_be_cut_are_refused() {
    let head = |words, bias| {
        let head = LinearConfig::new(WIDTH, words).with_bias(bias);
        let vocabulary = Vocabulary::new().embedding("token", token).head("scores", move |device| head.init(device));
        refused(parallel().vocabulary(vocabulary))
    };
    let error = head(1, false);
    assert!(error.contains("1 words of the head cannot be cut over 2 ranks, each of which needs one"), "{error}");
    let error = head(VOCABULARY, true);
    assert!(error.contains("a vocabulary-parallel head cannot have a bias: make it `with_bias(false)`"), "{error}");
    let one = |device: &Device| EmbeddingConfig::new(1, WIDTH).init(device);
    let error = refused(builder(EMBEDDING, ("1F1B", 1), 2, 4).vocabulary(Vocabulary::new().embedding("token", one)));
    assert!(error.contains("1 words of the embedding cannot be cut over 2 ranks"), "{error}");
}

#[test]
fn an_optimizer_that_looks_at_whole_parameters_is_refused() {
    let clipping = || SgdConfig::new().with_gradient_clipping(Some(GradientClippingConfig::Norm(0.1))).init();
    let error = refused(parallel().optimizer(clipping));
    assert!(error.contains("does not step each element by itself") && error.contains("`vocabulary`"), "{error}");
}

#[test]
fn batches_that_do_not_fit_and_calls_that_need_whole_layers_are_refused_and_the_pipeline_goes_on() {
    let mut pipeline = parallel().build().unwrap();
    let floats = || Tensor::<2>::ones([8, 5], &Device::flex());
    for (batch, layer) in [
        (Batch::new(floats()).target(data(8).1), "the vocabulary-parallel embedding"),
        (Batch::new(data(8).0).target(floats()), "the vocabulary-parallel head"),
    ] {
        let error = pipeline.step(batch, 0.1).unwrap_err().to_string();
        let named = error.starts_with(&format!("the batch does not fit {layer}"));
        assert!(named && error.contains("one integer tensor of ids"), "{error}");
    }
    let error = pipeline.step(Batch::new(data(8).0), 0.1).unwrap_err().to_string();
    assert!(error.contains("needs a target"), "{error}");
    let said = [
        pipeline.step_to(Default::default(), Vec::new()).unwrap_err().to_string(),
        pipeline.metadata(batch(8)).unwrap_err().to_string(),
    ];
    assert!(said.iter().all(|said| said.contains("`Builder::vocabulary`")), "{said:?}");
    pipeline.step(batch(8), 0.1).unwrap();
}
