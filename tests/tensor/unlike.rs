//! Members that use an exchange differently: one needs its result, another does not.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::nn::{ColumnLinear, RowLinear};
use burn_pipeline::stage::{SplitBackward, Stage, StageBox};
use burn_pipeline::tensor_parallel::TensorGroup;
use burn_pipeline::{Batch, Builder, Pipeline, Size, init_seeded};
use pipeline_tests::reference::Reference;

const RATE: f64 = 0.02;
const WIDTH: usize = 4;

/// A norm, then `down(up(x) + [s, s, ..])`, where `s` is the matmul of a detached multiple of `x` with some of
/// `up`'s columns.
#[derive(Module, Debug)]
struct Plain {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

fn plain(seed: u64, device: &Device) -> Plain {
    init_seeded(seed, device, |device| Plain {
        norm: LayerNormConfig::new(WIDTH).init(device),
        up: LinearConfig::new(WIDTH, 6).init(device),
        down: LinearConfig::new(6, WIDTH).init(device),
    })
}

/// The same: one member computes `s` and broadcasts it, and autodiff tracks it only there. The others also take
/// part in the exchange of the multiple of `x`, but do not read the result.
#[derive(Module, Debug)]
struct Unlike {
    norm: LayerNorm,
    up: ColumnLinear,
    down: RowLinear,
    #[module(skip)]
    group: TensorGroup,
    root: usize,
}

impl Stage for Unlike {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let x = self.group.copy_to(self.norm.forward(x));
        let (fixed, weight) = (x.clone().detach(), self.up.linear.weight.val());
        let all = self.group.reduce_from(fixed.clone()).detach();
        let (source, weight) = match self.group.member() == self.root {
            true => (fixed + all, weight),
            false => (fixed * 0.5, weight.detach()),
        };
        let same = self.group.broadcast(source.matmul(weight), self.root);
        self.down.forward(self.up.linear.forward(x) + same)
    }
}

fn builder(ranks: usize, members: usize, root: usize) -> Builder {
    Pipeline::builder()
        .schedule("ZBH1", Size::new(ranks, 4))
        .devices(vec![Device::flex()])
        .stages(move |at| {
            let Plain { norm, up, down } = plain(at.index as u64, &at.device);
            let (up, down) = (ColumnLinear::cut(up, &at.group), RowLinear::cut(down, &at.group));
            let stage = Unlike { norm, up, down, group: at.group.clone(), root };
            match at.is_last() {
                false => StageBox::new(stage),
                true => StageBox::with_loss(stage, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean()),
            }
        })
        .optimizer(|| SgdConfig::new().init())
        .tensor_parallel(members)
}

fn data() -> (Tensor<2>, Tensor<2>) {
    let x = Tensor::<1, burn::tensor::Int>::arange(0..32, &Device::flex()).float().reshape([8, WIDTH]);
    (x.clone().sin(), (x * 0.7).cos())
}

/// The losses of two steps, and the weights after them.
fn expected(stages: usize, members: usize, root: usize) -> (Vec<f64>, Vec<Vec<f32>>) {
    let device = Device::flex().autodiff();
    let model: Vec<Plain> = (0..stages).map(|stage| plain(stage as u64, &device)).collect();
    let mut reference = Reference::resumed(model, SgdConfig::new().init());
    let (x, target) = data();
    let mut step = || {
        let given = reference.step(&[2; 4], RATE, None, |model: &Vec<Plain>, i| {
            let piece = |of: &Tensor<2>| of.clone().narrow(0, 2 * i, 2).autodiff();
            let y = model.iter().fold(piece(&x), |x, part| {
                let (x, each) = (part.norm.forward(x), 6 / members);
                let columns = part.up.weight.val().narrow(1, root * each, each);
                let same = (x.clone().detach() * (1 + members) as f32).matmul(columns);
                part.down.forward(part.up.forward(x) + Tensor::cat(vec![same; members], 1))
            });
            (y - piece(&target)).square().mean()
        });
        given.loss
    };
    let losses = vec![step(), step()];
    (losses, reference.weights())
}

#[test]
fn exchanges_stay_where_this_member_needs_nothing_of_them() {
    for (ranks, members) in [(1, 2), (2, 2), (1, 3)] {
        for root in 0..members {
            let (losses, weights) = expected(ranks, members, root);
            for (split, compile) in
                [(SplitBackward::Eager, false), (SplitBackward::Captured, false), (SplitBackward::Captured, true)]
            {
                let place = format!("{ranks} x {members}, root {root}, {split:?}, compiled: {compile}");
                let mut pipeline = builder(ranks, members, root).split(split).compile(compile).build().unwrap();
                let (x, target) = data();
                for expected in &losses {
                    let loss = pipeline.step(Batch::new(x.clone()).target(target.clone()), RATE).unwrap().loss;
                    assert!((loss - expected).abs() < 1e-5 * expected, "{place}: loss {loss} for {expected}");
                }
                let got = crate::model::weights(&mut pipeline);
                let pairs = got.iter().flatten().zip(weights.iter().flatten());
                let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(apart < 2e-6, "{place}: weights differ by {apart}");
            }
        }
    }
}
