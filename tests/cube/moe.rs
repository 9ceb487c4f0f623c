//! A pipeline of mixtures of experts on a CubeCL device equals the plain loop on Flex, auxiliary losses included:
//! with kernels, eager and captured, with and without capacity. Two ranks match one rank on the same device bit for
//! bit.

use crate::{coarser, devices, turn};
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::program::{Program, StagePrograms};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, LOSS_SEED, SplitBackward, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Pipeline, StageContext};
use burn_pipeline_moe::auxiliary::{AuxiliaryLosses, AuxiliaryWeights};
use burn_pipeline_moe::layers::{BlockKind, LayerAuxiliary, MixtureOfExperts, MixtureOfExpertsConfig};
use burn_pipeline_moe::router::Capacity;
use pipeline_tests::reference::{Reference, whole};

const LAYERS: usize = 4;
const SHAPE: [usize; 3] = [4, 3, 4];
const MICROBATCHES: usize = 2;

#[derive(Module, Debug)]
struct Mixtures {
    layers: Vec<MixtureOfExperts>,
    #[module(skip)]
    losses: AuxiliaryLosses,
}

impl Mixtures {
    fn new(at: &StageContext, capacity: Capacity) -> Self {
        let config = MixtureOfExpertsConfig::new(SHAPE[2], 3, 3).with_capacity(capacity);
        // Drawn on Flex for every device, so that all have the same weights.
        let draw = |layer| init_seeded(layer as u64, &Device::flex().autodiff(), |device| config.init(device));
        let weights = AuxiliaryWeights { load_balance: 2.0, router_z: 0.5, depth_router: 0.0 };
        let losses = AuxiliaryLosses::new(weights, &[BlockKind::Experts; LAYERS]);
        Self { layers: at.layers(LAYERS).map(draw).collect(), losses }.fork(&at.device)
    }

    fn run(&self, x: Tensor<3>) -> (Tensor<3>, Vec<LayerAuxiliary>) {
        let mut left = Vec::new();
        let x = self.layers.iter().fold(x, |x, layer| {
            let (y, auxiliary) = layer.forward(x.clone());
            left.push(auxiliary);
            // Newly initialised experts give tiny outputs; scaled, their gradients are not lost in the sum.
            x + y * 100.0
        });
        (x, left)
    }
}

impl Stage for Mixtures {
    type Input = Tensor<3>;
    type Extra = Tensor<1>;
    type Output = Tensor<3>;

    fn extras(&self) -> Vec<&'static str> {
        vec![LOSS_SEED]
    }

    fn forward(&self, x: Tensor<3>, seed: Tensor<1>) -> Tensor<3> {
        let (x, left) = self.run(x);
        self.losses.inject(x, &left, seed)
    }
}

fn data(seed: u64, device: &Device) -> Tensor<3> {
    let values: Vec<f32> = crate::kernels::noise(seed, SHAPE.iter().product()).iter().map(|x| *x as f32).collect();
    Tensor::from_data(TensorData::new(values, SHAPE), device)
}

fn loss(y: Tensor<3>, target: Tensor<3>) -> Tensor<1> {
    (y - target).square().mean()
}

/// Gradients of `main + auxiliary`, microbatch by microbatch, on Flex.
fn plain(capacity: Capacity) -> Vec<Vec<f32>> {
    let mut reference = Reference::new(Mixtures::new(&whole(), capacity));
    let size = SHAPE[0] / MICROBATCHES;
    let step = reference.step(&[size; MICROBATCHES], 1e-3, None, |model, i| {
        let piece = |seed| data(seed, &Device::flex()).narrow(0, i * size, size).autodiff();
        let (y, left) = model.run(piece(1));
        loss(y, piece(2)) + model.losses.total(&left).unwrap()
    });
    step.gradients
}

fn pipelined(device: &Device, name: &str, split: SplitBackward, capacity: Capacity) -> (Vec<Vec<f32>>, Pipeline) {
    let stage = move |at: &StageContext| match at.is_last() {
        true => StageBox::with_loss(Mixtures::new(at, capacity), loss),
        false => StageBox::new(Mixtures::new(at, capacity)),
    };
    let (ranks, chunks) = match name {
        "GPipe" => (1, 1),
        "ZBV" => (2, 2),
        _ => (2, 1),
    };
    let size = Size { ranks, chunks, microbatches: MICROBATCHES };
    let builder = Pipeline::builder().schedule(name, size).devices(vec![device.clone()]);
    let mut pipeline = builder.split(split).stages(stage).build().unwrap();
    pipeline.accumulate(Batch::new(data(1, device)).target(data(2, device))).unwrap();
    let gradients = pipeline.take_gradients().unwrap();
    let numbers = |gradient: &Option<AnyTensor>| -> Vec<f32> {
        gradient.as_ref().map(|g| g.to_data().unwrap().iter::<f32>().collect()).unwrap_or_default()
    };
    (gradients.iter().flatten().map(numbers).collect(), pipeline)
}

