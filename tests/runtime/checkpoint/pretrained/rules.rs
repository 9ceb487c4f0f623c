//! Rules from stored tensors to a model's: other names, fused projections, rotary halves and pairs; and back.

use super::own_names::{GATE_UP, ROWS, from_hugging_face};
use super::{COMPUTED, MODEL, TUNED, assert_close, batch, builder, floats, logits, own_names, stored};
use crate::checkpoint::{on_each_rank, weights};
use burn::store::{BurnToPyTorchAdapter, PyTorchToBurnAdapter};
use burn_pipeline::train::{Builder, CheckpointError, Export, Pretrained};
use safetensors::SafeTensors;
use safetensors::tensor::{TensorView, serialize_to_file};
use tempfile::tempdir;

const CUTS: [(&str, usize, usize); 3] = [("GPipe", 1, 1), ("1F1B", 4, 1), ("ZBVZeroBubble", 2, 2)];

/// The Llama with other names and fused projections.
fn own(schedule: &str, ranks: usize, chunks: usize) -> Builder {
    builder(schedule, ranks, chunks).layers(own_names::model())
}

#[test]
fn a_llama_with_fused_projections_and_rotary_pairs_computes_trains_and_goes_back_as_in_pytorch() {
    let folder = tempdir().unwrap();
    stored(&folder);
    let model = from_hugging_face(Pretrained::folder(folder.path()));
    for (schedule, ranks, chunks) in CUTS {
        let place = format!("{schedule} on {ranks}");
        let mut pipeline = own(schedule, ranks, chunks).build().unwrap();
        pipeline.load_pretrained(&model).unwrap();
        assert_close(&logits(&mut pipeline), &floats(COMPUTED)["logits"].1, 1e-4, &place);
        let mut exported = || {
            pipeline.export_as(folder.path().join("back"), Export::from(BurnToPyTorchAdapter).like(&model)).unwrap();
            let back = floats(&std::fs::read(folder.path().join("back")).unwrap());
            (0..super::STEPS).for_each(|_| drop(pipeline.step(batch(), super::RATE).unwrap()));
            back
        };
        assert!(exported() == floats(MODEL), "{place}: other weights");
        let (tuned, expected) = (exported(), floats(TUNED));
        assert!(tuned.keys().eq(expected.keys()), "{place}");
        for (name, (shape, values)) in &tuned {
            assert_eq!(*shape, expected[name].0, "{place}: {name}");
            assert_close(values, &expected[name].1, 1e-5, &format!("{place}: {name}"));
        }
    }
}

#[test]
fn what_is_stored_fused_is_split_and_exported_fused_again() {
    let folder = tempdir().unwrap();
    stored(&folder);
    let mut own = own("GPipe", 1, 1).build().unwrap();
    own.load_pretrained(&from_hugging_face(Pretrained::folder(folder.path()))).unwrap();
    let fused = folder.path().join("fused");
    own.export_as(&fused, Export::from(BurnToPyTorchAdapter).sharded(u64::MAX)).unwrap();
    let file = || std::fs::read(fused.join("model.safetensors")).unwrap();
    assert_eq!(floats(&file())["blocks.3.attention.qkv.weight"].0, [32, 16]);

    let model = Pretrained::folder(&fused)
        .split("blocks.{i}.attention.qkv", 0, &ROWS)
        .split("blocks.{i}.mlp.gate_up", 0, &GATE_UP)
        .pairs_to_halves("blocks.{i}.attention.q", super::llama::HEADS)
        .pairs_to_halves("blocks.{i}.attention.k", super::llama::KV_HEADS)
        .rename("blocks.{i}.attention.{p}", "model.layers.{i}.self_attn.{p}_proj")
        .rename("blocks.{i}.first_norm", "model.layers.{i}.input_layernorm")
        .rename("blocks.{i}.second_norm", "model.layers.{i}.post_attention_layernorm")
        .rename("blocks.{i}", "model.layers.{i}")
        .rename("embedding", "model.embed_tokens")
        .rename("norm", "model.norm")
        .rename("head", "lm_head")
        .adapter(PyTorchToBurnAdapter);
    for (schedule, ranks, chunks) in CUTS {
        let mut pipeline = builder(schedule, ranks, chunks).build().unwrap();
        pipeline.load_pretrained(&model).unwrap();
        assert!(floats(&super::exported(&mut pipeline, &folder.path().join("single"))) == floats(MODEL));
        pipeline.export_as(folder.path().join("back"), Export::from(BurnToPyTorchAdapter).like(&model)).unwrap();
        assert!(std::fs::read(folder.path().join("back")).unwrap() == file(), "{schedule} on {ranks}");
    }
}

