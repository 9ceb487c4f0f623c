//! Plain numbers and strings are those of their microbatch on every rank, also if another rank sends them.

#[path = "../runtime/plain/model.rs"]
mod model;

use burn_pipeline::link::Link;
use burn_pipeline::schedule::Size;
use model::{MICROBATCHES, builder, plain_loop, train};
use std::time::Duration;

/// Trains as one rank of the link.
pub(crate) fn by_microbatch(link: Box<dyn Link>) {
    let builder = builder(false).schedule("ZBH1", Size::new(link.ranks(), MICROBATCHES));
    let mut pipeline = builder.timeout(Duration::from_secs(60)).build_rank(link).unwrap();
    assert_eq!(train(&mut pipeline), plain_loop());
}
