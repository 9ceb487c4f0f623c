//! A pipeline opens all its connections before its first step.

use crate::cases::{Case, Text};
use crate::parity::{RATE, builder};
use burn::tensor::Device;
use burn_pipeline::schedule::Size;
use burn_pipeline_mpi::Mpi;
use pipeline_tests::connections::established;

const MICROBATCHES: usize = 4;

/// Prints the number of connections once the pipeline is built, and asserts that steps open none.
pub(crate) fn up(mpi: &Mpi) {
    let builder = builder::<Text>("1F1B", Size::new(mpi.ranks(), MICROBATCHES));
    let mut pipeline = builder.build_rank(Box::new(mpi.link(Device::flex()).unwrap())).unwrap();
    let built = established();
    println!("connections: {}", built.len());
    for _ in 0..2 {
        pipeline.step(Text::new(MICROBATCHES).batch(), RATE).unwrap();
    }
    // Another process may have ended already.
    assert!(established().is_subset(&built), "a step opened a connection");
}
