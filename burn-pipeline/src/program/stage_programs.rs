//! The programs of one captured stage, as values.

use super::compiled::compiles;
use super::custom::CustomOps;
use super::liveness::{Draft, programs};
use super::merge::{MergedWeight, products};
use super::overlap::overlapped;
use super::part::{Phase, Program};
use super::recording::Recording;
use super::slices::slices;
use burn::backend::ir::{OperationIr, TensorId, TensorIr};
use burn::tensor::Device;
use burn_pipeline_compile::{Bf16, Memory, hold_less, hold_rounded};
use std::collections::HashSet;

/// All programs of a stage for one shape of its inputs.
#[derive(Clone, PartialEq, Debug)]
pub struct StagePrograms {
    /// By [`Phase`]: `F`, `I`, `W` and `B`.
    programs: [Program; 4],
    /// `W`, cut so that the matmuls of several microbatches can be merged.
    pub(crate) merged: MergedWeight,
    rounded: Option<Bf16>,
    pub(crate) edges: super::Edges,
    pub(crate) custom: CustomOps,
}

impl StagePrograms {
    pub(crate) fn new(recording: &Recording) -> Self {
        let parts = slices(recording);
        let mut both: Vec<usize> = parts.input.iter().chain(&parts.weight).copied().collect();
        both.sort_unstable();
        let pick = |places: &[usize]| {
            let operations = places.iter().map(|&place| recording.operations[place].clone()).collect();
            overlapped(operations, &recording.custom)
        };
        let custom = recording.custom.with_halves();
        let edges = &recording.edges;
        let inputs: Vec<TensorIr> = edges.input_gradients.iter().flatten().cloned().collect();
        let weights: Vec<TensorIr> = edges.weight_gradients.iter().map(|(_, gradient)| gradient.clone()).collect();
        let seeds: Vec<TensorIr> = edges.seeds.iter().flatten().cloned().collect();
        let constants: Vec<TensorId> = recording.constants.iter().map(|(id, _)| *id).collect();
        let read = recording.operations.iter().flat_map(OperationIr::inputs).chain(&edges.outputs);
        let constant = read.filter(|tensor| constants.contains(&tensor.id));
        let fed: Vec<TensorIr> = edges.inputs.iter().chain(&edges.parameters).chain(constant).cloned().collect();
        let forward = || Draft {
            phase: Phase::Forward,
            operations: pick(&parts.forward),
            feeds: fed.clone(),
            takes: edges.outputs.clone(),
        };
        let back = |phase, places: &[usize], feeds: &[TensorIr], takes: Vec<TensorIr>| Draft {
            phase,
            operations: pick(places),
            feeds: feeds.to_vec(),
            takes,
        };
        let split = [
            forward(),
            back(Phase::Input, &parts.input, &seeds, inputs.clone()),
            back(Phase::Weight, &parts.weight, &[], weights.clone()),
        ];
        let (products, replaced) = products(recording, &parts);
        let rest: Vec<usize> = parts.weight.iter().copied().filter(|place| !replaced.contains(place)).collect();
        let others: Vec<usize> = (0..weights.len()).filter(|at| products.iter().all(|p| p.gradient != *at)).collect();
        let operands = products.iter().flat_map(|product| [product.x.clone(), product.g.clone()]);
        let left = operands.chain(others.iter().map(|&at| weights[at].clone())).collect();
        let merged = [split[0].clone(), split[1].clone(), back(Phase::Weight, &rest, &[], left)];
        let all = inputs.into_iter().chain(weights).collect();
        let whole = [forward(), back(Phase::Backward, &both, &seeds, all)];
        let [forward, input, weight] = programs(split, recording, &custom);
        let [_, backward] = programs(whole, recording, &custom);
        let [_, _, program] = programs(merged, recording, &custom);
        let merged = MergedWeight { program, products, others };
        let programs = [forward, input, weight, backward];
        Self { programs, merged, rounded: None, edges: recording.edges.clone(), custom }
    }

    /// The programs compiled for a device, holding less between them; like [`StagePrograms::new`] if there is no
    /// compiler for it. `rounded` says whether operands of matmuls are rounded.
    pub(crate) fn compiled(recording: &Recording, device: &Device, rounded: Option<Bf16>) -> Self {
        match compiles(device) {
            true => Self::new(&holding_less(recording, rounded)).compile(rounded),
            false => Self::new(recording),
        }
    }

    /// The programs of the same recording without the gradients of the outputs at these indices, compiled if these
    /// are. `None` if the recording cannot be cut, or the backward reads what the forward has released.
    pub(crate) fn without(&self, recording: &Recording, absent: &[usize]) -> Option<Self> {
        let part = match self.is_compiled() {
            // What is held was decided for the whole recording, whose forward has run.
            true => Self::new(&holding_less(recording, self.rounded).without(absent)?),
            false => Self::new(&recording.without(absent)?),
        };
        part.continues(self).then(|| if self.is_compiled() { part.compile(self.rounded) } else { part })
    }

