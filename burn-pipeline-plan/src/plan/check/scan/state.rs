//! What the scan knows: the events of every pair so far, the state of every stage's parameters and gradients, and what
//! the current rank holds.

use crate::plan::action::Action;
use crate::plan::check::channels::Transfers;
use crate::plan::check::error::CheckError;
use crate::plan::check::options::CheckOptions;
use crate::plan::edges::Edges;
use crate::plan::rows::Plan;
use crate::plan::waits::Awaited;

/// Events of one pair. `WHOLE` tells a `B` from an `I` and a `W`.
pub(super) const F: u8 = 1;
pub(super) const I: u8 = 2;
pub(super) const W: u8 = 4;
pub(super) const WHOLE: u8 = 8;
pub(super) const RECEIVED_F: u8 = 16;
pub(super) const RECEIVED_B: u8 = 32;
pub(super) const SENT_F: u8 = 64;
pub(super) const SENT_B: u8 = 128;

pub(super) type Refusal = Box<CheckError>;

/// Where the scan stands, and what its rank holds there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) rank: usize,
    pub(super) step: usize,
    pub(super) action: Action,
    pub(super) live: usize,
    pub(super) held: usize,
    /// Payloads sent whose wait is still to come.
    pub(super) sent: usize,
}

impl Default for Row {
    fn default() -> Self {
        Self { rank: 0, step: 0, action: Action::Idle, live: 0, held: 0, sent: 0 }
    }
}

/// What has happened to a stage's parameters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Shard {
    pub(super) gathered: bool,
    /// Was it ever gathered or released?
    pub(super) managed: bool,
    /// Did it compute while not gathered?
    pub(super) bare: bool,
    /// Did it compute since it was gathered?
    pub(super) used: bool,
    /// Was the gathering awaited in writing?
    pub(super) awaited: bool,
}

/// How far the reduction of a stage's gradients has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reduction {
    No,
    Started,
    Awaited,
}

pub(super) struct Scan<'a> {
    pub(super) plan: &'a Plan,
    pub(super) edges: &'a Edges,
    pub(super) options: &'a CheckOptions,
    pub(super) lowered: bool,
    pub(super) training: bool,
    pub(super) events: Vec<u8>,
    /// Sends and receives of every value that goes past a neighbour.
    pub(super) skip_events: Vec<u8>,
    pub(super) skip_waits: Vec<u8>,
    /// Which starts have waits of their own.
    pub(super) awaited: Awaited,
    /// The waits of a pair that have come, as the bits of what they wait for; empty in a plan without waits.
    pub(super) waits: Vec<u8>,
    pub(super) shards: Vec<Shard>,
    /// Weight gradients done, by stage.
    pub(super) weights: Vec<usize>,
    pub(super) reduced: Vec<Reduction>,
    pub(super) transfers: Transfers,
    pub(super) row: Row,
}
