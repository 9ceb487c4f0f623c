//! Decoded instructions. Operands are slots of a warp's registers; constants and special registers have slots too.

pub use super::operations::{Change, Compare, Float1, Float2, Int1, Int2, Math, Shuffle, Vote};

/// The place of a register among those of its class.
pub type Slot = u32;

/// The predicate that always holds.
pub const ALWAYS: Slot = 0;
/// The predicate that never holds.
pub const NEVER: Slot = 1;

/// The three files of registers: predicates; 16 and 32 bits; 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Predicate,
    Single,
    Double,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    W16,
    W32,
    W64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    /// Subnormal operands and results are zero.
    F32Flushed,
    F64,
}

/// What a value is: the operands of comparisons, and both sides of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Int { bits: u8, signed: bool },
    Float(Float),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    pub to: Kind,
    pub from: Kind,
    /// The registers, which may be wider than the types.
    pub into: Width,
    pub out_of: Width,
    pub rounding: Rounding,
    pub to_integral: bool,
    pub saturates: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

impl Space {
    /// Where the generic addresses of a space begin. Those of global memory are the host's own.
    pub const fn window(self) -> u64 {
        match self {
            Self::Generic | Self::Global => 0,
            Self::Shared => 1 << 60,
            Self::Local => 2 << 60,
            Self::Param => 3 << 60,
        }
    }
}

/// An access to memory: `count` elements of `bits` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub space: Space,
    pub bits: u8,
    pub signed: bool,
    pub count: u8,
    /// The width of the registers.
    pub width: Width,
    pub offset: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    pub space: Space,
    pub change: Change,
    pub kind: Kind,
    pub offset: i32,
}

/// What an instruction does. `d`, `a`, `b` and `c` are the instruction's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Int1(Int1, Width),
    Int2 {
        op: Int2,
        width: Width,
        signed: bool,
    },
    /// The low half of a product, plus `c`.
    MulAdd(Width),
    /// A product of twice its operands' width, plus `c` if it adds.
    MulWide {
        from: Width,
        signed: bool,
        adds: bool,
    },
    Float1(Float1, Float),
    Float2(Float2, Float),
    MulAddFloat(Float),
    /// The `.sat` of an instruction: limits to `[0, 1]`, and NaN to zero.
    Saturate(Float),
    Math(Math, Float),
    Convert(Conversion),
    Set(Compare, Kind),
    Select(Width),
    Move(Width),
    MovePredicate,
    Predicates(Int2),
    NotPredicate,
    /// From the list `a` of `count` parts.
    Pack {
        part: Width,
        into: Width,
        count: u8,
    },
    /// Into the list `d` of `count` parts.
    Unpack {
        part: Width,
        from: Width,
        count: u8,
    },
    Permute,
    /// Left or right, of the pair `a` (low) and `b` (high) by `c`; the amount is clamped or wraps at 32.
    Funnel {
        left: bool,
        clamps: bool,
    },
    Extract {
        width: Width,
        signed: bool,
    },
    /// Into `b` of `a`; `c` is the list of base, start and length.
    Insert(Width),
    Logic3(u8),
    Load(Access),
    Store(Access),
    Atomic(Atomic),
    Barrier,
    /// Of the lanes in the mask `a`.
    WarpBarrier,
    /// A fence: all accesses are in order.
    Nothing,
    /// Of `a` by `b`; `c` is the list of bounds, mask, and the predicate that tells whether the lane is in bounds.
    Shuffle(Shuffle),
    /// Of the predicate `a` among the lanes in the mask `b`.
    Vote(Vote),
    ActiveMask,
    Branch(u32),
    /// To the target in the list `b` that `a` says.
    BranchTable {
        count: u32,
    },
    Exit,
    Trap,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug)]
pub struct Inst {
    pub op: Op,
    pub guard: Slot,
    pub negated: bool,
    pub d: Slot,
    pub a: Slot,
    pub b: Slot,
    pub c: Slot,
}
