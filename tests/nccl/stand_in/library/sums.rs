//! Collectives of a communicator: each member publishes its data chunk by chunk and takes its part of all chunks.
//! Sums are added in rank order.

use crate::broken::broken;
use crate::communicator::Communicator;
use crate::group::Elements;
use crate::room::{CHUNK, Member};
use crate::transfer::Step;
use std::sync::atomic::Ordering;

/// A collective; roots are ranks of the communicator.
#[derive(Clone, Copy)]
pub enum Joint {
    Sum,
    Gather,
    SumOfParts,
    Broadcast(usize),
    SumFor(usize),
}

impl Joint {
    /// A distinct number for each kind.
    fn code(self) -> u32 {
        match self {
            Joint::Sum => 0,
            Joint::Gather => 1,
            Joint::SumOfParts => 2,
            Joint::Broadcast(root) => 3 + 16 * root as u32,
            Joint::SumFor(root) => 4 + 16 * root as u32,
        }
    }

    /// The bytes that a member receives if it gives `given`.
    pub fn written(self, given: usize, members: usize, rank: usize) -> usize {
        match self {
            Joint::Gather => given * members,
            Joint::SumOfParts => given / members,
            Joint::SumFor(root) if root != rank => 0,
            Joint::Sum | Joint::Broadcast(_) | Joint::SumFor(_) => given,
        }
    }
}

/// This rank's part of a sum or another collective.
pub struct Sum {
    number: u64,
    joint: Joint,
    from: Elements,
    to: u64,
    met: bool,
    moved: usize,
    /// True if the room's chunk is ready to be added.
    shown: bool,
}

impl Sum {
    pub fn new(number: u64, joint: Joint, from: Elements, to: u64) -> Self {
        Self { number, joint, from, to, met: false, moved: 0, shown: false }
    }

    /// Checks that all higher ranks have queued it.
    pub fn check_turn(&self, communicator: &Communicator) {
        let members = &communicator.room.members[..communicator.world.len()];
        members[communicator.rank].sum.queued.store(self.number, Ordering::Release);
        let late = |member: &Member| member.sum.queued.load(Ordering::Acquire) < self.number;
        if members[communicator.rank + 1..].iter().any(late) {
            broken("the higher rank launches first", format!("collective {}", self.number));
        }
    }

    /// Runs one step. Returns its result, and the ranks that have not reached the sum yet.
    pub fn step(&mut self, communicator: &Communicator) -> (Step, u64) {
        let members = &communicator.room.members[..communicator.world.len()];
        let own = &members[communicator.rank];
        if !self.met {
            // The kind and the type as one number.
            let kind = self.from.kind + (self.joint.code() << 8);
            own.sum.write(self.number, self.from.count, kind);
            let there: Vec<_> = members.iter().map(|member| member.sum.read(self.number)).collect();
            let missing = there.iter().zip(&communicator.world).filter(|(there, _)| there.is_none());
            let missing = missing.fold(0, |all, (_, rank)| all | 1 << rank);
            if missing > 0 {
                return (Step::Missing, missing);
            }
            if there.iter().any(|there| *there != Some((self.from.count, kind))) {
                broken("all members of a sum name the same count and type", format!("they have {there:?}"));
            }
            self.met = true;
            own.sum.seen.store(self.number, Ordering::Release);
            return (Step::Moved, 0);
        }
        (self.add(communicator), 0)
    }

