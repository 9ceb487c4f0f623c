//! An opcode whose modifiers are taken one by one. What is left over is not known.

use crate::ptx::code::{Float, Kind, Width};
use crate::ptx::text::Statement;

/// The name and the modifiers of an instruction.
pub(super) struct Opcode<'a> {
    pub(super) name: &'a str,
    modifiers: Vec<&'a str>,
}

impl<'a> Opcode<'a> {
    pub(super) fn of(statement: &'a Statement<'a>) -> Self {
        let mut parts = statement.opcode.split('.');
        let name = parts.next().unwrap_or_default();
        Self { name, modifiers: parts.collect() }
    }

    /// Takes a modifier. Returns false if it is not there.
    pub(super) fn take(&mut self, modifier: &str) -> bool {
        let place = self.modifiers.iter().position(|found| *found == modifier);
        place.map(|place| self.modifiers.remove(place)).is_some()
    }

    /// Takes the modifiers of these that are there.
    pub(super) fn take_all(&mut self, modifiers: &[&str]) {
        self.modifiers.retain(|found| !modifiers.contains(found));
    }

    /// Takes the first of these that is there, and returns what it stands for.
    pub(super) fn one_of<T: Copy>(&mut self, known: &[(&str, T)]) -> Option<T> {
        known.iter().find(|(name, _)| self.take(name)).map(|(_, meaning)| *meaning)
    }

    /// Takes the type, which comes last.
    pub(super) fn kind(&mut self) -> Option<Kind> {
        let kind = kind(self.modifiers.last()?)?;
        self.modifiers.pop();
        Some(kind)
    }

    pub(super) fn last(&self) -> &'a str {
        self.modifiers.last().copied().unwrap_or_default()
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.modifiers.is_empty()
    }
}

fn kind(name: &str) -> Option<Kind> {
    Some(match name {
        "f16" => Kind::Float(Float::F16),
        "f16x2" => Kind::Float(Float::F16x2),
        "bf16" => Kind::Float(Float::Bf16),
        "bf16x2" => Kind::Float(Float::Bf16x2),
        "f32" => Kind::Float(Float::F32),
        "f64" => Kind::Float(Float::F64),
        _ => {
            let digits = name.strip_prefix(['b', 'u', 's'])?;
            let bits = digits.parse().ok().filter(|bits| [8, 16, 32, 64].contains(bits))?;
            Kind::Int { bits, signed: name.starts_with('s') }
        }
    })
}

impl Kind {
    pub(super) fn bits(self) -> u8 {
        match self {
            Self::Int { bits, .. } => bits,
            Self::Float(Float::F16 | Float::Bf16) => 16,
            Self::Float(Float::F64) => 64,
            Self::Float(_) => 32,
        }
    }

    /// The width of the registers that hold it.
    pub(in crate::ptx) fn width(self) -> Width {
        match self.bits() {
            64 => Width::W64,
            32 => Width::W32,
            _ => Width::W16,
        }
    }

    /// Returns true for two halves in one register.
    pub(super) fn is_pair(self) -> bool {
        matches!(self, Self::Float(Float::F16x2 | Float::Bf16x2))
    }

    /// The type with `.ftz`.
    pub(super) fn flushed(self, flushes: bool) -> Self {
        if flushes && self == Self::Float(Float::F32) { Self::Float(Float::F32Flushed) } else { self }
    }
}
