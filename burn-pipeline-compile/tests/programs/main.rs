//! Compiled programs against the same operations run one by one by Burn's interpreter on Flex.
//!
//! [`listed`] writes programs, [`run`] runs them both ways.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests may stop")]

mod functions;
mod known;
mod listed;
mod random;
mod run;
