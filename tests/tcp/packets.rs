//! What a peer sends that is no packet, or declares more than there is.

use crate::rendezvous::connect;
use crate::{TIMEOUT, place, port};
use burn::tensor::quantization::QuantScheme;
use burn::tensor::{DType, Device, Tensor};
use burn_pipeline::link::kit::{Connections, Envelope, Mesh, Packed};
use burn_pipeline::link::{Failure, Header, Link, LinkError, Message, MessageKind, WireError};
use burn_pipeline::payload::{AnyTensor, Payload};
use burn_pipeline::plan::StageId;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// Rank 0 has a link; the test plays rank 1.
fn with_a_peer(play: impl FnOnce(&mut TcpStream) + Send) -> LinkError {
    let port = port();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut connections: Connections = Mesh::connect_at(&place(1, 2, port), TIMEOUT).unwrap();
            play(connections[0].as_mut().unwrap());
        });
        let mut link = connect(&place(0, 2, port), TIMEOUT).unwrap();
        link.receive(1, header(), Instant::now() + TIMEOUT).unwrap_err()
    })
}

fn header() -> Header {
    Header { stage: StageId::new(1), microbatch: 0, kind: MessageKind::Activation }
}

#[test]
fn a_message_that_claims_more_than_there_is_memory_is_an_error_and_not_the_end_of_the_process() {
    // 2^50 numbers in one tensor, and in many.
    for (tensors, numbers) in [(1, 1usize << 50), (1 << 12, 1 << 38)] {
        // A header is a kind, a stage (replica and index) and a microbatch; a tensor is a 1, an element type and a
        // shape.
        let contents = ((0u32, (0u8, 1u16), 0usize), vec![(1u32, DType::F32, vec![numbers]); tensors]);
        let contents = postcard::to_stdvec(&contents).unwrap();
        // Every frame begins alike.
        let sound = Packed::new(Message { header: header(), payload: Payload::default() }).unwrap().frame;
        let mut frame = [&sound[..6], &contents].concat();
        frame.extend(crc32fast::hash(&frame).to_le_bytes());
        let envelope = Envelope::Message(frame).write();
        let error = with_a_peer(|stream| {
            stream.write_all(&[&[0][..], &(envelope.len() as u32).to_le_bytes(), &envelope].concat()).unwrap();
            // Waits until the other end has read it.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let LinkError::Wire { rank: 0, peer: 1, source: WireError::NoMemory { bytes } } = error else {
            panic!("{error}")
        };
        assert_eq!(bytes, 4 * (tensors * numbers) as u64);
    }
}

#[test]
fn a_message_that_cannot_be_made_is_not_sent_and_the_next_one_is() {
    let port = port();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut link = connect(&place(1, 2, port), TIMEOUT).unwrap();
            let mut send = |payload| link.send(0, Message { header: header(), payload }, Instant::now() + TIMEOUT);
            let tensor = Tensor::<2>::ones([32, 32], &Device::flex()).quantize_dynamic(&QuantScheme::default());
            let mut quantised = Payload::default();
            quantised.push_tensor(AnyTensor::new(tensor));
            let error = send(quantised).unwrap_err();
            let LinkError::Unsent { rank: 1, peer: 0, source: WireError::Quantised { .. } } = error else {
                panic!("{error}")
            };
            send(Payload::default()).unwrap();
        });
        let mut link = connect(&place(0, 2, port), TIMEOUT).unwrap();
        let received = link.receive(1, header(), Instant::now() + TIMEOUT).unwrap();
        assert_eq!(received.tensors().count(), 0);
    });
}

#[test]
fn a_packet_that_is_cut_or_is_none_is_named() {
    let after = |packet: &[u8]| {
        with_a_peer(|stream| {
            stream.write_all(packet).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        })
    };
    // The longest allowed packet, of which three bytes arrive.
    let error = after(&[0, 0, 0, 0, 0x40, 1, 2, 3]);
    let LinkError::Peer(Failure { rank: 1, .. }) = &error else { panic!("{error}") };
    // An unknown kind; a packet that is too long.
    for packet in [&[9, 1, 0, 0, 0, 7][..], &[0, 0xff, 0xff, 0xff, 0xff]] {
        let error = after(packet);
        let LinkError::Closed { rank: 0, message } = &error else { panic!("{error}") };
        assert!(message.contains("rank 1 sent bytes that no rank sends"), "{message}");
    }
}

#[test]
fn a_value_that_is_too_long_to_be_gathered_is_refused_before_anything_is_sent() {
    let port = port();
    let deadline = || Instant::now() + TIMEOUT;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut link = connect(&place(1, 2, port), TIMEOUT).unwrap();
            assert_eq!(link.all_gather(vec![1], deadline()).unwrap(), [[0], [1]]);
        });
        let mut link = connect(&place(0, 2, port), TIMEOUT).unwrap();
        // These zeros are never read, so the system does not give them memory.
        let error = link.all_gather(vec![0; (1 << 30) + 1], deadline()).unwrap_err();
        let LinkError::Unsent { rank: 0, peer: 1, source: WireError::LongValue { .. } } = error else {
            panic!("{error}")
        };
        assert_eq!(link.all_gather(vec![0], deadline()).unwrap(), [[0], [1]]);
    });
}
