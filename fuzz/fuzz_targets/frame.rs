//! Any bytes, read as an envelope, and as the content of a message's or a repetition's frame. What is read can be
//! written and read again. A message arrives with the tensors that its frame declares, and either has one of the
//! types of a boundary or is refused.
#![no_main]

use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::link::kit::{Envelope, Frame, Packed, Repeat};
use burn_pipeline::link::{Header, Link, Message, MessageKind};
use burn_pipeline::payload::{AnyTensor, Boundary, Payload};
use burn_pipeline::train::sum_over_ranks;
use libfuzzer_sys::fuzz_target;
use pipeline_fuzz::{frames, recorded};
use std::time::{Duration, Instant};

/// The most bytes of tensors that are allocated.
const MOST: usize = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    if let Some(envelope) = Envelope::read(bytes) {
        assert_eq!(Envelope::read(&envelope.write()), Some(envelope));
    }
    if let Ok(Some(repeat)) = Repeat::read(&frames::repeat(bytes)) {
        assert_eq!(Repeat::read(&repeat.write().expect("what was read can be written")), Ok(Some(repeat)));
    }
    match Frame::read(&frames::frame(bytes)) {
        Ok(frame) => take(&frame),
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    }
});

fn take(frame: &Frame) {
    let bytes = frame.write().expect("what was read can be written");
    assert_eq!(Frame::read(&bytes).as_ref(), Ok(frame));
    drop(frame.header().to_string());
    let announced = frame.lengths().fold(0, usize::saturating_add);
    if announced > MOST {
        // They are too large for this machine, or not touched.
        return drop(frame.buffers());
    }
    let messages = (Envelope::Message(bytes), Vec::new());
    let payload =
        recorded::link(2, &[messages]).receive(1, frame.header(), Instant::now()).expect("it is what was announced");
    let arrived =
        Frame::of(&Message { header: frame.header(), payload: payload.clone() }).expect("what came can be sent");
    assert_eq!(with_any_booleans(&arrived), with_any_booleans(frame));
    drop(<(Tensor<2>, Tensor<1, Int>)>::from_payload(payload.clone()));
    drop(<(Option<Tensor<1>>, Vec<Tensor<1, Int>>)>::from_payload(payload.clone()));
    drop(Vec::<Option<AnyTensor>>::from_payload(payload.clone()));
    lists(payload);
}

/// A frame as text. Booleans arrive in the device's form.
fn with_any_booleans(frame: &Frame) -> String {
    ["Bool(U8)", "Bool(U32)"].iter().fold(format!("{frame:?}"), |words, form| words.replace(form, "Bool(Native)"))
}

/// Reads the payload as a list of tensors to be summed.
fn lists(payload: Payload) {
    let header = Header::of(MessageKind::Collective { group: 0 });
    let Packed { frame, bodies } = Packed::new(Message { header, payload }).expect("what was received can be sent");
    let messages = [(Envelope::Message(frame), bodies.iter().map(|body| body.to_vec()).collect())];
    let floats = AnyTensor::new(Tensor::<1>::zeros([4], &Device::flex()));
    let ints = AnyTensor::new(Tensor::<1, Int>::zeros([3], &Device::flex()));
    for own in [vec![Some(floats.clone()), Some(ints), None], vec![None, Some(floats)]] {
        if let Ok(sums) = sum_over_ranks(Box::new(recorded::link(2, &messages)), &[0, 1], own.clone(), Duration::ZERO) {
            assert_eq!(sums.len(), own.len());
        }
    }
}
