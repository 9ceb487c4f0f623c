//! Multi-token prediction on the last stage, with the embedding shared from the first: every schedule matches the
//! model that holds the table once. Models that do not share the table are refused.

use crate::cases::{Text, ahead, builder, by_name_in_model, floats, noise, pipelined, plain, rich, sizes};
use crate::parity::{ROUNDING, assert_every_schedule};
use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{init_seeded, named_weights};
use burn_pipeline::train::Pipeline;
use burn_pipeline_moe::layers::{
    AttentionConfig, AttentionContext, BlockConfig, BlockKind, MixtureOfExpertsConfig, MultiTokenPrediction,
    predict_ahead,
};
use pipeline_examples::moe::gpt::MoeGptConfig;
use pipeline_tests::reference::{Reference, whole};
use std::collections::BTreeMap;

#[test]
fn every_schedule_equals_the_model_that_holds_its_embedding_once() {
    assert_every_schedule(&ahead(), &[(1, 1, false), (1, 4, true), (3, 2, true)]);
}

#[test]
fn an_embedding_that_is_not_declared_shared_is_refused_and_a_declared_one_has_the_whole_gradient() {
    let (config, batches) = (ahead(), [3]);
    let expected = plain(&config, &batches, 3).gradients;
    let declared = builder(by_name("1F1B").unwrap().as_ref(), Size::new(2, 3), &config, |part, _| part);
    let model = config.clone();
    let undeclared = Pipeline::builder().schedule("1F1B", Size::new(2, 3));
    let undeclared = undeclared.devices(vec![Device::flex()]);
    let undeclared = undeclared.stages(move |at| model.stage(model.part(at).unwrap(), at).unwrap());
    let error = undeclared.build().unwrap_err().to_string();
    assert!(error.contains("`embed.token.weight`") && error.contains("`Builder::share`"), "{error}");
    // The first stage's gradient comes first.
    let mut pipeline = declared.build().unwrap();
    pipeline.accumulate(Text::new(1, 3).batch()).unwrap();
    let got = floats(pipeline.take_gradients().unwrap()[0][0].as_ref().unwrap());
    let expected = &expected["embed.token.weight"];
    let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let difference = got.iter().zip(expected).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
    assert!(difference / largest < ROUNDING as f32, "{difference} of {largest}");
}

/// Weights by their names in the model.
fn weights(config: &MoeGptConfig, pipeline: &mut Pipeline) -> BTreeMap<String, Vec<f32>> {
    let weights = pipeline.weights().unwrap();
    by_name_in_model(config, weights.iter().map(|stage| stage.iter().map(floats).collect()))
}

#[test]
fn copies_stay_equal_and_train_as_the_model_on_one_device() {
    // Two kinds of tied parameters: the embedding on two stages, the relation bias on all.
    let config = rich().with_ahead("D".to_owned());
    for (name, ranks, chunks) in
        [("1F1B", 4, 1), ("Interleaved1F1B", 2, 2), ("ZBVZeroBubble", 2, 2), ("DualPipe", 2, 1)]
    {
        let size = Size { ranks, chunks, microbatches: 4 };
        let builder = builder(by_name(name).unwrap().as_ref(), size, &config, |part, _| part);
        let mut pipeline = builder.optimizer(|| AdamWConfig::new().init()).build().unwrap();
        let mut reference = Reference::new(config.part(&whole()).unwrap());
        for step in 0..4 {
            let (text, sizes) = (Text::new(step + 1, 7), sizes(7, 4));
            let start = |i: usize| sizes[..i].iter().sum::<usize>();
            reference.step(&sizes, 1e-3, None, |model, i| {
                let (main, auxiliary, _) = text.losses(&config, model, start(i)..start(i) + sizes[i]);
                main + auxiliary.unwrap()
            });
            pipeline.step(text.batch(), 1e-3).unwrap();
        }
        // Copies are compared bit for bit.
        let got = weights(&config, &mut pipeline);
        let named = named_weights(&reference.model, &config.names(&whole()).unwrap());
        assert_eq!(got.len(), named.len());
        for weight in named {
            let expected: Vec<f32> = floats(&AnyTensor::clone(&weight.value));
            for (got, expected) in got[&weight.names[0]].iter().zip(&expected) {
                assert!((got - expected).abs() < 5e-5, "{name}: {}: {got} and {expected}", weight.names[0]);
            }
        }
    }
}

