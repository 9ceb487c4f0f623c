//! The kernels of a module, with the layout of their variables.

use super::code::{Inst, Slot};
use super::decode::decode;
use super::names::{Names, Special, constant};
use super::text::{Part, parts, split, statements, without_comments};
use crate::broken::broken;
use std::collections::HashMap;

/// The registers of a warp.
#[derive(Debug, Default)]
pub struct Registers {
    pub predicates: usize,
    pub singles: usize,
    pub doubles: usize,
    pub single_constants: Vec<(Slot, u32)>,
    pub double_constants: Vec<(Slot, u64)>,
    pub specials: Vec<(Slot, Special)>,
}

/// A kernel, ready to run.
#[derive(Debug)]
pub struct Kernel {
    pub name: String,
    pub code: Vec<Inst>,
    /// Where the lanes that a branch parts meet again, by instruction.
    pub meets: Vec<u32>,
    /// Operands of instructions with more than four.
    pub lists: Vec<Slot>,
    pub registers: Registers,
    /// The offset and the size of each parameter.
    pub params: Vec<(usize, usize)>,
    /// The bytes of its variables in shared memory, and of a thread's in local memory.
    pub shared: usize,
    pub local: usize,
    /// The threads of a block, if the kernel says it.
    pub threads: Option<[u32; 3]>,
}

/// A loaded module. Its variables live as long as the process.
#[derive(Debug)]
pub struct Module {
    pub kernels: Vec<Kernel>,
    /// The addresses and bytes of its variables in global memory.
    pub variables: Vec<(u64, usize)>,
}

/// A variable's name, alignment and bytes.
struct Variable<'a> {
    name: &'a str,
    align: usize,
    bytes: usize,
    values: Vec<&'a str>,
    element: usize,
}

impl Module {
    /// Reads and decodes the text of a module.
    pub fn parse(text: &str) -> Self {
        let text = without_comments(text);
        let (mut symbols, mut variables, mut kernels) = (HashMap::new(), Vec::new(), Vec::new());
        let (mut shared, mut unsized_shared) = (0, Vec::new());
        let parts = parts(&text);
        for part in parts.iter().filter(|part| part.body.is_none()) {
            let words: Vec<&str> = part.head.split_whitespace().collect();
            if words.contains(&".func") {
                // Known functions are computed by name; a call of another one is refused.
            } else if words.contains(&".shared") {
                let variable = variable(part.head);
                if variable.bytes == 0 {
                    unsized_shared.push(variable);
                } else {
                    symbols.insert(variable.name.to_owned(), place(&mut shared, variable.bytes, variable.align) as u64);
                }
            } else if words.contains(&".global") || words.contains(&".const") {
                let variable = variable(part.head);
                let address = leak(&variable);
                symbols.insert(variable.name.to_owned(), address);
                variables.push((address, variable.bytes));
            } else {
                broken("the stand-in interprets every part of a module", part.head);
            }
        }
        for variable in unsized_shared {
            // The bytes that a launch adds begin after those of the variables.
            symbols.insert(variable.name.to_owned(), place(&mut shared, 0, variable.align) as u64);
        }
        for part in parts.iter().filter(|part| part.body.is_some()) {
            kernels.push(kernel(part, symbols.clone(), shared));
        }
        Self { kernels, variables }
    }
}

/// Reserves aligned bytes.
fn place(end: &mut usize, bytes: usize, align: usize) -> usize {
    let start = end.next_multiple_of(align.max(1));
    *end = start + bytes;
    start
}

