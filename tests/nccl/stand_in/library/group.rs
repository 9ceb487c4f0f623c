//! Groups: the calls of a thread between the start and the end of a group, checked and queued at its end.

use crate::broken::broken;
use crate::communicator::{Communicator, Counts};
use crate::faults::{count_group, faults};
use crate::order::Use;
use crate::queue::{device, launches};
use crate::sums::{Joint, Sum};
use crate::transfer::{Transfer, run};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The sizes of NCCL's element types, by their numbers.
pub const SIZES: [usize; 10] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2];

/// The memory that a call reads or writes.
#[derive(Clone, Copy)]
pub struct Elements {
    pub address: u64,
    pub count: usize,
    pub kind: u32,
}

impl Elements {
    pub fn bytes(&self) -> usize {
        self.count * SIZES[self.kind as usize]
    }
}

/// One call of a group.
#[derive(Clone, Copy)]
pub enum Call {
    Send { to: usize, elements: Elements },
    Receive { from: usize, elements: Elements },
    Joint { joint: Joint, from: Elements, to: u64 },
}

#[derive(Default)]
struct Open {
    depth: usize,
    calls: Vec<(Arc<Communicator>, usize, Call)>,
}

thread_local! {
    static OPEN: RefCell<Open> = RefCell::default();
}

pub fn start() {
    OPEN.with_borrow_mut(|open| open.depth += 1);
}

/// Makes a call. A call outside of a group is a group of one.
pub fn call(communicator: Arc<Communicator>, stream: usize, call: Call) {
    communicator.check_settled("a call of a group");
    start();
    OPEN.with_borrow_mut(|open| open.calls.push((communicator, stream, call)));
    end();
}

pub fn end() {
    let calls = OPEN.with_borrow_mut(|open| {
        open.depth = open.depth.checked_sub(1).unwrap_or_else(|| broken("a group that ends was started", ""));
        if open.depth == 0 { std::mem::take(&mut open.calls) } else { Vec::new() }
    });
    if !calls.is_empty() {
        launch(&calls);
    }
}

/// Checks a group and queues it.
fn launch(calls: &[(Arc<Communicator>, usize, Call)]) {
    let (communicator, stream) = (&calls[0].0, calls[0].1);
    assert!(calls.iter().all(|(_, other, _)| *other == stream), "the stand-in has one stream a group");
    assert!(calls.iter().all(|(other, ..)| other.handle == communicator.handle), "and one communicator");
    check_self(communicator, calls);
    let mut counts = communicator.counts.lock().unwrap();
    let (mut uses, mut transfers, mut sums) = (Vec::new(), Vec::new(), Vec::new());
    for (_, _, call) in calls {
        match *call {
            Call::Send { to, elements } => {
                uses.push(Use::read("a send", elements.address, elements.bytes()));
                transfers.push(Transfer::new(true, to, next(&mut counts.sent[to]), elements));
            }
            Call::Receive { from, elements } => {
                uses.push(Use::write("a receive", elements.address, elements.bytes()));
                transfers.push(Transfer::new(false, from, next(&mut counts.received[from]), elements));
            }
            Call::Joint { joint, from, to } => {
                let (members, rank) = (communicator.world.len(), communicator.rank);
                uses.push(Use::read("a sum's source", from.address, from.bytes()));
                uses.push(Use::write("a sum", to, joint.written(from.bytes(), members, rank)));
                sums.push(Sum::new(next_sum(&mut counts), joint, from, to));
            }
        }
    }
    drop(counts);
    check_within(&uses);
    let counts = !sums.is_empty() || uses.iter().map(|used| used.range.end - used.range.start).sum::<u64>() > 16;
    if counts && faults().highest_first {
        transfers.iter().for_each(|transfer| transfer.check_turn(communicator));
        sums.iter().for_each(|sum| sum.check_turn(communicator));
    }
    communicator.running.fetch_add(1, Ordering::AcqRel);
    let this = communicator.clone();
    let launches = launches();
    let mut device = device();
    device.check_settled(stream);
    device.queue(stream, uses, true, move || {
        if counts {
            count_group();
            std::thread::sleep(faults().pause);
        }
        run(&this, transfers, sums);
        this.running.fetch_sub(1, Ordering::AcqRel);
    });
    drop((device, launches));
    communicator.launches(stream);
}

fn next(count: &mut u64) -> u64 {
    *count += 1;
    *count
}

fn next_sum(counts: &mut Counts) -> u64 {
    next(&mut counts.sums)
}

/// Checks that a rank receives in the same group what it sends to itself.
fn check_self(communicator: &Communicator, calls: &[(Arc<Communicator>, usize, Call)]) {
    let me = communicator.rank;
    let sends = calls.iter().filter(|(_, _, call)| matches!(call, Call::Send { to, .. } if *to == me)).count();
    let receives =
        calls.iter().filter(|(_, _, call)| matches!(call, Call::Receive { from, .. } if *from == me)).count();
    if sends != receives {
        broken("a rank receives what it sends to itself", format!("in one group: {sends} sends, {receives} receives"));
    }
}

/// Checks that no call of a group writes memory that another one uses: they run concurrently.
fn check_within(uses: &[Use]) {
    for (place, one) in uses.iter().enumerate() {
        let rest = &uses[place + 1..];
        if let Some(other) = rest.iter().find(|other| (one.writes || other.writes) && one.meets(&other.range)) {
            broken("calls of one group use memory of their own", format!("{} and {}", one.what, other.what));
        }
    }
}
