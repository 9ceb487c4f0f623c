//! A warp: 32 lanes with their registers, in step. The lanes that a branch parts run one side after the other up to
//! the place where they meet (`flow.rs`).

use super::code::{Inst, Op, Shuffle, Slot, Vote, Width};
use super::integers::{Doubles, Singles};
use super::lanes::{self, each};
use super::module::Kernel;
use super::names::Special;
use super::space::Memory;
use crate::broken::broken;

/// What a lane reads from one that does not take part.
const POISON: u32 = 0xA5A5_A5A5;

/// Lanes that run together, up to the place where they meet others.
struct Group {
    place: u32,
    meet: u32,
    lanes: u32,
}

/// Why a warp stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Barrier,
    End,
}

pub struct Warp {
    /// The number within its block.
    pub(super) number: usize,
    pub(super) predicates: Vec<u32>,
    pub(super) singles: Vec<Singles>,
    pub(super) doubles: Vec<Doubles>,
    groups: Vec<Group>,
    /// The lanes that have not ended.
    live: u32,
}

impl Warp {
    pub fn new(kernel: &Kernel, number: usize) -> Self {
        let registers = &kernel.registers;
        let mut warp = Self {
            number,
            predicates: vec![0; registers.predicates],
            singles: vec![[0; 32]; registers.singles],
            doubles: vec![[0; 32]; registers.doubles],
            groups: Vec::new(),
            live: 0,
        };
        warp.predicates[super::code::ALWAYS as usize] = u32::MAX;
        registers.single_constants.iter().for_each(|(slot, bits)| warp.singles[*slot as usize] = [*bits; 32]);
        registers.double_constants.iter().for_each(|(slot, bits)| warp.doubles[*slot as usize] = [*bits; 32]);
        warp
    }

    /// Begins the kernel for the threads of a block.
    pub fn begin(&mut self, kernel: &Kernel, block: [u32; 3], blocks: [u32; 3], threads: [u32; 3]) {
        let first = self.number as u32 * 32;
        let count = (threads.iter().product::<u32>() - first).min(32);
        self.live = u32::MAX >> (32 - count);
        self.groups = vec![Group { place: 0, meet: kernel.code.len() as u32, lanes: self.live }];
        for &(slot, special) in &kernel.registers.specials {
            self.singles[slot as usize] = std::array::from_fn(|lane| {
                let thread = first + lane as u32;
                match special {
                    Special::Thread(0) => thread % threads[0],
                    Special::Thread(1) => thread / threads[0] % threads[1],
                    Special::Thread(_) => thread / threads[0] / threads[1],
                    Special::Threads(axis) => threads[axis],
                    Special::Block(axis) => block[axis],
                    Special::Blocks(axis) => blocks[axis],
                    Special::Lane => lane as u32,
                    Special::Warp => self.number as u32,
                    Special::LanesBelow => (1 << lane) - 1,
                    Special::LanesUpTo => u32::MAX >> (31 - lane),
                    Special::LanesAbove => !(u32::MAX >> (31 - lane)),
                    Special::LanesFrom => u32::MAX << lane,
                }
            });
        }
    }

    /// Runs up to the next barrier of the block, or the end.
    pub fn run(&mut self, kernel: &Kernel, memory: &mut Memory<'_>) -> Stop {
        while let Some(group) = self.groups.last_mut() {
            if group.lanes == 0 || group.place == group.meet {
                self.groups.pop();
                continue;
            }
            let inst = kernel.code[group.place as usize];
            let guard = self.predicates[inst.guard as usize] ^ if inst.negated { u32::MAX } else { 0 };
            let lanes = group.lanes & guard;
            match inst.op {
                Op::Branch(target) => self.branch(kernel, target, lanes),
                Op::BranchTable { count } => self.branch_table(kernel, inst, count, lanes),
                Op::Exit => self.leave(lanes),
                Op::Barrier => {
                    group.place += 1;
                    if group.lanes != self.live || lanes != self.live {
                        self.refuse(kernel, "all threads of a block reach its barrier", lanes);
                    }
                    return Stop::Barrier;
                }
                _ => {
                    group.place += 1;
                    if lanes != 0 {
                        self.one(kernel, inst, lanes, memory);
                    }
                }
            }
        }
        Stop::End
    }

    fn refuse(&self, kernel: &Kernel, rule: &str, lanes: u32) -> ! {
        broken(rule, format!("{}: lanes {lanes:#x} of {:#x}", kernel.name, self.live))
    }

    fn branch(&mut self, kernel: &Kernel, target: u32, taken: u32) {
        let Some(group) = self.groups.last_mut() else { return };
        let (place, rest) = (group.place, group.lanes & !taken);
        if rest == 0 {
            group.place = target;
        } else if taken == 0 {
            group.place += 1;
        } else {
            self.part(kernel.meets[place as usize], &[(place + 1, rest), (target, taken)]);
        }
    }

    /// Parts the lanes of the current group until they meet.
    fn part(&mut self, meet: u32, sides: &[(u32, u32)]) {
        if let Some(group) = self.groups.last_mut() {
            group.place = meet;
            // The group below waits at the same place.
            if group.meet == meet {
                self.groups.pop();
            }
        }
        let sides = sides.iter().filter(|(place, lanes)| *place != meet && *lanes != 0);
        self.groups.extend(sides.map(|&(place, lanes)| Group { place, meet, lanes }));
    }

