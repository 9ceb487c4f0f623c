//! Values of the caller's own that all processes get: whether one of them stops, say.

use crate::train::control::Exchange;
use crate::train::error::PipelineError;
use crate::train::pipeline::Pipeline;
use serde::Serialize;
use serde::de::DeserializeOwned;

impl Pipeline {
    /// Gives every process the values of all processes, in the order of ranks, so that they can decide alike: whether one of them was
    /// interrupted, what the first one's metrics say. All call it with the same type. Where ranks are threads of this process, it gives
    /// `own` alone.
    ///
    /// The type must not use serde attributes that leave fields out: names are not sent.
    ///
    /// # Errors
    /// As [`Pipeline::step`].
    pub fn exchange<T>(&mut self, own: T) -> Result<Vec<T>, PipelineError>
    where
        T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        match self.ranks.are_processes() {
            true => self.ask(Exchange(own)),
            false => Ok(vec![own]),
        }
    }
}
