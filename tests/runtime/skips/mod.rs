//! Skip edges: a U-Net and random graphs train as on one device, whatever the cut.

pub(crate) mod graph;
mod refusals;

use crate::cases::{Case, noise, range, sizes};
use crate::parity::{Plain, assert_equal, assert_parity, builder};
use burn::tensor::{Device, Tensor, TensorData};
use burn_pipeline::plan::Op;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{Accumulation, Batch, SplitBackward};
use burn_pipeline::train::{Builder, StageContext};
use pipeline_examples::unet::UNetConfig;
use pipeline_tests::reference::whole;
use pipeline_tests::unet::{ByHand, UNetPart, picture, squared_error};

/// Nine blocks on images of 16 x 16.
pub(crate) fn unet() -> ByHand {
    ByHand(UNetConfig::new().with_levels(4).with_channels(2).with_seed(5))
}

const SIDE: usize = 16;

pub(crate) struct Pictures {
    noisy: Tensor<4>,
    clean: Tensor<4>,
}

impl Pictures {
    pub(crate) fn new(samples: usize) -> Self {
        let draw = |seed| {
            let values = TensorData::new(noise(seed, samples * SIDE * SIDE), [samples, 1, SIDE, SIDE]);
            Tensor::from_data(values, &Device::flex())
        };
        Self { noisy: draw(21), clean: draw(22) }
    }
}

impl Case for Pictures {
    type Model = UNetPart;

    fn model(&self) -> UNetPart {
        unet().part(&whole())
    }

    fn stage(at: &StageContext) -> burn_pipeline::stage::StageBox {
        unet().stage(at)
    }

    fn batch(&self) -> Batch {
        Batch::new(picture(self.noisy.clone())).target(self.clean.clone())
    }

    fn loss(&self, model: &UNetPart, samples: std::ops::Range<usize>) -> Tensor<1> {
        let noisy = self.noisy.clone().slice([samples.clone()]).autodiff();
        let output = burn_pipeline::stage::Stage::forward(model, picture(noisy), ());
        squared_error(output, self.clean.clone().slice([samples]).autodiff())
    }
}

fn with_edges(builder: Builder, stages: usize) -> Builder {
    unet().edges(stages).into_iter().fold(builder, |builder, (from, to)| builder.skip(from, to))
}

#[test]
fn a_u_net_equals_the_plain_loop_bit_for_bit_over_every_kind_of_schedule() {
    let mut edges = 0;
    for (microbatches, samples) in [(1, 1), (3, 4), (4, 4)] {
        let pictures = Pictures::new(samples);
        let plain = Plain::new(&pictures, microbatches, samples);
        for (schedule, chunks) in [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBV", 2)] {
            for ranks in 1..=4 {
                let stages = ranks * chunks;
                edges += unet().edges(stages).len();
                let size = Size { ranks, chunks, microbatches };
                let built = by_name(schedule).unwrap();
                let builder = builder::<Pictures>(built.as_ref(), size).accumulation(Accumulation::Ordered);
                // Some sizes run captured programs under schedules that split backwards.
                let split = if microbatches == 3 { SplitBackward::Auto } else { SplitBackward::Eager };
                let builder = with_edges(builder, stages).split(split);
                let name = format!("{schedule} on {ranks} ranks, {stages} stages");
                assert_equal(&pictures, &mut builder.build().unwrap(), &plain, &name);
            }
        }
    }
    assert!(edges > 30, "only {edges} edges were used");
}

#[test]
fn both_routes_of_a_bidirectional_placement_have_the_edges() {
    let size = Size { ranks: 4, chunks: 1, microbatches: 8 };
    let schedule = by_name("DualPipe").unwrap();
    let builder = builder::<Pictures>(schedule.as_ref(), size).accumulation(Accumulation::Ordered);
    assert_parity(&Pictures::new(8), &with_edges(builder, 4), 8, 8, "DualPipe");
}

#[test]
fn evaluation_and_the_step_report_know_the_edges() {
    let pictures = Pictures::new(5);
    let size = Size::new(4, 2);
    let mut pipeline = with_edges(builder::<Pictures>(&burn_pipeline::schedule::GPipe, size), 4).build().unwrap();
    let model = unet().part(&whole());
    let cut = sizes(5, 2);
    let expected: f64 =
        (0..2).map(|i| pictures.loss(&model, range(&cut, i)).into_scalar::<f32>() as f64 * cut[i] as f64 / 5.0).sum();
    let report = pipeline.eval(pictures.batch()).unwrap();
    assert!((report.loss.unwrap() - expected).abs() < 1e-12);
    let output: pipeline_tests::unet::Signal = report.output().unwrap();
    assert_eq!(output.x.dims(), [5, 1, SIDE, SIDE]);
    let step = pipeline.step(pictures.batch(), 1e-3).unwrap();
    // Stage 0 of nine blocks in four holds three levels: 0 and 1 go to the last stage, 2 to the one before.
    assert_eq!(unet().edges(4), [(0, 2), (0, 3)]);
    let level = |level: usize| 3 * 2 * (SIDE >> level) * (SIDE >> level) * 4;
    assert_eq!(step.skip_bytes, [level(0) + level(1), 0, 0, 0]);
    let received = |stage: usize| {
        let events = step.timeline.events.iter().flat_map(|event| event.action.tasks());
        events.filter(|task| task.is_skip() && task.stage().index() == stage && task.op() == Op::ReceiveForward).count()
    };
    assert_eq!([received(2), received(3)].iter().filter(|&&count| count >= 2).count(), 2);
}

