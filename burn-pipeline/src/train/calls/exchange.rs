//! Values of the caller that all processes get, for example whether one of them stops.

use crate::train::control::Exchange;
use crate::train::error::PipelineError;
use crate::train::pipeline::Pipeline;
use serde::Serialize;
use serde::de::DeserializeOwned;

impl Pipeline {
    /// Gives every process the values of all processes, in rank order, so that they can make the same decision: for
    /// example whether one of them was interrupted, or what rank 0's metrics say. All call it with the same type. When
    /// ranks are threads of this process, it returns only `own`.
    ///
    /// The type must not use serde attributes that leave fields out, because field names are not sent.
    ///
    /// # Errors
    /// Same as [`Pipeline::step`].
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
