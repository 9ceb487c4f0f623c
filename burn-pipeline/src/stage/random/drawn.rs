//! The values of a module's parameters, computed with draws from the module's own generator; and whether the module
//! also holds drawn tensors that Burn's visitors do not show.

use super::following::Drawn;
use crate::panics::quietly;
use crate::payload::AnyTensor;
use crate::program::{CustomOps, Edges, Recording, alike, computed, configured, draw, edge};
use crate::stage::state::values;
use burn::backend::ir::{GraphIr, OperationIr, TensorId, TensorIr};
use burn::module::{Module, ModuleMapper, Param, Parameter};
use burn::tensor::{Bool, Device, Int, Tensor};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::HashSet;

/// The device on which modules are made to be recorded; a process can open only a few.
static CAPTURE: Mutex<Option<Device>> = Mutex::new(None);

/// Makes later recordings use another device: a thread that hangs may be recording on this one.
pub(super) fn open_another_capture() {
    *CAPTURE.lock() = None;
}

/// The recorded values of a module.
pub(super) struct DrawnApart {
    /// The value of each parameter and buffer, each once, in visiting order.
    pub(super) values: Vec<AnyTensor>,
    /// Everything that is drawn, in order, if something drawn is also elsewhere in the module (such as in a plain
    /// field).
    pub(super) elsewhere: Option<Drawn>,
}

/// Computes the module's values with draws from its own generator; `None` if the module cannot be recorded.
pub(super) fn drawn_apart<M: Module>(seed: u64, device: &Device, make: impl Fn(&Device) -> M) -> Option<DrawnApart> {
    let capture = {
        let mut held = CAPTURE.lock();
        held.take_if(|capture| !alike(capture, device));
        held.get_or_insert_with(Device::capture).clone()
    };
    let mut outputs = None;
    let mut marks = 0;
    let recorded = quietly(|| {
        capture.capture_scope(|scope| {
            if configured(&capture, device).is_ok() {
                let module = make(&capture);
                outputs = edges(&module);
                let mut marked = Marked(0);
                drop(module.map(&mut marked));
                marks = marked.0;
            }
            scope.complete([], [])
        })
    });
    let recorded = recorded.ok()?.ok()?;
    let mut operations = recorded.graph.operations;
    let elsewhere = stays(&operations, marks).then(|| operations.iter().filter_map(draw).map(|d| d.what()).collect());
    operations.truncate(operations.len().saturating_sub(marks));
    let edges = Edges { outputs: outputs?, ..Edges::default() };
    let recording = Recording::new(operations, recorded.values, edges, CustomOps::default());
    let values = quietly(|| computed(&recording, device, StdRng::seed_from_u64(seed))).ok()??.ok()?;
    Some(DrawnApart { values: values.into_iter().map(AnyTensor::from_dispatch).collect(), elsewhere })
}

/// The parameters on the capture device, each once; `None` if one is on another device.
fn edges<M: Module>(module: &M) -> Option<Vec<TensorIr>> {
    let mut seen = HashSet::new();
    let each = values(module).into_iter().filter(|(id, _)| seen.insert(*id));
    each.map(|(_, value)| edge(value.as_dispatch()).ok()).collect()
}

/// Consumes each parameter with one operation: tensors that are left then are held by something else.
struct Marked(usize);

impl Marked {
    fn marked<T: Parameter>(&mut self, param: Param<T>, mark: impl FnOnce(T) -> T) -> Param<T> {
        self.0 += 1;
        let (id, tensor, mapper) = param.consume();
        Param::from_mapped_value(id, mark(tensor), mapper)
    }
}

impl ModuleMapper for Marked {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.marked(param, Tensor::neg)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.marked(param, Tensor::neg)
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        self.marked(param, Tensor::bool_not)
    }
}

/// Returns true if no operation consumes a tensor that was computed from a draw. The last operations are marks.
fn stays(operations: &[OperationIr], marks: usize) -> bool {
    let made = operations.len().saturating_sub(marks);
    let mut random: HashSet<TensorId> = HashSet::new();
    for op in &operations[..made] {
        if draw(op).is_some() || op.inputs().any(|input| random.contains(&input.id)) {
            random.extend(op.outputs().map(|output| output.id));
        }
    }
    GraphIr::classify(operations).outputs.iter().any(|left| random.contains(left))
}