fn assert_gradients(got: &[Vec<f32>], expected: &[Vec<f32>], coarser: f32, place: &str) {
    assert_eq!(got.len(), expected.len(), "{place}");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.len(), expected.len(), "{place}: the gradient of parameter {index}");
        let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        assert!(largest > 0.0, "{place}: the gradient of parameter {index} is zero");
        let difference = got.iter().zip(expected).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(
            difference <= 5e-5 * coarser * largest,
            "{place}: parameter {index} is {difference} off, its largest number is {largest}"
        );
    }
}

#[test]
fn eager_stages_with_kernels_equal_the_plain_loop_on_flex() {
    let _turn = turn();
    for device in devices() {
        let capacity = Capacity::Factor(1.0);
        let (got, mut pipeline) = pipelined(&device, "1F1B", SplitBackward::Eager, capacity);
        assert_gradients(&got, &plain(capacity), coarser(&device), "1F1B, eager");
        assert!(pipeline.engines().unwrap().iter().all(|(_, report)| !report.captured));
    }
}

/// How often each of a stage's programs `F`, `I` and `W` runs the named operation.
fn counts(programs: &StagePrograms, name: &str) -> [usize; 3] {
    let of = |program: &Program| program.operations().filter(|op| op.name.starts_with(&format!("moe::{name}"))).count();
    [programs.forward(), programs.input(), programs.weight()].map(of)
}

#[test]
fn captured_stages_replay_the_kernels_in_f_i_and_w() {
    let _turn = turn();
    for device in devices() {
        for capacity in [Capacity::Factor(1.0), Capacity::Dropless] {
            // Dropless stages are captured too: uneven row counts need no number from the device.
            let (got, mut pipeline) = pipelined(&device, "ZBV", SplitBackward::Auto, capacity);
            assert_gradients(&got, &plain(capacity), coarser(&device), "ZBV, captured");
            for (stage, (_, report)) in pipeline.engines().unwrap().into_iter().enumerate() {
                assert!(report.captured, "stage {stage}: {}", report.reason);
                assert!(report.reason.contains("kernels of backend extensions"), "stage {stage}: {}", report.reason);
                let programs = &report.programs[0];
                // Per stage of one layer: the experts' matmuls run in F, the gradients of their rows in I, of their
                // matrices in W. The first stage's input has no gradient, so its first two matmuls need no gradient
                // of rows.
                let inputs = if stage == 0 { 1 } else { 3 };
                assert_eq!(counts(programs, "GroupedMatmul"), [3, inputs, 3], "stage {stage}: {programs}");
                assert_eq!(counts(programs, "Route("), [1, 0, 0], "stage {stage}: {programs}");
                let elsewhere =
                    |name| counts(programs, name)[0] == 0 && counts(programs, name)[1..].iter().sum::<usize>() == 1;
                for name in ["RouteBackward", "ZLossBackward", "UnpermuteGatesBackward", "InjectedGradients"] {
                    assert!(elsewhere(name), "stage {stage}: {name}: {programs}");
                }
            }
        }
    }
}

#[test]
fn captured_stages_equal_eager_ones_to_the_bit() {
    let _turn = turn();
    for device in devices() {
        for capacity in [Capacity::Factor(1.0), Capacity::Dropless] {
            let [captured, eager] = [SplitBackward::Captured, SplitBackward::Eager]
                .map(|split| pipelined(&device, "1F1B", split, capacity).0);
            // With fusion, rounding depends on how operations are grouped.
            match cfg!(feature = "fusion") {
                true => assert_gradients(&captured, &eager, coarser(&device), "captured"),
                false => assert_eq!(captured, eager, "{capacity:?}"),
            }
        }
    }
}

// Takes a minute on CubeCL's CPU runtime.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
#[test]
fn captured_stages_of_two_ranks_equal_one_rank_on_the_device() {
    let _turn = turn();
    for device in devices().into_iter().filter(crate::is_fast) {
        let gradients = |name| pipelined(&device, name, SplitBackward::Captured, Capacity::Factor(1.0)).0;
        let [one, two] = ["GPipe", "ZBV"].map(gradients);
        match cfg!(feature = "fusion") {
            true => assert_gradients(&two, &one, coarser(&device), "two ranks"),
            // Each sum has two terms, so their order does not matter.
            false => assert_eq!(two, one, "{device:?}"),
        }
    }
}

#[test]
fn eager_stages_defer_their_products_to_w() {
    let _turn = turn();
    for device in devices() {
        let (got, mut pipeline) = pipelined(&device, "ZBH1", SplitBackward::Eager, Capacity::Dropless);
        assert_gradients(&got, &plain(Capacity::Dropless), coarser(&device), "ZBH1, dropless");
        for (stage, report) in pipeline.engines().unwrap() {
            assert!(!report.captured, "stage {stage}: {}", report.reason);
            // Two layers, each with the router's matmul and three of the experts.
            assert_eq!(report.deferred.map(|deferred| deferred.operations), Some(8), "stage {stage}");
        }
    }
}
