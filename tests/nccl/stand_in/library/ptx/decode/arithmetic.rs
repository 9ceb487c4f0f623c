//! Arithmetic and logic of integers and floats.

use super::Decoder;
use super::opcode::Opcode;
use crate::ptx::code::{Class, Float, Float1, Float2, Int1, Int2, Kind, Op, Width};
use crate::ptx::text::Statement;

const ONE: &[(&str, Int1)] = &[
    ("neg", Int1::Neg),
    ("abs", Int1::Abs),
    ("not", Int1::Not),
    ("popc", Int1::CountOnes),
    ("clz", Int1::LeadingZeros),
    ("brev", Int1::Reverse),
];

const TWO: &[(&str, Int2)] = &[
    ("add", Int2::Add),
    ("sub", Int2::Sub),
    ("div", Int2::Div),
    ("rem", Int2::Rem),
    ("min", Int2::Min),
    ("max", Int2::Max),
    ("and", Int2::And),
    ("or", Int2::Or),
    ("xor", Int2::Xor),
    ("shl", Int2::ShiftLeft),
    ("shr", Int2::ShiftRight),
];

const ONE_FLOAT: &[(&str, Float1)] = &[
    ("neg", Float1::Neg),
    ("abs", Float1::Abs),
    ("sqrt", Float1::Sqrt),
    ("rcp", Float1::Reciprocal),
    ("rsqrt", Float1::ReciprocalSqrt),
    ("ex2", Float1::Exp2),
    ("lg2", Float1::Log2),
    ("sin", Float1::Sin),
    ("cos", Float1::Cos),
    ("tanh", Float1::Tanh),
];

const TWO_FLOAT: &[(&str, Float2)] = &[
    ("add", Float2::Add),
    ("sub", Float2::Sub),
    ("mul", Float2::Mul),
    ("div", Float2::Div),
    ("min", Float2::Min),
    ("max", Float2::Max),
    ("copysign", Float2::CopySign),
];

fn named<T: Copy>(list: &[(&str, T)], name: &str) -> Option<T> {
    list.iter().find(|(found, _)| *found == name).map(|(_, meaning)| *meaning)
}

impl<'a> Decoder<'a> {
    /// Decodes arithmetic. Returns false for other instructions.
    pub(super) fn arithmetic(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        if opcode.last() == "pred" {
            return self.of_predicates(statement, opcode);
        }
        let known = ["mul", "mad", "fma"].contains(&opcode.name)
            || named(ONE, opcode.name).is_some()
            || named(TWO, opcode.name).is_some()
            || named(ONE_FLOAT, opcode.name).is_some()
            || named(TWO_FLOAT, opcode.name).is_some();
        if !known {
            return false;
        }
        match opcode.kind() {
            Some(Kind::Int { bits: 8, .. }) | None => false,
            Some(Kind::Int { signed, .. }) if ["mul", "mad"].contains(&opcode.name) => {
                self.product(statement, opcode, signed)
            }
            Some(kind @ Kind::Int { signed, .. }) => self.integers(statement, opcode.name, kind.width(), signed),
            Some(Kind::Float(float)) => self.floats(statement, opcode, float),
        }
    }

    fn of_predicates(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        let op = named(TWO, opcode.name).filter(|op| matches!(op, Int2::And | Int2::Or | Int2::Xor));
        let (op, count) = match (op, opcode.name) {
            (Some(op), _) => (Op::Predicates(op), 3),
            (None, "not") => (Op::NotPredicate, 2),
            (None, "mov") => (Op::MovePredicate, 2),
            _ => return false,
        };
        opcode.take("pred");
        if statement.operands.len() != count {
            return false;
        }
        let mut slots = [0; 4];
        for (slot, text) in slots.iter_mut().zip(&statement.operands) {
            *slot = self.predicate(statement, text);
        }
        self.emit(op, slots);
        true
    }

    fn product(&mut self, statement: &Statement<'_>, opcode: &mut Opcode<'_>, signed: bool) -> bool {
        let adds = opcode.name == "mad";
        // The modifier's type was taken.
        let from = match statement.opcode.rsplit('.').next().unwrap_or_default().get(1..) {
            Some("16") => Width::W16,
            Some("32") => Width::W32,
            _ => Width::W64,
        };
        let (op, into) = match (opcode.one_of(&[("wide", 0), ("lo", 1), ("hi", 2)]), from, adds) {
            (Some(0), Width::W16, _) => (Op::MulWide { from, signed, adds }, Width::W32),
            (Some(0), Width::W32, _) => (Op::MulWide { from, signed, adds }, Width::W64),
            (Some(1), _, true) => (Op::MulAdd(from), from),
            (Some(1), _, false) => (Op::Int2 { op: Int2::MulLow, width: from, signed }, from),
            (Some(2), _, false) => (Op::Int2 { op: Int2::MulHigh, width: from, signed }, from),
            _ => return false,
        };
        let widths = [into, from, from, into];
        let slots = self.operands(statement, if adds { &widths } else { &widths[..3] });
        self.emit(op, slots);
        true
    }

    fn integers(&mut self, statement: &Statement<'_>, name: &str, width: Width, signed: bool) -> bool {
        if let Some(op) = named(ONE, name) {
            // Counts are 32 bits.
            let into = if matches!(op, Int1::CountOnes | Int1::LeadingZeros) { Width::W32 } else { width };
            let slots = self.operands(statement, &[into, width]);
            self.emit(Op::Int1(op, width), slots);
            return true;
        }
        let Some(op) = named(TWO, name) else { return false };
        let shifts = matches!(op, Int2::ShiftLeft | Int2::ShiftRight);
        let slots = self.operands(statement, &[width, width, if shifts { Width::W32 } else { width }]);
        self.emit(Op::Int2 { op, width, signed }, slots);
        true
    }

    fn floats(&mut self, statement: &Statement<'_>, opcode: &mut Opcode<'_>, float: Float) -> bool {
        let width = Kind::Float(float).width();
        let Kind::Float(float) = Kind::Float(float).flushed(opcode.take("ftz")) else { return false };
        let saturates = opcode.take("sat");
        if saturates && width == Width::W64 {
            return false;
        }
        // All of these are computed more exactly, or to the nearest.
        opcode.take_all(&["rn", "approx", "full"]);
        let not_a_number = opcode.take("NaN");
        let one = named(ONE_FLOAT, opcode.name);
        let slots = if let Some(op) = one {
            let slots = self.operands(statement, &[width; 2]);
            self.emit(Op::Float1(op, float), slots);
            slots
        } else if opcode.name == "fma" || opcode.name == "mad" {
            let slots = self.operands(statement, &[width; 4]);
            self.emit(Op::MulAddFloat(float), slots);
            slots
        } else {
            let op = match (named(TWO_FLOAT, opcode.name), not_a_number) {
                (Some(Float2::Min), true) => Float2::MinNan,
                (Some(Float2::Max), true) => Float2::MaxNan,
                (Some(op), false) => op,
                _ => return false,
            };
            let slots = self.operands(statement, &[width; 3]);
            self.emit(Op::Float2(op, float), slots);
            slots
        };
        if saturates {
            self.emit(Op::Saturate(float), [slots[0], slots[0], 0, 0]);
        }
        true
    }

    /// A register that nothing reads.
    pub(super) fn sink(&mut self, class: Class) -> u32 {
        self.names.unnamed(class)
    }
}
