//! A message of which only the frame travels as bytes: its tensors go from device to device.
//!
//! Guarantees: the frame is the same, byte for byte, as that of the message packed whole; what is put together from a
//! frame has its forms and tensors in the frame's order.

use super::codes::{dtype_code, wide};
use super::{Frame, Slot, WireError, begin, checksum, describe};
use crate::link::Message;
use crate::stage::{AnyTensor, Payload, PayloadPart, TensorKind};
use burn::tensor::DType;

impl Frame {
    /// The frame of a message, whose tensors stay where they are.
    ///
    /// # Errors
    /// As [`Packed::new`](crate::link::Packed::new).
    pub fn offering(message: &Message) -> Result<Vec<u8>, WireError> {
        let mut frame = begin(message.header, message.payload.parts().count())?;
        for part in message.payload.parts() {
            match part {
                PayloadPart::Tag(form) => {
                    frame.push(0);
                    frame.extend(wide("form", *form)?);
                }
                PayloadPart::Tensor(tensor) => {
                    dtype_code(tensor.dtype())?;
                    describe(&mut frame, tensor.kind(), tensor.dtype(), &tensor.shape())?;
                }
            }
        }
        frame.extend(checksum(&frame).to_le_bytes());
        Ok(frame)
    }

    /// The tensors that are to come, in order.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorKind, DType, &[usize])> {
        self.parts.iter().filter_map(|slot| match slot {
            Slot::Tag(_) => None,
            Slot::Tensor { kind, dtype, shape, .. } => Some((*kind, *dtype, shape.as_slice())),
        })
    }

    /// The message's payload, from as many tensors as are to come.
    pub fn with_tensors(&self, tensors: Vec<AnyTensor>) -> Payload {
        let mut tensors = tensors.into_iter();
        let part = |slot: &Slot| match slot {
            Slot::Tag(form) => Some(PayloadPart::Tag(*form)),
            Slot::Tensor { .. } => tensors.next().map(PayloadPart::Tensor),
        };
        Payload::from_parts(self.parts.iter().filter_map(part).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Direction, Header, Packed};
    use crate::plan::StageId;
    use crate::stage::Boundary;
    use burn::tensor::{Device, Int, Tensor};

    #[test]
    fn the_frame_is_that_of_the_message_packed_whole() {
        let x = Tensor::<2>::from_floats([[1.0, -2.5], [0.0, 4.0]], &Device::flex());
        let ids = Tensor::<1, Int>::from_ints([3, -1], &Device::flex());
        let payload = (Some(x), None::<Tensor<1>>, vec![ids]).into_payload();
        let header = Header { stage: StageId::new(3), microbatch: 5, direction: Direction::Skip { from: 1 } };
        let message = Message { header, payload };
        let offer = Frame::offering(&message).unwrap();
        let tensors: Vec<AnyTensor> = message.payload.tensors().cloned().collect();
        assert_eq!(Packed::new(message.clone()).unwrap().frame, offer);
        let frame = Frame::read(&offer).unwrap();
        let expected: Vec<(TensorKind, DType, Vec<usize>)> =
            tensors.iter().map(|tensor| (tensor.kind(), tensor.dtype(), tensor.shape().to_vec())).collect();
        let got: Vec<_> = frame.tensors().map(|(kind, dtype, shape)| (kind, dtype, shape.to_vec())).collect();
        assert_eq!(got, expected);
        let payload = frame.with_tensors(tensors);
        let forms =
            |payload: &Payload| payload.parts().map(|part| matches!(part, PayloadPart::Tag(_))).collect::<Vec<_>>();
        assert_eq!(forms(&payload), forms(&message.payload));
        let read =
            |payload: &Payload| -> Vec<_> { payload.tensors().map(|tensor| tensor.to_data().unwrap()).collect() };
        assert_eq!(read(&payload), read(&message.payload));
    }
}
