//! Convolutions and their gradients against the interpreter's, and tensors written side by side.

use crate::halves::{self, cast, half_unit, in_type};
use crate::listed::{Listed, unary};
use crate::run::{both, compiled, near, tensor, wave};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::ir::{
    BaseOperationIr, CatOpIr, Conv1dBiasBackwardOpIr, Conv1dOpIr, Conv1dOptionsIr, Conv1dWeightBackwardOpIr,
    Conv1dXBackwardOpIr, Conv2dBiasBackwardOpIr, Conv2dOpIr, Conv2dOptionsIr, Conv2dWeightBackwardOpIr,
    Conv2dXBackwardOpIr, ModuleOperationIr, OperationIr, TensorIr,
};
use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use proptest::prelude::*;

/// One axis of a convolution.
#[derive(Clone, Copy, Debug)]
struct Axis {
    /// Of the output.
    places: usize,
    window: usize,
    stride: usize,
    dilation: usize,
    padding: (usize, usize),
    /// Elements at the end that no window reads.
    unread: usize,
}

impl Axis {
    /// Elements of the input; `None` if windows read nothing but padding.
    fn input(&self) -> Option<usize> {
        let read = (self.places - 1) * self.stride + (self.window - 1) * self.dilation + 1;
        let unread = self.unread.min(self.stride - 1);
        (read + unread).checked_sub(self.padding.0 + self.padding.1).filter(|size| *size > 0)
    }
}

fn axis() -> impl Strategy<Value = Axis> {
    let places = prop_oneof![3 => 1..6_usize, 1 => Just(19), 1 => Just(40)];
    let padding = prop_oneof![Just((0, 0)), Just((1, 1)), (0..3_usize, 0..3_usize)];
    (places, 1..4_usize, 1..4_usize, 1..3_usize, padding, 0..3_usize)
        .prop_map(|(places, window, stride, dilation, padding, unread)| Axis {
            places,
            window,
            stride,
            dilation,
            padding,
            unread,
        })
        .prop_filter("windows read the image", |axis| axis.input().is_some())
}

/// Output and gradients of a convolution with a bias, and what is fed: input, weight, bias, and the output's gradient.
struct Case {
    listed: Listed,
    wanted: Vec<TensorIr>,
    fed: Vec<FlexTensor>,
}

impl Case {
    fn new(samples: usize, [channels, features]: [usize; 2], axes: &[Axis]) -> Self {
        let of = |first: [usize; 2], along: fn(&Axis) -> usize| -> Vec<usize> {
            first.into_iter().chain(axes.iter().map(along)).collect()
        };
        let input = of([samples, channels], |axis| axis.input().unwrap());
        let weight = of([features, channels], |axis| axis.window);
        let output = of([samples, features], |axis| axis.places);
        let mut listed = Listed::default();
        let tensors = [&input[..], &weight, &[features], &output].map(|shape| listed.feed(shape));
        let fed = [(&input[..], 0.3), (&weight, 0.7), (&[features], 0.2), (&output, 0.11)];
        let fed = fed.map(|(shape, speed)| above(shape, speed)).to_vec();
        let [x, weight, bias, gradient] = tensors;
        let wanted = match axes {
            [axis] => one(&mut listed, [&x, &weight, &bias, &gradient], axis),
            [rows, columns] => two(&mut listed, [&x, &weight, &bias, &gradient], [rows, columns], 1),
            _ => panic!("one axis or two"),
        };
        Self { listed, wanted, fed }
    }

    /// The same in half precision, with numbers whose sums f16 holds.
    fn in_half(&self, dtype: DType) -> Self {
        let mut listed = self.listed.emptied();
        listed.fed.iter_mut().for_each(|fed| fed.dtype = dtype);
        listed.operations = self.listed.operations.iter().map(|op| halves::typed(op, dtype)).collect();
        let smaller = |value: &FlexTensor| cast(&Flex::float_mul_scalar(value.clone(), (1.0 / 16.0).into()), dtype);
        Self { listed, wanted: in_type(&self.wanted, dtype), fed: self.fed.iter().map(smaller).collect() }
    }

