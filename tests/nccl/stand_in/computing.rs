//! Burn's operations on the mock's processors, compared with the same operations on Flex.

use super::convolutions::{convolutions, pools};
use super::links::ORDERINGS;
use super::start;
use crate::cases::{Case, Stack, Text, range, sizes};
use crate::{TIMEOUT, link};
use burn::nn::{LayerNormConfig, RmsNormConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::{gelu, log_softmax, relu, sigmoid, silu, softmax};
use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData};
use burn_pipeline::link::{Launch, Link};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::train::Pipeline;
use burn_pipeline_nccl::NcclLink;
use cubecl_runtime::config::memory::CudaAllocator;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use pipeline_tests::reference::Reference;

/// Runs the named part of a rank's process. Returns false if the name is not one of these.
pub(super) fn part(name: &str) -> bool {
    match name {
        "operations" => operations(&[element_wise, reductions, products, places]),
        "convolutions" => operations(&[convolutions, pools]),
        "training" => {
            set_allocator();
            training(&Stack::new(SAMPLES), &[("1F1B", 1), ("Interleaved1F1B", 2), ("ZBH1", 1)]);
        }
        "training of a decoder" => training(&Text::new(SAMPLES), &[("ZBVZeroBubble", 2)]),
        _ => return false,
    }
    true
}

/// Sets how CubeCL frees memory: with a wait for the device (its default), or in a stream's order.
fn set_allocator() {
    let mut config = CubeClRuntimeConfig::default();
    if std::env::var("ALLOCATOR").is_ok_and(|name| name == "async") {
        config.memory.cuda.allocator = CudaAllocator::Async;
    }
    CubeClRuntimeConfig::set(config);
}

/// Values in `(-2, 2)`, all of them different.
pub(super) fn values(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|place| (((place + 1) * 7919 + seed * 104_729) % 4001) as f32 / 1000.5 - 2.0).collect()
}

fn matrix(seed: usize, [rows, columns]: [usize; 2], device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values(seed, rows * columns), [rows, columns]), device)
}

pub(super) type Results = Vec<(&'static str, Vec<f32>)>;
type Compute = fn(&Device) -> Results;

pub(super) fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn ints<const D: usize>(tensor: Tensor<D, Int>) -> Vec<f32> {
    tensor.into_data().iter::<i64>().map(|value| value as f32).collect()
}

fn element_wise(device: &Device) -> Results {
    let (a, b) = (matrix(1, [7, 65], device), matrix(2, [7, 65], device));
    let positive = a.clone().abs() + 0.25;
    vec![
        ("add", floats(a.clone() + b.clone())),
        ("rows", floats(a.clone() * b.clone().slice([2..3, 0..65]))),
        ("divide", floats(a.clone() / (b.clone() + 3.0))),
        ("exp", floats(a.clone().exp())),
        ("log", floats(positive.clone().log())),
        ("square root", floats(positive.clone().sqrt())),
        ("power", floats(positive.powf_scalar(1.7))),
        ("tanh", floats(a.clone().tanh())),
        ("sine", floats(a.clone().sin())),
        ("error function", floats(a.clone().erf())),
        ("relu", floats(relu(a.clone()))),
        ("gelu", floats(gelu(a.clone()))),
        ("silu", floats(silu(a.clone()))),
        ("sigmoid", floats(sigmoid(a.clone()))),
        ("clamp", floats(a.clone().clamp(-0.5, 0.75))),
        ("mask", floats(a.clone().mask_fill(b.clone().greater_elem(0.5), -7.0))),
        ("where", floats(a.clone().mask_where(a.clone().lower(b.clone()), b))),
        ("to integers", ints((a * 100.0).int())),
    ]
}

fn reductions(device: &Device) -> Results {
    let a = matrix(3, [33, 70], device);
    vec![
        ("sum", floats(a.clone().sum())),
        ("mean of rows", floats(a.clone().mean_dim(1))),
        ("sum of columns", floats(a.clone().sum_dim(0))),
        ("largest of columns", floats(a.clone().max_dim(0))),
        ("place of the largest", ints(a.clone().argmax(1))),
        ("variance", floats(a.clone().var(1))),
        ("softmax", floats(softmax(a.clone(), 1))),
        ("logarithm of softmax", floats(log_softmax(a.clone(), 0))),
        ("layer norm", floats(LayerNormConfig::new(70).init(device).forward(a.clone()))),
        ("root mean square norm", floats(RmsNormConfig::new(70).init(device).forward(a))),
    ]
}

fn products(device: &Device) -> Results {
    let small = matrix(4, [5, 17], device).matmul(matrix(5, [17, 9], device));
    let large = matrix(6, [70, 65], device).matmul(matrix(7, [130, 65], device).transpose());
    let batch = |seed| matrix(seed, [6, 120], device).reshape([2, 3, 12, 10]);
    let attention = batch(8).matmul(batch(9).swap_dims(2, 3));
    vec![
        ("small product", floats(small)),
        ("large product", floats(large)),
        ("products of a batch", floats(attention)),
        ("row by matrix", floats(matrix(10, [1, 64], device).matmul(matrix(11, [64, 32], device)))),
    ]
}

fn places(device: &Device) -> Results {
    let a = matrix(12, [9, 21], device);
    let rows = Tensor::<1, Int>::from_ints([3, 8, 0, 3], device);
    let each = Tensor::<1, Int>::arange(0..18, device).reshape([9, 2]);
    let update = matrix(13, [4, 21], device);
    vec![
        ("slice", floats(a.clone().slice([2..7, 3..20]))),
        ("transposed", floats(a.clone().transpose() + 1.0)),
        ("put", floats(a.clone().slice_assign([1..5, 0..21], update.clone()))),
        ("joined", floats(Tensor::cat(vec![a.clone(), update.clone()], 0))),
        ("repeated", floats(update.clone().repeat_dim(0, 3))),
        ("select", floats(a.clone().select(0, rows.clone()))),
        ("add to the selected", floats(a.clone().select_assign(0, rows, update, IndexingUpdateOp::Add))),
        ("gather", floats(a.clone().gather(1, each.clone()))),
        ("scatter", floats(a.clone().scatter(1, each, matrix(14, [9, 2], device), IndexingUpdateOp::Add))),
        ("flip", floats(a.clone().flip([1]))),
        ("triangle", floats(a.triu(1))),
        ("one hot", ints(Tensor::<1, Int>::from_ints([2, 0, 1], device).one_hot::<2>(4))),
    ]
}

/// Compares families of operations with Flex.
fn operations(families: &[Compute]) {
    let device = NcclLink::gpu_of(&Launch::from_environment().unwrap().unwrap()).unwrap();
    for compute in families {
        for ((name, got), (_, expected)) in compute(&device).into_iter().zip(compute(&Device::flex())) {
            assert_eq!(got.len(), expected.len(), "{name}");
            let largest = expected.iter().fold(1e-3_f32, |largest, value| largest.max(value.abs()));
            let error = got.iter().zip(&expected).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f32::max);
            println!("{name}: {error:e}");
            assert!(error < 1e-5, "{name}: {got:?}, {expected:?}");
        }
    }
}

