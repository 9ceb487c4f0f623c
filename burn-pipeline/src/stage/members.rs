//! The other ranks that hold a stage, as its engine sees them.

use burn_pipeline_plan::plan::Collectives;
use std::fmt;
use std::sync::Arc;

/// Compares the recorded exchanges of a captured stage with those of the other ranks that hold it. Each rank calls it
/// once, before its first forward runs, with `None` if the stage cannot be captured. Unwinds if they differ.
#[derive(Clone)]
pub(crate) struct Members(Arc<Compare>);

type Compare = dyn Fn(Option<Collectives>) + Send + Sync;

impl Members {
    pub(crate) fn new(compare: impl Fn(Option<Collectives>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(compare))
    }

    pub(in crate::stage) fn compare(self, exchanges: Option<Collectives>) {
        (self.0)(exchanges);
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Members")
    }
}
