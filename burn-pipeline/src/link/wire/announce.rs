//! The frame of a message that is still to come, from the form that it is expected to have.

use super::codes::wide;
use super::{Frame, Slot, begin, checksum, describe};
use crate::link::Header;
use crate::stage::{PayloadSpec, SpecPart, TensorSpec};

impl Frame {
    /// The frame of a message of this form, byte for byte; `None` where a size or an element type is not known, or no
    /// message can have the form.
    pub(in crate::link) fn announcing(header: Header, form: &PayloadSpec) -> Option<Vec<u8>> {
        let mut frame = begin(Header { microbatch: 0, ..header }, form.parts().len()).ok()?;
        for part in form.parts() {
            match part {
                SpecPart::Tag(number) => {
                    frame.push(0);
                    frame.extend(wide("form", *number).ok()?);
                }
                SpecPart::Tensor(TensorSpec { kind, dtype, dims }) => {
                    let shape: Vec<usize> = dims.iter().copied().collect::<Option<_>>()?;
                    describe(&mut frame, *kind, (*dtype)?, &shape).ok()?;
                }
            }
        }
        frame.extend(checksum(&frame).to_le_bytes());
        Self::read(&frame).ok().map(|_| frame)
    }

    /// The form of the message.
    pub(in crate::link) fn form(&self) -> PayloadSpec {
        PayloadSpec::from_parts(self.parts.iter().map(|slot| match slot {
            Slot::Tag(number) => SpecPart::Tag(*number),
            Slot::Tensor { kind, dtype, shape, .. } => {
                let dims = shape.iter().map(|&size| Some(size)).collect();
                SpecPart::Tensor(TensorSpec { kind: *kind, dtype: Some(*dtype), dims })
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Direction, Message, Packed};
    use crate::plan::StageId;
    use crate::stage::{Boundary, TensorKind};
    use burn::tensor::{DType, Device, Int, Tensor};

    fn header() -> Header {
        Header { stage: StageId::new(3), microbatch: 0, direction: Direction::SkipGradient { from: 5 } }
    }

    #[test]
    fn the_frame_is_that_of_the_message_when_it_comes() {
        let x = Tensor::<2>::zeros([2, 3], &Device::flex());
        let ids = Tensor::<1, Int>::from_ints([3, -1], &Device::flex());
        let payload = (Some(x), None::<Tensor<1>>, vec![ids.clone()], ids.greater_elem(0)).into_payload();
        let form = PayloadSpec::of_payload(&payload);
        let announced = Frame::announcing(header(), &form).unwrap();
        assert_eq!(Packed::new(Message { header: header(), payload }).unwrap().frame, announced);
        assert_eq!(Frame::read(&announced).unwrap().form(), form);
        let other = Header { microbatch: 7, ..header() };
        assert_eq!(Frame::announcing(other, &form).unwrap(), announced, "the microbatch plays no part");
    }

    #[test]
    fn what_is_not_known_whole_is_not_announced() {
        let form = |kind, dtype, dims: &[Option<usize>]| {
            let dims = dims.to_vec();
            PayloadSpec::from_parts([SpecPart::Tensor(TensorSpec { kind, dtype, dims })])
        };
        let known = form(TensorKind::Float, Some(DType::F32), &[Some(2), Some(3)]);
        assert!(Frame::announcing(header(), &known).is_some());
        for unknown in [
            known.free(1),
            form(TensorKind::Float, None, &[Some(2)]),
            form(TensorKind::Int, Some(DType::F32), &[Some(2)]),
            form(TensorKind::Float, Some(DType::F64), &[Some(usize::MAX), Some(2)]),
        ] {
            assert_eq!(Frame::announcing(header(), &unknown), None, "{unknown}");
        }
    }
}
