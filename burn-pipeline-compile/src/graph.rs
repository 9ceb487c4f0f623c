//! A program as a graph that passes rewrite: nodes in topological order.
//!
//! Guarantees: at most one node makes a tensor; tensors that no node makes are fed from outside. Tensors in
//! [`Graph::kept`] must exist after a run, under their ids in the program; other tensors may be renamed or disappear.

use crate::convolution::Convolution;
use crate::half::Half;
use crate::multiply::Bf16;
use burn::backend::flex::Layout;
use burn::backend::ir::{FloatOperationIr, NumericOperationIr, OperationIr, TensorId, TensorIr};
use burn::tensor::{DType, Shape, Slice};
use std::collections::{HashMap, HashSet};
use std::fmt::{Debug, Display, Formatter, Result};

/// A program during compilation.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) kept: HashSet<TensorId>,
    /// The proof that operands of matmuls may be rounded, if they are.
    pub(crate) rounded: Option<Bf16>,
    /// The id of the next tensor that a pass makes; see [`FRESH`].
    pub(crate) fresh: u64,
}

/// The first id of tensors that passes make. They live within one run, beside tensors that other programs keep, whose
/// ids are recorded in order from 0: none of those is as high.
pub(crate) const FRESH: u64 = 1 << 63;

/// The nodes of a graph that is written node by node, with new tensors between them.
pub(crate) struct Writer {
    pub(crate) nodes: Vec<Node>,
    /// The id of the next new tensor.
    pub(crate) fresh: u64,
}

/// One operation.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Node {
    pub(crate) op: Op,
    pub(crate) inputs: Vec<Operand>,
    pub(crate) outputs: Vec<TensorIr>,
}

/// An operand of an operation.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Operand {
    Tensor(TensorIr),
    Scalar(f32),
}

/// The operation of a node.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Op {
    /// An operation that the interpreter runs.
    Interpret(Box<OperationIr>),
    /// The same value everywhere.
    Fill(f32),
    /// An element-wise function; operands are broadcast.
    Map(Map),
    /// Reduction along these dimensions, which stay with size 1: the last one only, or others.
    Reduce(Reduction, Vec<usize>),
    /// Another view of the same elements.
    View(View),
    /// A matmul, batched over all dimensions before the last two.
    Matmul,
    /// A convolution, or the gradient of its input or weight.
    Convolve(Box<Convolution>),
    /// Concatenates or scatters blocks into a zeroed tensor.
    Place(Vec<Part>),
}

/// A part of a tensor that is written separately.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Part {
    /// The first index and the number of elements of the part, along each dimension of the tensor.
    pub(crate) range: Vec<(usize, usize)>,
    /// The layout of the part within the tensor, in the shape of the written value.
    pub(crate) layout: Layout,
    /// True if the part is the matmul of two inputs; false if it is one input.
    pub(crate) matmul: bool,
}

/// An element-wise function. Masks are 0 and 1. A result in half precision is rounded; `Copy` may change the type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Map {
    Copy,
    Neg,
    Abs,
    Sign,
    Recip,
    Square,
    Cube,
    Sqrt,
    Exp,
    Log,
    Log1p,
    Sin,
    Cos,
    Tanh,
    Erf,
    Floor,
    Ceil,
    Relu,
    Sigmoid,
    Gelu,
    Not,
    Add,
    Sub,
    Mul,
    Div,
    /// The larger of the two operands.
    AtLeast,
    /// The smaller of the two operands.
    AtMost,
    Power,
    LeakyRelu,
    /// The first operand is the forward's result (for GELU, its input); the second is the gradient.
    ReluBackward,
    SigmoidBackward,
    GeluBackward,
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
    Lower,
    LowerEqual,
    /// The second operand where the first, a mask, is 1; otherwise the third.
    Select,
}

/// How elements along dimensions are reduced to one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Reduction {
    Sum,
    Max,
    Min,
}

/// Another view of the same elements.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum View {
    /// The shape is the output's.
    Reshape,
    /// Dimension `i` of the output is the input's dimension at index `i` of this list.
    Permute(Vec<usize>),
    /// Dimensions of size 1 are repeated; the shape is the output's.
    Expand,
    Slice(Vec<Slice>),
}

