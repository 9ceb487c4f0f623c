//! What crosses a stage's boundary, and what is known about it beforehand.
//!
//! Reading order: `any_tensor` (a tensor of any rank and kind), `host_value` (a plain number or string),
//! `parts` (the flat list that travels), `cut_over` (the mark of a piece), `tensor_spec` (a tensor's
//! element type and sizes), `payload_reader` (reads values from a payload's front), `values` (a user's types as
//! payloads), `skip` (values that go past the next stage), `payload_spec` (what is expected of a payload),
//! `kinds` (comparing types before anything runs), `metadata` (the specs of a stage's boundary), `unwritten`
//! (what a device failed to compute), `computes` (what it cannot compute in), `finite` (finds NaN and infinity),
//! `fused` (fused operations between threads).

mod any_tensor;
mod computes;
mod cut_over;
mod finite;
mod fused;
mod host_value;
mod kinds;
mod metadata;
mod parts;
mod payload_reader;
mod payload_spec;
mod skip;
mod tensor_spec;
mod unwritten;
mod values;

pub(crate) use any_tensor::is_cubecl;
pub use any_tensor::{AnyTensor, TensorKind};
pub use computes::computes_in;
pub(crate) use cut_over::CutOver;
pub(crate) use finite::first_non_finite;
pub use host_value::HostValue;
pub(crate) use kinds::{Kinds, alike, listed};
pub use metadata::{StageMetadata, StagePort, Validate};
pub use parts::{Payload, PayloadPart};
pub use payload_reader::{BoundaryError, PayloadReader};
pub use payload_spec::PayloadSpec;
pub(crate) use payload_spec::{SpecMismatch, SpecPart};
pub use skip::{Skip, Skips};
pub(crate) use tensor_spec::TensorSpec;
#[cfg(feature = "cubecl-backend")]
#[doc(hidden)]
pub use unwritten::cube::cube_tensor;
pub(crate) use unwritten::{Unwritten, lost, written};
pub use values::{Boundary, kinds_of_field};
