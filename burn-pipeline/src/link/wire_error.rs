//! What can be wrong with the bytes of a message.

use burn::tensor::DType;

/// The version of the frame layout. Ranks with different versions refuse each other.
pub(crate) const WIRE_VERSION: u16 = 6;

/// Why bytes cannot be read as a message, or a message cannot be written as bytes.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what variants and fields are")]
pub enum WireError {
    #[error("the frame's checksum does not match its bytes: it was changed in transit, or is not a frame")]
    Checksum,
    #[error("the frame has layout {got}, and this build reads {WIRE_VERSION}; build all ranks from one version")]
    Version { got: u16 },
    #[error("the message cannot be decoded: {message}")]
    Encoding { message: String },
    #[error("the frame repeats message {number}, which was never sent")]
    UnknownRepeat { number: u16 },
    #[error("the frame has a tensor of shape {shape:?}, which is more than memory can address")]
    TooLarge { shape: Vec<u64> },
    #[error(
        "the frame announces {bytes} bytes of tensors, which this machine cannot allocate; \
         check that a rank of this job sent it"
    )]
    NoMemory { bytes: u64 },
    #[error("tensor {index} has {got} bytes, but its frame announces {expected}")]
    Body { index: usize, got: usize, expected: usize },
    #[error("a tensor of {dtype:?} cannot be sent: links carry plain floats, integers and booleans; dequantise it")]
    Quantised { dtype: DType },
    #[error("a tensor could not be read from its device: {message}")]
    Device { message: String },
    #[error(
        "a tensor could not be read from its device, which is out of memory: {message}; take smaller batches, or use \
         more ranks"
    )]
    DeviceMemory { message: String },
}

burn_pipeline_plan::debug_as_text!(WireError);
