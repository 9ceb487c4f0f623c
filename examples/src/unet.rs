//! A U-Net (Ronneberger et al., 2015): levels going down halve the image, levels going up double it again, and each
//! level going down passes its image to the level of the same size going up.
//!
//! ```text
//! layer    down.0 ──────────────────────────────► up.2
//!              ╲ down.1 ───────────────────► up.1 ╱
//!                   ╲ down.2 ────────► up.0 ╱
//!                         ╲ bottom ───╱
//! ```
//!
//! Within a stage, such an image is a variable; to the next stage, it is part of the ordinary message; to a later
//! stage, it goes directly.

use burn::config::Config;
use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AvgPool2d, AvgPool2dConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use burn_pipeline::layers::{Layer, Model, Sequential};
use burn_pipeline::payload::Skip;

/// The model's size. Images are squares with one channel, whose side is divisible by two `levels` times.
#[derive(Config, Debug)]
pub struct UNetConfig {
    /// How many times the image is halved.
    #[config(default = 3)]
    pub levels: usize,
    /// The number of channels inside.
    #[config(default = 8)]
    pub channels: usize,
    /// The seed of the initial values.
    #[config(default = 0)]
    pub seed: u64,
}

/// A level on the way down.
#[derive(Module, Debug)]
struct Down {
    convolution: Conv2d,
    pool: AvgPool2d,
}

impl Down {
    fn forward(&self, x: Tensor<4>) -> (Tensor<4>, Skip<Tensor<4>>) {
        let x = relu(self.convolution.forward(x));
        (self.pool.forward(x.clone()), Skip(x))
    }
}

impl UNetConfig {
    /// The model, with the mean squared error of the image.
    pub fn model(&self) -> Model {
        let (channels, levels) = (self.channels, self.levels);
        let down = move |at: usize, device: &Device| Down {
            convolution: convolution(if at == 0 { 1 } else { channels }, channels, 3, device),
            pool: AvgPool2dConfig::new([2, 2]).init(),
        };
        let relu_of = |own: &Conv2d, x| relu(own.forward(x));
        let up = |own: &Conv2d, (x, Skip(level)): (Tensor<4>, Skip<Tensor<4>>)| {
            relu(own.forward(Tensor::cat(vec![doubled(x), level], 1)))
        };
        let (bottom, both) = (move |device: &Device| convolution(channels, channels, 3, device), 2 * channels);
        Sequential::new()
            .repeat(
                levels,
                Layer::new("down", move |at| down(at.position, &at.device), Down::forward).skip_out("level"),
            )
            .then(Layer::new("bottom", move |at| bottom(&at.device), relu_of))
            .repeat(levels, Layer::new("up", move |at| convolution(both, channels, 3, &at.device), up).skip_in("level"))
            .then(Layer::new("out", move |at| convolution(channels, 1, 1, &at.device), Conv2d::forward))
            .seed(self.seed)
            .loss(|x: Tensor<4>, target: Tensor<4>| (x - target).square().mean())
    }
}

fn convolution(from: usize, to: usize, side: usize, device: &Device) -> Conv2d {
    Conv2dConfig::new([from, to], [side, side]).with_padding(PaddingConfig2d::Same).init(device)
}

/// Doubles every pixel in both directions.
fn doubled(x: Tensor<4>) -> Tensor<4> {
    let [batch, channels, height, width] = x.dims();
    let wide = x.reshape([batch, channels, height, 1, width, 1]).expand([batch, channels, height, 2, width, 2]);
    wide.reshape([batch, channels, 2 * height, 2 * width])
}
