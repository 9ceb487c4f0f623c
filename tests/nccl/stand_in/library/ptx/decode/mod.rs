//! Decodes statements into instructions, each once.

mod arithmetic;
mod control;
mod memory;
mod moves;
mod opcode;
mod record;

use super::code::{ALWAYS, Class, Inst, NEVER, Op, Slot, Width};
use super::flow::meets;
use super::names::{Names, Register, constant};
use super::text::{Statement, split};
use crate::broken::broken;
use opcode::Opcode;
use record::record;
use std::collections::HashMap;

/// The instructions of a kernel.
pub(super) struct Decoded {
    pub(super) code: Vec<Inst>,
    pub(super) lists: Vec<Slot>,
    pub(super) meets: Vec<u32>,
}

/// What decoding needs besides the statement.
struct Decoder<'a> {
    names: &'a mut Names,
    code: Vec<Inst>,
    lists: Vec<Slot>,
    labels: HashMap<&'a str, u32>,
    /// Branches whose targets are labels that may come later: the instruction, or the place in a list.
    branches: Vec<(usize, &'a str)>,
    listed: Vec<(usize, &'a str)>,
    tables: HashMap<&'a str, Vec<&'a str>>,
    /// Parameters and results of calls.
    passed: HashMap<&'a str, Register>,
}

/// Decodes the statements of a kernel's body.
pub(super) fn decode<'a>(statements: &'a [Statement<'a>], names: &'a mut Names) -> Decoded {
    let mut decoder = Decoder {
        names,
        code: Vec::new(),
        lists: Vec::new(),
        labels: HashMap::new(),
        branches: Vec::new(),
        listed: Vec::new(),
        tables: HashMap::new(),
        passed: HashMap::new(),
    };
    for statement in statements.iter().filter(|statement| statement.opcode == ".branchtargets") {
        let label = statement.labels.last().copied().unwrap_or_default();
        decoder.tables.insert(label, statement.operands.clone());
    }
    for statement in statements {
        for label in &statement.labels {
            decoder.labels.insert(label, decoder.code.len() as u32);
        }
        decoder.statement(statement);
    }
    record(statements);
    decoder.finish()
}

impl<'a> Decoder<'a> {
    fn statement(&mut self, statement: &'a Statement<'a>) {
        match statement.opcode {
            ".branchtargets" => {}
            ".reg" => self.declare(statement),
            ".param" => self.declare_passed(statement),
            directive if directive.starts_with('.') => statement.refuse("a directive is not known"),
            _ => {
                let mut opcode = Opcode::of(statement);
                let start = self.code.len();
                let known = self.arithmetic(statement, &mut opcode)
                    || self.moves(statement, &mut opcode)
                    || self.memory(statement, &mut opcode)
                    || self.control(statement, &mut opcode);
                if !known || !opcode.is_used_up() {
                    statement.refuse("the instruction is not known");
                }
                if let Some((predicate, negated)) = statement.guard {
                    let guard = self.predicate(statement, predicate);
                    self.code[start..].iter_mut().for_each(|inst| (inst.guard, inst.negated) = (guard, negated));
                }
            }
        }
    }

    fn declare(&mut self, statement: &Statement<'_>) {
        let kind = statement.operands.first().and_then(|first| first.split_whitespace().next()).unwrap_or_default();
        for name in &statement.operands {
            let name = name.split_whitespace().last().unwrap_or_default();
            if self.names.declare(kind, name).is_none() {
                statement.refuse("a type of registers is not known");
            }
        }
    }

    fn declare_passed(&mut self, statement: &'a Statement<'a>) {
        for declared in &statement.operands {
            let words: Vec<&str> = declared.split_whitespace().collect();
            let (class, width) = match words.first() {
                Some(&".b32") => (Class::Single, Width::W32),
                Some(&".b64") => (Class::Double, Width::W64),
                _ => statement.refuse("a type of parameters is not known"),
            };
            let slot = self.names.unnamed(class);
            self.passed.insert(words[words.len() - 1], Register { class, width, slot });
        }
    }

    fn emit(&mut self, op: Op, [d, a, b, c]: [Slot; 4]) {
        self.code.push(Inst { op, guard: ALWAYS, negated: false, d, a, b, c });
    }

    /// The slot of operand `place`.
    fn operand(&mut self, statement: &Statement<'_>, place: usize, width: Width) -> Slot {
        match statement.operands.get(place) {
            Some(text) => self.slot(statement, text, width),
            None => statement.refuse("an operand is missing"),
        }
    }

    fn slot(&mut self, statement: &Statement<'_>, text: &str, width: Width) -> Slot {
        match self.names.operand(text, width) {
            Some(slot) => slot,
            None => statement.refuse("an operand is not known"),
        }
    }

    /// The slots of the first operands, zeros after them.
    fn operands(&mut self, statement: &Statement<'_>, widths: &[Width]) -> [Slot; 4] {
        if statement.operands.len() != widths.len() {
            statement.refuse("the number of operands is not known");
        }
        let mut slots = [0; 4];
        for (place, width) in widths.iter().enumerate() {
            slots[place] = self.operand(statement, place, *width);
        }
        slots
    }

    fn predicate(&mut self, statement: &Statement<'_>, text: &str) -> Slot {
        match (self.names.register(text), constant(text)) {
            (Some(Register { class: Class::Predicate, slot, .. }), _) => slot,
            (None, Some(0)) => NEVER,
            (None, Some(_)) => ALWAYS,
            _ => statement.refuse("a predicate is not known"),
        }
    }

    /// A new list of slots.
    fn list(&mut self, slots: &[Slot]) -> Slot {
        self.lists.extend(slots);
        (self.lists.len() - slots.len()) as Slot
    }

    fn finish(mut self) -> Decoded {
        let target = |label: &str| match self.labels.get(label) {
            Some(target) => *target,
            None => broken("a kernel is whole", format!("there is no label {label}")),
        };
        for (place, label) in &self.branches {
            self.code[*place].op = Op::Branch(target(label));
        }
        for (place, label) in &self.listed {
            self.lists[*place] = target(label);
        }
        // A body may end with a label.
        self.code.push(Inst { op: Op::Exit, guard: ALWAYS, negated: false, d: 0, a: 0, b: 0, c: 0 });
        let meets = meets(&self.code, &self.lists);
        Decoded { code: self.code, lists: self.lists, meets }
    }
}

/// The base and the offset of an address: `[%rd1+8]`.
fn address<'a>(statement: &Statement<'_>, text: &'a str) -> (&'a str, i32) {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let Some(inner) = inner else { statement.refuse("an address is expected") };
    match inner.split_once('+') {
        Some((base, offset)) => match offset.trim().parse() {
            Ok(offset) => (base.trim(), offset),
            Err(_) => statement.refuse("an offset is not known"),
        },
        None => (inner.trim(), 0),
    }
}

/// The two registers of `%r1|%p1`.
fn pair(text: &str) -> (&str, Option<&str>) {
    text.split_once('|').map_or((text, None), |(first, second)| (first.trim(), Some(second.trim())))
}

/// The operands in brackets.
fn inner(text: &str) -> Vec<&str> {
    split(text.trim_start_matches(['(', '{']).trim_end_matches([')', '}']))
}
