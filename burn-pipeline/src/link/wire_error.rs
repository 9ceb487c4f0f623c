//! What can be wrong with a message's bytes.

use super::wire::WIRE_VERSION;
use crate::stage::TensorKind;
use burn::tensor::DType;

/// Why bytes are no message, or a message cannot become bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The frame ends too early or too late.
    #[error("the frame of {length} bytes ends in the middle of {what}")]
    Length {
        /// Bytes that came.
        length: usize,
        /// What was being read.
        what: &'static str,
    },
    /// The frame was changed on its way, or is none.
    #[error("the frame's checksum does not fit its bytes: it was changed on its way, or is no frame")]
    Checksum,
    /// Another layout.
    #[error("the frame has layout {got}, and this build reads {WIRE_VERSION}; build all ranks from one version")]
    Version {
        /// What came.
        got: u16,
    },
    /// A field holds what no frame may hold.
    #[error("the frame says {what} {value}, which there is not")]
    Field {
        /// Which field.
        what: &'static str,
        /// What it holds.
        value: u64,
    },
    /// TensorKind and element type do not go together.
    #[error("the frame has a {kind} tensor of {dtype:?}")]
    Mixed {
        /// The kind.
        kind: TensorKind,
        /// The element type.
        dtype: DType,
    },
    /// A tensor too large for this machine.
    #[error("the frame has a tensor of shape {shape:?}, which is more than memory can address")]
    TooLarge {
        /// The shape.
        shape: Vec<u64>,
    },
    /// The bytes behind the frame are not those that it announces.
    #[error("tensor {index} came with {got} bytes, and its frame announces {expected}")]
    Body {
        /// Which tensor, from 0; one past the last if there are too many or too few.
        index: usize,
        /// Bytes that came.
        got: usize,
        /// Bytes announced.
        expected: usize,
    },
    /// Quantised tensors do not cross links.
    #[error("a tensor of {dtype:?} cannot be sent: links carry plain floats, integers and booleans; dequantise it")]
    Quantised {
        /// The element type.
        dtype: DType,
    },
    /// A stage or microbatch beyond what a frame can hold, or more parts.
    #[error("{what} {value} does not fit into a frame")]
    Beyond {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: usize,
    },
    /// The tensor could not be read off its device.
    #[error("a tensor could not be read off its device: {message}")]
    Device {
        /// What the device said.
        message: String,
    },
}