#[test]
fn operations_compute_what_flex_computes() {
    start(1, "operations", &[]).all_pass();
}

#[test]
fn convolutions_and_pooling_and_their_gradients_compute_what_flex_computes() {
    start(1, "convolutions", &[]).all_pass();
}

/// Samples, microbatches and steps of a training.
const SAMPLES: usize = 4;
const MICROBATCHES: usize = 2;
const STEPS: usize = 2;
const RATE: f64 = 1e-2;

/// Each step's loss over NCCL.
fn losses<C: Case>(case: &C, schedule: &str, chunks: usize) -> Vec<f64> {
    let (link, device) = link();
    let size = Size { ranks: link.ranks(), chunks, microbatches: MICROBATCHES };
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![device]).stages(C::stage);
    let builder = builder.optimizer(|| AdamWConfig::new().init()).split(SplitBackward::Captured).timeout(TIMEOUT);
    let mut pipeline = builder.build_rank(Box::new(link)).unwrap();
    (0..STEPS).map(|_| pipeline.step(case.batch(), RATE).unwrap().loss).collect()
}

/// Trains over NCCL with computing on the device, and by the plain loop on the same device.
fn training<C: Case>(case: &C, schedules: &[(&str, usize)]) {
    let (mut plain, sizes) = (Reference::new(case.model()), sizes(SAMPLES, MICROBATCHES));
    let mut step = |_| plain.step(&sizes, RATE, None, |model, i| case.loss(model, range(&sizes, i))).loss;
    let expected: Vec<f64> = (0..STEPS).map(&mut step).collect();
    assert!(expected[1] < expected[0], "the loss falls: {expected:?}");
    for &(schedule, chunks) in schedules {
        let got = losses(case, schedule, chunks);
        let close = got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6 * b.abs());
        assert!(close, "{schedule}: {got:?}, the plain loop {expected:?}");
        assert_eq!(losses(case, schedule, chunks), got, "{schedule}: other bits in the second run");
    }
}

#[test]
fn pipelines_train_on_the_device_as_the_plain_loop_does() {
    for (ordering, allocator) in ORDERINGS.into_iter().zip(["sync", "async"]) {
        let variables = [("ORDERING", ordering), ("ALLOCATOR", allocator), ("DEVICE", "cuda")];
        start(2, "training", &variables).all_pass();
    }
}

#[test]
fn a_decoder_trains_on_the_device_as_the_plain_loop_does() {
    start(2, "training of a decoder", &[("DEVICE", "cuda")]).all_pass();
}

#[test]
fn padded_rows_views_and_half_precision_are_sent() {
    start(1, "tensors", &[]).all_pass();
}
