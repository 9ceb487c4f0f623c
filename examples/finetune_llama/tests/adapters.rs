//! Adapters compute, train and are stored as PEFT's, on every schedule and engine, and leave the base as it was.

#![allow(clippy::unwrap_used, reason = "the helpers of tests may panic as tests do")]

mod shared;

use burn::optim::{AdamWConfig, SgdConfig};
use burn_pipeline::schedule::Chunks;
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::train::{Adapters, Builder, Export, Pretrained};
use burn_pipeline::{Accumulation, Batch, Pipeline, Size};
use finetune_llama::model::Tuning;
use finetune_llama::weights;
use shared::{all_floats, device, floats, folder, ids, llama, logits, names, tokens};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tempfile::tempdir;

fn golden() -> PathBuf {
    folder("tests/tiny.safetensors")
}

fn peft() -> Tuning {
    let mut tuning = weights::stored_tuning(&folder("tests/peft"), 1).unwrap();
    tuning.targets.sort();
    tuning
}

fn with_adapters(tuning: &Tuning, builder: Builder) -> Pipeline {
    let llama = llama("tiny");
    let builder = builder.layers(llama.model(Some(tuning), false)).devices(vec![device()]);
    let mut pipeline = builder.share(llama.shared().unwrap()).build().unwrap();
    pipeline.load_pretrained(&weights::base(folder("tiny"))).unwrap();
    pipeline
}

/// A pipeline with the adapters that PEFT stored.
fn loaded(builder: Builder) -> Pipeline {
    let mut pipeline = with_adapters(&peft(), builder);
    pipeline.load_pretrained(&Pretrained::adapters(folder("tests/peft"))).unwrap();
    pipeline
}

fn batch() -> Batch {
    let place = None::<burn_pipeline_moe::cache::CachePlace>;
    Batch::new(ids(&golden(), 0, 1)).extra(finetune_llama::model::PLACE, place).target(ids(&golden(), 1, 0))
}

/// The gradients by name, as PEFT names and lays out its adapters.
fn gradients(pipeline: &mut Pipeline) -> BTreeMap<String, Vec<f32>> {
    pipeline.accumulate(batch()).unwrap();
    let names = pipeline.named_weights().unwrap().into_iter().flatten().collect::<Vec<_>>();
    let values = pipeline.take_gradients().unwrap().into_iter().flatten();
    let gradients = names.into_iter().zip(values).filter_map(|(weight, gradient)| Some((weight, gradient?)));
    gradients
        .map(|(weight, gradient)| {
            let name = weight.names[0].replace(".weight.lora.a", ".lora_A").replace(".weight.lora.b", ".lora_B");
            let transposed = burn::tensor::Tensor::<2>::from_data(gradient.to_data().unwrap(), &device()).transpose();
            (format!("base_model.model.{name}.weight"), transposed.into_data().iter::<f32>().collect())
        })
        .collect()
}

fn close(got: &[f32], expected: &[f32], off: f32, place: &str) {
    assert_eq!(got.len(), expected.len(), "{place}");
    let distance = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(distance <= off, "{place}: {distance:e} off");
}