impl Part {
    /// A part over this range of a tensor, to be written from one input.
    pub(crate) fn of(tensor: &TensorIr, range: Vec<(usize, usize)>) -> Self {
        let whole = Layout::contiguous(tensor.shape.clone());
        let narrow =
            |layout: Layout, (dim, &(first, length)): (usize, &(usize, usize))| layout.narrow(dim, first, length);
        let layout = range.iter().enumerate().fold(whole, narrow);
        Self { range, layout, matmul: false }
    }
}

impl Operand {
    pub(crate) fn tensor(&self) -> Option<&TensorIr> {
        match self {
            Operand::Tensor(tensor) => Some(tensor),
            Operand::Scalar(_) => None,
        }
    }

    pub(crate) fn scalar(&self) -> Option<f32> {
        match self {
            Operand::Tensor(_) => None,
            Operand::Scalar(value) => Some(*value),
        }
    }
}

impl Writer {
    /// A new tensor.
    pub(crate) fn tensor(&mut self, shape: impl Into<Shape>, dtype: DType) -> TensorIr {
        self.fresh += 1;
        TensorIr::uninit(TensorId::new(self.fresh - 1), shape.into(), dtype)
    }

    /// Adds a node that makes a new tensor.
    pub(crate) fn make<'a>(
        &mut self,
        op: Op,
        inputs: impl IntoIterator<Item = &'a TensorIr>,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> TensorIr {
        let output = self.tensor(shape, dtype);
        self.nodes.push(Node::of(op, inputs, &output));
        output
    }

    pub(crate) fn reshape(&mut self, tensor: &TensorIr, shape: impl Into<Shape>) -> TensorIr {
        self.make(Op::View(View::Reshape), [tensor], shape, tensor.dtype)
    }

    /// Transposes a matrix, or each of a batch.
    pub(crate) fn transpose(&mut self, matrices: &TensorIr) -> TensorIr {
        let rank = matrices.shape.num_dims();
        let (mut order, mut shape): (Vec<usize>, Vec<usize>) = ((0..rank).collect(), matrices.shape.to_vec());
        order.swap(rank - 2, rank - 1);
        shape.swap(rank - 2, rank - 1);
        self.make(Op::View(View::Permute(order)), [matrices], shape, matrices.dtype)
    }
}

impl Node {
    pub(crate) fn new(op: Op, inputs: Vec<Operand>, output: TensorIr) -> Self {
        Self { op, inputs, outputs: vec![output] }
    }

    /// A node that reads tensors only.
    pub(crate) fn of<'a>(op: Op, inputs: impl IntoIterator<Item = &'a TensorIr>, output: &TensorIr) -> Self {
        Self::new(op, inputs.into_iter().cloned().map(Operand::Tensor).collect(), output.clone())
    }

    /// Concatenates tensors along a dimension.
    pub(crate) fn beside<'a>(tensors: impl Iterator<Item = &'a TensorIr>, dim: usize, output: &TensorIr) -> Self {
        let mut first = 0;
        let (parts, inputs) = tensors
            .map(|tensor| {
                let mut range: Vec<(usize, usize)> = output.shape.iter().map(|&size| (0, size)).collect();
                range[dim] = (first, tensor.shape[dim]);
                first += tensor.shape[dim];
                (Part::of(output, range), Operand::Tensor(tensor.clone()))
            })
            .unzip();
        Self::new(Op::Place(parts), inputs, output.clone())
    }

    /// The tensors that the node reads, repeated if it reads them repeatedly.
    pub(crate) fn reads(&self) -> impl Iterator<Item = &TensorIr> {
        self.inputs.iter().filter_map(Operand::tensor)
    }

    /// Returns true if it is an operation of a backend extension.
    pub(crate) fn is_custom(&self) -> bool {
        matches!(&self.op, Op::Interpret(op) if matches!(op.as_ref(), OperationIr::Custom(_)))
    }

    /// Returns true if it draws random numbers.
    pub(crate) fn draws(&self) -> bool {
        let Op::Interpret(op) = &self.op else { return false };
        matches!(
            op.as_ref(),
            OperationIr::Float(_, FloatOperationIr::Random(_))
                | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(_))
        )
    }

    /// The output of a node with one output: all except custom operations.
    pub(crate) fn output(&self) -> &TensorIr {
        &self.outputs[0]
    }
}

impl Graph {
    /// The node that makes each tensor.
    pub(crate) fn makers(&self) -> HashMap<TensorId, usize> {
        let made = |(place, node): (usize, &Node)| -> Vec<_> { node.outputs.iter().map(|t| (t.id, place)).collect() };
        self.nodes.iter().enumerate().flat_map(made).collect()
    }

