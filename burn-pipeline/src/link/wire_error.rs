//! What can be wrong with the bytes of a message.

use burn::tensor::DType;

/// The version of the frame layout. Ranks with different versions refuse each other.
pub(crate) const WIRE_VERSION: u16 = 7;

/// Why bytes cannot be read as a message, or a message cannot be written as bytes.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum WireError {
    /// The bytes were changed in transit, or are not a frame.
    #[error("the frame's checksum does not match its bytes: it was changed in transit, or is not a frame")]
    Checksum,
    /// The frame has another layout.
    #[error("the frame has layout {got}, and this build reads {WIRE_VERSION}; build all ranks from one version")]
    Version { got: u16 },
    /// The receiver cannot decode the message.
    #[error("the message cannot be decoded: {message}")]
    Encoding { message: String },
    /// A frame repeats a message that was never sent.
    #[error("the frame repeats message {number}, which was never sent")]
    UnknownRepeat { number: u16 },
    /// A tensor is too large for this machine.
    #[error("the frame has a tensor of shape {shape:?}, which is more than memory can address")]
    TooLarge { shape: Vec<u64> },
    /// This machine does not have enough memory for the tensors.
    #[error(
        "the frame announces {bytes} bytes of tensors, which this machine cannot allocate; \
         check that a rank of this job sent it"
    )]
    NoMemory { bytes: u64 },
    /// The bytes after the frame are not those that it announces.
    #[error("tensor {index} has {got} bytes, but its frame announces {expected}")]
    Body { index: usize, got: usize, expected: usize },
    /// A value of an all-gather is longer than an envelope may be.
    #[error("a value of {bytes} bytes is too long to be gathered at once (the limit is 1 GiB); divide it")]
    LongValue { bytes: usize },
    /// The tensor is quantised.
    #[error("a tensor of {dtype:?} cannot be sent: links carry plain floats, integers and booleans; dequantise it")]
    Quantised { dtype: DType },
    /// The tensor could not be read from its device.
    #[error("a tensor could not be read from its device: {message}")]
    Device { message: String },
    /// The tensor could not be made: its device is out of memory.
    #[error(
        "a tensor could not be read from its device, which is out of memory: {message}; take smaller batches, or use \
         more ranks"
    )]
    DeviceMemory { message: String },
}

burn_pipeline_plan::debug_as_text!(WireError);