    fn add(&mut self, communicator: &Communicator) -> Step {
        let members = &communicator.room.members[..communicator.world.len()];
        let own = &members[communicator.rank];
        let bytes = (self.from.bytes() - self.moved).min(CHUNK);
        // Chunks are numbered across sums; `filled` and `taken` hold the number of the last one.
        let turn = own.part.filled.load(Ordering::Acquire) + u64::from(!self.shown);
        if !self.shown {
            if bytes == 0 {
                let seen = members.iter().all(|member| member.sum.seen.load(Ordering::Acquire) >= self.number);
                return if seen { Step::Done } else { Step::Waits };
            }
            if members.iter().any(|member| member.taken.load(Ordering::Acquire) + 1 < turn) {
                return Step::Waits;
            }
            let source = (self.from.address + self.moved as u64) as *const u8;
            // SAFETY: the memory was checked when the group was queued; all have taken the last chunk, so this one
            // is free.
            unsafe { own.part.bytes().copy_from(source, bytes) };
            own.part.filled.store(turn, Ordering::Release);
            self.shown = true;
            return Step::Moved;
        }
        if members.iter().any(|member| member.part.filled.load(Ordering::Acquire) < turn) {
            return Step::Waits;
        }
        let parts: Vec<*const u8> = members.iter().map(|member| member.part.bytes().cast_const()).collect();
        // SAFETY: as above; all have published their chunk, and none publishes another before all have taken this
        // one.
        unsafe { self.take(&parts, bytes, communicator.rank) };
        own.taken.store(turn, Ordering::Release);
        (self.moved, self.shown) = (self.moved + bytes, false);
        Step::Moved
    }
}

impl Sum {
    /// Takes this rank's part of all members' chunks, which begin at `moved`.
    unsafe fn take(&self, parts: &[*const u8], bytes: usize, rank: usize) {
        let (kind, given) = (self.from.kind, self.from.bytes());
        let target = |place: usize| (self.to + place as u64) as *mut u8;
        // SAFETY: guaranteed by the caller; all positions are within the result of `Joint::written`.
        unsafe {
            match self.joint {
                Joint::Sum => add_as(kind, parts, target(self.moved), bytes),
                Joint::SumFor(root) if root == rank => add_as(kind, parts, target(self.moved), bytes),
                Joint::SumFor(_) => {}
                Joint::Broadcast(root) => target(self.moved).copy_from(parts[root], bytes),
                Joint::Gather => {
                    for (member, part) in parts.iter().enumerate() {
                        target(member * given + self.moved).copy_from(*part, bytes);
                    }
                }
                Joint::SumOfParts => {
                    let each = given / parts.len();
                    let (first, end) = (self.moved.max(rank * each), (self.moved + bytes).min((rank + 1) * each));
                    if first < end {
                        let own: Vec<_> = parts.iter().map(|part| part.add(first - self.moved)).collect();
                        add_as(kind, &own, target(first - rank * each), end - first);
                    }
                }
            }
        }
    }
}

/// Adds up chunks as elements of the NCCL type with that number.
unsafe fn add_as(kind: u32, parts: &[*const u8], to: *mut u8, bytes: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match kind {
            0 => add(parts, to, bytes, i8::wrapping_add),
            1 => add(parts, to, bytes, u8::wrapping_add),
            2 => add(parts, to, bytes, i32::wrapping_add),
            3 => add(parts, to, bytes, u32::wrapping_add),
            4 => add(parts, to, bytes, i64::wrapping_add),
            5 => add(parts, to, bytes, u64::wrapping_add),
            7 => add(parts, to, bytes, |a: f32, b: f32| a + b),
            8 => add(parts, to, bytes, |a: f64, b: f64| a + b),
            other => panic!("the stand-in does not add elements of type {other}"),
        }
    }
}

unsafe fn add<T: Copy>(parts: &[*const u8], to: *mut u8, bytes: usize, plus: impl Fn(T, T) -> T) {
    for place in 0..bytes / size_of::<T>() {
        // SAFETY: guaranteed by the caller: the bytes are valid. Nothing is aligned.
        let read = |part: &*const u8| unsafe { part.cast::<T>().add(place).read_unaligned() };
        if let Some(sum) = parts.iter().map(read).reduce(&plus) {
            // SAFETY: as above.
            unsafe { to.cast::<T>().add(place).write_unaligned(sum) };
        }
    }
}