    fn compile(mut self, rounded: Option<Bf16>) -> Self {
        self.rounded = rounded;
        let edges = self.edges.inputs.iter().chain(self.edges.seeds.iter().flatten());
        let counted: HashSet<TensorId> = edges.map(|tensor| tensor.id).collect();
        let Self { programs, merged, .. } = &mut self;
        programs.iter_mut().chain([&mut merged.program]).for_each(|program| program.compile(rounded));
        let [forward, input, weight, backward] = programs;
        let mut after_forward = Memory::default();
        forward.find_peak(&mut after_forward, &counted);
        backward.find_peak(&mut after_forward.clone(), &counted);
        input.find_peak(&mut after_forward, &counted);
        weight.find_peak(&mut after_forward.clone(), &counted);
        merged.program.find_peak(&mut after_forward, &counted);
        self
    }

    /// The peaks of `F`, `I`, `W` and `B`, if all are known.
    pub(crate) fn peaks(&self) -> Option<[usize; 4]> {
        let [forward, input, weight, backward] = self.programs.each_ref().map(Program::known_peak);
        Some([forward?, input?, weight?, backward?])
    }

    /// Returns true if its programs are compiled.
    pub fn is_compiled(&self) -> bool {
        self.forward().compiled.is_some()
    }

    /// Returns how matmuls multiply, unless in `f32`. See `Builder::matmuls`.
    pub fn matmuls(&self) -> Option<&'static str> {
        self.rounded.map(Bf16::name)
    }

    /// Returns true if a microbatch that ran the whole recording's forward can run this backward, which lacks some
    /// gradients: it must read nothing that the forward has released.
    fn continues(&self, whole: &Self) -> bool {
        let seeds = self.edges.seeds.iter().flatten();
        let made = self.backward().operations.iter().flat_map(OperationIr::outputs).chain(seeds);
        let made: HashSet<TensorId> = made.map(|tensor| tensor.id).collect();
        let left = whole.forward().left();
        let mut read = self.backward().operations.iter().flat_map(OperationIr::inputs).chain(&self.backward().takes);
        read.all(|tensor| made.contains(&tensor.id) || left.contains(&tensor.id))
    }

    /// The tensors of the backward that depend on the gradients of the outputs at these places.
    pub(crate) fn reached(&self, places: &[usize]) -> HashSet<TensorId> {
        let seeds = places.iter().filter_map(|&place| self.edges.seeds.get(place)?.as_ref());
        let mut reached: HashSet<TensorId> = seeds.map(|seed| seed.id).collect();
        for operation in &self.backward().operations {
            if operation.inputs().any(|tensor| reached.contains(&tensor.id)) {
                reached.extend(operation.outputs().map(|tensor| tensor.id));
            }
        }
        reached
    }

    pub(crate) fn program(&self, phase: Phase) -> &Program {
        &self.programs[phase as usize]
    }

    /// The names of its operations of backend extensions, in alphabetical order; see
    /// [`CapturedOp`](super::CapturedOp).
    pub fn custom_operations(&self) -> impl Iterator<Item = &str> {
        self.custom.names()
    }

    /// `F`.
    pub fn forward(&self) -> &Program {
        self.program(Phase::Forward)
    }

    /// `I`.
    pub fn input(&self) -> &Program {
        self.program(Phase::Input)
    }

    /// `W`.
    pub fn weight(&self) -> &Program {
        self.program(Phase::Weight)
    }

    /// `B`: `I` and `W` in the order in which autodiff runs them.
    pub fn backward(&self) -> &Program {
        self.program(Phase::Backward)
    }

    /// The share of the backward's floating-point operations that `W` can defer.
    pub fn deferrable(&self) -> f64 {
        match self.input().flops + self.weight().flops {
            0 => 0.0,
            all => self.weight().flops as f64 / all as f64,
        }
    }
}

/// The recording with fewer tensors that the backward reads from the forward, and smaller ones if operands of matmuls
/// are rounded.
fn holding_less(recording: &Recording, rounded: Option<Bf16>) -> Recording {
    let less = recording.rewritten(hold_less(&recording.operations, &forward(recording)));
    match rounded.filter(|found| found.rounds()) {
        Some(_) => less.rewritten(hold_rounded(&less.operations, &forward(&less))),
        None => less,
    }
}

/// Marks the operations of the forward.
fn forward(recording: &Recording) -> Vec<bool> {
    let mut forward = vec![false; recording.operations.len()];
    slices(recording).forward.into_iter().for_each(|place| forward[place] = true);
    forward
}
