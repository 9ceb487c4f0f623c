//! The place of a captured stage's collectives: one that only a weight's gradient needs is still in `I`.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::nn::{ColumnLinear, RowLinear};
use burn_pipeline::program::Program;
use burn_pipeline::stage::{SplitBackward, Stage, StageBox};
use burn_pipeline::{Accumulation, Batch, Pipeline, Size, init_seeded};

/// Only the vectors need the all-reduce of the backward.
#[derive(Module, Debug)]
struct Scored {
    vectors: Embedding,
    up: ColumnLinear,
    down: RowLinear,
}

impl Stage for Scored {
    type Input = Tensor<2, Int>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, tokens: Tensor<2, Int>, (): ()) -> Tensor<3> {
        self.down.forward(self.up.forward(self.vectors.forward(tokens)))
    }
}

fn pipeline(split: SplitBackward) -> Pipeline {
    Pipeline::builder()
        .schedule("ZBH1", Size::new(1, 2))
        .devices(vec![Device::flex()])
        .stages(|at| {
            let (vectors, up, down) = (
                init_seeded(1, &at.device, |device| EmbeddingConfig::new(6, 4).init(device)),
                init_seeded(2, &at.device, |device| LinearConfig::new(4, 6).init(device)),
                init_seeded(3, &at.device, |device| LinearConfig::new(6, 4).init(device)),
            );
            let (up, down) = (ColumnLinear::cut(up, &at.group), RowLinear::cut(down, &at.group));
            let loss = |y: Tensor<3>, target: Tensor<3>| (y - target).square().mean();
            StageBox::with_loss(Scored { vectors, up, down }, loss)
        })
        .optimizer(|| SgdConfig::new().init())
        .split(split)
        .accumulation(Accumulation::Ordered)
        .tensor_parallel(2)
        .build()
        .unwrap()
}

#[test]
fn a_collective_that_one_weight_alone_needs_is_in_i() {
    let device = Device::flex();
    let tokens = Tensor::<1, Int>::arange(0..12, &device).remainder_scalar(6).reshape([4, 3]);
    let batch = || Batch::new(tokens.clone()).target(Tensor::<3>::ones([4, 3, 4], &device));
    let mut losses = Vec::new();
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        let mut pipeline = pipeline(split);
        losses.push([(); 2].map(|()| pipeline.step(batch(), 0.5).unwrap().loss.to_bits()));
        for (stage, engine) in pipeline.engines().unwrap().into_iter().filter(|(_, engine)| engine.captured) {
            let programs = &engine.programs[0];
            let count = |program: &Program| program.to_string().matches("start of all-reduce").count();
            let counts = (count(programs.forward()), count(programs.input()), count(programs.weight()));
            assert_eq!(counts, (1, 1, 0), "{stage}: {}", programs.weight());
        }
    }
    assert_eq!(losses[0], losses[1]);
}
