//! Logits, tokens and generated texts are those of `transformers`, on every cut and engine.

#![allow(clippy::unwrap_used, reason = "the helpers of tests may panic as tests do")]

mod shared;

use burn_pipeline::train::Builder;
use burn_pipeline::{Pipeline, Size};
use finetune_llama::generate::{Choice, continued};
use finetune_llama::text::Text;
use finetune_llama::weights;
use shared::{device, floats, folder, integers, llama, logits, tokens};

const CUTS: [(&str, usize, usize); 4] =
    [("GPipe", 1, 1), ("1F1B", 2, 1), ("Interleaved1F1B", 2, 2), ("ZBVZeroBubble", 2, 2)];

fn loaded(name: &str, builder: Builder) -> Pipeline {
    let llama = llama(name);
    let builder = builder.layers(llama.model(None, false)).devices(vec![device()]);
    let builder = match llama.shared() {
        Some(shared) => builder.share(shared),
        None => builder,
    };
    let mut pipeline = builder.build().unwrap();
    pipeline.load_pretrained(&weights::base(folder(name))).unwrap();
    pipeline
}

/// Compares logits with those of `transformers` on every cut, with and without compiling.
fn compare(name: &str, computed: &str) {
    let computed = folder(computed);
    let (shape, expected) = floats(&computed, "logits");
    for (schedule, ranks, chunks) in CUTS {
        for compiled in [false, true] {
            let size = Size { ranks, chunks, microbatches: 2 };
            let mut pipeline = loaded(name, Pipeline::builder().schedule(schedule, size).compile(compiled));
            let got = logits(&mut pipeline, tokens(&computed));
            let off = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert_eq!(got.len(), shape.iter().product::<usize>());
            assert!(off < 1e-4, "{name}, {schedule}, compiled: {compiled}: {off:e} off");
        }
    }
}

#[test]
fn a_tied_llama_with_positions_scaled_as_llama_3_1_has_the_logits_of_transformers() {
    compare("tiny", "tests/tiny.safetensors");
}

#[test]
fn an_untied_llama_with_biases_in_several_files_has_the_logits_of_transformers() {
    assert!(folder("tests/untied").join("model.safetensors.index.json").exists());
    compare("tests/untied", "tests/untied/computed.safetensors");
}

#[test]
fn a_text_has_the_tokens_that_the_model_was_trained_on() {
    let golden = folder("tests/tiny.safetensors");
    let text = Text::open(&folder("tiny"), 512).unwrap();
    let expected: Vec<u32> = integers(&golden, "tokens").1.into_iter().map(|token| token as u32).take(32).collect();
    let plays = String::from_utf8_lossy(pipeline_examples::corpus::SHAKESPEARE);
    assert_eq!(text.tokens(&plays, true).unwrap()[..32], expected);
    assert!(plays.starts_with(&text.text(&expected).unwrap()));
}

#[test]
fn greedy_texts_are_those_of_transformers_over_any_ranks() {
    let greedy = integers(&folder("tests/tiny.safetensors"), "greedy").1;
    let greedy: Vec<u32> = greedy.into_iter().map(|token| token as u32).collect();
    let (prompt, new) = greedy.split_at(8);
    for (ranks, texts) in [(1, 1), (2, 1), (3, 2)] {
        let builder = Pipeline::builder().schedule("ForwardOnly", Size::new(ranks, texts));
        let mut pipeline = loaded("tiny", builder);
        let choice = Choice { length: new.len(), temperature: 0.0, seed: 0 };
        let got = continued(&mut pipeline, &llama("tiny"), prompt, texts, &choice, &device()).unwrap();
        assert_eq!(got, vec![new; texts], "{ranks} ranks");
    }
}

#[test]
fn a_text_stops_before_the_token_that_ends_it() {
    let golden = integers(&folder("tests/tiny.safetensors"), "greedy").1;
    let greedy: Vec<u32> = golden.into_iter().map(|token| token as u32).collect();
    let (prompt, new) = greedy.split_at(8);
    let mut llama = llama("tiny");
    llama.ends = vec![new[5]];
    let until = new.iter().position(|token| *token == new[5]).unwrap();
    let mut pipeline = loaded("tiny", Pipeline::builder().schedule("ForwardOnly", Size::new(2, 1)));
    let choice = Choice { length: new.len(), temperature: 0.0, seed: 0 };
    assert_eq!(continued(&mut pipeline, &llama, prompt, 1, &choice, &device()).unwrap(), [&new[..until]]);
}