#[test]
fn ranks_that_are_apart_join_and_split_as_threads_do() {
    let folder = tempdir().unwrap();
    stored(&folder);
    let model = from_hugging_face(Pretrained::folder(folder.path()));
    for (replicas, sharded) in [(1, false), (2, true)] {
        let builder = own("GPipe", 2, 1).data_parallel(replicas).sharded(sharded);
        on_each_rank(&builder, 2 * replicas, |_, pipeline| {
            pipeline.load_pretrained(&model).unwrap();
            pipeline.export_as(folder.path().join("back"), Export::from(BurnToPyTorchAdapter).like(&model)).unwrap();
        });
        assert!(floats(&std::fs::read(folder.path().join("back")).unwrap()) == floats(MODEL), "{replicas} replicas");
    }
}

#[test]
fn a_rule_that_does_not_fit_is_refused_by_name_and_changes_nothing() {
    let folder = tempdir().unwrap();
    stored(&folder);
    let plain = || Pretrained::folder(folder.path()).adapter(PyTorchToBurnAdapter);
    let q = "model.layers.{i}.self_attn.q_proj";
    let mut pipeline = builder("1F1B", 2, 1).build().unwrap();
    let before = weights(&mut pipeline);
    for (rules, says) in [
        (
            plain().rename("model.layer.{i}", "blocks.{i}"),
            "`model.layer.{i}` becomes `blocks.{i}` (`Pretrained`): it matches no tensor",
        ),
        (plain().halves_to_pairs("layers.{i}.self_attn.q_proj", 4), "the halves of `layers.{i}.self_attn.q_proj`"),
        (plain().rename("model.layers.{i}.mlp", "mlp"), "must have the same holes"),
        (plain().rename("model.layers.{i.mlp", "model.mlp.{i"), "`model.layers.{i.mlp` has a part that is empty"),
        (plain().rename("model..norm", "norm"), "`model..norm` has a part that is empty"),
        (plain().rename("model.{i}.{i}", "{i}.{i}"), "two holes of one name"),
        (plain().rename("model.layers.0", "model.layers.1"), "two tensors get the name `model.layers.1."),
        (
            plain().join("model.layers.{i}.mlp.gate_up", 0, &[("gate_proj", 24), ("up", 24)]),
            "`model.layers.0.mlp.up.weight` is missing for `model.layers.0.mlp.gate_up.weight`",
        ),
        (plain().split(q, 0, &[]), "it names no part"),
        (plain().split(q, 0, &[("a", 3), ("q_proj", 16)]), "is [16, 16], and 19 was declared of dimension 0"),
        (plain().halves_to_pairs(q, 3), "is [16, 16], whose rows are not 3 heads of an even size"),
        (plain().halves_to_pairs(q, 0), "not 0 heads"),
        (
            plain()
                .join("model.layers.{i}.mlp.x", 0, &[("gate_proj", 24), ("down_proj", 16)])
                .rename("model.layers.{i}.mlp.x", q),
            "two tensors get the name",
        ),
    ] {
        let error = pipeline.load_pretrained(&rules).unwrap_err().to_string();
        assert!(error.contains(says), "{says} is not in: {error}");
        assert_eq!(weights(&mut pipeline), before);
    }
    pipeline.load_pretrained(&plain()).unwrap();
}

