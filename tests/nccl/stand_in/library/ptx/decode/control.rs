//! Branches, calls of known functions, barriers, and exchanges between the lanes of a warp.

use super::opcode::Opcode;
use super::{Decoder, inner, pair};
use crate::ptx::code::{Class, Float, Math, Op, Shuffle, Vote, Width};
use crate::ptx::text::Statement;

const FUNCTIONS: &[(&str, Math)] = &[
    ("sin", Math::Sin),
    ("cos", Math::Cos),
    ("tan", Math::Tan),
    ("asin", Math::Asin),
    ("acos", Math::Acos),
    ("atan", Math::Atan),
    ("sinh", Math::Sinh),
    ("cosh", Math::Cosh),
    ("tanh", Math::Tanh),
    ("exp", Math::Exp),
    ("exp2", Math::Exp2),
    ("exp10", Math::Exp10),
    ("log", Math::Log),
    ("log2", Math::Log2),
    ("log10", Math::Log10),
    ("cbrt", Math::Cbrt),
    ("erf", Math::Erf),
    ("atan2", Math::Atan2),
    ("pow", Math::Pow),
];

impl<'a> Decoder<'a> {
    /// Decodes everything but arithmetic, moves and memory. Returns false for other instructions.
    pub(super) fn control(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        match opcode.name {
            "bra" => self.branch(statement, opcode),
            "brx" => self.branch_table(statement, opcode),
            "ret" | "exit" => self.plain(Op::Exit),
            "trap" => self.plain(Op::Trap),
            "bar" | "barrier" => self.barrier(statement, opcode),
            "membar" | "fence" => {
                opcode.take_all(&["gl", "cta", "sys", "gpu", "sc", "acq_rel"]);
                self.plain(Op::Nothing)
            }
            "shfl" => self.shuffle(statement, opcode),
            "vote" => self.vote(statement, opcode),
            "activemask" => {
                let slots = self.operands(statement, &[Width::W32]);
                opcode.take("b32");
                self.emit(Op::ActiveMask, slots);
                true
            }
            "call" => self.call(statement, opcode),
            _ => false,
        }
    }

    fn plain(&mut self, op: Op) -> bool {
        self.emit(op, [0; 4]);
        true
    }

    fn branch(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        // Whether the lanes part is seen when it runs.
        opcode.take("uni");
        let [label] = statement.operands[..] else { return false };
        self.branches.push((self.code.len(), label));
        self.plain(Op::Branch(0))
    }

    fn branch_table(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        opcode.take("uni");
        let ([by, name], true) = (&statement.operands[..], opcode.take("idx")) else { return false };
        let by = self.slot(statement, by, Width::W32);
        let Some(labels) = self.tables.get(name).cloned() else { return false };
        let list = self.list(&vec![0; labels.len()]);
        self.listed.extend(labels.iter().enumerate().map(|(place, label)| (list as usize + place, *label)));
        self.emit(Op::BranchTable { count: labels.len() as u32 }, [0, by, list, 0]);
        true
    }

    fn barrier(&mut self, statement: &Statement<'_>, opcode: &mut Opcode<'_>) -> bool {
        opcode.take("cta");
        opcode.take("aligned");
        if opcode.take("warp") {
            let mask = self.operand(statement, 0, Width::W32);
            self.emit(Op::WarpBarrier, [0, mask, 0, 0]);
            return opcode.take("sync");
        }
        // The barrier of all threads of a block.
        statement.operands == ["0"] && opcode.take("sync") && self.plain(Op::Barrier)
    }

    fn shuffle(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        let modes =
            [("idx", Shuffle::Index), ("up", Shuffle::Up), ("down", Shuffle::Down), ("bfly", Shuffle::Butterfly)];
        let Some(mode) = opcode.one_of(&modes) else { return false };
        if !(opcode.take("sync") && opcode.take("b32") && statement.operands.len() == 5) {
            return false;
        }
        let (to, bound) = pair(statement.operands[0]);
        let d = self.part(statement, to, Width::W32);
        let bound = match bound {
            Some(text) => self.predicate(statement, text),
            None => self.sink(Class::Predicate),
        };
        let [a, b, clamp, mask] = [1, 2, 3, 4].map(|place| self.operand(statement, place, Width::W32));
        let list = self.list(&[clamp, mask, bound]);
        self.emit(Op::Shuffle(mode), [d, a, b, list]);
        true
    }

    fn vote(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        let modes = [("ballot", Vote::Ballot), ("all", Vote::All), ("any", Vote::Any), ("uni", Vote::Uniform)];
        let Some(mode) = opcode.one_of(&modes) else { return false };
        if !opcode.take("sync") || statement.operands.len() != 3 {
            return false;
        }
        opcode.take_all(&["b32", "pred"]);
        let d = match mode {
            Vote::Ballot => self.operand(statement, 0, Width::W32),
            _ => self.predicate(statement, statement.operands[0]),
        };
        let negated = statement.operands[1].strip_prefix('!');
        let mut a = self.predicate(statement, negated.unwrap_or(statement.operands[1]));
        if negated.is_some() {
            let not = self.sink(Class::Predicate);
            self.emit(Op::NotPredicate, [not, a, 0, 0]);
            a = not;
        }
        let mask = self.operand(statement, 2, Width::W32);
        self.emit(Op::Vote(mode), [d, a, mask, 0]);
        true
    }

    /// A call of a function of libdevice.
    fn call(&mut self, statement: &'a Statement<'a>, opcode: &mut Opcode<'a>) -> bool {
        opcode.take("uni");
        let [result, name, passed] = statement.operands[..] else { return false };
        let Some(name) = name.strip_prefix("__nv_") else { return false };
        let known = |name: &str| FUNCTIONS.iter().find(|(found, _)| *found == name).map(|(_, math)| *math);
        let single = name.strip_suffix('f').and_then(known).map(|math| (math, Float::F32));
        let Some((math, float)) = single.or_else(|| Some((known(name)?, Float::F64))) else { return false };
        let of = |text: &str| self.passed.get(text).map(|register| register.slot);
        let Some(d) = of(result.trim_matches(['(', ')'])) else { return false };
        let Some(slots) = inner(passed).into_iter().map(of).collect::<Option<Vec<_>>>() else { return false };
        let operands = if matches!(math, Math::Atan2 | Math::Pow) { 2 } else { 1 };
        if slots.len() != operands {
            return false;
        }
        self.emit(Op::Math(math, float), [d, slots[0], slots[operands - 1], 0]);
        true
    }
}