#[test]
fn the_loss_is_the_next_tokens_and_the_weighted_mean_of_those_after_it() {
    let config = ahead();
    let schedule = by_name("GPipe").unwrap();
    let run = |config: &MoeGptConfig| {
        pipelined(builder(schedule.as_ref(), Size::new(2, 1), config, |part, _| part), &[4], config)
    };
    let got = run(&config);
    let observed = &got.observed[0];
    assert_eq!(observed.ahead.len(), 2);
    let expected = observed.next + 0.8 * (observed.ahead[0] + observed.ahead[1]) / 2.0;
    assert!((got.loss - expected).abs() < 1e-5, "{} {expected}", got.loss);
    // With weight zero, only the next token's loss remains, and the modules get no gradient from it.
    let weightless = run(&config.clone().with_ahead_weight(0.0));
    assert!((weightless.loss - observed.next).abs() < 1e-6);
    let joins = |got: &crate::cases::Got| got.gradients["ahead.modules.0.join.weight"].iter().any(|&g| g != 0.0);
    assert!(joins(&got));
    // The second module's router still gets gradients from its auxiliary losses, through the first module.
    let none = config.with_ahead("D".to_owned()).with_ahead_weight(0.0);
    assert!(!joins(&run(&none)));
}

#[test]
fn module_k_sees_the_tokens_up_to_k_ahead_and_no_further() {
    const SEQ: usize = 6;
    let device = Device::flex();
    let config = BlockConfig::new(AttentionConfig::new(8, 2), 16, MixtureOfExpertsConfig::new(8, 4, 4));
    let module =
        |seed| init_seeded(seed, &device, |device| MultiTokenPrediction::new(&config, BlockKind::Dense, device));
    let modules = [module(1), module(2)];
    let context = AttentionContext::new(Tensor::zeros([1, SEQ], &device));
    let table = Tensor::<1>::from_floats(&*noise(3, 10 * 8), &device).reshape([10, 8]);
    let run = |tokens: [i32; SEQ]| {
        let tokens = Tensor::<2, Int>::from_ints([tokens], &device);
        let hidden = Tensor::<1>::from_floats(&*noise(4, SEQ * 8), &device).reshape([1, SEQ, 8]);
        let embed = |tokens: Tensor<2, Int>| {
            let [_, seq] = tokens.dims();
            table.clone().select(0, tokens.flatten(0, 1)).reshape([1, seq, 8])
        };
        let out = predict_ahead(&modules, hidden, &tokens, embed, &context);
        out.into_iter().map(|(x, _)| x.into_data().iter::<f32>().collect::<Vec<f32>>()).collect::<Vec<_>>()
    };
    let plain = run([1, 2, 3, 4, 5, 6]);
    assert_eq!(plain.iter().map(Vec::len).collect::<Vec<_>>(), [(SEQ - 1) * 8, (SEQ - 2) * 8]);
    for changed in 0..SEQ {
        let mut tokens = [1, 2, 3, 4, 5, 6];
        tokens[changed] = 9;
        for (k, (got, plain)) in (1..).zip(run(tokens).iter().zip(&plain)) {
            for at in 0..SEQ - k {
                let differs = got[at * 8..][..8] != plain[at * 8..][..8];
                // Tokens 1 to at + k are embedded; hidden states stay fixed.
                assert_eq!(differs, (1..=at + k).contains(&changed), "module {k} at {at}, token {changed} changed");
            }
        }
    }
}

#[test]
#[should_panic(expected = "2 tokens ahead do not fit into sequences of 2")]
fn more_tokens_ahead_than_a_sequence_has_are_refused() {
    let config = ahead().with_seq(2);
    let part = config.part(&whole()).unwrap();
    let documents = Tensor::<2, Int>::zeros([1, 2], &Device::flex().autodiff());
    let sides = pipeline_examples::moe::signal::Sides {
        tokens: Some(documents.clone()),
        documents: documents.clone(),
        relations: None,
        structure: None,
        platform: None,
    };
    assert!(part.num_params() > 0);
    part.whole(documents, &sides);
}