    /// What this convolution gives in f32.
    fn widened(&self, fed: &[FlexTensor]) -> Vec<Vec<f32>> {
        let fed: Vec<FlexTensor> = fed.iter().map(|fed| cast(fed, DType::F32)).collect();
        both(&self.listed, &fed, &self.wanted).0
    }

    fn given(&self, threads: usize) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| both(&self.listed, &self.fed, &self.wanted))
    }
}

/// Values from 1 to 7: sums of matmuls do not cancel out.
fn above(shape: &[usize], speed: f32) -> FlexTensor {
    let count: usize = shape.iter().product();
    tensor((0..count).map(|at| (at as f32 * speed).sin() * 3.0 + 4.0).collect(), shape)
}

fn module(op: ModuleOperationIr) -> OperationIr {
    OperationIr::Module(op)
}

fn one(listed: &mut Listed, [x, weight, bias, gradient]: [&TensorIr; 4], axis: &Axis) -> Vec<TensorIr> {
    let (stride, padding, dilation) = ([axis.stride], [axis.padding], [axis.dilation]);
    let options = Conv1dOptionsIr { stride, padding, dilation, groups: 1 };
    let [x, weight, bias, output_grad] = [x, weight, bias, gradient].map(Clone::clone);
    let output = listed.make(&output_grad.shape, |out| {
        let (x, weight, bias) = (x.clone(), weight.clone(), Some(bias.clone()));
        module(ModuleOperationIr::Conv1d(Conv1dOpIr { x, weight, bias, options: options.clone(), out }))
    });
    let of_input = listed.make(&x.shape, |out| {
        let (x, weight, output_grad) = (x.clone(), weight.clone(), output_grad.clone());
        let options = options.clone();
        module(ModuleOperationIr::Conv1dXBackward(Conv1dXBackwardOpIr { x, weight, output_grad, options, out }))
    });
    let of_weight = listed.make(&weight.shape, |out| {
        let (x, weight, output_grad) = (x.clone(), weight.clone(), output_grad.clone());
        let op = Conv1dWeightBackwardOpIr { x, weight, output_grad, options: options.clone(), out };
        module(ModuleOperationIr::Conv1dWeightBackward(op))
    });
    let of_bias = listed.make(&bias.shape, |out| {
        module(ModuleOperationIr::Conv1dBiasBackward(Conv1dBiasBackwardOpIr {
            x,
            bias: bias.clone(),
            output_grad,
            out,
        }))
    });
    vec![output, of_input, of_weight, of_bias]
}

fn two(
    listed: &mut Listed,
    [x, weight, bias, gradient]: [&TensorIr; 4],
    axes: [&Axis; 2],
    groups: usize,
) -> Vec<TensorIr> {
    let (stride, padding, dilation) =
        (axes.map(|axis| axis.stride), axes.map(|axis| axis.padding), axes.map(|axis| axis.dilation));
    let options = Conv2dOptionsIr { stride, padding, dilation, groups };
    let [x, weight, bias, output_grad] = [x, weight, bias, gradient].map(Clone::clone);
    let output = listed.make(&output_grad.shape, |out| {
        let (x, weight, bias) = (x.clone(), weight.clone(), Some(bias.clone()));
        module(ModuleOperationIr::Conv2d(Conv2dOpIr { x, weight, bias, options: options.clone(), out }))
    });
    let of_input = listed.make(&x.shape, |out| {
        let (x, weight, output_grad) = (x.clone(), weight.clone(), output_grad.clone());
        let options = options.clone();
        module(ModuleOperationIr::Conv2dXBackward(Conv2dXBackwardOpIr { x, weight, output_grad, options, out }))
    });
    let of_weight = listed.make(&weight.shape, |out| {
        let (x, weight, output_grad) = (x.clone(), weight.clone(), output_grad.clone());
        let op = Conv2dWeightBackwardOpIr { x, weight, output_grad, options: options.clone(), out };
        module(ModuleOperationIr::Conv2dWeightBackward(op))
    });
    let of_bias = listed.make(&bias.shape, |out| {
        module(ModuleOperationIr::Conv2dBiasBackward(Conv2dBiasBackwardOpIr {
            x,
            bias: bias.clone(),
            output_grad,
            out,
        }))
    });
    vec![output, of_input, of_weight, of_bias]
}

