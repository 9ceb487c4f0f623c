//! Programs written by hand.

use burn::backend::ir::{
    ActivationOperationIr, BaseOperationIr, BinaryOpIr, CastOpIr, CreationOpIr, CustomOpIr, FloatOperationIr,
    MaskFillOpIr, MaskWhereOpIr, MatmulOpIr, NumericOperationIr, OperationIr, ReduceDimOpIr, ReduceDimsOpIr,
    ReduceOpIr, ScalarIr, ScalarOpIr, ShapeOpIr, SliceAssignOpIr, SliceOpIr, SwapDimsOpIr, TensorId, TensorIr,
    TensorStatus, UnaryOpIr,
};
use burn::tensor::{BoolStore, DType, Shape, Slice};

/// Operations in order, and what is fed to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listed {
    pub(crate) operations: Vec<OperationIr>,
    pub(crate) fed: Vec<TensorIr>,
    count: u64,
}

/// Functions of one tensor.
pub(crate) type Unary = fn(UnaryOpIr) -> OperationIr;
/// Functions of two tensors.
pub(crate) type Binary = fn(BinaryOpIr) -> OperationIr;

fn numeric(op: NumericOperationIr) -> OperationIr {
    OperationIr::NumericFloat(DType::F32, op)
}

fn float(op: FloatOperationIr) -> OperationIr {
    OperationIr::Float(DType::F32, op)
}

pub(crate) const UNARY: [(&str, Unary); 14] = [
    ("neg", |op| numeric(NumericOperationIr::Neg(op))),
    ("abs", |op| numeric(NumericOperationIr::Abs(op))),
    ("sign", |op| numeric(NumericOperationIr::Sign(op))),
    ("recip", |op| float(FloatOperationIr::Recip(op))),
    ("sqrt", |op| float(FloatOperationIr::Sqrt(op))),
    ("exp", |op| float(FloatOperationIr::Exp(op))),
    ("log", |op| float(FloatOperationIr::Log(op))),
    ("tanh", |op| float(FloatOperationIr::Tanh(op))),
    ("erf", |op| float(FloatOperationIr::Erf(op))),
    ("floor", |op| float(FloatOperationIr::Floor(op))),
    ("ceil", |op| float(FloatOperationIr::Ceil(op))),
    ("relu", |op| OperationIr::Activation(ActivationOperationIr::Relu(op))),
    ("sigmoid", |op| OperationIr::Activation(ActivationOperationIr::Sigmoid(op))),
    ("gelu", |op| OperationIr::Activation(ActivationOperationIr::Gelu(op))),
];

pub(crate) const BINARY: [(&str, Binary); 7] = [
    ("add", |op| numeric(NumericOperationIr::Add(op))),
    ("sub", |op| numeric(NumericOperationIr::Sub(op))),
    ("mul", |op| numeric(NumericOperationIr::Mul(op))),
    ("div", |op| numeric(NumericOperationIr::Div(op))),
    ("relu backward", |op| OperationIr::Activation(ActivationOperationIr::ReluBackward(op))),
    ("gelu backward", |op| OperationIr::Activation(ActivationOperationIr::GeluBackward(op))),
    ("sigmoid backward", |op| OperationIr::Activation(ActivationOperationIr::SigmoidBackward(op))),
];

pub(crate) fn unary(name: &str) -> Unary {
    UNARY.iter().find(|(known, _)| *known == name).unwrap().1
}

pub(crate) fn binary(name: &str) -> Binary {
    BINARY.iter().find(|(known, _)| *known == name).unwrap().1
}

impl Listed {
    fn tensor(&mut self, shape: &[usize], dtype: DType) -> TensorIr {
        self.count += 1;
        let (id, shape) = (TensorId::new(self.count - 1), Shape::from(shape.to_vec()));
        TensorIr { id, shape, status: TensorStatus::ReadOnly, dtype }
    }

    fn float(&mut self, shape: &[usize]) -> TensorIr {
        self.tensor(shape, DType::F32)
    }