fn variable(head: &str) -> Variable<'_> {
    let refuse = || -> ! { broken("the stand-in knows the types of variables", head) };
    let (declared, values) = head.split_once('=').unwrap_or((head, ""));
    let words: Vec<&str> = declared.split_whitespace().collect();
    let align = words.iter().position(|word| *word == ".align").and_then(|place| words[place + 1].parse().ok());
    let Some(element) = words.iter().find_map(|word| element_bytes(word)) else { refuse() };
    // The alignment of a pointer's parameter is that of what it points to.
    let align = align.filter(|_| !words.contains(&".ptr"));
    let Some(last) = words.last() else { refuse() };
    let (name, count) = match last.split_once('[') {
        Some((name, count)) => (name, count.trim_end_matches(']').parse().unwrap_or(0)),
        None => (*last, 1),
    };
    let values = values.trim().trim_start_matches('{').trim_end_matches('}');
    Variable { name, align: align.unwrap_or(element), bytes: count * element, values: split(values), element }
}

/// The bytes of a type: `.b8` and the like.
fn element_bytes(word: &str) -> Option<usize> {
    let bits = word.strip_prefix('.')?.strip_prefix(['b', 'u', 's', 'f'])?;
    match bits.parse().ok()? {
        bits @ (8 | 16 | 32 | 64) => Some(bits / 8),
        _ => None,
    }
}

/// Memory for a variable, with its first values. It is never freed, like a module of CubeCL's.
fn leak(variable: &Variable<'_>) -> u64 {
    let mut bytes: Vec<u8> = Vec::with_capacity(variable.bytes);
    for value in &variable.values {
        match constant(value) {
            Some(bits) => bytes.extend(&bits.to_le_bytes()[..variable.element]),
            None => broken("the stand-in knows the values of variables", value),
        }
    }
    bytes.resize(variable.bytes, 0);
    // Aligned as every vector is.
    let mut words = vec![0_u128; bytes.len().div_ceil(16)];
    for (place, byte) in bytes.iter().enumerate() {
        words[place / 16] |= u128::from(*byte) << (place % 16 * 8);
    }
    Vec::leak(words).as_ptr() as u64
}

fn kernel(part: &Part<'_>, mut symbols: HashMap<String, u64>, shared: usize) -> Kernel {
    let Some((_, head)) = part.head.split_once(".entry") else {
        broken("the stand-in interprets kernels without functions of their own", part.head)
    };
    let (name, rest) = head.split_once('(').unwrap_or((head, ")"));
    let (listed, directives) = rest.rsplit_once(')').unwrap_or(("", ""));
    let (mut params, mut end) = (Vec::new(), 0);
    for param in split(listed) {
        let found = variable(param);
        let start = place(&mut end, found.bytes, found.align);
        symbols.insert(found.name.to_owned(), start as u64);
        params.push((start, found.bytes));
    }
    let (mut local, mut kept) = (0, Vec::new());
    let mut names = Names::new(HashMap::new());
    for statement in statements(part.body.unwrap_or_default()) {
        match statement.opcode {
            ".local" => {
                let text = format!(".local {}", statement.operands.join(", "));
                let found = variable(&text);
                let start = place(&mut local, found.bytes, found.align);
                symbols.insert(found.name.to_owned(), start as u64);
            }
            _ => kept.push(statement),
        }
    }
    names.symbols = symbols;
    let decoded = decode(&kept, &mut names);
    let registers = Registers {
        predicates: names.predicates as usize,
        singles: names.singles as usize,
        doubles: names.doubles as usize,
        single_constants: names.single_constants,
        double_constants: names.double_constants,
        specials: names.specials,
    };
    let threads = threads(directives);
    let (code, lists, meets) = (decoded.code, decoded.lists, decoded.meets);
    Kernel { name: name.trim().to_owned(), code, meets, lists, registers, params, shared, local, threads }
}

/// The threads of a block, from `.reqntid 256, 1, 1`.
fn threads(directives: &str) -> Option<[u32; 3]> {
    let (_, text) = directives.split_once(".reqntid")?;
    let numbers =
        text.split([',', ' ', '\n', '\t']).filter(|word| !word.is_empty()).map_while(|word| word.parse().ok());
    let mut threads = [1; 3];
    threads.iter_mut().zip(numbers).for_each(|(place, number)| *place = number);
    Some(threads)
}
