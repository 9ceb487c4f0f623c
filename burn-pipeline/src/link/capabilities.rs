//! What a link can do.

use crate::plan::Transport;

/// What a link can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// When sends end: plans are proved free of deadlocks for it.
    pub transport: Transport,
    /// Messages from one rank to another arrive in the order in which they were sent. The executor requires it.
    pub ordered: bool,
    /// Messages travel while ranks compute.
    pub overlaps: bool,
}
