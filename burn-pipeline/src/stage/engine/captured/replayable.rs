//! The programs of one recording, with everything that a microbatch needs to run them.

use crate::program::{Recording, StagePrograms};
use crate::stage::engine::call::Gradients;
use crate::stage::engine::recording::{OutputSpec, Signature};
use burn::backend::DispatchTensor;
use burn::backend::ir::TensorId;
use burn::module::ParamId;
use burn::tensor::TensorData;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// A value that the stage brought from the host.
pub(super) struct Constant {
    pub(super) data: Arc<TensorData>,
    /// The same value on the device that replays.
    pub(super) tensor: DispatchTensor,
}

/// A captured stage, with what its device needs to replay it.
pub(super) struct Replayable {
    pub(super) programs: Arc<StagePrograms>,
    /// What the programs were made from, to check whether a forward is still the same.
    pub(super) recording: Arc<Recording>,
    pub(super) output: OutputSpec,
    pub(super) parameters: Vec<ParamId>,
    pub(super) constants: Vec<(TensorId, Arc<Constant>)>,
    /// The call that it was captured for.
    pub(super) signature: Signature,
    /// The same stage without the gradients of the outputs at these indices; `None` if it cannot be cut.
    pub(super) partial: Mutex<HashMap<Vec<usize>, Option<Arc<Replayable>>>>,
}

impl Replayable {
    /// The same stage with other programs.
    pub(super) fn with_programs(&self, programs: Arc<StagePrograms>) -> Self {
        Self {
            programs,
            recording: self.recording.clone(),
            output: self.output.clone(),
            parameters: self.parameters.clone(),
            constants: self.constants.clone(),
            signature: self.signature.clone(),
            partial: Mutex::default(),
        }
    }

    /// Returns true if its forward draws random numbers.
    pub(super) fn draws(&self) -> bool {
        self.recording.draws().next().is_some()
    }

    /// Indices of the outputs whose gradient the backward reads but `seeds` does not have.
    pub(super) fn absent(&self, seeds: &Gradients) -> Vec<usize> {
        let read = |edge: &Option<_>| edge.as_ref().is_some_and(|edge| self.programs.backward().reads(edge));
        let edges = self.programs.edges.seeds.iter().zip(seeds).enumerate();
        edges.filter(|(_, (edge, seed))| seed.is_none() && read(edge)).map(|(place, _)| place).collect()
    }

    /// The parameter of a weight gradient.
    pub(super) fn weight(&self, gradient: usize) -> ParamId {
        self.parameters[self.programs.edges.weight_gradients[gradient].0]
    }
}
