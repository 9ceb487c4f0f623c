//! A link whose rank fails at a given point of its run, over any transport.
//!
//! The fault occurs at the rank's n-th send, receive or gather, anywhere in a step.

#![allow(clippy::unwrap_used, reason = "faults are injected in tests")]

use crate::leaving::Leaving;
use burn::tensor::DType;
use burn_pipeline::link::kit::Packed;
use burn_pipeline::link::{Header, Link, LinkError, Message};
use burn_pipeline::payload::Payload;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A rank's failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Its process is killed.
    Kill,
    /// Its process is stopped.
    Stop,
    /// It computes until it is released.
    Hang,
    /// Its code panics.
    Panic,
    /// One of its messages is lost.
    Lose,
    /// One of its messages has a wrong header.
    Corrupt,
    /// It arrives long after the others.
    Late,
    /// It runs another plan.
    OtherPlan,
    /// One of its messages is sent twice.
    Stray,
    /// One of its messages declares more numbers than any machine has memory for.
    Oversized,
    /// It leaves the job between two steps.
    Leave(Leaving),
}

impl Fault {
    /// All faults.
    pub const ALL: [Fault; 13] = [
        Fault::Kill,
        Fault::Stop,
        Fault::Hang,
        Fault::Panic,
        Fault::Lose,
        Fault::Corrupt,
        Fault::Late,
        Fault::OtherPlan,
        Fault::Stray,
        Fault::Oversized,
        Fault::Leave(Leaving::Drop),
        Fault::Leave(Leaving::Say),
        Fault::Leave(Leaving::Panic),
    ];

    /// How the rank leaves before this step, if it does; `at` is the use of the link at which it fails.
    pub fn leaves(self, at: usize, step: usize) -> Option<Leaving> {
        if let Fault::Leave(leaving) = self { Some(leaving).filter(|_| step == at % 10) } else { None }
    }

    /// The fault of this name, as `Debug` prints it.
    pub fn named(name: &str) -> Self {
        let found = Self::ALL.into_iter().find(|fault| format!("{fault:?}") == name);
        found.unwrap_or_else(|| panic!("there is no fault {name}"))
    }
}

/// Sends a corrupted message, as [`Fault::Corrupt`] or [`Fault::Oversized`] describes.
pub type Spoil<L> = fn(&mut L, Fault, usize, Message, Instant) -> Result<(), LinkError>;

/// A corrupted message in bytes: either one byte of its frame is changed, at a place that depends on the
/// microbatch, or the frame declares 2^50 numbers.
///
/// # Panics
/// If the message cannot be packed.
pub fn spoilt(fault: Fault, message: Message) -> Packed {
    let header = message.header;
    let mut packed = Packed::new(message).unwrap();
    if fault == Fault::Oversized {
        // A tensor is a 1, an element type and a shape. Every frame begins alike.
        let contents = postcard::to_stdvec(&(header, vec![(1u32, DType::F32, vec![1usize << 50])])).unwrap();
        let mut frame = [&packed.frame[..6], &contents].concat();
        frame.extend(crc32fast::hash(&frame).to_le_bytes());
        return Packed { frame, bodies: Vec::new() };
    }
    // The kind, the stage, the microbatch, and the end of the parts.
    let places = [6, 8, 9, packed.frame.len() - 5];
    packed.frame[places[header.microbatch % places.len()]] ^= 0x20;
    packed
}

/// A link that fails at its n-th use.
#[derive(Debug)]
pub struct Faulty<L> {
    /// The link below.
    pub link: L,
    /// The fault to inject.
    pub fault: Fault,
    /// The remaining uses of the link until the fault.
    pub left: usize,
    /// How long a late rank takes.
    pub late: Duration,
    /// Releases a rank that hangs.
    pub released: Arc<AtomicBool>,
    /// How to corrupt this link's messages.
    pub spoil: Spoil<L>,
}

/// Sends a signal to this process.
pub fn signal(which: &str) {
    Command::new("kill").args([which, &std::process::id().to_string()]).status().unwrap();
    // Waits for the signal to arrive.
    std::thread::sleep(Duration::from_secs(600));
}

impl<L> Faulty<L> {
    /// Counts a use of the link. Returns true if the fault occurs now.
    fn strikes(&mut self, sends: bool) -> bool {
        // Faults of messages wait for the first message sent from that point on.
        let waits = !sends && matches!(self.fault, Fault::Lose | Fault::Corrupt | Fault::Stray | Fault::Oversized);
        if self.left == 0 || self.left == 1 && waits {
            return false;
        }
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        match self.fault {
            Fault::Kill => signal("-KILL"),
            Fault::Stop => signal("-STOP"),
            Fault::Hang => {
                while !self.released.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            Fault::Late => std::thread::sleep(self.late),
            Fault::Panic => panic!("a broken link"),
            Fault::Lose | Fault::Corrupt | Fault::Stray | Fault::Oversized | Fault::OtherPlan | Fault::Leave(_) => {}
        }
        true
    }
}

impl<L: Link> Link for Faulty<L> {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, set_activity);
    burn_pipeline::forward_link!(link: probe, abort);

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        match (self.strikes(true), self.fault) {
            (true, Fault::Lose) => Ok(()),
            (true, Fault::Corrupt | Fault::Oversized) => {
                (self.spoil)(&mut self.link, self.fault, to, message, deadline)
            }
            (true, Fault::Stray) => {
                self.link.send(to, message.clone(), deadline)?;
                self.link.send(to, message, deadline)
            }
            _ => self.link.send(to, message, deadline),
        }
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        self.strikes(false);
        self.link.receive(from, header, deadline)
    }

    fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError> {
        self.strikes(false);
        self.link.all_gather(bytes, deadline)
    }
}
