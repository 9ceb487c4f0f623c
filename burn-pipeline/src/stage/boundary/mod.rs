//! What crosses a stage's boundary: tensors of any rank and kind, and what is known of them beforehand.

mod any_tensor;
mod metadata;
mod payload;
mod payload_spec;
mod skip;

pub use any_tensor::{AnyTensor, TensorKind, TensorKindOf};
pub use metadata::{MetadataMode, StageMetadata, StagePort, Validate};
pub use payload::{Boundary, BoundaryError, Payload, PayloadPart, PayloadReader};
pub(super) use payload_spec::zeros_like;
pub use payload_spec::{PayloadSpec, SpecMismatch, SpecPart, TensorSpec};
pub use skip::{Skip, Skips};
