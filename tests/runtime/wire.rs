//! Messages as bytes: they are read back bit for bit, and nothing else is accepted.

use burn::tensor::quantization::QuantScheme;
use burn::tensor::{BoolStore, Bytes, DType, Device, Tensor, TensorData};
use burn_pipeline::link::kit::{Frame, Packed, Repeat};
use burn_pipeline::link::{Header, Message, MessageKind, WireError};
use burn_pipeline::payload::{AnyTensor, HostValue, Payload, PayloadPart, TensorKind};
use burn_pipeline::plan::StageId;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{collection::vec, prop_assert, prop_assert_eq, proptest, test_runner::Config};
use serde::Serialize;

/// Every element type of Flex.
const DTYPES: [DType; 13] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool(BoolStore::Native),
];

/// A tensor as data: element type, shape, and bits.
#[derive(Clone, Debug)]
enum Piece {
    Structure(usize),
    Host(HostValue),
    Tensor(DType, Vec<usize>, Vec<u8>),
}

fn piece() -> impl Strategy<Value = Piece> {
    let dtype = (0..DTYPES.len()).prop_map(|index| DTYPES[index]);
    let tensor = (dtype, vec(0..4usize, 0..5), any::<u64>()).prop_map(|(dtype, shape, seed)| {
        let count = shape.iter().product::<usize>() * dtype.size();
        let mut state = seed | 1;
        let byte = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let byte = (state >> 56) as u8;
            if dtype.is_bool() { byte & 1 } else { byte }
        };
        Piece::Tensor(dtype, shape, (0..count).map(byte).collect())
    });
    let host = prop_oneof![
        any::<f64>().prop_map(HostValue::Float),
        any::<i64>().prop_map(HostValue::Int),
        any::<bool>().prop_map(HostValue::Bool),
        ".*".prop_map(HostValue::Text),
    ];
    prop_oneof![1 => any::<usize>().prop_map(Piece::Structure), 2 => host.prop_map(Piece::Host), 4 => tensor]
}

fn header() -> impl Strategy<Value = Header> {
    let kinds = [
        MessageKind::Activation,
        MessageKind::Gradient,
        MessageKind::Skip { from: 3 },
        MessageKind::SkipGradient { from: 65_535 },
        MessageKind::Output,
        MessageKind::Replica,
        MessageKind::ReplicaGradient,
        MessageKind::ReplicaSum,
        MessageKind::ParameterShard,
        MessageKind::TensorShard,
        MessageKind::Collective { group: 7 },
        MessageKind::Tensors { index: usize::MAX },
        MessageKind::Timing,
        MessageKind::RowEnd,
    ];
    let kind = (0..kinds.len()).prop_map(move |index| kinds[index]);
    (0..2usize, 0..=65_535usize, any::<usize>(), kind).prop_map(|(replica, index, microbatch, kind)| Header {
        stage: StageId::in_route(replica, index),
        microbatch,
        kind,
    })
}

fn message(header: Header, pieces: &[Piece]) -> Message {
    let part = |piece: &Piece| match piece {
        Piece::Structure(form) => PayloadPart::Tag(*form),
        Piece::Host(value) => PayloadPart::Host(value.clone()),
        Piece::Tensor(dtype, shape, bytes) => {
            let data = TensorData::from_bytes_vec(bytes.clone(), shape.clone(), *dtype);
            PayloadPart::Tensor(AnyTensor::from_data(data, &Device::flex()))
        }
    };
    Message { header, payload: Payload::from_parts(pieces.iter().map(part)) }
}

/// Copies the bodies into the memory that the frame allocates, as a link does.
fn land(frame: &Frame, bodies: &[Bytes]) -> Vec<Bytes> {
    let mut landings = frame.buffers().unwrap();
    assert_eq!(landings.len(), bodies.len());
    for (landing, body) in landings.iter_mut().zip(bodies) {
        assert_eq!(landing.len(), body.len());
        landing.copy_from_slice(body);
    }
    landings
}

fn assert_pieces(payload: Payload, pieces: &[Piece]) {
    let parts: Vec<PayloadPart> = payload.into_parts().collect();
    assert_eq!(parts.len(), pieces.len());
    for (part, piece) in parts.into_iter().zip(pieces) {
        match (part, piece) {
            (PayloadPart::Tag(got), Piece::Structure(form)) => assert_eq!(got, *form),
            (PayloadPart::Host(got), Piece::Host(value)) => assert_eq!(got, *value),
            (PayloadPart::Tensor(tensor), Piece::Tensor(dtype, shape, bytes)) => {
                assert_eq!((tensor.kind(), tensor.dtype()), (TensorKind::of(*dtype), *dtype));
                assert_eq!(tensor.shape().to_vec(), *shape);
                assert_eq!(tensor.into_data().unwrap().as_bytes(), bytes.as_slice());
            }
            (part, piece) => panic!("{part:?} came for {piece:?}"),
        }
    }
}

