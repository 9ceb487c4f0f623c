//! The Llama as a list of layers is the model that its stages are, to the bit.

use super::llama::{self, LAYERS, Signal, VOCAB, WIDTH, linear, loss, norm};
use super::{RATE, STEPS, batch, builder, floats, logits, stored};
use burn::nn::{Embedding, EmbeddingConfig, Linear, RmsNorm};
use burn::store::BurnToPyTorchAdapter;
use burn::tensor::Tensor;
use burn_pipeline::layers::{Layer, Model, Sequential};
use burn_pipeline::train::{Export, Pretrained};
use burn_pipeline::{Accumulation, Pipeline};
use tempfile::tempdir;

fn model() -> Model {
    let embed = |embedding: &Embedding, input: Signal| match input {
        Signal::Tokens(tokens) => embedding.forward(tokens),
        Signal::Hidden(x) => x,
    };
    let score = |head: &Linear, x: Tensor<3>| Signal::Hidden(head.forward(x));
    Sequential::new()
        .then(Layer::new("embed_tokens", |at| EmbeddingConfig::new(VOCAB, WIDTH).init(&at.device), embed))
        .repeat(LAYERS, Layer::new("layers", |at| llama::Layer::new(&at.device), llama::Layer::forward))
        .then(Layer::new("norm", |at| norm(&at.device), RmsNorm::forward))
        .then(Layer::new("lm_head", |at| linear(WIDTH, VOCAB, &at.device), score))
        .loss(loss)
}

#[test]
fn a_list_of_a_llamas_layers_has_the_bits_of_its_stages_on_any_cut() {
    let folder = tempdir().unwrap();
    let of_stages = stored(&folder);
    let of_list = stored(&folder)
        .rename("model.layers.{i}", "layers.{i}")
        .rename("model.embed_tokens", "embed_tokens")
        .rename("model.norm", "norm");
    let trained = |mut pipeline: Pipeline, weights: &Pretrained| {
        pipeline.load_pretrained(weights).unwrap();
        let before = logits(&mut pipeline);
        let losses: Vec<f64> = (0..STEPS).map(|_| pipeline.step(batch(), RATE).unwrap().loss).collect();
        let path = folder.path().join("trained");
        pipeline.export_as(&path, Export::from(BurnToPyTorchAdapter).like(weights)).unwrap();
        (before, losses, floats(&std::fs::read(path).unwrap()))
    };
    for (schedule, ranks, chunks) in [("GPipe", 1, 1), ("1F1B", 2, 1), ("1F1B", 4, 1), ("ZBVZeroBubble", 2, 2)] {
        let builder = builder(schedule, ranks, chunks).accumulation(Accumulation::Ordered);
        let stages = trained(builder.clone().build().unwrap(), &of_stages);
        let list = trained(builder.layers(model()).build().unwrap(), &of_list);
        assert!(list == stages, "{schedule} on {ranks}");
    }
}
