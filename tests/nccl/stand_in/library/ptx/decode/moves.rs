//! Moves, conversions, comparisons, selections, and bits.

use super::opcode::Opcode;
use super::{Decoder, inner, pair};
use crate::ptx::code::{Class, Compare, Conversion, Int2, Kind, Op, Rounding, Slot, Space, Width};
use crate::ptx::text::Statement;

const COMPARISONS: &[(&str, Compare)] = &[
    ("eq", Compare::Equal),
    ("ne", Compare::NotEqual),
    ("lt", Compare::Less),
    ("le", Compare::LessEqual),
    ("gt", Compare::Greater),
    ("ge", Compare::GreaterEqual),
    ("lo", Compare::Less),
    ("ls", Compare::LessEqual),
    ("hi", Compare::Greater),
    ("hs", Compare::GreaterEqual),
    ("equ", Compare::EqualOrNan),
    ("neu", Compare::NotEqualOrNan),
    ("ltu", Compare::LessOrNan),
    ("leu", Compare::LessEqualOrNan),
    ("gtu", Compare::GreaterOrNan),
    ("geu", Compare::GreaterEqualOrNan),
    ("num", Compare::BothNumbers),
    ("nan", Compare::AnyNan),
];

const ROUNDINGS: &[(&str, (Rounding, bool))] = &[
    ("rn", (Rounding::Nearest, false)),
    ("rni", (Rounding::Nearest, true)),
    ("rzi", (Rounding::Zero, true)),
    ("rmi", (Rounding::Down, true)),
    ("rpi", (Rounding::Up, true)),
];

impl<'a> Decoder<'a> {
    /// Decodes moves and the like. Returns false for other instructions.
    pub(super) fn moves(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        match opcode.name {
            "mov" => self.mov(statement, opcode),
            "cvt" => self.convert(statement, opcode),
            "cvta" => self.address_of(statement, opcode),
            "setp" => self.compare(statement, opcode),
            "selp" => self.select(statement, opcode),
            "prmt" | "shf" | "bfe" | "bfi" | "lop3" => self.bits(statement, opcode),
            _ => false,
        }
    }

    fn mov(&mut self, statement: &Statement<'_>, opcode: &mut Opcode<'_>) -> bool {
        let (Some(kind), [to, from]) = (opcode.kind(), statement.operands.as_slice()) else { return false };
        let width = kind.width();
        let (packs, unpacks) = (from.starts_with('{'), to.starts_with('{'));
        if !packs && !unpacks {
            let slots = self.operands(statement, &[width; 2]);
            self.emit(Op::Move(width), slots);
            return true;
        }
        let parts = inner(if packs { from } else { to });
        let count = parts.len() as u8;
        let part = match kind.bits() / count {
            16 => Width::W16,
            32 => Width::W32,
            _ => return false,
        };
        let slots: Vec<Slot> = parts.iter().map(|text| self.part(statement, text, part)).collect();
        let list = self.list(&slots);
        if packs {
            let into = self.operand(statement, 0, width);
            self.emit(Op::Pack { part, into: width, count }, [into, list, 0, 0]);
        } else {
            let from = self.operand(statement, 1, width);
            self.emit(Op::Unpack { part, from: width, count }, [list, from, 0, 0]);
        }
        true
    }

    /// A part of a list, which is `_` if nothing needs it.
    pub(super) fn part(&mut self, statement: &Statement<'_>, text: &str, width: Width) -> Slot {
        match text {
            "_" => self.sink(if width == Width::W64 { Class::Double } else { Class::Single }),
            _ => self.slot(statement, text, width),
        }
    }

    fn convert(&mut self, statement: &Statement<'_>, opcode: &mut Opcode<'_>) -> bool {
        let (Some(from), Some(to)) = (opcode.kind(), opcode.kind()) else { return false };
        let rounding = opcode.one_of(ROUNDINGS);
        let (saturates, flushes) = (opcode.take("sat"), opcode.take("ftz"));
        let floats = (matches!(from, Kind::Float(_)), matches!(to, Kind::Float(_)));
        let narrows = from.bits() > to.bits();
        // A rounding is given exactly if the conversion rounds.
        let known = match (floats, rounding) {
            ((false, false), None) | ((false, true), Some((Rounding::Nearest, false))) => true,
            ((true, false), Some((_, true))) => true,
            ((true, true), None) => !narrows,
            ((true, true), Some((Rounding::Nearest, false))) => narrows,
            ((true, true), Some((_, true))) => from == to,
            _ => false,
        };
        if !known || from.is_pair() || to.is_pair() || statement.operands.len() != 2 {
            return false;
        }
        let registers = statement.operands.iter().map(|text| self.names.register(text));
        let [Some(into), Some(out_of)] = registers.collect::<Vec<_>>()[..] else { return false };
        let (rounding, to_integral) = rounding.unwrap_or((Rounding::Nearest, false));
        let (from, to) = (from.flushed(flushes), to.flushed(flushes));
        let (into_width, out_of_width) = (into.width, out_of.width);
        let conversion =
            Conversion { to, from, into: into_width, out_of: out_of_width, rounding, to_integral, saturates };
        self.emit(Op::Convert(conversion), [into.slot, out_of.slot, 0, 0]);
        true
    }

