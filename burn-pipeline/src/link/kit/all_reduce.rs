//! The default all-reduce, for links that replace [`Link::all_reduce`] and fall back on it.

use super::collective;
use crate::link::error::LinkError;
use crate::link::link_trait::Link;
use crate::stage::AnyTensor;
use std::time::Instant;

/// The default of [`Link::all_reduce`], by messages alone.
///
/// # Errors
/// As [`Link::all_reduce`].
pub fn all_reduce(
    link: &mut dyn Link,
    group: usize,
    ranks: &[usize],
    tensors: Vec<Option<AnyTensor>>,
    deadline: Instant,
) -> Result<Vec<Option<AnyTensor>>, LinkError> {
    collective::all_reduce(link, group, ranks, tensors, deadline)
}
