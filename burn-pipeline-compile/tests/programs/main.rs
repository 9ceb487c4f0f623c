//! Compiled programs against the same operations run one by one by Burn's interpreter on Flex.
//!
//! [`listed`] writes programs, [`run`] runs them both ways.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "tests print and may stop")]
#![allow(clippy::cloned_ref_to_slice_refs, reason = "lists of one tensor read as those of several")]

mod convolutions;
mod cut;
mod exchanges;
mod functions;
mod half_matmuls;
mod halves;
mod hold;
mod known;
mod listed;
mod memory;
mod mismatch;
mod random;
mod recurrent;
mod rounded;
mod run;
mod slices;
mod sums;
