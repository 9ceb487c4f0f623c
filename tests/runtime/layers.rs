//! Layers measured on the model itself, compared with closed formulas, with what a pipeline that runs them holds,
//! and with layers described by hand.

use crate::cases::{Case, Text, small_gpt};
use crate::skips::{Pictures, unet};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::cost::{Dtype, Layers, Measure, Partition, PartitionOptions, Pattern};
use burn_pipeline::plan::Placement;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, Stage, StageBox, StageError};
use burn_pipeline::train::{Builder, MeasureError, MeasuredLayers, Pipeline, StageContext, StepReport};
use pipeline_examples::gpt::{GptConfig, Signal};

fn kinds(text: &str) -> Pattern {
    text.parse().unwrap()
}

/// The model's finest cut: every layer is a stage.
fn finest(config: &GptConfig) -> Builder {
    let (config, cut) = (config.clone(), Partition::even(config.all_layers(), config.all_layers()).unwrap());
    Pipeline::builder().devices(vec![Device::flex()]).stages(move |at| config.stage_of(at, &cut))
}

fn microbatch(config: &GptConfig, rows: usize) -> Batch {
    let ids = Tensor::<1, Int>::arange(0..(rows * config.seq) as i64, &Device::flex());
    let ids = ids.remainder_scalar(config.vocab as i64).reshape([rows, config.seq]);
    Batch::new(Signal::Tokens(ids.clone())).target(ids)
}

fn measure(config: &GptConfig, rows: usize, rounds: usize) -> MeasuredLayers {
    finest(config).measure_layers(microbatch(config, rows), kinds(&config.kinds()).kinds(), rounds).unwrap()
}

const ROWS: usize = 2;

fn model() -> GptConfig {
    GptConfig::new().with_d_model(64).with_layers(3).with_heads(4).with_seq(16).with_vocab(512)
}

/// The operations of a forward's matmuls, two per multiply-add: embedding, block, head.
fn products(config: &GptConfig, rows: usize) -> [f64; 3] {
    let (tokens, d) = ((rows * config.seq) as f64, config.d_model as f64);
    // Queries, keys, values, projection, four times the width and back; then scores and mix.
    let block = tokens * (2.0 * 12.0 * d * d) + tokens * (4.0 * config.seq as f64 * d);
    [0.0, block, tokens * 2.0 * d * config.vocab as f64]
}

#[test]
fn flops_parameters_and_bytes_are_those_of_closed_formulas() {
    let config = model();
    let measured = measure(&config, ROWS, 0);
    assert_eq!(measured.uncaptured, []);
    let (layers, d, tokens) = (measured.layers.all(), config.d_model as u64, (ROWS * config.seq) as u64);
    let letters: String = layers.iter().map(|layer| layer.kind).collect();
    assert_eq!(letters, "EAAAL");
    let [_, block, head] = products(&config, ROWS);
    for (layer, product) in layers[1..].iter().zip([block, block, block, head]) {
        // Norms, softmax, GELU and sums: some dozens of operations per number, where a matmul has hundreds.
        let rest = layer.flops - product;
        assert!(rest > 0.0 && rest < 0.15 * product, "{}: {} for matmuls of {product}", layer.kind, layer.flops);
    }
    assert!(layers[0].flops < 0.01 * block);
    let vocabulary = config.vocab as u64;
    let per_block = 4 * d + (3 * d * d + 3 * d) + (d * d + d) + (4 * d * d + 4 * d) + (4 * d * d + d);
    let expected =
        [(vocabulary + config.seq as u64) * d, per_block, per_block, per_block, 2 * d + (d + 1) * vocabulary];
    for (layer, parameters) in layers.iter().zip(expected) {
        assert_eq!((layer.parameters, layer.bytes[&Dtype::F32]), (parameters, 4 * parameters), "{}", layer.kind);
    }
    assert_eq!(layers.iter().map(|layer| layer.parameters).sum::<u64>(), config.parameters() as u64);
    let hidden = (4 * tokens * d) as f64;
    assert_eq!(
        layers.iter().map(|layer| layer.output_bytes).collect::<Vec<_>>(),
        [hidden, hidden, hidden, hidden, 0.0]
    );
    assert!(layers.iter().all(|layer| layer.seconds() == 0.0), "nothing was to be timed");
}

