//! Loads, stores and atomic changes.

use super::opcode::Opcode;
use super::{Decoder, address, inner};
use crate::ptx::code::{Access, Atomic, Change, Kind, Op, Slot, Space, Width};
use crate::ptx::names::Register;
use crate::ptx::text::Statement;

const SPACES: &[(&str, Space)] = &[
    ("global", Space::Global),
    ("const", Space::Global),
    ("shared", Space::Shared),
    ("local", Space::Local),
    ("param", Space::Param),
];

/// What says nothing about the result: caches, and orders that the sequence of all accesses keeps.
const HINTS: &[&str] =
    &["nc", "volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys", "L1"];

const CHANGES: &[(&str, Change)] = &[
    ("add", Change::Add),
    ("and", Change::And),
    ("or", Change::Or),
    ("xor", Change::Xor),
    ("min", Change::Min),
    ("max", Change::Max),
    ("exch", Change::Exchange),
    ("cas", Change::CompareAndSwap),
];

impl<'a> Decoder<'a> {
    /// Decodes accesses to memory. Returns false for other instructions.
    pub(super) fn memory(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        match opcode.name {
            "ld" | "st" => self.access(statement, opcode),
            "atom" | "red" => self.atomic(statement, opcode),
            _ => false,
        }
    }

    fn access(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        let Some(kind) = opcode.kind() else { return false };
        let space = opcode.one_of(SPACES).unwrap_or(Space::Generic);
        let count = opcode.one_of(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
        opcode.take_all(HINTS);
        let loads = opcode.name == "ld";
        let [first, second] = statement.operands[..] else { return false };
        let (place, value) = if loads { (second, first) } else { (first, second) };
        let (base, offset) = address(statement, place);
        if let Some(passed) = self.passed.get(base).copied() {
            return offset == 0 && count == 1 && self.pass(statement, passed, value, loads);
        }
        let values = inner(value);
        if values.len() != usize::from(count) {
            return false;
        }
        let width = self.width_of(value_of(&values), kind);
        let slots: Vec<Slot> = values.iter().map(|text| self.part(statement, text, width)).collect();
        let list = self.list(&slots);
        let base = self.base(statement, base);
        let signed = matches!(kind, Kind::Int { signed: true, .. });
        let access = Access { space, bits: kind.bits(), signed, count, width, offset };
        self.emit(if loads { Op::Load(access) } else { Op::Store(access) }, [list, base, 0, 0]);
        true
    }

    /// The width of the registers, which may be wider than the type.
    fn width_of(&self, text: &str, kind: Kind) -> Width {
        self.names.register(text).map_or(kind.width(), |register| register.width)
    }

    /// The slot of an address, which is 32 or 64 bits; a slot of 64 bits.
    fn base(&mut self, statement: &Statement<'_>, text: &str) -> Slot {
        match self.names.register(text) {
            Some(Register { width: Width::W64, slot, .. }) => slot,
            Some(_) => statement.refuse("addresses have 64 bits"),
            None => self.slot(statement, text, Width::W64),
        }
    }

    /// A parameter or a result of a call.
    fn pass(&mut self, statement: &Statement<'_>, passed: Register, value: &str, loads: bool) -> bool {
        let value = self.slot(statement, value, passed.width);
        let [to, from] = if loads { [value, passed.slot] } else { [passed.slot, value] };
        self.emit(Op::Move(passed.width), [to, from, 0, 0]);
        true
    }

    fn atomic(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        let Some(kind) = opcode.kind() else { return false };
        let (space, change) = (opcode.one_of(SPACES).unwrap_or(Space::Generic), opcode.one_of(CHANGES));
        opcode.take_all(HINTS);
        let (Some(change), 32 | 64) = (change, kind.bits()) else { return false };
        if matches!(kind, Kind::Float(_)) && !matches!(change, Change::Add) {
            return false;
        }
        let returns = opcode.name == "atom";
        let compares = change == Change::CompareAndSwap;
        let first = usize::from(returns);
        if statement.operands.len() != first + 2 + usize::from(compares) || kind.is_pair() {
            return false;
        }
        let width = kind.width();
        let (base, offset) = address(statement, statement.operands[first]);
        let base = self.base(statement, base);
        let value = self.operand(statement, first + 1, width);
        let other = if compares { self.operand(statement, first + 2, width) } else { value };
        let d = match returns {
            true => self.part(statement, statement.operands[0], width),
            false => self.part(statement, "_", width),
        };
        self.emit(Op::Atomic(Atomic { space, change, kind, offset }), [d, base, value, other]);
        true
    }
}

/// The first value that is a register.
fn value_of<'a>(values: &[&'a str]) -> &'a str {
    values.iter().find(|text| text.starts_with('%')).copied().unwrap_or_default()
}
