//! Reads Burn's convolutions over one and two dimensions, without groups, as nodes.
//!
//! Guarantees: the tensors of a convolution that is read have one element type (`f32`, `bf16` or `f16`) and sizes that
//! fit together. All others give `None` and are left to the interpreter.
//!
//! A one-dimensional convolution is read as a two-dimensional one over images with one row. One in half precision is an
//! `f32` convolution of widened operands, with its bias added in `f32`; its result is rounded once.

use super::Reader;
use crate::convolution::{Convolution, Wanted, Window};
use crate::graph::{Map, Node, Op, Reduction, View, is_float, is_number};
use burn::backend::ir::{Conv1dOptionsIr, Conv2dOptionsIr, ModuleOperationIr, TensorIr};

impl Reader {
    /// Reads a convolution without groups; a bias is added to the output.
    pub(super) fn module(&mut self, op: &ModuleOperationIr) -> Option<()> {
        if let Some((gradient, bias)) = bias_gradient(op) {
            return self.over_channels(gradient, bias);
        }
        let Read { convolution, inputs, bias, output } = read(op)?;
        bias.is_none_or(|bias| bias.dtype == output.dtype).then_some(())?;
        let [first, second] = inputs.map(|input| self.wide(input));
        let (op, inputs) = (Op::Convolve(Box::new(convolution)), [first?, second?]);
        let given = if is_float(output) { output.clone() } else { self.between(output.shape.clone()) };
        match bias {
            None => self.to.nodes.push(Node::of(op, &inputs, &given)),
            Some(bias) => {
                let shape = (0..output.shape.num_dims()).map(|dim| if dim == 1 { output.shape[1] } else { 1 });
                let (plain, spread) = (self.between(output.shape.clone()), self.between(shape.collect()));
                self.to.nodes.push(Node::of(op, &inputs, &plain));
                let bias = self.wide(bias)?;
                self.view(View::Reshape, &bias, &spread)?;
                self.map(Map::Add, [&plain, &spread], &given)?;
            }
        }
        if is_float(output) { Some(()) } else { self.cast(&given, output) }
    }

    /// The numbers of a tensor in `f32`.
    fn wide(&mut self, input: &TensorIr) -> Option<TensorIr> {
        if is_float(input) {
            return Some(input.clone());
        }
        let wide = self.between(input.shape.clone());
        self.cast(input, &wide)?;
        Some(wide)
    }

    /// Sums over all dimensions but the channels.
    fn over_channels(&mut self, input: &TensorIr, out: &TensorIr) -> Option<()> {
        let dims: Vec<usize> = (0..input.shape.num_dims()).filter(|&dim| dim != 1).collect();
        let shape: Vec<usize> =
            (0..input.shape.num_dims()).map(|dim| if dim == 1 { input.shape[1] } else { 1 }).collect();
        let sum = self.to.tensor(shape, out.dtype);
        self.reduce(Reduction::Sum, input, &dims, &sum, false)?;
        self.view(View::Reshape, &sum, out)
    }
}

/// A recorded convolution with its inputs (a bias last) and its output.
struct Read<'a> {
    convolution: Convolution,
    inputs: [&'a TensorIr; 2],
    bias: Option<&'a TensorIr>,
    output: &'a TensorIr,
}

/// Tensors of a convolution: input, weight, and output or its gradient.
type Tensors<'a> = [&'a TensorIr; 3];

