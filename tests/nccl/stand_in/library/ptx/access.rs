//! Loads, stores and atomic changes of a warp, lane by lane.

use super::atomics::changed;
use super::code::{Access, Atomic, Inst};
use super::convert::extend;
use super::lanes::each;
use super::module::Kernel;
use super::space::{Memory, read, write};
use super::warp::Warp;

impl Warp {
    fn address(&self, inst: Inst, offset: i32, lane: usize) -> u64 {
        self.doubles[inst.a as usize][lane].wrapping_add_signed(i64::from(offset))
    }

    pub(super) fn load(&mut self, kernel: &Kernel, access: Access, inst: Inst, lanes: u32, memory: &mut Memory<'_>) {
        let bytes = u64::from(access.bits / 8);
        for lane in each(lanes) {
            let (start, thread) = (self.address(inst, access.offset, lane), self.number * 32 + lane);
            check_vector(access, start, memory, false);
            for place in 0..u64::from(access.count) {
                let from = memory.at(access.space, start + place * bytes, bytes, false, thread);
                // SAFETY: `at` returns valid, aligned memory.
                let value = unsafe { read(from, bytes) };
                let value = if access.signed { extend(value, access.bits, true) as u64 } else { value };
                self.set(access.width, kernel.lists[(u64::from(inst.d) + place) as usize], lane, value);
            }
        }
    }

    pub(super) fn store(&mut self, kernel: &Kernel, access: Access, inst: Inst, lanes: u32, memory: &mut Memory<'_>) {
        let bytes = u64::from(access.bits / 8);
        for lane in each(lanes) {
            let (start, thread) = (self.address(inst, access.offset, lane), self.number * 32 + lane);
            check_vector(access, start, memory, true);
            for place in 0..u64::from(access.count) {
                let value = self.get(access.width, kernel.lists[(u64::from(inst.d) + place) as usize], lane);
                let to = memory.at(access.space, start + place * bytes, bytes, true, thread);
                // SAFETY: `at` returns valid, aligned memory.
                unsafe { write(to, bytes, value) };
            }
        }
    }

    pub(super) fn atomic(&mut self, atomic: Atomic, inst: Inst, lanes: u32, memory: &mut Memory<'_>) {
        let width = atomic.kind.width();
        let bytes = u64::from(width.bits() / 8);
        for lane in each(lanes) {
            let thread = self.number * 32 + lane;
            let place = memory.at(atomic.space, self.address(inst, atomic.offset, lane), bytes, true, thread);
            let [value, other] = [inst.b, inst.c].map(|slot| self.get(width, slot, lane));
            // SAFETY: `at` returns valid, aligned memory, and no other thread of the host runs this kernel.
            let old = unsafe { read(place, bytes) };
            // SAFETY: as above.
            unsafe { write(place, bytes, changed(atomic.change, atomic.kind, old, value, other)) };
            self.set(width, inst.d, lane, old);
        }
    }
}

/// Checks that a vector is aligned to its whole size, as the hardware needs it.
fn check_vector(access: Access, start: u64, memory: &Memory<'_>, writes: bool) {
    let bytes = u64::from(access.bits / 8) * u64::from(access.count);
    if access.count > 1 && !start.is_multiple_of(bytes) {
        memory.refuse_vector(access.space, start, bytes, writes);
    }
}
