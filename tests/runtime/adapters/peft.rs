//! Files of PEFT's hold all that was trained, under the names that PEFT expects, and adapters that the model would
//! compute in another way are refused by name.

use super::{ALPHA, RANK, SAMPLES, WIDTH, batch, builder, device, loss, named, stored, trained};
use crate::checkpoint::on_each_rank;
use burn::module::{Lora, Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Int, Tensor};
use burn_pipeline::layers::{Layer, LayerContext, Sequential};
use burn_pipeline::train::{Adapters, CheckpointError, Export, Pretrained};
use burn_pipeline::{Batch, Builder, Pipeline, Size};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::tempdir;

const WORDS: usize = 7;

/// A layer that holds a weight of its own.
#[derive(Module, Debug)]
struct Attention {
    wq: Param<Tensor<2>>,
    proj: Linear,
}

fn attention(at: &LayerContext) -> Attention {
    let proj = LinearConfig::new(WIDTH, WIDTH).init(&at.device);
    let wq = LinearConfig::new(WIDTH, WIDTH).init(&at.device).weight;
    Attention { wq, proj }
}

/// What is trained beside the adapters.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Beside {
    Nothing,
    Head,
}

/// An embedding, a layer with a weight of its own, and a head; all but the head have adapters.
fn words(beside: Beside, alpha: f64) -> Builder {
    let lora = move || Lora::new(RANK, alpha);
    let of_words = move |at: &LayerContext| EmbeddingConfig::new(WORDS, WIDTH).init(&at.device).apply_lora(lora());
    let head = move |at: &LayerContext| {
        let head = LinearConfig::new(WIDTH, WIDTH).init(&at.device);
        if beside == Beside::Head { head } else { head.no_grad() }
    };
    let embed = |own: &Embedding, ids: Tensor<1, Int>| own.forward(ids.unsqueeze::<2>()).squeeze_dim::<2>(0);
    let attend = |own: &Attention, x: Tensor<2>| x.clone() + own.proj.forward(x.matmul(own.wq.val()));
    let model = Sequential::new()
        .then(Layer::new("words", of_words, embed))
        .then(Layer::new("attention", move |at| attention(at).apply_lora(lora()), attend))
        .then(Layer::new("head", head, Linear::forward));
    let builder = Pipeline::builder().layers(model.loss(loss)).schedule("1F1B", Size::new(2, 2));
    builder.devices(vec![device()]).optimizer(|| AdamWConfig::new().init())
}

fn ids() -> Batch {
    let ids = Tensor::<1, Int>::from_ints([0, 3, 6, 2, 1, 5, 4, 3], &device());
    Batch::new(ids).target(Tensor::<2>::ones([SAMPLES, WIDTH], &device()))
}

fn adapters() -> Adapters {
    Adapters { rank: RANK, alpha: ALPHA, base: None }
}

/// The other program has a linear layer for the layer's own weight.
fn renames(weights: Pretrained) -> Pretrained {
    weights.rename("model.q_proj.weight", "attention.wq").rename("model.embed_tokens", "words")
}