/// A convolution, or the gradient of its input or of its weight.
fn read(op: &ModuleOperationIr) -> Option<Read<'_>> {
    use ModuleOperationIr as Module;
    match op {
        Module::Conv1d(op) => {
            let of = one([&op.x, &op.weight, &op.out], &op.options, Wanted::Output)?;
            Some(Read { bias: op.bias.as_ref(), ..made(of, [&op.x, &op.weight], &op.out)? })
        }
        Module::Conv2d(op) => {
            let of = two([&op.x, &op.weight, &op.out], &op.options, Wanted::Output)?;
            Some(Read { bias: op.bias.as_ref(), ..made(of, [&op.x, &op.weight], &op.out)? })
        }
        Module::Conv1dXBackward(op) => {
            let of = one([&op.x, &op.weight, &op.output_grad], &op.options, Wanted::Input)?;
            made(of, [&op.weight, &op.output_grad], &op.out)
        }
        Module::Conv2dXBackward(op) => {
            let of = two([&op.x, &op.weight, &op.output_grad], &op.options, Wanted::Input)?;
            made(of, [&op.weight, &op.output_grad], &op.out)
        }
        Module::Conv1dWeightBackward(op) => {
            let of = one([&op.x, &op.weight, &op.output_grad], &op.options, Wanted::Weight)?;
            made(of, [&op.x, &op.output_grad], &op.out)
        }
        Module::Conv2dWeightBackward(op) => {
            let of = two([&op.x, &op.weight, &op.output_grad], &op.options, Wanted::Weight)?;
            made(of, [&op.x, &op.output_grad], &op.out)
        }
        _ => None,
    }
}

/// The gradient of the output, and the gradient of a bias, which is its sum over all but the channels.
fn bias_gradient(op: &ModuleOperationIr) -> Option<(&TensorIr, &TensorIr)> {
    match op {
        ModuleOperationIr::Conv1dBiasBackward(op) => Some((&op.output_grad, &op.out)),
        ModuleOperationIr::Conv2dBiasBackward(op) => Some((&op.output_grad, &op.out)),
        _ => None,
    }
}

/// Returns `None` if the operation's tensors do not fit together (the interpreter then refuses it), or the image has no
/// elements.
fn made<'a>(convolution: Convolution, inputs: [&'a TensorIr; 2], output: &'a TensorIr) -> Option<Read<'a>> {
    let known = is_number(output) && inputs.iter().all(|input| input.dtype == output.dtype);
    let of = |tensor: &TensorIr| tensor.shape.num_elements();
    let (image, result) = (convolution.input.iter().product::<usize>(), convolution.output.iter().product::<usize>());
    let weight = convolution.output[1] * convolution.depth();
    let elements = match convolution.wanted {
        Wanted::Output => [image, weight, result],
        Wanted::Input => [weight, result, image],
        Wanted::Weight => [image, result, weight],
    };
    // An image without elements is left to the interpreter.
    let fits = convolution.input[2..].iter().all(|&size| size > 0)
        && elements == [of(inputs[0]), of(inputs[1]), of(output)]
        && convolution.input[0] == convolution.output[0];
    (known && fits).then_some(Read { convolution, inputs, bias: None, output })
}

fn two([x, weight, output]: Tensors<'_>, options: &Conv2dOptionsIr, wanted: Wanted) -> Option<Convolution> {
    let four = |tensor: &TensorIr| <[usize; 4]>::try_from(&tensor.shape[..]).ok();
    let window = Window {
        size: [weight.shape[2], weight.shape[3]],
        stride: options.stride,
        dilation: options.dilation,
        before: options.padding.map(|(before, _)| before),
    };
    (options.groups == 1).then_some(Convolution { wanted, input: four(x)?, output: four(output)?, window })
}

/// A one-dimensional convolution, along the columns of images with one row.
fn one([x, weight, output]: Tensors<'_>, options: &Conv1dOptionsIr, wanted: Wanted) -> Option<Convolution> {
    let four = |tensor: &TensorIr| {
        let [samples, channels, columns] = <[usize; 3]>::try_from(&tensor.shape[..]).ok()?;
        Some([samples, channels, 1, columns])
    };
    let window = Window {
        size: [1, weight.shape[2]],
        stride: [1, options.stride[0]],
        dilation: [1, options.dilation[0]],
        before: [0, options.padding[0].0],
    };
    (options.groups == 1).then_some(Convolution { wanted, input: four(x)?, output: four(output)?, window })
}