    /// The same tensors, and no operations.
    pub(crate) fn emptied(&self) -> Self {
        Self { operations: Vec::new(), fed: self.fed.clone(), count: self.count }
    }

    pub(crate) fn feed(&mut self, shape: &[usize]) -> TensorIr {
        let tensor = self.float(shape);
        self.fed.push(tensor.clone());
        tensor
    }

    /// Any operation, with a result of this shape.
    pub(crate) fn make(&mut self, shape: &[usize], op: impl FnOnce(TensorIr) -> OperationIr) -> TensorIr {
        let out = self.float(shape);
        self.push(op(out.clone()), out)
    }

    fn push(&mut self, op: OperationIr, out: TensorIr) -> TensorIr {
        self.operations.push(op);
        out
    }

    pub(crate) fn unary(&mut self, function: Unary, input: &TensorIr) -> TensorIr {
        let out = self.float(&input.shape);
        self.push(function(UnaryOpIr { input: input.clone(), out: out.clone() }), out)
    }

    pub(crate) fn binary(&mut self, function: Binary, lhs: &TensorIr, rhs: &TensorIr) -> TensorIr {
        let shape: Vec<usize> =
            lhs.shape.iter().zip(rhs.shape.iter()).map(|(&l, &r)| if l == 1 { r } else { l }).collect();
        let out = self.float(&shape);
        self.push(function(BinaryOpIr { lhs: lhs.clone(), rhs: rhs.clone(), out: out.clone() }), out)
    }

    pub(crate) fn scalar(
        &mut self,
        function: fn(ScalarOpIr) -> NumericOperationIr,
        input: &TensorIr,
        value: f64,
    ) -> TensorIr {
        let out = self.float(&input.shape);
        let op = ScalarOpIr { lhs: input.clone(), rhs: ScalarIr::Float(value), out: out.clone() };
        self.push(numeric(function(op)), out)
    }

    pub(crate) fn power(&mut self, input: &TensorIr, exponent: f64) -> TensorIr {
        let out = self.float(&input.shape);
        let op = ScalarOpIr { lhs: input.clone(), rhs: ScalarIr::Float(exponent), out: out.clone() };
        self.push(float(FloatOperationIr::PowfScalar(op)), out)
    }

    /// An operation of a backend extension, from a tensor to one like it.
    pub(crate) fn custom(&mut self, name: &str, input: &TensorIr) -> TensorIr {
        let out = self.float(&input.shape);
        let (inputs, outputs) = (vec![input.clone()], vec![out.clone()]);
        self.push(OperationIr::Custom(CustomOpIr { id: name.to_owned(), inputs, outputs, scalars: Vec::new() }), out)
    }

    /// An operation of a backend extension that gives nothing.
    pub(crate) fn start(&mut self, name: &str, input: &TensorIr) {
        let (inputs, outputs) = (vec![input.clone()], Vec::new());
        self.operations.push(OperationIr::Custom(CustomOpIr {
            id: name.to_owned(),
            inputs,
            outputs,
            scalars: Vec::new(),
        }));
    }

    pub(crate) fn cast(&mut self, input: &TensorIr, dtype: DType) -> TensorIr {
        let out = self.tensor(&input.shape, dtype);
        let op = CastOpIr { input: input.clone(), out: out.clone() };
        self.push(OperationIr::BaseFloat(BaseOperationIr::Cast(op)), out)
    }

    pub(crate) fn greater_than(&mut self, input: &TensorIr, value: f64) -> TensorIr {
        let out = self.tensor(&input.shape, DType::Bool(BoolStore::Native));
        let op = ScalarOpIr { lhs: input.clone(), rhs: ScalarIr::Float(value), out: out.clone() };
        self.push(numeric(NumericOperationIr::GreaterElem(op)), out)
    }

