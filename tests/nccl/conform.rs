//! The conformance suite, its tensors on the GPU wherever a GPU has their element type.

use crate::link;
use burn_pipeline::link::conformance::CASES;
use pipeline_tests::on_device::OnDevice;

/// One case, by its place.
pub(crate) fn case(place: usize) {
    let (link, device) = link();
    (CASES[place].1)(&mut OnDevice::new(link, device));
}
