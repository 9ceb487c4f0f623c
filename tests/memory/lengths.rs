//! A captured stage that gets hundreds of sequence lengths keeps a bounded number of programs, and shares their
//! equal constants.

use crate::heap::{live, settle, turn};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, Stage, StageBox};
use burn_pipeline::train::Pipeline;

const WIDTH: usize = 8;
/// The elements of a table that every forward copies from the host: 256 KiB.
const TABLE: usize = 1 << 16;

#[derive(Module, Debug)]
struct Layers {
    layers: Vec<Linear>,
}

impl Stage for Layers {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let table = TensorData::new(vec![0.5_f32; TABLE], [TABLE / WIDTH, WIDTH]);
        let row = Tensor::<2>::from_data(table, &x.device()).slice([0..1, 0..WIDTH]);
        self.layers.iter().fold(x + row, |x, layer| layer.forward(x).tanh())
    }
}

fn pipeline() -> Pipeline {
    let builder = Pipeline::builder().schedule("ZBH1", Size::new(2, 1)).devices(vec![Device::flex()]);
    let builder = builder.stages(|at| {
        let layers = (0..2).map(|_| LinearConfig::new(WIDTH, WIDTH).init(&at.device)).collect();
        match at.is_last() {
            true => StageBox::with_loss(Layers { layers }, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean()),
            false => StageBox::new(Layers { layers }),
        }
    });
    builder.build().unwrap()
}

#[test]
fn four_hundred_lengths_stay_within_what_sixty_four_programs_take() {
    let _turn = turn();
    let mut pipeline = pipeline();
    let mut step = |length: usize| {
        let x = Tensor::<2>::ones([length, WIDTH], &Device::flex());
        pipeline.accumulate(Batch::new(x.clone()).target(x)).unwrap();
    };
    step(1);
    settle();
    let one = live();
    (2..=64).for_each(&mut step);
    settle();
    let full = live();
    (65..=400).for_each(&mut step);
    settle();
    let end = live();
    println!("live heap: 1 length {one} bytes, 64 lengths {full}, 400 lengths {end}");
    // Each of two ranks adds 63 programs. A separate table for each program would take 256 KiB.
    assert!(full < one + 63 * 2 * 200_000, "{one} bytes with one length, {full} with 64");
    assert!(end < full + (1 << 20), "{full} bytes with 64 lengths, {end} with 400");
}