    pub(crate) fn mask_fill(&mut self, tensor: &TensorIr, mask: &TensorIr, value: f64) -> TensorIr {
        let out = self.float(&tensor.shape);
        let (tensor, mask, value) = (tensor.clone(), mask.clone(), ScalarIr::Float(value));
        let op = MaskFillOpIr { tensor, mask, value, out: out.clone() };
        self.push(OperationIr::BaseFloat(BaseOperationIr::MaskFill(op)), out)
    }

    pub(crate) fn mask_where(&mut self, tensor: &TensorIr, mask: &TensorIr, value: &TensorIr) -> TensorIr {
        let out = self.float(&tensor.shape);
        let (tensor, mask, value) = (tensor.clone(), mask.clone(), value.clone());
        let op = MaskWhereOpIr { tensor, mask, value, out: out.clone() };
        self.push(OperationIr::BaseFloat(BaseOperationIr::MaskWhere(op)), out)
    }

    pub(crate) fn reduce(
        &mut self,
        function: fn(ReduceDimOpIr) -> NumericOperationIr,
        input: &TensorIr,
        axis: usize,
    ) -> TensorIr {
        let mut shape = input.shape.to_vec();
        shape[axis] = 1;
        let out = self.float(&shape);
        let op = ReduceDimOpIr { input: input.clone(), out: out.clone(), axis, accumulator_len: 1 };
        self.push(numeric(function(op)), out)
    }

    pub(crate) fn whole(&mut self, function: fn(ReduceOpIr) -> NumericOperationIr, input: &TensorIr) -> TensorIr {
        let out = self.float(&[1]);
        self.push(numeric(function(ReduceOpIr { input: input.clone(), out: out.clone() })), out)
    }

    pub(crate) fn sum_dims(&mut self, input: &TensorIr, axes: &[usize]) -> TensorIr {
        let mut shape = input.shape.to_vec();
        axes.iter().for_each(|&axis| shape[axis] = 1);
        let out = self.float(&shape);
        let op = ReduceDimsOpIr { input: input.clone(), out: out.clone(), axes: axes.to_vec() };
        self.push(numeric(NumericOperationIr::SumDims(op)), out)
    }

    pub(crate) fn ones(&mut self, shape: &[usize]) -> TensorIr {
        let out = self.float(shape);
        self.push(OperationIr::BaseFloat(BaseOperationIr::Ones(CreationOpIr { out: out.clone() })), out)
    }

    pub(crate) fn reshape(&mut self, input: &TensorIr, shape: &[usize]) -> TensorIr {
        let out = self.float(shape);
        let op = ShapeOpIr { input: input.clone(), out: out.clone() };
        self.push(OperationIr::BaseFloat(BaseOperationIr::Reshape(op)), out)
    }

    pub(crate) fn expand(&mut self, input: &TensorIr, shape: &[usize]) -> TensorIr {
        let out = self.float(shape);
        let op = ShapeOpIr { input: input.clone(), out: out.clone() };
        self.push(OperationIr::BaseFloat(BaseOperationIr::Expand(op)), out)
    }

    pub(crate) fn swap(&mut self, input: &TensorIr, dim1: usize, dim2: usize) -> TensorIr {
        let mut shape = input.shape.to_vec();
        shape.swap(dim1, dim2);
        let out = self.float(&shape);
        let op = SwapDimsOpIr { input: input.clone(), out: out.clone(), dim1, dim2 };
        self.push(OperationIr::BaseFloat(BaseOperationIr::SwapDims(op)), out)
    }

    /// The elements from `start` on along a dimension.
    pub(crate) fn slice(&mut self, tensor: &TensorIr, dim: usize, start: usize) -> TensorIr {
        self.cut(tensor, dim, start, tensor.shape[dim] - start)
    }

    /// Zeros of this shape with a value assigned from `start` on along a dimension: a slice's gradient.
    pub(crate) fn placed(&mut self, value: &TensorIr, shape: &[usize], dim: usize, start: usize) -> TensorIr {
        let zeros = self.zeros(shape);
        self.assign(&zeros, value, dim, start)
    }

