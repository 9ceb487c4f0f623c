//! What the caller and the ranks tell each other.

pub(crate) mod command;
pub(crate) mod endings;
pub(crate) mod facts;
pub(crate) mod processes;
pub(crate) mod ranks;
pub(crate) mod worker;