proptest! {
    #![proptest_config(Config::with_cases(300))]

    #[test]
    fn every_message_comes_back(header in header(), pieces in vec(piece(), 0..6)) {
        let packed = Packed::new(message(header, &pieces)).unwrap();
        let frame = Frame::read(&packed.frame).unwrap();
        prop_assert_eq!(frame.header(), header);
        let landed = land(&frame, &packed.bodies);
        let back = frame.message(landed, &Device::flex()).unwrap();
        prop_assert_eq!(back.header, header);
        assert_pieces(back.payload, &pieces);
    }

    #[test]
    fn a_repetition_comes_back_as_the_message_for_another_microbatch(
        header in header(), pieces in vec(piece(), 0..6), number in any::<u16>(), microbatch in any::<usize>(),
        at in any::<u32>(), change in 1..=255u8, cut in any::<u32>(),
    ) {
        let repeat = Repeat { number, microbatch };
        let mut bytes = repeat.write().unwrap();
        prop_assert_eq!(Repeat::read(&bytes), Ok(Some(repeat)));
        prop_assert_eq!(Frame::read(&bytes), Err(WireError::Checksum));
        let packed = Packed::new(message(header, &pieces)).unwrap();
        prop_assert_eq!(Repeat::read(&packed.frame), Ok(None));
        let frame = Frame::read(&packed.frame).unwrap().for_microbatch(microbatch);
        let back = frame.clone().message(land(&frame, &packed.bodies), &Device::flex()).unwrap();
        prop_assert_eq!(back.header, Header { microbatch, ..header });
        assert_pieces(back.payload, &pieces);
        // Cut or changed bytes are neither a repeated frame nor a frame.
        let short = &bytes[..cut as usize % bytes.len()];
        prop_assert!(!matches!(Repeat::read(short), Ok(Some(_))) && Frame::read(short).is_err());
        let at = at as usize % bytes.len();
        bytes[at] ^= change;
        prop_assert!(!matches!(Repeat::read(&bytes), Ok(Some(_))) && Frame::read(&bytes).is_err());
    }

    #[test]
    fn a_frame_with_a_changed_byte_is_refused(
        header in header(), pieces in vec(piece(), 0..4), at in any::<u32>(), change in 1..=255u8,
    ) {
        let mut frame = Packed::new(message(header, &pieces)).unwrap().frame;
        let at = at as usize % frame.len();
        frame[at] ^= change;
        prop_assert_eq!(Frame::read(&frame), Err(WireError::Checksum));
    }

    #[test]
    fn a_frame_of_another_length_is_refused(
        header in header(), pieces in vec(piece(), 0..4), cut in any::<u32>(), more in vec(any::<u8>(), 1..20),
    ) {
        let frame = Packed::new(message(header, &pieces)).unwrap().frame;
        prop_assert!(Frame::read(&frame[..cut as usize % frame.len()]).is_err());
        prop_assert!(Frame::read(&[frame.as_slice(), &more].concat()).is_err());
    }

    #[test]
    fn other_bytes_are_no_frame(bytes in vec(any::<u8>(), 0..200)) {
        prop_assert!(Frame::read(&bytes).is_err());
    }

    #[test]
    fn fields_that_no_frame_has_are_refused_even_with_a_right_checksum(
        pieces in vec(piece(), 1..4), at in any::<u32>(), value in any::<u8>(), header in Just(some_header()),
    ) {
        let mut frame = Packed::new(message(header, &pieces)).unwrap().frame;
        let content = frame.len() - 4;
        frame[at as usize % content] = value;
        sign(&mut frame);
        // They may be another message, but never cause a panic, and reading allocates no memory for what they
        // claim.
        if let Ok(other) = Frame::read(&frame) {
            let _ = other.header();
        }
    }
}

fn some_header() -> Header {
    Header { stage: StageId::new(3), microbatch: 5, kind: MessageKind::Gradient }
}

/// Recomputes the checksum after a change.
fn sign(frame: &mut [u8]) {
    let (content, checksum) = frame.split_last_chunk_mut().unwrap();
    *checksum = crc32fast::hash(content).to_le_bytes();
}

/// Reads bytes as a frame, with these contents in postcard's encoding and a right checksum.
fn forged(magic: &[u8; 4], version: u16, contents: &impl Serialize) -> Result<Frame, WireError> {
    let contents = postcard::to_stdvec(contents).unwrap();
    let mut frame = [&magic[..], &version.to_le_bytes(), &contents, &[0; 4]].concat();
    sign(&mut frame);
    Frame::read(&frame)
}