    pub(crate) fn zeros(&mut self, shape: &[usize]) -> TensorIr {
        let out = self.float(shape);
        self.push(OperationIr::BaseFloat(BaseOperationIr::Zeros(CreationOpIr { out: out.clone() })), out)
    }

    pub(crate) fn empty(&mut self, shape: &[usize]) -> TensorIr {
        let out = self.float(shape);
        self.push(OperationIr::BaseFloat(BaseOperationIr::Empty(CreationOpIr { out: out.clone() })), out)
    }

    /// A tensor with a value assigned from `start` on along a dimension.
    pub(crate) fn assign(&mut self, tensor: &TensorIr, value: &TensorIr, dim: usize, start: usize) -> TensorIr {
        let ranges = ranges(&value.shape, dim, start);
        let out = self.float(&tensor.shape);
        let op = SliceAssignOpIr { tensor: tensor.clone(), ranges, value: value.clone(), out: out.clone() };
        self.push(OperationIr::BaseFloat(BaseOperationIr::SliceAssign(op)), out)
    }

    /// So many elements from `start` on along a dimension.
    pub(crate) fn cut(&mut self, tensor: &TensorIr, dim: usize, start: usize, length: usize) -> TensorIr {
        let mut shape = tensor.shape.to_vec();
        shape[dim] = length;
        let out = self.float(&shape);
        let op = SliceOpIr { tensor: tensor.clone(), ranges: ranges(&shape, dim, start), out: out.clone() };
        self.push(OperationIr::BaseFloat(BaseOperationIr::Slice(op)), out)
    }

    pub(crate) fn matmul(&mut self, lhs: &TensorIr, rhs: &TensorIr) -> TensorIr {
        let rank = lhs.shape.num_dims();
        let mut shape: Vec<usize> =
            lhs.shape.iter().zip(rhs.shape.iter()).map(|(&l, &r)| if l == 1 { r } else { l }).collect();
        (shape[rank - 2], shape[rank - 1]) = (lhs.shape[rank - 2], rhs.shape[rank - 1]);
        let out = self.float(&shape);
        let op = MatmulOpIr { lhs: lhs.clone(), rhs: rhs.clone(), out: out.clone() };
        self.push(float(FloatOperationIr::Matmul(op)), out)
    }

    /// A layer norm without scale and bias, as autodiff decomposes it.
    pub(crate) fn normalized(&mut self, x: &TensorIr) -> TensorIr {
        let last = x.shape.num_dims() - 1;
        let mean = self.reduce(NumericOperationIr::MeanDim, x, last);
        let centered = self.binary(binary("sub"), x, &mean);
        let square = self.binary(binary("mul"), &centered, &centered);
        let variance = self.reduce(NumericOperationIr::MeanDim, &square, last);
        let variance = self.scalar(NumericOperationIr::AddScalar, &variance, 1e-5);
        let deviation = self.unary(unary("sqrt"), &variance);
        self.binary(binary("div"), &centered, &deviation)
    }

    /// A softmax along the last dimension, as autodiff decomposes it.
    pub(crate) fn softmax(&mut self, x: &TensorIr) -> TensorIr {
        let last = x.shape.num_dims() - 1;
        let max = self.reduce(NumericOperationIr::MaxDim, x, last);
        let shifted = self.binary(binary("sub"), x, &max);
        let exp = self.unary(unary("exp"), &shifted);
        let sum = self.reduce(NumericOperationIr::SumDim, &exp, last);
        self.binary(binary("div"), &exp, &sum)
    }
}

/// The places of a part of this shape, which begins at `start` along a dimension.
fn ranges(shape: &[usize], dim: usize, start: usize) -> Vec<Slice> {
    let range = |(at, &size): (usize, &usize)| {
        let start = if at == dim { start as isize } else { 0 };
        Slice::new(start, Some(start + size as isize), 1)
    };
    shape.iter().enumerate().map(range).collect()
}
