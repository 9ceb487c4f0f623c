//! A model whose blocks take a given time and compute almost nothing, so that there may be more ranks than cores.
//!
//! 1. A block multiplies by one row of weights and sleeps: once in its forward, once for its input's gradient, once
//!    for its weights'. The last block takes several times as long, like a head over a large vocabulary.
//! 2. The weights' gradient is deferred if the schedule splits its backward. If not, the block opens its own scope,
//!    and both gradients are computed in `B`.
//!
//! This measures the schedule, its messages and the runtime, and not how cores share their work.

use burn::backend::DispatchTensor;
use burn::module::{Module, Param};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::cost::Partition;
use burn_pipeline::ops::{Deferral, DeferredOp, deferred};
use burn_pipeline::stage::{Batch, SplitBackward, Stage, StageBox};
use burn_pipeline::train::{Builder, Pipeline, StageContext};
use std::time::Duration;

/// The blocks of the model.
pub const BLOCKS: usize = 8;
/// How many times longer the last block takes.
const HEAVY: f64 = 4.0;
/// The rows and columns of a block's output: 32 KiB.
const SHAPE: [usize; 2] = [64, 128];

/// A block that sleeps.
#[derive(Module, Debug)]
struct Block {
    scale: Param<Tensor<2>>,
    #[module(skip)]
    seconds: [f64; 3],
}

#[derive(Module, Debug)]
struct Blocks {
    blocks: Vec<Block>,
}

/// `y = x * scale`, and sleep.
#[derive(Debug)]
struct Sleep {
    seconds: [f64; 3],
    /// 1 if the weights' gradient may be deferred; else 2, with a third operand without its own gradient.
    inputs: usize,
}

fn matrix(tensor: &DispatchTensor) -> Tensor<2> {
    Tensor::from_dispatch(tensor.clone())
}

impl DeferredOp for Sleep {
    fn name(&self) -> &'static str {
        "sleep"
    }

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn forward(&self, operands: &[DispatchTensor]) -> DispatchTensor {
        std::thread::sleep(Duration::from_secs_f64(self.seconds[0]));
        (matrix(&operands[0]) * matrix(&operands[1])).into_dispatch()
    }

    fn gradient(&self, operand: usize, operands: &[DispatchTensor], of_output: &DispatchTensor) -> DispatchTensor {
        let of_output = matrix(of_output);
        std::thread::sleep(Duration::from_secs_f64(self.seconds.get(operand + 1).copied().unwrap_or_default()));
        match operand {
            0 => (of_output * matrix(&operands[1])).into_dispatch(),
            1 => (of_output * matrix(&operands[0])).sum_dim(0).into_dispatch(),
            _ => operands[operand].clone(),
        }
    }
}

impl Stage for Blocks {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>, (): ()) -> Tensor<2> {
        self.blocks.iter().fold(input, |x, block| {
            let (seconds, device) = (block.seconds, x.device());
            let operands = vec![x.into_dispatch(), block.scale.val().into_dispatch()];
            if Deferral::is_open() {
                return Tensor::from_dispatch(deferred(Sleep { seconds, inputs: 1 }, operands));
            }
            let nobodys = Tensor::<2>::ones([1, 1], &device).require_grad().into_dispatch();
            let operands = [operands, vec![nobodys]].concat();
            Tensor::from_dispatch(Deferral::default().scope(|| deferred(Sleep { seconds, inputs: 2 }, operands)))
        })
    }
}

/// A batch of `microbatches` microbatches.
pub fn batch(microbatches: usize) -> Batch {
    let x = Tensor::<2>::ones([microbatches * SHAPE[0], SHAPE[1]], &Device::flex());
    Batch::new(x.clone()).target(x)
}

/// Everything that a pipeline needs except its schedule. `forward` is the seconds of a block's `F` and of its `I`;
/// its `W` takes half of that.
pub fn builder(cut: Partition, forward: f64) -> Builder {
    let stage = move |at: &StageContext| {
        let block = |index: usize| {
            let seconds = if index + 1 == BLOCKS { HEAVY * forward } else { forward };
            let scale = Param::from_tensor(Tensor::<2>::ones([1, SHAPE[1]], &at.device));
            Block { scale, seconds: [seconds, seconds, seconds / 2.0] }
        };
        let blocks = at.layers(BLOCKS);
        let names = burn_pipeline::stage::Names::default().layers_from("blocks", blocks.start);
        let blocks = Blocks { blocks: blocks.map(block).collect() };
        let stage = match at.is_last() {
            true => StageBox::with_loss(blocks, |y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean()),
            false => StageBox::new(blocks),
        };
        stage.named(names)
    };
    let builder = Pipeline::builder().devices(vec![Device::flex()]).stages(stage).cut(cut);
    // A captured program would be replayed without its sleep.
    builder.optimizer(|| SgdConfig::new().init()).split(SplitBackward::Eager)
}