#[test]
fn forged_fields_are_refused() {
    // A header is a kind, a stage (replica and index) and a microbatch. A part is 0 and a tag, or 1, an element
    // type and a shape, or 2, a type of plain values and a value.
    let header = (0u32, (0u8, 3u16), 5usize);
    let tensor = (1u32, DType::F32, vec![2usize, 3]);
    let parts = || vec![tensor.clone()];
    // The version follows the magic.
    let whole = Packed::new(message(some_header(), &[])).unwrap().frame;
    let version = u16::from_le_bytes([whole[4], whole[5]]);
    assert!(forged(b"bplk", version, &(header, parts())).is_ok());
    assert_eq!(forged(b"bplx", version, &(header, parts())), Err(WireError::Checksum));
    let other = version + 1;
    assert_eq!(forged(b"bplk", other, &(header, parts())), Err(WireError::Version { got: other }));
    let refused = |contents: Result<Frame, WireError>| assert!(matches!(contents, Err(WireError::Encoding { .. })));
    refused(forged(b"bplk", version, &((200u32, (0u8, 3u16), 5usize), parts())));
    refused(forged(b"bplk", version, &((0u32, (2u8, 3u16), 5usize), parts())));
    refused(forged(b"bplk", version, &((0u32, (0u8, 65_536u32), 5usize), parts())));
    refused(forged(b"bplk", version, &(header, vec![(3u32, DType::F32, vec![2usize, 3])])));
    refused(forged(b"bplk", version, &(header, vec![(1u32, 200u32, vec![2usize, 3])])));
    assert!(forged(b"bplk", version, &(header, vec![(2u32, 1u32, -7i64)])).is_ok());
    refused(forged(b"bplk", version, &(header, vec![(2u32, 4u32, -7i64)])));
    refused(forged(b"bplk", version, &(header, u32::MAX)));
    refused(forged(b"bplk", version, &(header, parts(), 0u8)));
    let huge = usize::MAX / 2;
    let large = Err(WireError::TooLarge { shape: vec![huge as u64, 3] });
    assert_eq!(forged(b"bplk", version, &(header, vec![(1u32, DType::F32, vec![huge, 3])])), large);
    let quantised = DType::QFloat(QuantScheme::default());
    let error = forged(b"bplk", version, &(header, vec![(1u32, quantised, vec![2usize, 3])]));
    assert_eq!(error, Err(WireError::Quantised { dtype: quantised }));
}

#[test]
fn bodies_that_are_not_announced_are_refused() {
    let pack = || Packed::new(message(some_header(), &[Piece::Tensor(DType::F32, vec![2, 3], vec![0; 24])])).unwrap();
    let body = |bytes: usize| Bytes::from_elems(vec![0u8; bytes]);
    let refused =
        |bodies: Vec<Bytes>| Frame::read(&pack().frame).unwrap().message(bodies, &Device::flex()).unwrap_err();
    assert_eq!(refused(vec![]), WireError::Body { index: 0, got: 0, expected: 24 });
    assert_eq!(refused(vec![body(23)]), WireError::Body { index: 0, got: 23, expected: 24 });
    assert_eq!(refused(vec![body(24), body(4)]), WireError::Body { index: 1, got: 4, expected: 0 });
}

#[test]
fn a_tensor_that_nobody_else_holds_is_sent_from_where_it_is() {
    let data = TensorData::new(vec![1.0f32; 1 << 16], [1 << 16]);
    let place = data.as_bytes().as_ptr();
    let tensor = AnyTensor::from_data(data, &Device::flex());
    let mut payload = Payload::default();
    payload.push_tensor(tensor);
    let packed = Packed::new(Message { header: some_header(), payload }).unwrap();
    assert_eq!(packed.bodies[0].as_ptr(), place, "copied on the sending side");
    let landing = Frame::read(&packed.frame).unwrap().buffers().unwrap().remove(0);
    let place = landing.as_ptr();
    let message = Frame::read(&packed.frame).unwrap().message(vec![landing], &Device::flex()).unwrap();
    let tensor = message.payload.tensors().next().unwrap().clone();
    drop(message);
    assert_eq!(tensor.into_data().unwrap().as_bytes().as_ptr(), place, "copied on the receiving side");
}

#[test]
fn quantised_tensors_do_not_travel() {
    let tensor = Tensor::<2>::ones([32, 32], &Device::flex()).quantize_dynamic(&QuantScheme::default());
    let mut payload = Payload::default();
    payload.push_tensor(AnyTensor::new(tensor));
    let error = Packed::new(Message { header: some_header(), payload }).unwrap_err();
    assert!(matches!(error, WireError::Quantised { .. }), "{error}");
}
