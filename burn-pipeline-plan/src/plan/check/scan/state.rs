//! The state of the scan: the events of every pair so far, the state of every stage's parameters and gradients, and
//! what the current rank holds.

use crate::plan::action::Action;
use crate::plan::check::channels::Transfers;
use crate::plan::check::error::CheckError;
use crate::plan::check::options::CheckOptions;
use crate::plan::edges::Edges;
use crate::plan::rows::Plan;
use crate::plan::vocabulary::VocabularyLayers;
use crate::plan::waits::Awaited;

/// Events of one pair, one bit each. A `B` sets `I`, `W` and `WHOLE`.
pub(super) const F: u8 = 1;
pub(super) const I: u8 = 2;
pub(super) const W: u8 = 4;
pub(super) const WHOLE: u8 = 8;
pub(super) const RECEIVED_F: u8 = 16;
pub(super) const RECEIVED_B: u8 = 32;
pub(super) const SENT_F: u8 = 64;
pub(super) const SENT_B: u8 = 128;

pub(super) type Refusal = Box<CheckError>;

/// The scan's place, and what the rank holds there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) rank: usize,
    pub(super) step: usize,
    pub(super) action: Action,
    pub(super) live: usize,
    pub(super) held: usize,
    /// Sent payloads not yet waited for.
    pub(super) sent: usize,
}

impl Default for Row {
    fn default() -> Self {
        Self { rank: 0, step: 0, action: Action::Idle, live: 0, held: 0, sent: 0 }
    }
}

/// The state of a stage's parameters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Shard {
    pub(super) gathered: bool,
    /// True if it was ever unsharded.
    pub(super) managed: bool,
    /// True if it ever computed while not gathered.
    pub(super) bare: bool,
    /// True if it has computed since it was gathered.
    pub(super) used: bool,
    /// True if the wait for the gathering has come.
    pub(super) awaited: bool,
    /// The step of the last gathering.
    pub(super) since: usize,
    /// The step of the first gathering that was released without a use.
    pub(super) unused: Option<usize>,
}

/// The state of the reduction of a stage's gradients.
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
    /// Sends and receives of every value along a skip edge, as bits of the events.
    pub(super) skip_events: Vec<u8>,
    pub(super) skip_waits: Vec<u8>,
    /// Which starts have their own waits.
    pub(super) awaited: Awaited,
    /// The waits of a pair so far, as the bits of their starts; empty in a plan without waits.
    pub(super) waits: Vec<u8>,
    pub(super) shards: Vec<Shard>,
    /// Weight gradients computed, by stage.
    pub(super) weights: Vec<usize>,
    pub(super) reduced: Vec<Reduction>,
    pub(super) vocabulary: VocabularyLayers,
    /// The vocabulary operations that the row has run so far, by microbatch; empty if no layer is vocabulary
    /// parallel.
    pub(super) pieces: Vec<u8>,
    pub(super) transfers: Transfers,
    pub(super) row: Row,
}