fn case() -> impl Strategy<Value = (usize, [usize; 2], Vec<Axis>)> {
    let channels = || prop_oneof![3 => 1..5_usize, 1 => Just(20), 1 => Just(70)];
    let axes = prop_oneof![axis().prop_map(|axis| vec![axis]), (axis(), axis()).prop_map(|(one, two)| vec![one, two])];
    (1..4_usize, [channels(), channels()], axes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn convolutions_and_their_gradients_are_those_of_the_interpreter((samples, channels, axes) in case()) {
        let case = Case::new(samples, channels, &axes);
        let summary = compiled(&case.listed, &case.wanted).summary();
        prop_assert!(summary.interpreted.is_empty() && summary.convolutions == 3, "{}", summary);
        let ((expected, alone), (_, shared)) = (case.given(1), case.given(3));
        near(&expected, &alone);
        prop_assert_eq!(alone, shared, "numbers do not depend on the number of threads");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn convolutions_in_half_precision_are_those_in_f32_rounded_once((samples, channels, axes) in case()) {
        let case = Case::new(samples, channels, &axes);
        for dtype in halves::TYPES {
            let half = case.in_half(dtype);
            let summary = compiled(&half.listed, &half.wanted).summary();
            prop_assert!(summary.interpreted.is_empty() && summary.convolutions == 3, "{}", summary);
            let ((interpreted, alone), (_, shared)) = (half.given(1), half.given(3));
            prop_assert_eq!(&alone, &shared, "numbers do not depend on the number of threads");
            let (unit, wide) = (2.0 * half_unit(dtype).0 as f32, case.widened(&half.fed));
            for (given, wide) in alone.iter().flatten().zip(wide.iter().flatten()) {
                // Half a unit, and what the order of additions in f32 changes.
                prop_assert!((given - wide).abs() <= 0.51 * unit * wide, "{dtype:?}: {given} instead of {wide}");
            }
            for (given, interpreted) in alone.iter().flatten().zip(interpreted.iter().flatten()) {
                // The interpreter adds f16 in f16, where a sum may stop growing, and bf16 in f32 along one dimension.
                let near = dtype == DType::F16 || (given - interpreted).abs() <= 4.0 * unit * given;
                prop_assert!(near, "{dtype:?}: {given}, interpreted {interpreted}");
            }
        }
    }
}

#[test]
fn windows_of_a_large_image_are_read_block_by_block() {
    let columns = Axis { places: 150, window: 3, stride: 1, dilation: 1, padding: (1, 1), unread: 0 };
    let case = Case::new(2, [40, 30], &[Axis { places: 9, ..columns }, columns]);
    let ((expected, alone), (_, shared)) = (case.given(1), case.given(3));
    near(&expected, &alone);
    assert_eq!(alone, shared);
}

#[test]
fn windows_of_one_element_are_the_image_unless_it_is_padded() {
    let axis = Axis { places: 9, window: 1, stride: 1, dilation: 1, padding: (0, 0), unread: 0 };
    for columns in [axis, Axis { padding: (0, 2), ..axis }, Axis { stride: 2, ..axis }] {
        let (expected, given) = Case::new(3, [5, 6], &[axis, columns]).given(1);
        near(&expected, &given);
    }
}

#[test]
fn an_image_that_is_cut_out_of_another_is_read_where_it_lies() {
    let mut listed = Listed::default();
    let (x, weight, bias) = (listed.feed(&[2, 8, 6, 5]), listed.feed(&[3, 4, 3, 3]), listed.feed(&[3]));
    let (part, gradient) = (listed.slice(&x, 1, 4), listed.feed(&[2, 3, 6, 5]));
    let axis = Axis { places: 6, window: 3, stride: 1, dilation: 1, padding: (1, 1), unread: 0 };
    let wanted = two(&mut listed, [&part, &weight, &bias, &gradient], [&axis, &axis], 1);
    let fed = [wave(&[2, 8, 6, 5], 0.3), wave(&[3, 4, 3, 3], 0.7), wave(&[3], 0.2), wave(&[2, 3, 6, 5], 0.9)];
    let (expected, given) = both(&listed, &fed, &wanted);
    near(&expected, &given);
}

#[test]
fn convolutions_in_groups_are_interpreted() {
    let mut listed = Listed::default();
    let (x, weight, bias) = (listed.feed(&[2, 4, 6, 6]), listed.feed(&[4, 1, 3, 3]), listed.feed(&[4]));
    let gradient = listed.feed(&[2, 4, 6, 6]);
    let axis = Axis { places: 6, window: 3, stride: 1, dilation: 1, padding: (1, 1), unread: 0 };
    let wanted = two(&mut listed, [&x, &weight, &bias, &gradient], [&axis, &axis], 4);
    let summary = compiled(&listed, &wanted).summary();
    assert_eq!((summary.convolutions, summary.interpreted.len()), (0, 3), "{summary}");
    let fed = [wave(&[2, 4, 6, 6], 0.3), wave(&[4, 1, 3, 3], 0.7), wave(&[4], 0.2), wave(&[2, 4, 6, 6], 0.9)];
    let (expected, given) = both(&listed, &fed, &wanted);
    near(&expected, &given);
}

#[test]
fn convolutions_of_images_without_elements_are_interpreted() {
    let mut listed = Listed::default();
    let (x, weight, bias) = (listed.feed(&[1, 2, 0, 4]), listed.feed(&[3, 2, 2, 1]), listed.feed(&[3]));
    let gradient = listed.feed(&[1, 3, 1, 4]);
    let rows = Axis { places: 1, window: 2, stride: 1, dilation: 1, padding: (1, 1), unread: 0 };
    let columns = Axis { places: 4, window: 1, stride: 1, dilation: 1, padding: (0, 0), unread: 0 };
    let wanted = two(&mut listed, [&x, &weight, &bias, &gradient], [&rows, &columns], 1);
    let summary = compiled(&listed, &wanted).summary();
    assert_eq!((summary.convolutions, summary.interpreted.len()), (0, 3), "{summary}");
}

#[test]
fn tensors_side_by_side_are_written_into_their_places() {
    let mut listed = Listed::default();
    let (x, y) = (listed.feed(&[2, 3, 4, 1, 5, 1]), listed.feed(&[2, 5, 8, 10]));
    let larger = listed.expand(&x, &[2, 3, 4, 2, 5, 2]);
    let larger = listed.reshape(&larger, &[2, 3, 8, 10]);
    let bounded = listed.unary(unary("tanh"), &y);
    let joined = listed.make(&[2, 8, 8, 10], |out| {
        OperationIr::BaseFloat(BaseOperationIr::Cat(CatOpIr { tensors: vec![larger.clone(), bounded], dim: 1, out }))
    });
    let program = compiled(&listed, &[joined.clone()]);
    // The larger image is never there by itself.
    assert!(
        program.summary().interpreted.is_empty() && !program.to_string().contains(&format!("%{}[", larger.id.value())),
        "{program}"
    );
    let (expected, given) = both(&listed, &[wave(&[2, 3, 4, 1, 5, 1], 0.3), wave(&[2, 5, 8, 10], 0.7)], &[joined]);
    near(&expected, &given);
}