#[test]
fn a_rename_that_only_ignored_tensors_matched_is_undone_without_them() {
    let folder = tempdir().unwrap();
    let values = 1.0f32.to_le_bytes();
    let buffer = TensorView::new(safetensors::Dtype::F32, vec![1], &values).unwrap();
    let model = SafeTensors::deserialize(MODEL).unwrap();
    let tensors = model.tensors().into_iter().chain([("model.rotary_emb.inv_freq".to_owned(), buffer)]);
    serialize_to_file(tensors, None, &folder.path().join("model.safetensors")).unwrap();
    let rules = |lost: &str| {
        let rules = Pretrained::folder(folder.path()).rename("model.rotary_emb", lost).adapter(PyTorchToBurnAdapter);
        rules.ignored(|name| name.ends_with("inv_freq"))
    };
    let export = |rules: &Pretrained| Export::from(BurnToPyTorchAdapter).like(rules);
    let back = folder.path().join("back");
    let mut pipeline = builder("1F1B", 2, 1).build().unwrap();
    pipeline.load_pretrained(&rules("rotary")).unwrap();
    pipeline.export_as(&back, export(&rules("rotary"))).unwrap();
    assert!(floats(&std::fs::read(&back).unwrap()) == floats(MODEL));
    on_each_rank(&builder("1F1B", 2, 1), 2, |_, pipeline| {
        pipeline.load_pretrained(&rules("rotary")).unwrap();
        pipeline.export_as(folder.path().join("apart"), export(&rules("rotary"))).unwrap();
    });
    assert!(std::fs::read(folder.path().join("apart")).unwrap() == std::fs::read(&back).unwrap());
    // A rename of what the model has, that undoes nothing, is still a mistake.
    let wrong = rules("rotary").rename("model.norm", "final_norm").rename("model.layers.9", "blocks.9");
    let error = pipeline.export_as(&back, export(&wrong)).unwrap_err();
    assert!(matches!(error, CheckpointError::Rule { .. }), "{error}");
}

#[test]
fn names_that_would_not_come_back_are_refused_when_they_are_exported() {
    let folder = tempdir().unwrap();
    stored(&folder);
    let mut pipeline = builder("1F1B", 2, 1).build().unwrap();
    pipeline.load_pretrained(&Pretrained::folder(folder.path()).adapter(PyTorchToBurnAdapter)).unwrap();
    // Two names change places; the first line that matches counts.
    let swapped = Pretrained::folder(folder.path())
        .rename("model.layers.{i}.mlp.gate_proj", "model.layers.{i}.mlp.up_proj")
        .rename("model.layers.{i}.mlp.up_proj", "model.layers.{i}.mlp.gate_proj")
        .rename("model.layers.{i}", "model.layers.{i}");
    pipeline.export_as(folder.path().join("back"), Export::from(BurnToPyTorchAdapter).like(&swapped)).unwrap();
    let (back, model) = (floats(&std::fs::read(folder.path().join("back")).unwrap()), floats(MODEL));
    for (name, values) in &back {
        let other = match name.split("_proj").next().unwrap().rsplit('.').next().unwrap() {
            "gate" => name.replace("gate", "up"),
            "up" => name.replace("up", "gate"),
            _ => name.clone(),
        };
        assert!(*values == model[&other], "{name}");
    }
    // The model has the stored name.
    let gone = Pretrained::folder(folder.path()).rename("model.norm", "final_norm");
    let error =
        pipeline.export_as(folder.path().join("back"), Export::from(BurnToPyTorchAdapter).like(&gone)).unwrap_err();
    assert!(error.to_string().contains("`model.norm.weight` has no other name to go back to"), "{error}");
}

#[test]
fn an_export_whose_rules_do_not_fit_is_an_error_on_every_rank_and_the_pipeline_goes_on() {
    let folder = tempdir().unwrap();
    stored(&folder);
    let rules = || Pretrained::folder(folder.path());
    let model = rules().adapter(PyTorchToBurnAdapter);
    for (rules, says) in [
        // The head is on the last rank only.
        (rules().split("lm_head", 0, &[("lm_head", 40), ("rest", 2)]), "`rest.weight` is missing for `lm_head.weight`"),
        (
            rules().join("fused", 0, &[("lm_head", 40)]),
            "`fused` is split into `lm_head` (40) (`Pretrained`): it matches no tensor",
        ),
        (rules().halves_to_pairs("model.embed_tokens", 3), "whose rows are not 3 heads"),
    ] {
        let errors = on_each_rank(&builder("1F1B", 2, 1), 2, |_, pipeline| {
            pipeline.load_pretrained(&model).unwrap();
            let export = Export::from(BurnToPyTorchAdapter).like(&rules);
            let error = pipeline.export_as(folder.path().join("back"), export).unwrap_err();
            pipeline.step(batch(), super::RATE).unwrap();
            error
        });
        for error in errors {
            let fits = matches!(error, CheckpointError::Rule { .. } | CheckpointError::Elsewhere { .. });
            assert!(fits && error.to_string().contains(says), "{says} is not in: {error}");
        }
    }
    assert!(!folder.path().join("back").exists());
}
