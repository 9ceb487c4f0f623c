//! The values of a module's parameters, computed of draws from a generator of their own.

use crate::program::{CustomOps, Edges, Recording, alike, computed, configured, edge, quietly};
use crate::stage::boundary::AnyTensor;
use burn::backend::ir::TensorIr;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Device, Int, Tensor};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The device that modules are made on to be recorded; a process can open only a few.
static CAPTURE: Mutex<Option<Device>> = Mutex::new(None);

/// The value of each parameter and buffer, each once, in visiting order; `None` if the module cannot be recorded.
pub(super) fn drawn_apart<M: Module>(
    seed: u64,
    device: &Device,
    make: impl Fn(&Device) -> M,
) -> Option<Vec<AnyTensor>> {
    let capture = {
        let mut held = CAPTURE.lock().unwrap_or_else(PoisonError::into_inner);
        held.take_if(|capture| !alike(capture, device));
        held.get_or_insert_with(Device::capture).clone()
    };
    let mut outputs = None;
    let recorded = quietly(|| {
        capture.capture_scope(|scope| {
            if configured(&capture, device).is_ok() {
                let mut edges = Outputs::default();
                make(&capture).visit(&mut edges);
                outputs = edges.found.into_iter().collect::<Option<Vec<TensorIr>>>();
            }
            scope.complete([], [])
        })
    });
    let recorded = recorded.ok()?.ok()?;
    let edges = Edges { outputs: outputs?, ..Edges::default() };
    let recording = Recording::new(recorded.graph.operations, recorded.values, edges, CustomOps::default());
    let values = quietly(|| computed(&recording, device, StdRng::seed_from_u64(seed))).ok()??.ok()?;
    Some(values.into_iter().map(AnyTensor::from_dispatch).collect())
}

/// The values of parameters on the capture device.
#[derive(Default)]
struct Outputs {
    seen: HashSet<ParamId>,
    /// `None` for a value that is elsewhere.
    found: Vec<Option<TensorIr>>,
}

impl Outputs {
    fn add<const D: usize, K: Basic>(&mut self, id: ParamId, value: Tensor<D, K>) {
        if self.seen.insert(id) {
            self.found.push(edge(AnyTensor::new(value).as_dispatch()).ok());
        }
    }
}

impl ModuleVisitor for Outputs {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(param.id, param.base());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.id, param.base());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param.id, param.base());
    }
}
