//! Convolutions and pooling on the mock's processors, with their gradients.

use super::computing::{Results, floats, values};
use burn::tensor::module::{avg_pool2d, conv1d, conv2d, max_pool2d};
use burn::tensor::ops::{AvgPoolOptions, ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Tensor, TensorData};

fn leaf<const D: usize>(seed: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
    let data = TensorData::new(values(seed, shape.iter().product()), shape);
    Tensor::from_data(data, &device.clone().autodiff()).require_grad()
}

/// An output, and the gradients of the input, the weight and the bias.
fn differentiated<const D: usize>(
    names: [&'static str; 4],
    [x, weight]: [Tensor<D>; 2],
    bias: Tensor<1>,
    convolve: impl FnOnce([Tensor<D>; 2], Tensor<1>) -> Tensor<D>,
) -> Results {
    let y = convolve([x.clone(), weight.clone()], bias.clone());
    // The gradient that arrives is the output, so it differs from place to place.
    let gradients = y.clone().square().sum().backward();
    let [x, weight] = [x, weight].map(|tensor| floats(tensor.grad(&gradients).unwrap()));
    let rows = [floats(y), x, weight, floats(bias.grad(&gradients).unwrap())];
    names.into_iter().zip(rows).collect()
}

/// One after the other with a stride, padding, gaps and groups.
pub(super) fn convolutions(device: &Device) -> Results {
    let leaf2 = |seed, shape: [usize; 3]| leaf(seed, shape, device);
    let leaf3 = |seed, shape: [usize; 4]| leaf(seed, shape, device);
    let bias = |seed| leaf(seed, [4], device);
    let (gaps, groups) = (ConvOptions::new([2], [1], [2], 1), ConvOptions::new([1, 1], [1, 1], [1, 1], 2));
    let strides = ConvOptions::new([2, 1], [0, 1], [1, 2], 1);
    let mut results = differentiated(
        ["1-d", "1-d: input", "1-d: weight", "1-d: bias"],
        [leaf2(1, [2, 3, 11]), leaf2(2, [4, 3, 3])],
        bias(3),
        |[x, weight], bias| conv1d(x, weight, Some(bias), gaps),
    );
    results.extend(differentiated(
        ["2-d", "2-d: input", "2-d: weight", "2-d: bias"],
        [leaf3(4, [2, 3, 7, 8]), leaf3(5, [4, 3, 3, 2])],
        bias(6),
        |[x, weight], bias| conv2d(x, weight, Some(bias), strides),
    ));
    results.extend(differentiated(
        ["groups", "groups: input", "groups: weight", "groups: bias"],
        [leaf3(7, [1, 4, 5, 5]), leaf3(8, [4, 2, 3, 3])],
        bias(9),
        |[x, weight], bias| conv2d(x, weight, Some(bias), groups),
    ));
    results
}

/// The largest and the mean of windows that overlap.
pub(super) fn pools(device: &Device) -> Results {
    let most = MaxPoolOptions { stride: [2, 1], padding: [(1, 1), (0, 0)], ..MaxPoolOptions::new([3, 2]) };
    let mean = AvgPoolOptions { stride: [1, 2], padding: [(0, 0), (1, 1)], ..AvgPoolOptions::new([2, 3]) };
    let x = leaf(10, [2, 2, 6, 7], device);
    let (largest, means) = (max_pool2d(x.clone(), most), avg_pool2d(x.clone(), mean));
    let gradients = (largest.clone().square().sum() + means.clone().square().sum()).backward();
    vec![
        ("largest of windows", floats(largest)),
        ("mean of windows", floats(means)),
        ("gradient of windows", floats(x.grad(&gradients).unwrap())),
    ]
}
