//! What instructions compute, by name.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int1 {
    Neg,
    Abs,
    Not,
    CountOnes,
    LeadingZeros,
    Reverse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int2 {
    Add,
    Sub,
    MulLow,
    MulHigh,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float1 {
    Neg,
    Abs,
    Sqrt,
    Reciprocal,
    ReciprocalSqrt,
    Exp2,
    Log2,
    Sin,
    Cos,
    Tanh,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float2 {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    MinNan,
    MaxNan,
    CopySign,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    /// The comparisons of floats that hold if an operand is NaN.
    EqualOrNan,
    NotEqualOrNan,
    LessOrNan,
    LessEqualOrNan,
    GreaterOrNan,
    GreaterEqualOrNan,
    BothNumbers,
    AnyNan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Add,
    And,
    Or,
    Xor,
    Min,
    Max,
    Exchange,
    CompareAndSwap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    Index,
    Up,
    Down,
    Butterfly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    Ballot,
    All,
    Any,
    Uniform,
}

/// The functions of libdevice, of one or two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Math {
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Exp,
    Exp2,
    Exp10,
    Log,
    Log2,
    Log10,
    Cbrt,
    Erf,
    Atan2,
    Pow,
}