#[test]
fn adapters_of_embeddings_and_of_any_parameter_are_written_as_peft_names_them_and_come_back() {
    let folder = tempdir().unwrap();
    let mut first = words(Beside::Nothing, ALPHA).build().unwrap();
    (0..2).for_each(|_| drop(first.step(ids(), 1e-2).unwrap()));
    // PEFT has no name for the adapter of a parameter that is not called `weight`.
    let error = first.export_as(folder.path().join("none"), Export::adapters(adapters())).unwrap_err().to_string();
    assert!(error.contains("`attention.wq.lora.a`") && error.contains("Export::merged"), "{error}");
    assert!(!folder.path().join("none").exists());

    let like = renames(Pretrained::folder("nowhere"));
    let (together, apart) = (folder.path().join("together"), folder.path().join("apart"));
    first.export_as(&together, Export::adapters(adapters()).like(&like).task_type("CAUSAL_LM")).unwrap();
    let files = stored(&together.join("adapter_model.safetensors"));
    let shapes = [
        ("attention.proj.lora_A.weight", [RANK, WIDTH]),
        ("attention.proj.lora_B.weight", [WIDTH, RANK]),
        ("model.embed_tokens.lora_embedding_A", [RANK, WORDS]),
        ("model.embed_tokens.lora_embedding_B", [WIDTH, RANK]),
        ("model.q_proj.lora_A.weight", [RANK, WIDTH]),
        ("model.q_proj.lora_B.weight", [WIDTH, RANK]),
    ];
    let expected = shapes.map(|(name, shape)| (format!("base_model.model.{name}"), shape.to_vec()));
    let written: Vec<_> = files.iter().map(|(name, (shape, _))| (name.clone(), shape.clone())).collect();
    assert_eq!(written, expected);
    let config = config(&together);
    assert_eq!(config["target_modules"], json!(["embed_tokens", "proj", "q_proj"]));
    assert_eq!(config["task_type"], "CAUSAL_LM");
    // Rows of the first factor are columns of Burn's.
    let own = named(&mut first);
    let (a, b) = (&own["words.weight.lora.a"], &own["words.weight.lora.b"]);
    let (peft_a, peft_b) = (&files[&expected[2].0].1, &files[&expected[3].0].1);
    for rank in 0..RANK {
        assert!((0..WORDS).all(|word| peft_a[rank * WORDS + word] == a[word * RANK + rank]));
        assert!((0..WIDTH).all(|at| peft_b[at * RANK + rank] == b[rank * WIDTH + at]));
    }

    // Ranks that are apart write the same.
    on_each_rank(&words(Beside::Nothing, ALPHA), 2, |_, pipeline| {
        (0..2).for_each(|_| drop(pipeline.step(ids(), 1e-2).unwrap()));
        pipeline.export_as(&apart, Export::adapters(adapters()).like(&like)).unwrap();
    });
    assert!(stored(&apart.join("adapter_model.safetensors")) == files);
    // All factors come back; without the renames, those of the layer's own weight are missed by name.
    let mut second = words(Beside::Nothing, ALPHA).schedule("GPipe", Size::new(1, 2)).build().unwrap();
    second.load_pretrained(&renames(Pretrained::adapters(&together))).unwrap();
    assert!(named(&mut second) == own);
    let lacks = Pretrained::adapters(&together).rename("model.embed_tokens", "words");
    let error = second.load_pretrained(&lacks.ignored(|name| name.contains("q_proj"))).unwrap_err();
    let CheckpointError::Pretrained { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(*missing, ["attention.wq.lora.a", "attention.wq.lora.b"]);
}

fn config(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("adapter_config.json")).unwrap()).unwrap()
}

#[test]
fn an_export_of_adapters_that_would_lack_a_trained_parameter_is_refused_by_name() {
    let folder = tempdir().unwrap();
    let files = folder.path().join("adapters");
    let export = || Export::adapters(adapters()).like(&renames(Pretrained::folder("nowhere")));
    let mut pipeline = words(Beside::Head, ALPHA).build().unwrap();
    pipeline.step(ids(), 1e-2).unwrap();
    let error = pipeline.export_as(&files, export()).unwrap_err();
    let CheckpointError::LeftOut { names } = &error else { panic!("{error}") };
    assert_eq!(*names, ["`head.weight`", "`head.bias`"]);
    let errors = on_each_rank(&words(Beside::Head, ALPHA), 2, |_, pipeline| {
        pipeline.export_as(&files, export()).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("`head.weight`, `head.bias`")), "{errors:?}");
    assert!(!files.exists());
    // The whole model, merged, has all of it.
    pipeline.export_as(folder.path().join("merged"), Export::from(burn::store::IdentityAdapter).merged()).unwrap();
}

/// One weight at two paths, with an adapter at each.
#[derive(Module, Debug)]
struct Twice {
    to: Linear,
    from: Linear,
}

#[test]
fn a_weight_that_has_other_adapters_at_another_path_is_merged_at_both() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    let twice = |at: &LayerContext| {
        let to = LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(&at.device);
        Twice { from: to.clone(), to }.apply_lora(Lora::new(RANK, ALPHA))
    };
    let layer = Layer::new("twice", twice, |own: &Twice, x| own.from.forward(own.to.forward(x)));
    let builder = Pipeline::builder().layers(Sequential::new().then(layer).loss(loss)).devices(vec![device()]);
    let builder = builder.schedule("1F1B", Size::new(1, 2)).optimizer(|| AdamWConfig::new().init());
    let mut pipeline = builder.build().unwrap();
    (0..3).for_each(|at| drop(pipeline.step(batch(at), 1e-1).unwrap()));
    let whole = named(&mut pipeline);
    pipeline.export_as(&file, Export::from(burn::store::IdentityAdapter).merged()).unwrap();
    let merged = stored(&file);
    for of in ["to", "from"] {
        let (_, values) = &merged[&format!("twice.{of}.weight")];
        let factor = |side: &str| &whole[&format!("twice.{of}.weight.lora.{side}")];
        let (a, b) = (factor("a"), factor("b"));
        for (place, value) in values.iter().enumerate() {
            let (row, column) = (place / WIDTH, place % WIDTH);
            let product: f32 = (0..RANK).map(|rank| a[row * RANK + rank] * b[rank * WIDTH + column]).sum();
            let expected = whole["twice.to.weight"][place] + (ALPHA / RANK as f64) as f32 * product;
            assert!((value - expected).abs() < 1e-5, "{of}: {value} for {expected}");
        }
    }
    assert!(merged["twice.to.weight"] != merged["twice.from.weight"]);
}

