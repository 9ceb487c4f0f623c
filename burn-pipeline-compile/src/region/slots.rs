//! Assigns buffers of a tile, shared by values that do not live at the same time.
//!
//! Guarantees: an instruction never writes a buffer that it reads.

use super::{Kind, Output};
use crate::tile::{Argument, Instruction};

/// The contents of a buffer while a region is lowered.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum BufferKind {
    Input(usize),
    Output(usize),
    /// A value for each element of a tile, or for each row.
    Slot {
        wide: bool,
    },
}

/// Numbers the buffers of a region: inputs, outputs, slots of tiles, slots of rows. Returns the number of slots of
/// each kind.
pub(super) fn assigned(
    code: &mut [Instruction],
    outputs: &mut [Output],
    buffers: &[BufferKind],
    inputs: usize,
) -> (usize, usize) {
    let mut last = vec![0; buffers.len()];
    for (place, instruction) in code.iter().enumerate() {
        instruction.arguments.iter().filter_map(buffer).for_each(|buffer| last[buffer] = place);
        last[instruction.to] = last[instruction.to].max(place);
    }
    // Masks, half-precision values and sums are made after all instructions.
    outputs.iter_mut().filter_map(source).filter_map(|from| buffer(from)).for_each(|at| last[at] = code.len());
    let (mut wide, mut row) = (Slots::default(), Slots::default());
    let mut slot: Vec<usize> = vec![0; buffers.len()];
    for (place, instruction) in code.iter().enumerate() {
        if let BufferKind::Slot { wide: is_wide } = buffers[instruction.to] {
            slot[instruction.to] = if is_wide { wide.take() } else { row.take() };
        }
        for (at, kind) in buffers.iter().enumerate().filter(|(at, _)| last[*at] == place) {
            match kind {
                BufferKind::Slot { wide: true } => wide.give(slot[at]),
                BufferKind::Slot { wide: false } => row.give(slot[at]),
                BufferKind::Input(_) | BufferKind::Output(_) => {}
            }
        }
    }
    let slots = inputs + outputs.len();
    let number = |buffer: usize| match buffers[buffer] {
        BufferKind::Input(place) => place,
        BufferKind::Output(place) => inputs + place,
        BufferKind::Slot { wide: true } => slots + slot[buffer],
        BufferKind::Slot { wide: false } => slots + wide.count + slot[buffer],
    };
    let renumbered = |argument: Argument| match argument {
        Argument::Row(buffer) => Argument::Row(number(buffer)),
        Argument::Wide(buffer) => Argument::Wide(number(buffer)),
        other => other,
    };
    for instruction in code {
        instruction.to = number(instruction.to);
        instruction.arguments = instruction.arguments.map(renumbered);
    }
    outputs.iter_mut().filter_map(source).for_each(|from| *from = renumbered(*from));
    (wide.count, row.count)
}

/// The buffer from which an output is made after all instructions.
fn source(output: &mut Output) -> Option<&mut Argument> {
    match &mut output.kind {
        Kind::Mask { from } | Kind::Half { from, .. } | Kind::Sum { from, .. } => Some(from),
        Kind::Values { .. } => None,
    }
}

fn buffer(argument: &Argument) -> Option<usize> {
    match argument {
        Argument::Row(buffer) | Argument::Wide(buffer) => Some(*buffer),
        Argument::None | Argument::Scalar(_) => None,
    }
}

#[derive(Default)]
struct Slots {
    free: Vec<usize>,
    count: usize,
}

impl Slots {
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        })
    }

    fn give(&mut self, slot: usize) {
        self.free.push(slot);
    }
}
