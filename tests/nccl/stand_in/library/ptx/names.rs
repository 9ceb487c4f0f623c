//! Slots of registers by their names. Each constant and each special register that a kernel uses has a slot too, so
//! that every operand is a slot.

use super::code::{Class, NEVER, Slot, Width};
use std::collections::HashMap;

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    pub class: Class,
    pub width: Width,
    pub slot: Slot,
}

/// A register whose value a warp or a block has: `%tid.x` and the like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
    Warp,
    /// The mask of the lanes below, up to, above and from the lane itself.
    LanesBelow,
    LanesUpTo,
    LanesAbove,
    LanesFrom,
}

/// The slots of a kernel.
#[derive(Debug, Default)]
pub struct Names {
    /// By a name without its number: class, width, the slot of number 0.
    ranges: HashMap<String, (Class, Width, Slot)>,
    /// The number of slots of each class.
    pub predicates: Slot,
    pub singles: Slot,
    pub doubles: Slot,
    pub single_constants: Vec<(Slot, u32)>,
    pub double_constants: Vec<(Slot, u64)>,
    pub specials: Vec<(Slot, Special)>,
    /// The addresses of variables and parameters within their spaces.
    pub symbols: HashMap<String, u64>,
}

impl Names {
    /// Names with the two constant predicates.
    pub fn new(symbols: HashMap<String, u64>) -> Self {
        Self { predicates: NEVER + 1, symbols, ..Self::default() }
    }

    fn allocate(&mut self, class: Class, count: u32) -> Slot {
        let next = match class {
            Class::Predicate => &mut self.predicates,
            Class::Single => &mut self.singles,
            Class::Double => &mut self.doubles,
        };
        *next += count;
        *next - count
    }

    /// Declares a register, or those of a range: `%r<7>`. Returns `None` for an unknown type.
    pub fn declare(&mut self, kind: &str, name: &str) -> Option<()> {
        let (class, width) = match kind {
            ".pred" => (Class::Predicate, Width::W16),
            ".b16" | ".u16" | ".s16" | ".f16" => (Class::Single, Width::W16),
            ".b32" | ".u32" | ".s32" | ".f32" => (Class::Single, Width::W32),
            ".b64" | ".u64" | ".s64" | ".f64" => (Class::Double, Width::W64),
            _ => return None,
        };
        let (name, count) = match name.split_once('<') {
            Some((name, count)) => (name, count.trim_end_matches('>').parse().ok()?),
            None => (name, 1),
        };
        let first = self.allocate(class, count);
        self.ranges.insert(name.to_owned(), (class, width, first));
        Some(())
    }

    /// The declared register of that name.
    pub fn register(&self, name: &str) -> Option<Register> {
        let of =
            |&(class, width, first): &(Class, Width, Slot), number| Register { class, width, slot: first + number };
        if let Some(found) = self.ranges.get(name) {
            return Some(of(found, 0));
        }
        let digits = name.rfind(|letter: char| !letter.is_ascii_digit())? + 1;
        Some(of(self.ranges.get(&name[..digits])?, name[digits..].parse().ok()?))
    }

    /// The slot of an operand of that width: a register, a special register, a constant, or the address of a symbol.
    pub fn operand(&mut self, text: &str, width: Width) -> Option<Slot> {
        if let Some(found) = self.register(text) {
            let wide = |width| width == Width::W64;
            let fits = found.class != Class::Predicate && wide(found.width) == wide(width);
            return fits.then_some(found.slot);
        }
        if let Some(special) = special(text) {
            return (width == Width::W32).then(|| self.special(special));
        }
        let bits = self.symbols.get(text).copied().or_else(|| constant(text))?;
        Some(match width {
            Width::W16 => self.single(bits as u16 as u32),
            Width::W32 => self.single(bits as u32),
            Width::W64 => self.double(bits),
        })
    }

    fn special(&mut self, special: Special) -> Slot {
        if let Some((slot, _)) = self.specials.iter().find(|(_, found)| *found == special) {
            return *slot;
        }
        let slot = self.allocate(Class::Single, 1);
        self.specials.push((slot, special));
        slot
    }

    pub fn single(&mut self, bits: u32) -> Slot {
        if let Some((slot, _)) = self.single_constants.iter().find(|(_, found)| *found == bits) {
            return *slot;
        }
        let slot = self.allocate(Class::Single, 1);
        self.single_constants.push((slot, bits));
        slot
    }

    pub fn double(&mut self, bits: u64) -> Slot {
        if let Some((slot, _)) = self.double_constants.iter().find(|(_, found)| *found == bits) {
            return *slot;
        }
        let slot = self.allocate(Class::Double, 1);
        self.double_constants.push((slot, bits));
        slot
    }

    /// A register that no name refers to, for a result that is not used.
    pub fn unnamed(&mut self, class: Class) -> Slot {
        self.allocate(class, 1)
    }
}

fn special(text: &str) -> Option<Special> {
    let axis = |name: &str| ["x", "y", "z"].iter().position(|axis| name == *axis);
    let (name, part) = text.split_once('.').unwrap_or((text, ""));
    Some(match name {
        "%tid" => Special::Thread(axis(part)?),
        "%ntid" => Special::Threads(axis(part)?),
        "%ctaid" => Special::Block(axis(part)?),
        "%nctaid" => Special::Blocks(axis(part)?),
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%lanemask_lt" => Special::LanesBelow,
        "%lanemask_le" => Special::LanesUpTo,
        "%lanemask_gt" => Special::LanesAbove,
        "%lanemask_ge" => Special::LanesFrom,
        _ => return None,
    })
}

/// The bits of a constant: `12`, `-12`, `0x1F`, `0f3F800000`, `0d3FF0000000000000`.
pub fn constant(text: &str) -> Option<u64> {
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return hex(digits.trim_end_matches('U'));
    }
    if let Some(digits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0d")) {
        return hex(digits);
    }
    let digits = text.trim_end_matches('U');
    digits.parse::<u64>().ok().or_else(|| digits.parse::<i64>().ok().map(|number| number as u64))
}
