//! One microbatch's run through the programs of a stage, in an interpreter of its own; and a program that has started,
//! with how far it has run.

use super::replayable::Replayable;
use crate::payload::{AnyTensor, Payload, PayloadPart};
use crate::program::{
    NO_REPLAY, Phase, Program, ProgramError, Replay, StagePrograms, Sums, interpreter, is_like, spec,
};
use crate::stage::engine::call::{ForwardCall, Gradients, check_gradients};
use crate::stage::engine::recording::Parameters;
use crate::stage::error::StageError;
use crate::stage::state::GradientStore;
use burn::backend::ir::{TensorId, TensorIr};
use burn::backend::{Dispatch, DispatchTensor, TensorMetadata, ops::FloatTensorOps};
use burn::tensor::Device;
use rand::rngs::StdRng;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

/// One microbatch between the first program and the last one.
pub(super) struct MicrobatchRun {
    /// The microbatch's index in the whole batch.
    pub(super) microbatch: usize,
    pub(super) stage: Arc<Replayable>,
    replay: Box<dyn Replay>,
    pub(super) device: Device,
    /// The tensors that depend on the given gradients; `None` if all were given.
    reached: Option<HashSet<TensorId>>,
    /// Sums of weight gradients, borrowed from the stage's store; this microbatch's are added to them.
    sums: Sums,
    /// True if the parameters that later programs read were released.
    unloaded: bool,
}

impl MicrobatchRun {
    /// Starts a microbatch: feeds its input, extra, target and the parameters. Its random numbers come from the
    /// generator if there is one, else from the device's.
    pub(super) fn start(
        stage: Arc<Replayable>,
        call: ForwardCall,
        parameters: Parameters,
        generator: Option<StdRng>,
    ) -> Result<Self, StageError> {
        let device = parameters.device(&call);
        let mut replay = interpreter(&device, &stage.programs.custom)
            .ok_or_else(|| StageError::Unsupported(NO_REPLAY.to_owned()))?;
        if let Some(generator) = generator {
            replay.draw_from(generator);
        }
        let (microbatch, sums, unloaded) = (call.microbatch, Sums::new(), false);
        let mut run = Self { microbatch, replay, device, stage: stage.clone(), reached: None, sums, unloaded };
        let edges = &stage.programs.edges;
        let target = call.target.filter(|_| call.ends_route).into_iter();
        let arrived = [call.input, call.extra].into_iter().chain(target).flat_map(tensors);
        let fed = edges.inputs.iter().chain(&edges.parameters).zip(arrived.chain(parameters.values));
        let program = stage.programs.forward();
        for (edge, tensor) in fed.filter(|(edge, _)| program.reads(edge)) {
            run.feed(edge, tensor)?;
        }
        for (id, constant) in &stage.constants {
            if let Some(fed) = program.feeds.iter().find(|fed| fed.id == *id) {
                run.feed(fed, constant.tensor.clone())?;
            }
        }
        Ok(run)
    }

    /// Feeds a tensor after checking its shape and type: programs read it without checking again.
    fn feed(&mut self, edge: &TensorIr, tensor: DispatchTensor) -> Result<(), StageError> {
        if !is_like(edge, &tensor) {
            let (expected, got) = (spec(&edge.shape, edge.dtype), spec(&tensor.shape(), tensor.dtype()));
            return Err(ProgramError::Given { expected, got }.into());
        }
        self.replay.feed(edge.id, tensor).map_err(|reason| ProgramError::Backend(reason).into())
    }

    /// Releases the parameters that are held after a program for the ones that follow.
    pub(super) fn unload(&mut self, after: Phase) {
        if !std::mem::replace(&mut self.unloaded, true) {
            let programs = self.stage.programs.clone();
            programs.program(after).borrowed.iter().for_each(|tensor| drop(self.replay.take(tensor)));
        }
    }

    /// Feeds the parameters again that were released after a program, if they were.
    pub(super) fn load(&mut self, after: Phase, parameters: impl FnOnce() -> Parameters) -> Result<(), StageError> {
        if !std::mem::take(&mut self.unloaded) {
            return Ok(());
        }
        let programs = self.stage.programs.clone();
        let mut fed = HashSet::new();
        for (edge, value) in programs.edges.parameters.iter().zip(parameters().values) {
            if programs.program(after).borrowed.iter().any(|borrowed| borrowed.id == edge.id) && fed.insert(edge.id) {
                self.feed(edge, value)?;
            }
        }
        Ok(())
    }

    /// Runs some pieces of a program.
    pub(super) fn run_part(&mut self, program: &Program, pieces: Range<usize>) -> Result<(), StageError> {
        Ok(program.run(pieces, &mut *self.replay, &mut self.sums)?)
    }

    /// Takes a program's results out, once all its pieces have run.
    pub(super) fn results(&mut self, program: &Program) -> Vec<DispatchTensor> {
        program.takes.iter().map(|tensor| self.replay.take(tensor)).collect()
    }

    pub(super) fn run(&mut self, program: &Program) -> Result<Vec<DispatchTensor>, StageError> {
        self.run_part(program, 0..program.pieces())?;
        Ok(self.results(program))
    }

    /// The same microbatch, continued with the backward of other programs of the stage.
    pub(super) fn with_backward(self, stage: Arc<Replayable>) -> Self {
        Self { stage, ..self }
    }

