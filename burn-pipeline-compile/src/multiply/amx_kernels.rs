//! Multiplies matrix tiles of `bf16` (AMX), in one `asm!` for each block of sums: tiles cannot be operands of `asm!`.
//!
//! Four tiles of sums, two of the left and two of the right operand are in use, so each loaded tile is multiplied at
//! least twice.

use std::arch::asm;

/// The rows of a tile, and its columns in words of 32 bits.
pub(super) const TILE: usize = 16;
/// The rows and columns of a block of sums: two tiles each.
pub(super) const BLOCK: usize = 2 * TILE;

/// Where a kernel finds the left operand: two tiles for each 32 elements along the depth.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeftTiles {
    pub(super) at: *const u8,
    /// The bytes from one row to the next.
    pub(super) row: isize,
    /// The bytes from the elements of one instruction to the next ones.
    pub(super) step: isize,
}

/// A kernel over `steps` steps: tiles 0 to 3 are sums, 4 and 5 the left operand, 6 and 7 the right one.
macro_rules! kernel {
    ($name:ident, [$($zero:literal),+], [$($step:literal),+], [$($store:literal),+]) => {
        /// # Safety
        /// As for `TileUnit::multiply`.
        #[inline(always)]
        pub(super) unsafe fn $name(steps: usize, left: LeftTiles, right: *const u32, to: *mut f32, row: isize) {
            let row = row * size_of::<f32>() as isize;
            // SAFETY: guaranteed by the caller; all tiles are named as changed.
            unsafe {
                asm!(
                    $($zero,)+
                    "2:",
                    $($step,)+
                    "add {a}, {step}",
                    "add {below}, {step}",
                    "add {b}, 2048",
                    "dec {steps}",
                    "jnz 2b",
                    $($store,)+
                    steps = inout(reg) steps => _,
                    a = inout(reg) left.at => _,
                    below = inout(reg) left.at.wrapping_offset(TILE as isize * left.row) => _,
                    along = in(reg) left.row,
                    step = in(reg) left.step,
                    b = inout(reg) right => _,
                    pairs = in(reg) 4 * BLOCK,
                    to = in(reg) to,
                    to_below = in(reg) to.wrapping_byte_offset(TILE as isize * row),
                    row = in(reg) row,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

kernel!(
    two_by_two,
    ["tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3"],
    [
        "tileloadd tmm4, [{a} + {along}*1]",
        "tileloadd tmm6, [{b} + {pairs}*1]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm7, [{b} + {pairs}*1 + 64]",
        "tdpbf16ps tmm1, tmm4, tmm7",
        "tileloadd tmm5, [{below} + {along}*1]",
        "tdpbf16ps tmm2, tmm5, tmm6",
        "tdpbf16ps tmm3, tmm5, tmm7"
    ],
    [
        "tilestored [{to} + {row}*1], tmm0",
        "tilestored [{to} + {row}*1 + 64], tmm1",
        "tilestored [{to_below} + {row}*1], tmm2",
        "tilestored [{to_below} + {row}*1 + 64], tmm3"
    ]
);
kernel!(
    one_by_two,
    ["tilezero tmm0", "tilezero tmm1"],
    [
        "tileloadd tmm4, [{a} + {along}*1]",
        "tileloadd tmm6, [{b} + {pairs}*1]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm7, [{b} + {pairs}*1 + 64]",
        "tdpbf16ps tmm1, tmm4, tmm7"
    ],
    ["tilestored [{to} + {row}*1], tmm0", "tilestored [{to} + {row}*1 + 64], tmm1", "/* {to_below} */"]
);
kernel!(
    two_by_one,
    ["tilezero tmm0", "tilezero tmm2"],
    [
        "tileloadd tmm4, [{a} + {along}*1]",
        "tileloadd tmm6, [{b} + {pairs}*1]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm5, [{below} + {along}*1]",
        "tdpbf16ps tmm2, tmm5, tmm6"
    ],
    ["tilestored [{to} + {row}*1], tmm0", "tilestored [{to_below} + {row}*1], tmm2"]
);
kernel!(
    one_by_one,
    ["tilezero tmm0"],
    ["tileloadd tmm4, [{a} + {along}*1]", "tileloadd tmm6, [{b} + {pairs}*1]", "tdpbf16ps tmm0, tmm4, tmm6"],
    ["tilestored [{to} + {row}*1], tmm0", "/* {to_below} */"]
);

/// A kernel of parts. The left operand has rows of 64 bytes (`line`), and the right one pairs of twice as many.
macro_rules! kernel_of_parts {
    ($name:ident, $($step:literal),+) => {
        /// # Safety
        /// As for `TileUnit::multiply_parts`.
        #[inline(always)]
        pub(super) unsafe fn $name(steps: usize, left: (*const u8, usize), right: (*const u32, usize), to: *mut f32) {
            // SAFETY: guaranteed by the caller; all tiles are named as changed.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "2:",
                    $($step,)+
                    "add {a}, 2048",
                    "add {b}, 2048",
                    "dec {steps}",
                    "jnz 2b",
                    "tilestored [{to} + {line}*2], tmm0",
                    "tilestored [{to} + {line}*2 + 64], tmm1",
                    "tilestored [{to} + {line}*2 + 2048], tmm2",
                    "tilestored [{to} + {line}*2 + 2112], tmm3",
                    steps = inout(reg) steps => _,
                    a = inout(reg) left.0 => _,
                    next_a = in(reg) left.1,
                    b = inout(reg) right.0 => _,
                    next_b = in(reg) right.1,
                    line = in(reg) 2 * BLOCK,
                    part = out(reg) _,
                    to = in(reg) to,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

kernel_of_parts!(
    two_parts,
    "lea {part}, [{a} + {next_a}]",
    "tileloadd tmm4, [{part} + {line}*1]",
    "tileloadd tmm6, [{b} + {line}*2]",
    "tileloadd tmm7, [{b} + {line}*2 + 64]",
    "tileloadd tmm5, [{part} + {line}*1 + 1024]",
    // 1 and 0.
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tileloadd tmm4, [{a} + {line}*1]",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm5, [{a} + {line}*1 + 1024]",
    // 0 and 0.
    "lea {part}, [{b} + {next_b}]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tileloadd tmm6, [{part} + {line}*2]",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm7, [{part} + {line}*2 + 64]",
    // 0 and 1.
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tdpbf16ps tmm3, tmm5, tmm7"
);
kernel_of_parts!(
    three_parts,
    "lea {part}, [{a} + {next_a}*2]",
    "tileloadd tmm4, [{part} + {line}*1]",
    "tileloadd tmm6, [{b} + {line}*2]",
    "tileloadd tmm7, [{b} + {line}*2 + 64]",
    "tileloadd tmm5, [{part} + {line}*1 + 1024]",
    // 2 and 0.
    "lea {part}, [{a} + {next_a}]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tileloadd tmm4, [{part} + {line}*1]",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm5, [{part} + {line}*1 + 1024]",
    // 1 and 0.
    "lea {part}, [{b} + {next_b}]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tileloadd tmm6, [{part} + {line}*2]",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm7, [{part} + {line}*2 + 64]",
    // 1 and 1.
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tileloadd tmm4, [{a} + {line}*1]",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm5, [{a} + {line}*1 + 1024]",
    // 0 and 1.
    "lea {part}, [{b} + {next_b}*2]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tileloadd tmm6, [{part} + {line}*2]",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm7, [{part} + {line}*2 + 64]",
    // 0 and 2.
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tileloadd tmm6, [{b} + {line}*2]",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm7, [{b} + {line}*2 + 64]",
    // 0 and 0.
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tdpbf16ps tmm3, tmm5, tmm7"
);