#[test]
fn a_rank_or_scale_that_is_not_the_model_s_is_refused_with_both_numbers() {
    let folder = tempdir().unwrap();
    let (mut pipeline, weights) = trained(&folder);
    let export = |rank, alpha| Export::adapters(Adapters { rank, alpha, base: None });
    for (rank, alpha, says) in [
        (RANK, 12.0, "the scale of the adapter `blocks.0.query.weight.lora.a` is 3 in the model, and 6 by"),
        (3, 9.0, "the rank of the adapter `blocks.0.query.weight.lora.a` is 2 in the model, and 3 by"),
    ] {
        let path = folder.path().join("wrong");
        let error = pipeline.export_as(&path, export(rank, alpha)).unwrap_err();
        assert!(matches!(error, CheckpointError::AdapterDiffers { .. }), "{error}");
        assert!(error.to_string().contains(says) && !path.exists(), "{error}");
    }
    // What was measured is as it was.
    let before = named(&mut pipeline);
    pipeline.export_as(folder.path().join("right"), export(RANK, ALPHA)).unwrap();
    assert!(named(&mut pipeline) == before);

    let files = folder.path().join("adapters");
    let original = config(&files);
    let mut other = builder("ZBH1", 4).build().unwrap();
    let fresh = named(&mut other);
    for (field, value, says) in [
        ("lora_alpha", json!(32), "the scale of the adapter `blocks.0.query.weight.lora.a` is 3 in the model, and 16"),
        ("use_rslora", json!(true), "is 3 in the model, and 4.24264"),
        ("r", json!(4), "the rank of the adapter `blocks.0.query.weight.lora.a` is 2 in the model, and 4"),
    ] {
        said(&files, &original, field, &value);
        let error = other.load_pretrained(&weights).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert!(named(&mut other) == fresh, "{error}");
    }
    // RSLoRA is LoRA with another scale.
    said(&files, &original, "use_rslora", &json!(true));
    let Adapters { rank, alpha, .. } = Adapters::read(&files).unwrap();
    assert_eq!((rank, alpha), (RANK, ALPHA * (RANK as f64).sqrt()));
    said(&files, &original, "fan_in_fan_out", &json!(true));
    other.load_pretrained(&weights).unwrap();
    assert!(named(&mut other) == before);
}

/// Writes a folder's configuration with another value.
fn said(folder: &Path, original: &Value, field: &str, value: &Value) {
    let mut config = original.clone();
    config[field] = value.clone();
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
}

#[test]
fn what_burn_s_lora_does_not_compute_is_refused_by_its_field() {
    let folder = tempdir().unwrap();
    let (mut pipeline, weights) = trained(&folder);
    let files = folder.path().join("adapters");
    let original = config(&files);
    for (field, value, says) in [
        ("peft_type", json!("LOHA"), "`peft_type` asks for adapters"),
        ("bias", json!("lora_only"), "`bias` asks for adapters"),
        ("use_dora", json!(true), "`use_dora` asks for adapters"),
        ("rank_pattern", json!({"query": 4}), "`rank_pattern` asks for adapters"),
        ("alora_invocation_tokens", json!([3, 4]), "`alora_invocation_tokens` asks for adapters"),
        ("layer_replication", json!([[0, 4], [2, 5]]), "`layer_replication` asks for adapters"),
        ("init_lora_weights", json!("pissa_niter_16"), "`init_lora_weights` is `pissa_niter_16`"),
        ("init_lora_weights", json!("OLoRA"), "`init_lora_weights` is `OLoRA`"),
        ("modules_to_save", json!(["score"]), "`modules_to_save` lists [\"score\"]"),
        ("r", json!(0), "`r` is 0"),
        ("r", json!("two"), "invalid type"),
    ] {
        said(&files, &original, field, &value);
        for error in [pipeline.load_pretrained(&weights).unwrap_err(), Adapters::read(&files).unwrap_err()] {
            assert!(matches!(error, CheckpointError::Adapters { .. }), "{error}");
            assert!(error.to_string().contains(says) && error.to_string().contains("adapter_config.json"), "{error}");
        }
    }
    for (field, value) in [("init_lora_weights", json!("gaussian")), ("init_lora_weights", json!(false))] {
        said(&files, &original, field, &value);
        pipeline.load_pretrained(&weights).unwrap();
    }
    std::fs::remove_file(files.join("adapter_config.json")).unwrap();
    let error = pipeline.load_pretrained(&weights).unwrap_err().to_string();
    assert!(error.contains("adapter_config.json failed"), "{error}");
    assert!(pipeline.step(batch(0), 1e-2).is_ok());
}
