//! The conformance suite, with tensors on the GPU if it has their element type.

use crate::link;
use burn_pipeline::link::conformance::CASES;
use pipeline_tests::on_device::OnDevice;

/// Runs one case, by its position.
pub(crate) fn case(place: usize) {
    let (link, device) = link();
    (CASES[place].1)(&mut OnDevice::new(link, device));
}
