//! Intel's matrix tiles (AMX): permission to use them, and what multiplies tiles of `bf16`.
//!
//! Guarantees: an [`Amx`] exists only in a process that may use tiles. An instruction (`tdpbf16ps`) multiplies 16 pairs
//! along the depth: it sums the first products of all pairs, and the second ones, each with one rounding and from 0,
//! then adds both sums, then adds that to the tile. It takes subnormal numbers as 0, and a subnormal result becomes 0
//! (Intel's Software Developer's Manual, TDPBF16PS; compared with a model in `model.rs`).
//!
//! 1. The processor says whether it has tiles, the system whether it saves them, and Linux permits them to the process
//!    on request (`arch_prctl`, Documentation/arch/x86/xstate.rst). It refuses if a thread's signal stack is too small
//!    for them.
//! 2. Tiles and their configuration belong to a thread and are lost in calls of other code, so a block of `to` is one
//!    `asm!`, and a thread configures its tiles for each pair of packed blocks.
//! 3. The kernels are in [`amx_kernels`](super::amx_kernels).

use super::amx_kernels::{LeftTiles, TILE, one_by_one, one_by_two, three_parts, two_by_one, two_by_two, two_parts};
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::LazyLock;

/// Proof that this process may use tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Amx(());

impl Amx {
    /// Returns `None` if there are no tiles of `bf16` here. The first call asks the system for permission.
    pub(super) fn detect() -> Option<Self> {
        static FOUND: LazyLock<bool> = LazyLock::new(|| processor_has_tiles() && system_permits());
        FOUND.then_some(Self(()))
    }
}

/// Returns true if the processor has tiles of `bf16` with 16 rows of 64 bytes, and the system saves them.
fn processor_has_tiles() -> bool {
    if __cpuid(0).eax < 0x1e {
        return false;
    }
    let has = |register: u32, bit: u32| register >> bit & 1 == 1;
    let (basic, extended) = (__cpuid(1), __cpuid_count(7, 0));
    let [xgetbv, bf16, tiles] = [has(basic.ecx, 27), has(extended.edx, 22), has(extended.edx, 24)];
    let (palette, unit) = (__cpuid_count(0x1d, 1), __cpuid_count(0x1e, 0));
    let tiles_are_whole = palette.ebx & 0xffff >= 64 && palette.ebx >> 16 >= 8 && palette.ecx & 0xffff >= 16;
    let unit_is_whole = unit.ebx & 0xff >= 16 && unit.ebx >> 8 & 0xffff >= 64;
    if !(xgetbv && bf16 && tiles && tiles_are_whole && unit_is_whole) {
        return false;
    }
    let saved: u32;
    // SAFETY: the processor has the instruction, which only reads a register.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") saved, out("edx") _, options(nomem, nostack, preserves_flags)) };
    // The configuration of tiles, and their elements.
    has(saved, 17) && has(saved, 18)
}

/// Asks the system for permission.
#[cfg(target_os = "linux")]
fn system_permits() -> bool {
    const ARCH_PRCTL: isize = 158;
    const REQUEST_STATE: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let result: isize;
    // SAFETY: the call changes which state the system saves for this process, and no memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") REQUEST_STATE,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn system_permits() -> bool {
    false
}

/// The configuration of all eight tiles: 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static WHOLE: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// What multiplies tiles: the processor, or in tests a model of it.
pub(super) trait TileUnit {
    /// Configures this thread's tiles.
    ///
    /// # Safety
    /// There is an [`Amx`].
    unsafe fn configure();

    /// Frees this thread's tiles.
    ///
    /// # Safety
    /// There is an [`Amx`].
    unsafe fn release();

    /// Writes a block of sums over `steps` times 32 elements, at least once: at most 32 rows and columns,
    /// rounded up to whole tiles.
    ///
    /// # Safety
    /// Tiles are configured. Operands have these elements: rows of the left one, pairs of 32 columns of the right one.
    /// The target has whole tiles, `row` elements from one row to the next, and nothing else refers to it.
    unsafe fn multiply(steps: usize, left: LeftTiles, right: *const u32, to: *mut f32, row: isize, sizes: [usize; 2]);

    /// Writes a block of sums of the products of parts, smallest first for each 32 elements: of two parts each, the
    /// products of places 1 and 0, 0 and 0, and 0 and 1; of three parts each, of 2 and 0, 1 and 0, 1 and 1, 0 and 1,
    /// 0 and 2, and 0 and 0. An operand is the pointer to its part 0, and the bytes from each part to the next.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply): whole tiles of rows lie one after the other, and the target has 32 columns.
    unsafe fn multiply_parts<const PARTS: usize>(
        steps: usize,
        left: (*const u8, usize),
        right: (*const u32, usize),
        to: *mut f32,
    );
}

/// The processor.
pub(super) struct Processor;

impl TileUnit for Processor {
    #[inline(always)]
    unsafe fn configure() {
        // SAFETY: guaranteed by the caller; the configuration is valid.
        unsafe {
            asm!(
                "ldtilecfg [{0}]",
                in(reg) &raw const WHOLE,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(readonly, nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn release() {
        // SAFETY: guaranteed by the caller.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nomem, nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn multiply(
        steps: usize,
        left: LeftTiles,
        right: *const u32,
        to: *mut f32,
        row: isize,
        [rows, columns]: [usize; 2],
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (rows > TILE, columns > TILE) {
                (true, true) => two_by_two(steps, left, right, to, row),
                (false, true) => one_by_two(steps, left, right, to, row),
                (true, false) => two_by_one(steps, left, right, to, row),
                (false, false) => one_by_one(steps, left, right, to, row),
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply_parts<const PARTS: usize>(
        steps: usize,
        left: (*const u8, usize),
        right: (*const u32, usize),
        to: *mut f32,
    ) {
        const { assert!(PARTS == 2 || PARTS == 3) };
        // SAFETY: guaranteed by the caller.
        unsafe {
            match PARTS {
                2 => two_parts(steps, left, right, to),
                _ => three_parts(steps, left, right, to),
            }
        }
    }
}