    /// How often each tensor is read. A kept tensor counts one more read.
    pub(crate) fn uses(&self) -> HashMap<TensorId, usize> {
        let mut uses: HashMap<TensorId, usize> = self.kept.iter().map(|id| (*id, 1)).collect();
        for read in self.nodes.iter().flat_map(Node::reads) {
            *uses.entry(read.id).or_default() += 1;
        }
        uses
    }
}

/// The number of rows (all dimensions but the last) and columns (the last dimension) of a tensor.
pub(crate) fn rows_and_columns(tensor: &TensorIr) -> (usize, usize) {
    match tensor.shape.split_last() {
        None => (1, 1),
        Some((columns, rows)) => (rows.iter().product(), *columns),
    }
}

/// The bytes of a tensor's elements.
pub(crate) fn bytes(tensor: &TensorIr) -> usize {
    tensor.shape.num_elements() * tensor.dtype.size()
}

/// Returns true if the tensor has `f32` elements.
pub(crate) fn is_float(tensor: &TensorIr) -> bool {
    tensor.dtype == DType::F32
}

/// Returns true if the tensor has elements that tiles and matmuls compute with: `f32`, `bf16` or `f16`.
pub(crate) fn is_number(tensor: &TensorIr) -> bool {
    is_float(tensor) || Half::of(tensor).is_some()
}

/// Returns true if the tensor is a mask: truth values of one byte each.
pub(crate) fn is_mask(tensor: &TensorIr) -> bool {
    use burn::tensor::BoolStore::{Native, U8};
    matches!(tensor.dtype, DType::Bool(Native | U8))
}

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.nodes.iter().try_for_each(|node| writeln!(f, "{node}"))
    }
}

impl Display for Node {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let outputs: Vec<String> = self.outputs.iter().map(text).collect();
        let inputs: Vec<String> = self.inputs.iter().map(ToString::to_string).collect();
        let name = match &self.op {
            Op::Interpret(op) if outputs.is_empty() => return write!(f, "interpreted {}", head(op)),
            Op::Interpret(op) => return write!(f, "{} = interpreted {}", outputs.join(", "), head(op)),
            Op::Fill(value) => format!("fill {value}"),
            Op::Map(map) => format!("{map:?}"),
            Op::Reduce(reduction, dims) => format!("{reduction:?}{dims:?}"),
            Op::View(view) => format!("{view:?}"),
            Op::Matmul => "Matmul".to_owned(),
            Op::Convolve(convolution) => convolution.to_string(),
            Op::Place(parts) => places(parts),
        };
        write!(f, "{} = {name}({})", outputs.join(", "), inputs.join(", "))
    }
}

/// Parts as text: `matmul` or `value` for each.
pub(crate) fn places(parts: &[Part]) -> String {
    let names: Vec<&str> = parts.iter().map(|part| if part.matmul { "matmul" } else { "value" }).collect();
    format!("Place[{}]", names.join(", "))
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Operand::Tensor(tensor) => f.write_str(&text(tensor)),
            Operand::Scalar(value) => write!(f, "{value}"),
        }
    }
}

/// A tensor's id and shape.
pub(crate) fn text(tensor: &TensorIr) -> String {
    format!("%{}{:?}", tensor.id.value(), tensor.shape.to_vec())
}

/// An interpreted operation with its inputs.
fn head(op: &OperationIr) -> String {
    let reads: Vec<String> = op.inputs().map(text).collect();
    format!("{}({})", operation_name(op), reads.join(", "))
}

/// An operation's name in Burn's IR: the variant that holds its tensors, or a custom operation's own name.
pub fn operation_name(op: &OperationIr) -> String {
    match op {
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => variant(op),
        OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => variant(op),
        OperationIr::Bool(op) => variant(op),
        OperationIr::Int(op) => variant(op),
        OperationIr::Float(_, op) => variant(op),
        OperationIr::Module(op) => variant(op),
        OperationIr::Activation(op) => variant(op),
        OperationIr::Distributed(op) => variant(op),
        OperationIr::Custom(op) => op.id.clone(),
        OperationIr::Init(_) => "Init".to_owned(),
        OperationIr::Drop(_) => "Drop".to_owned(),
    }
}

/// A variant's name: what an enum's debug text starts with.
fn variant(op: &impl Debug) -> String {
    let text = format!("{op:?}");
    text.split(['(', ' ', '{']).next().unwrap_or_default().to_owned()
}
