//! What a rank knows about each other rank, and which group it is bound to.

/// The offers and launches between this rank and another one.
#[derive(Debug, Clone, Default)]
pub(super) struct Channel {
    /// Offers that this rank made, and how many of them were launched.
    pub(super) offered: u64,
    pub(super) sent: u64,
    /// Offers that this rank got, and how many of them were launched.
    pub(super) got: u64,
    pub(super) received: u64,
    /// The rank has left: nothing more is launched with it.
    pub(super) left: bool,
}

impl Channel {
    pub(super) fn has_open_offers(&self) -> bool {
        !self.left && (self.offered > self.sent || self.got > self.received)
    }
}

/// The group that this rank is bound to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Bound {
    Free,
    /// It has proposed to a rank, counting this many of its own offers.
    Proposed {
        peer: usize,
        offered: u64,
    },
    /// It has agreed with a lower rank on this many of its own offers and of the other's.
    Agreed {
        peer: usize,
        own: u64,
        theirs: u64,
    },
    /// It has passed on the call for a collective.
    Called {
        group: u32,
        round: u64,
    },
}