    fn branch_table(&mut self, kernel: &Kernel, inst: Inst, count: u32, lanes: u32) {
        let Some(group) = self.groups.last() else { return };
        let (place, rest) = (group.place, group.lanes & !lanes);
        let mut sides = vec![(place + 1, rest)];
        for number in 0..count {
            let by = self.singles[inst.a as usize];
            let taken = (0..32).filter(|&lane| by[lane] == number).fold(0, |taken, lane| taken | 1 << lane) & lanes;
            sides.push((kernel.lists[(inst.b + number) as usize], taken));
        }
        if sides.iter().fold(0, |all, (_, lanes)| all | lanes) != lanes | rest {
            self.refuse(kernel, "a branch's number is in its table", lanes);
        }
        self.part(kernel.meets[place as usize], &sides);
    }

    fn leave(&mut self, lanes: u32) {
        if let Some(group) = self.groups.last_mut() {
            group.place += 1;
        }
        self.live &= !lanes;
        self.groups.iter_mut().for_each(|group| group.lanes &= !lanes);
    }

    /// Runs an instruction that goes on to the next one.
    fn one(&mut self, kernel: &Kernel, inst: Inst, lanes: u32, memory: &mut Memory<'_>) {
        match inst.op {
            Op::Load(access) => self.load(kernel, access, inst, lanes, memory),
            Op::Store(access) => self.store(kernel, access, inst, lanes, memory),
            Op::Atomic(atomic) => self.atomic(atomic, inst, lanes, memory),
            Op::WarpBarrier => self.check_step(kernel, inst.a, lanes),
            Op::Shuffle(mode) => self.shuffle(kernel, mode, inst, lanes),
            Op::Vote(mode) => self.vote(kernel, mode, inst, lanes),
            Op::ActiveMask => self.put(inst.d, &[lanes; 32], lanes),
            Op::Trap => self.refuse(kernel, "a kernel does not trap", lanes),
            Op::Nothing => {}
            _ => self.compute(kernel, inst, lanes),
        }
    }

    /// Checks that all lanes of a mask are here.
    fn check_step(&self, kernel: &Kernel, mask: Slot, lanes: u32) {
        let masks = self.singles[mask as usize];
        if (0..32).any(|lane| lanes >> lane & 1 == 1 && masks[lane] & self.live != lanes) {
            self.refuse(kernel, "the lanes of a mask are in step", lanes);
        }
    }

    fn shuffle(&mut self, kernel: &Kernel, mode: Shuffle, inst: Inst, lanes: u32) {
        let [clamp, mask, bound] = [0, 1, 2].map(|place| kernel.lists[inst.c as usize + place]);
        self.check_step(kernel, mask, lanes);
        let mut a = self.singles[inst.a as usize];
        a.iter_mut().enumerate().filter(|(lane, _)| lanes >> lane & 1 == 0).for_each(|(_, value)| *value = POISON);
        let (values, within) = lanes::shuffle(mode, &a, &self.singles[inst.b as usize], &self.singles[clamp as usize]);
        self.put(inst.d, &values, lanes);
        self.put_predicate(bound, within, lanes);
    }

    fn vote(&mut self, kernel: &Kernel, mode: Vote, inst: Inst, lanes: u32) {
        self.check_step(kernel, inst.b, lanes);
        let result = lanes::vote(mode, self.predicates[inst.a as usize], lanes);
        match mode {
            Vote::Ballot => self.put(inst.d, &[result; 32], lanes),
            _ => self.put_predicate(inst.d, if result == 1 { u32::MAX } else { 0 }, lanes),
        }
    }

    pub(super) fn put(&mut self, slot: Slot, values: &Singles, lanes: u32) {
        put(&mut self.singles[slot as usize], values, lanes);
    }

    pub(super) fn put_double(&mut self, slot: Slot, values: &Doubles, lanes: u32) {
        put(&mut self.doubles[slot as usize], values, lanes);
    }

    pub(super) fn put_predicate(&mut self, slot: Slot, values: u32, lanes: u32) {
        let place = &mut self.predicates[slot as usize];
        *place = *place & !lanes | values & lanes;
    }

    /// A register of any width.
    pub(super) fn get(&self, width: Width, slot: Slot, lane: usize) -> u64 {
        match width {
            Width::W64 => self.doubles[slot as usize][lane],
            _ => u64::from(self.singles[slot as usize][lane]),
        }
    }

    pub(super) fn set(&mut self, width: Width, slot: Slot, lane: usize, value: u64) {
        match width {
            Width::W64 => self.doubles[slot as usize][lane] = value,
            Width::W32 => self.singles[slot as usize][lane] = value as u32,
            Width::W16 => self.singles[slot as usize][lane] = value as u32 & 0xFFFF,
        }
    }
}

fn put<T: Copy>(place: &mut [T; 32], values: &[T; 32], lanes: u32) {
    if lanes == u32::MAX {
        *place = *values;
    } else {
        each(lanes).for_each(|lane| place[lane] = values[lane]);
    }
}