#[test]
fn awaited_values_past_neighbours_equal_the_plain_loop_bit_for_bit() {
    use burn_pipeline::pass::{Placing, WaitOptions};
    let [(four, plain_of_four), (eight, plain_of_eight)] = [4, 8].map(|samples| {
        let pictures = Pictures::new(samples);
        let plain = Plain::new(&pictures, samples, samples);
        (pictures, plain)
    });
    for (schedule, ranks, chunks) in [("1F1B", 4, 1), ("ZBVZeroBubble", 3, 2), ("Interleaved1F1B", 2, 3)] {
        let size = Size { ranks, chunks, microbatches: 4 };
        let plan = by_name(schedule).unwrap().build(size).unwrap();
        let edges = unet().edges(ranks * chunks).into_iter().map(Into::into).collect();
        let lowered = plan.with_skips(edges).unwrap().with_transfers().unwrap();
        for placing in [Placing::AtOnce, Placing::Late] {
            let waiting = lowered.with_waits(&WaitOptions::all(placing));
            let awaited = (0..ranks).flat_map(|rank| waiting.tasks(rank)).filter(|t| t.is_skip() && t.op().is_wait());
            let awaited = awaited.count();
            assert!(awaited > 0, "{schedule}");
            let builder = builder::<Pictures>(by_name(schedule).unwrap().as_ref(), size).plan(waiting);
            let builder = builder.accumulation(Accumulation::Ordered).split(SplitBackward::Eager);
            assert_equal(&four, &mut builder.clone().build().unwrap(), &plain_of_four, schedule);
            let mut replicas = builder.clone().data_parallel(2).build().unwrap();
            assert_equal(&eight, &mut replicas, &plain_of_eight, &format!("{schedule}, two replicas"));
            let report = builder.build().unwrap().accumulate(four.batch()).unwrap();
            let shown = report.timeline.events.iter().flat_map(|event| event.action.tasks());
            assert_eq!(shown.filter(|t| t.is_skip() && t.op().is_wait()).count(), awaited, "{schedule}");
        }
    }
}

#[test]
fn a_list_of_layers_equals_the_stages_cut_by_hand_bit_for_bit() {
    let by_hand = unet();
    // The list has one layer more, the way out, so the two are cut in different places.
    for ranks in [1, 3, 4] {
        let size = Size::new(ranks, 2);
        let plain = builder::<Pictures>(&burn_pipeline::schedule::OneFOneB, size).accumulation(Accumulation::Ordered);
        let mut list = plain.clone().layers(by_hand.0.model()).build().unwrap();
        let mut own = with_edges(plain, ranks).build().unwrap();
        for _ in 0..2 {
            let Pictures { noisy, clean } = Pictures::new(5);
            let batch = Batch::new(noisy).target(clean);
            let expected = own.step(Pictures::new(5).batch(), 1e-2).unwrap().loss;
            assert_eq!(list.step(batch, 1e-2).unwrap().loss, expected, "{ranks} ranks");
        }
    }
}

#[test]
fn layers_are_measured_with_their_edges() {
    // As `denoise_unet` trains it: 7 blocks, microbatches of 4 images.
    let config = ByHand(UNetConfig::new());
    let (blocks, edges) = (config.blocks(), config.edges(config.blocks()));
    assert_eq!(edges, [(0, 6), (1, 5), (2, 4)]);
    let builder = burn_pipeline::train::Pipeline::builder().devices(vec![Device::flex()]);
    let builder = builder.stages(move |at| config.stage(at));
    let builder = edges.iter().fold(builder, |builder, &(from, to)| builder.skip(from, to));
    let kinds: burn_pipeline::cost::Pattern = "DDDBUUU".parse().unwrap();
    let measured = builder.measure_layers(Pictures::new(4).batch(), kinds.kinds(), 3).unwrap();
    let layers = measured.layers;
    let known: Vec<(usize, usize)> = layers.skips().iter().map(|&edge| edge.into()).collect();
    assert_eq!((layers.len(), known), (blocks, edges));
    // Four images of eight channels; each level has a quarter of the size of the one above.
    let level = |level: usize| (4 * 8 * (SIDE >> level) * (SIDE >> level) * 4) as f64;
    let bytes: Vec<f64> = layers.all().iter().map(|layer| layer.skip_bytes).collect();
    assert_eq!(bytes, [level(0), level(1), level(2), 0.0, 0.0, 0.0, 0.0]);
    println!("{}", layers.to_json().unwrap());
}