#[derive(Module, Debug)]
struct Plain {
    linear: Linear,
    #[module(skip)]
    reads: bool,
}

impl Stage for Plain {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let y = self.linear.forward(x);
        assert!(y.dims()[1] != 13, "thirteen columns");
        // A forward that reads values cannot be captured.
        if self.reads && y.clone().sum().into_scalar::<f32>() > 1e9 { y.mul_scalar(0.5) } else { y }
    }
}

fn plain(widths: &'static [usize], reads: Option<usize>) -> Builder {
    Pipeline::builder().devices(vec![Device::flex()]).stages(move |at: &StageContext| {
        let linear = LinearConfig::new(widths[at.index], widths[at.index + 1]).with_bias(false).init(&at.device);
        StageBox::new(Plain { linear, reads: reads == Some(at.index) })
    })
}

fn rows(columns: usize) -> Batch {
    Batch::new(Tensor::<2>::ones([6, columns], &Device::flex()))
}

#[test]
fn a_linear_layer_takes_two_operations_a_multiply_add_and_keeps_its_input() {
    let measured = plain(&[5, 7, 3], None).measure_layers(rows(5), kinds("PP").kinds(), 2).unwrap();
    let numbers = |at: usize| {
        let layer = &measured.layers.all()[at];
        (layer.flops, layer.parameters, layer.activation_bytes, layer.output_bytes)
    };
    assert_eq!(numbers(0), (2.0 * 6.0 * 5.0 * 7.0, 35, 4.0 * 6.0 * 5.0, 4.0 * 6.0 * 7.0));
    assert_eq!(numbers(1), (2.0 * 6.0 * 7.0 * 3.0, 21, 4.0 * 6.0 * 7.0, 4.0 * 6.0 * 3.0));
    for layer in measured.layers.all() {
        assert!(layer.forward > 0.0 && layer.input > 0.0 && layer.weight > 0.0 && layer.full_backward() > 0.0);
    }
}

#[test]
fn a_layer_that_cannot_be_captured_is_named_and_timed_all_the_same() {
    let measured = plain(&[5, 7, 3], Some(1)).measure_layers(rows(5), kinds("PP").kinds(), 1).unwrap();
    assert_eq!(measured.uncaptured.len(), 1);
    assert_eq!(measured.uncaptured[0].0, 1);
    let layer = &measured.layers.all()[1];
    assert_eq!((layer.flops, layer.activation_bytes, layer.parameters), (0.0, 0.0, 21));
    assert!(layer.forward > 0.0 && layer.seconds() > layer.forward);
}

#[test]
fn a_layer_that_fails_is_named() {
    let error = plain(&[5, 13], None).measure_layers(rows(5), kinds("P").kinds(), 1).unwrap_err();
    assert!(
        matches!(&error, MeasureError::Panic { layer: 0, layers: 1, message } if message.contains("thirteen")),
        "{error}"
    );
    let ids = Batch::new(Tensor::<2, Int>::ones([6, 5], &Device::flex()));
    let error = plain(&[5, 7], None).measure_layers(ids, kinds("P").kinds(), 1).unwrap_err();
    assert!(matches!(&error, MeasureError::Stage { layer: 0, source: StageError::Input(_), .. }), "{error}");
    let error = Pipeline::builder().measure_layers(rows(5), kinds("P").kinds(), 1).unwrap_err();
    assert_eq!(error, MeasureError::NoStages);
    let without = plain(&[5, 7], None).measure_layers(rows(5), &[], 1).unwrap_err();
    assert!(matches!(without, MeasureError::Layers(_)), "{without}");
}