    fn address_of(&mut self, statement: &Statement<'_>, opcode: &mut Opcode<'_>) -> bool {
        let to = opcode.take("to");
        let spaces =
            [("global", Space::Global), ("shared", Space::Shared), ("local", Space::Local), ("param", Space::Param)];
        let Some(space) = opcode.one_of(&spaces) else { return false };
        if !opcode.take("u64") {
            return false;
        }
        let [d, a, ..] = self.operands(statement, &[Width::W64; 2]);
        let base = self.names.double(space.window());
        let op = if to { Int2::Sub } else { Int2::Add };
        self.emit(Op::Int2 { op, width: Width::W64, signed: false }, [d, a, base, 0]);
        true
    }

    fn compare(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        let Some(kind) = opcode.kind() else { return false };
        let kind = kind.flushed(opcode.take("ftz"));
        let Some(compare) = opcode.one_of(COMPARISONS) else { return false };
        let joined = opcode.one_of(&[("and", Int2::And), ("or", Int2::Or), ("xor", Int2::Xor)]);
        let count = 3 + usize::from(joined.is_some());
        if statement.operands.len() != count || kind.bits() == 8 || kind.is_pair() {
            return false;
        }
        let (to, None) = pair(statement.operands[0]) else { return false };
        let d = self.predicate(statement, to);
        let a = self.operand(statement, 1, kind.width());
        let b = self.operand(statement, 2, kind.width());
        match joined {
            None => self.emit(Op::Set(compare, kind), [d, a, b, 0]),
            Some(op) => {
                let other = self.predicate(statement, statement.operands[3]);
                let result = self.sink(Class::Predicate);
                self.emit(Op::Set(compare, kind), [result, a, b, 0]);
                self.emit(Op::Predicates(op), [d, result, other, 0]);
            }
        }
        true
    }

    fn select(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        let Some(kind) = opcode.kind() else { return false };
        if statement.operands.len() != 4 {
            return false;
        }
        let width = kind.width();
        let [d, a, b] = [0, 1, 2].map(|place| self.operand(statement, place, width));
        let by = self.predicate(statement, statement.operands[3]);
        self.emit(Op::Select(width), [d, a, b, by]);
        true
    }

    fn bits(&mut self, statement: &Statement<'_>, opcode: &mut Opcode<'_>) -> bool {
        let Some(Kind::Int { bits: bits @ (32 | 64), signed }) = opcode.kind() else { return false };
        let (width, single) = (if bits == 64 { Width::W64 } else { Width::W32 }, Width::W32);
        let (op, slots) = match (opcode.name, width) {
            ("prmt", Width::W32) => (Op::Permute, self.operands(statement, &[single; 4])),
            ("shf", Width::W32) => {
                let Some(left) = opcode.one_of(&[("l", true), ("r", false)]) else { return false };
                let Some(clamps) = opcode.one_of(&[("clamp", true), ("wrap", false)]) else { return false };
                (Op::Funnel { left, clamps }, self.operands(statement, &[single; 4]))
            }
            ("bfe", _) => (Op::Extract { width, signed }, self.operands(statement, &[width, width, single, single])),
            ("bfi", _) if statement.operands.len() == 5 => {
                let [d, a, b] = [0, 1, 2].map(|place| self.operand(statement, place, width));
                let rest = [3, 4].map(|place| self.operand(statement, place, single));
                let list = self.list(&rest);
                (Op::Insert(width), [d, a, b, list])
            }
            ("lop3", Width::W32) if statement.operands.len() == 5 => {
                let Some(table) = crate::ptx::names::constant(statement.operands[4]) else { return false };
                let [d, a, b, c] = [0, 1, 2, 3].map(|place| self.operand(statement, place, single));
                (Op::Logic3(table as u8), [d, a, b, c])
            }
            _ => return false,
        };
        self.emit(op, slots);
        true
    }
}