fn first_loss() -> f64 {
    let file = std::fs::read(folder("tests/peft").join("computed.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    f64::from_le_bytes(tensors.tensor("losses").unwrap().data()[..8].try_into().unwrap())
}

#[test]
fn adapters_that_peft_stored_have_its_logits_and_gradients_on_every_schedule_and_engine() {
    let computed = folder("tests/peft").join("computed.safetensors");
    let computed: BTreeMap<String, Vec<f32>> = names(&computed)
        .into_iter()
        .filter(|name| name != "losses")
        .map(|name| (name.clone(), floats(&computed, &name).1))
        .collect();
    let mut bits: Option<BTreeMap<String, Vec<f32>>> = None;
    for schedule in burn_pipeline::schedule::all() {
        let name = schedule.info().name;
        if name == "ForwardOnly" {
            continue;
        }
        for (split, compiled) in
            [(SplitBackward::Eager, false), (SplitBackward::Auto, false), (SplitBackward::Auto, true)]
        {
            let place = format!("{name}, {split:?}, compiled: {compiled}");
            let size = Size { ranks: 2, chunks: chunks(schedule.info().chunks), microbatches: 2 };
            let builder = Pipeline::builder().schedule(name, size).split(split).compile(compiled);
            let builder = builder.accumulation(Accumulation::Ordered).optimizer(|| SgdConfig::new().init());
            let mut pipeline = loaded(builder);
            let expected = &computed["logits"];
            let inputs = Batch::new(ids(&golden(), 0, 1)).extra("place", None::<burn_pipeline_moe::cache::CachePlace>);
            close(&logits(&mut pipeline, inputs), expected, 1e-4, &place);
            let got = gradients(&mut pipeline);
            assert_eq!(got.len(), 16, "{place}");
            for (name, values) in &got {
                close(values, &computed[name], 1e-5, &format!("{place}: {name}"));
            }
            // Compiled stages sum within rounding.
            if !compiled {
                assert!(*bits.get_or_insert_with(|| got.clone()) == got, "{place}: other bits");
            }
        }
    }
}

fn chunks(chunks: Chunks) -> usize {
    match chunks {
        Chunks::Exactly(chunks) => chunks,
        Chunks::Any => 2,
    }
}

#[test]
fn the_loss_is_that_of_peft_and_decay_leaves_the_base_as_it_was() {
    let optimizer = AdamWConfig::new().with_weight_decay(0.5);
    let builder = Pipeline::builder().schedule("1F1B", Size::new(4, 2)).optimizer(move || optimizer.init());
    let mut pipeline = loaded(builder);
    let values = |pipeline: &mut Pipeline| -> BTreeMap<String, Vec<f32>> {
        let weights = pipeline.named_weights().unwrap().into_iter().flatten();
        weights.map(|weight| (weight.names[0].clone(), weight.value.to_data().unwrap().iter().collect())).collect()
    };
    let before = values(&mut pipeline);
    let loss = pipeline.step(batch(), 1e-2).unwrap().loss;
    assert!((loss - first_loss()).abs() < 1e-5, "{loss} against {}", first_loss());
    for _ in 0..3 {
        pipeline.step(batch(), 1e-2).unwrap();
    }
    let (mut adapted, mut left) = (0, 0);
    for (name, value) in values(&mut pipeline) {
        let same = value == before[&name];
        assert_eq!(same, !name.contains(".lora."), "{name}");
        if same { left += 1 } else { adapted += 1 }
    }
    assert_eq!((adapted, left), (16, 4 * 9 + 3));
}

#[test]
fn what_is_stored_comes_back_alone_and_merged() {
    let written = tempdir().unwrap();
    let builder = || Pipeline::builder().schedule("1F1B", Size::new(3, 2)).optimizer(|| SgdConfig::new().init());
    let mut pipeline = loaded(builder());
    pipeline.step(batch(), 0.1).unwrap();
    let wanted = logits(&mut pipeline, tokens(&golden()));

    pipeline.export_as(written.path().join("adapters"), Export::adapters(peft().peft(&folder("tiny")))).unwrap();
    let shapes =
        |path: PathBuf| all_floats(&path).into_iter().map(|(name, (shape, _))| (name, shape)).collect::<Vec<_>>();
    let file = "adapter_model.safetensors";
    assert_eq!(shapes(written.path().join("adapters").join(file)), shapes(folder("tests/peft").join(file)));
    assert_eq!(Adapters::read(written.path().join("adapters")).unwrap().rank, 2);
    let mut again = with_adapters(&peft(), Pipeline::builder().schedule("GPipe", Size::new(1, 2)));
    again.load_pretrained(&Pretrained::adapters(written.path().join("adapters"))).unwrap();
    assert_eq!(logits(&mut again, tokens(&golden())), wanted);

    let merged = written.path().join("merged");
    pipeline.export_as(&merged, weights::merged(&weights::base(folder("tiny")))).unwrap();
    let llama = llama("tiny");
    let plain = Pipeline::builder().schedule("GPipe", Size::new(2, 2)).layers(llama.model(None, false));
    let mut plain = plain.share(llama.shared().unwrap()).devices(vec![device()]).build().unwrap();
    plain.load_pretrained(&weights::base(merged.clone())).unwrap();
    assert_eq!(logits(&mut plain, tokens(&golden())), wanted);
    // Nothing but the adapted weights differs from the base.
    let (base, merged) =
        (all_floats(&folder("tiny").join("model.safetensors")), all_floats(&merged.join("model.safetensors")));
    for (name, (shape, values)) in &base {
        assert_eq!(*shape, merged[name].0, "{name}");
        let adapted = name.contains("q_proj") || name.contains("down_proj");
        assert_eq!(*values == merged[name].1, !adapted, "{name}");
    }
}