#[test]
fn they_hold_what_a_pipeline_of_these_layers_holds() {
    let config = small_gpt();
    let size = Size { ranks: 1, chunks: config.all_layers(), microbatches: 3 };
    let [interpreted, compiled] = [false, true].map(|compile| {
        let builder = finest(&config).compile(compile);
        let layers = builder.measure_layers(microbatch(&config, 2), kinds(&config.kinds()).kinds(), 1).unwrap().layers;
        let mut pipeline = builder.schedule("InterleavedZeroBubble", size).build().unwrap();
        let steps: Vec<_> = (0..2).map(|_| pipeline.accumulate(Text::new(6).batch()).unwrap()).collect();
        let profile = StepReport::profile(pipeline.placement(), &steps).unwrap();
        for (layer, stage) in layers.all().iter().zip(profile.stages()) {
            let place = format!("{}, compiled: {compile}", layer.kind);
            assert_eq!(layer.activation_bytes, stage.activation_bytes, "{place}");
            assert_eq!(layer.freed_at_input_bytes, stage.freed_at_input_bytes, "{place}");
            assert_eq!(layer.output_bytes, stage.message_bytes, "{place}");
            assert_eq!(layer.parameter_bytes() as f64, stage.weight_bytes, "{place}");
        }
        layers
    });
    // A compiled block saves less.
    assert!(compiled.all()[1].activation_bytes < interpreted.all()[1].activation_bytes);
}

#[test]
fn values_that_go_past_neighbours_and_recomputed_layers_are_measured_too() {
    let blocks = unet().blocks();
    let edges = unet().edges(blocks);
    assert!(!edges.is_empty());
    let builder = Pipeline::builder().devices(vec![Device::flex()]);
    let builder = edges.into_iter().fold(builder, |builder, (from, to)| builder.skip(from, to));
    let measure = |recompute: bool| {
        let builder = builder.clone().stages(move |at| unet().stage(at).recomputed(recompute));
        let kinds = kinds(&"B".repeat(blocks));
        builder.measure_layers(Pictures::new(2).batch(), kinds.kinds(), 1).unwrap().layers
    };
    let (kept, recomputed) = (measure(false), measure(true));
    for (kept, recomputed) in kept.all().iter().zip(recomputed.all()) {
        assert!(kept.flops > 0.0 && kept.forward > 0.0);
        assert_eq!(kept.flops, recomputed.flops);
        assert_eq!(kept.recomputed_bytes, 0.0);
        assert!(recomputed.activation_bytes < kept.activation_bytes, "{kept:?} and {recomputed:?}");
        assert_eq!(recomputed.activation_bytes + recomputed.recomputed_bytes, kept.activation_bytes);
    }
}

#[test]
fn the_best_cut_of_measured_flops_is_that_of_layers_written_by_hand() {
    // A vocabulary whose head costs as much as several blocks.
    let config = model().with_layers(6).with_vocab(2048);
    let measured = measure(&config, ROWS, 0).layers;
    let [_, block, head] = products(&config, ROWS);
    let by_hand = format!(
        r#"{{ "kinds": [ {{ "kind": "E" }}, {{ "kind": "A", "flops": {block} }}, {{ "kind": "L", "flops": {head} }} ],
             "pattern": "{}" }}"#,
        config.kinds()
    );
    let (by_hand, _) = Layers::from_json(&by_hand).unwrap();
    for ranks in 1..=4 {
        let placement = Placement::looped(ranks, 1).unwrap();
        let options = PartitionOptions { measure: Measure::Flops, ..PartitionOptions::default() };
        let load = |layers: &Layers, cut: &Partition| {
            let flops = |stage: std::ops::Range<usize>| layers.all()[stage].iter().map(|l| l.flops).sum::<f64>();
            cut.ranges().map(flops).fold(0.0, f64::max)
        };
        let (found, expected) = [&measured, &by_hand]
            .map(|layers| Partition::optimal(layers, &placement, &options).unwrap().partition)
            .into();
        // The hand-written embedding costs nothing: cuts may differ in where it goes, but not in the busiest rank.
        assert_eq!(load(&by_hand, &found), load(&by_hand, &expected), "{ranks} ranks: {found} and {expected}");
    }
    let (read, _) = Layers::from_json(&measured.to_json().unwrap()).unwrap();
    assert_eq!(read, measured);
    assert_eq!(measured.all()[0].kind, 'E');
}
