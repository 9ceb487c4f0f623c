//! Graphs of forwards that will have no backward, after a failure.
//!
//! Guarantees: what such forwards keep for their backwards is freed once nobody holds their tensors.
//!
//! Burn frees abandoned nodes of a graph in the next backward of that graph, and a module's parameters are leaves of
//! the graphs of all its forwards. So a small backward runs over one element of each parameter, and its gradient is
//! dropped.

use super::each::each_float;
use burn::backend::{AutodiffBackend, Dispatch};
use burn::module::Module;
use burn::tensor::Shape;

/// Makes Burn free what abandoned forwards of the module keep.
pub(in crate::stage) fn free_abandoned<M: Module>(module: &M) {
    each_float(module, |_, param| {
        let value = param.value();
        let elements = value.shape().num_elements();
        if param.is_trained() && elements > 0 {
            let one = value.reshape(Shape::new([elements])).narrow(0, 0, 1);
            drop(Dispatch::backward(one.into_dispatch()));
        }
    });
}