    /// The same microbatch, without the gradients at these indices: its own backward runs with zeros there, and
    /// results that depend on nothing else are dropped.
    pub(super) fn with_zeros(self, absent: &[usize]) -> Self {
        let places = 0..self.stage.programs.edges.seeds.len();
        let present: Vec<usize> = places.filter(|place| !absent.contains(place)).collect();
        Self { reached: Some(self.stage.programs.reached(&present)), ..self }
    }

    /// Returns true if all gradients that its backward reads were given.
    pub(super) fn is_whole(&self) -> bool {
        self.reached.is_none()
    }

    fn is_reached(&self, gradient: &TensorIr) -> bool {
        self.reached.as_ref().is_none_or(|reached| reached.contains(&gradient.id))
    }

    /// Feeds the received gradients, and zeros for those that are read but were not received.
    pub(super) fn seed(&mut self, seeds: Gradients, phase: Phase) -> Result<(), StageError> {
        let stage = self.stage.clone();
        let program = stage.programs.program(phase);
        let edges = &stage.programs.edges.seeds;
        check_gradients(&seeds, edges.iter().map(|edge| edge.as_ref().map(|edge| (&edge.shape, edge.dtype))))?;
        for (edge, seed) in edges.iter().zip(seeds) {
            if let Some(edge) = edge.as_ref().filter(|edge| program.reads(edge)) {
                let zero = || {
                    let device = self.device.clone().inner();
                    Dispatch::float_zeros(edge.shape.clone(), device.as_dispatch(), edge.dtype.into())
                };
                let seed = seed.map_or_else(zero, AnyTensor::into_dispatch);
                self.feed(edge, seed)?;
            }
        }
        Ok(())
    }

    /// The gradients of the input, one for each of its tensors, from a program's results.
    pub(super) fn input_gradients(&self, given: &mut impl Iterator<Item = DispatchTensor>) -> Gradients {
        let edges = &self.stage.programs.edges;
        let mut take = |edge: &Option<TensorIr>| {
            let edge = edge.as_ref()?;
            given.next().filter(|_| self.is_reached(edge)).map(AnyTensor::from_dispatch)
        };
        edges.input_gradients.iter().map(&mut take).collect()
    }

    /// Takes sums out of the store for a program to add weight gradients to, if the store would now add this
    /// microbatch's.
    pub(super) fn borrow_sums(&mut self, phase: Phase, store: &mut GradientStore) {
        if !self.is_whole() || !store.adds_now(self.microbatch) {
            return;
        }
        let stage = self.stage.clone();
        let program = stage.programs.program(phase);
        let own = stage.programs.edges.weight_gradients.iter().filter(|(_, gradient)| program.gives_once(gradient));
        for (place, gradient) in own {
            let parameter = stage.parameters[*place];
            let alike = |sum: &AnyTensor| sum.shape() == gradient.shape && sum.dtype() == gradient.dtype;
            if store.get(parameter).is_some_and(alike)
                && let Some(sum) = store.remove(parameter)
            {
                self.sums.insert(gradient.id, Some(sum.into_dispatch()));
            }
        }
    }

    /// Gives the weight gradients of a program's results to the store, and returns borrowed sums.
    pub(super) fn store_weights(&mut self, given: impl Iterator<Item = DispatchTensor>, store: &mut GradientStore) {
        let stage = self.stage.clone();
        let (mut sums, mut gradients) = (Vec::new(), Vec::new());
        for ((place, edge), value) in stage.programs.edges.weight_gradients.iter().zip(given) {
            let (parameter, value) = (stage.parameters[*place], AnyTensor::from_dispatch(value));
            match self.sums.remove(&edge.id) {
                Some(None) => sums.push((parameter, value)),
                borrowed => {
                    let unused = borrowed.flatten().map(|sum| (parameter, AnyTensor::from_dispatch(sum)));
                    sums.extend(unused);
                    gradients.extend(self.is_reached(edge).then_some((parameter, value)));
                }
            }
        }
        store.sum(sums);
        store.add(self.microbatch, gradients);
    }
}

/// A payload's tensors, moved out.
fn tensors(payload: Payload) -> impl Iterator<Item = DispatchTensor> {
    payload.into_parts().filter_map(|part| match part {
        PayloadPart::Tensor(tensor) => Some(tensor.inner().into_dispatch()),
        PayloadPart::Host(_) | PayloadPart::Tag(_) => None,
    })
}

/// One program of one microbatch, run up to some operation.
pub(super) struct RunningProgram {
    run: MicrobatchRun,
    pub(super) phase: Phase,
    programs: Arc<StagePrograms>,
    at: usize,
}

impl RunningProgram {
    /// A program of a microbatch that was fed what the program reads.
    pub(super) fn new(run: MicrobatchRun, phase: Phase) -> Self {
        let programs = run.stage.programs.clone();
        Self { run, phase, programs, at: 0 }
    }

    /// The number of pieces that have not run yet.
    pub(super) fn left(&self) -> usize {
        self.programs.program(self.phase).pieces() - self.at
    }

    /// Runs the next pieces.
    pub(super) fn advance(&mut self, pieces: usize) -> Result<(), StageError> {
        let end = self.at + pieces.min(self.left());
        self.run.run_part(self.programs.program(self.phase), self.at..end)?;
        self.at = end;
        Ok(())
    }

    /// Runs the rest, and takes the results out.
    pub(super) fn finish(mut self) -> Result<(MicrobatchRun, Vec<DispatchTensor>), StageError> {
        self.advance(usize::MAX)?;
        let given = self.run.results(self.programs.program(self.phase));
        Ok((self.run, given))
    }
}
