//! Graphs of forwards that will have no backward, after a failure.
//!
//! Guarantees: what such forwards keep for their backwards is freed once nobody holds their tensors.
//!
//! Burn frees abandoned nodes of a graph in the next backward of that graph, and a module's parameters are leaves of
//! the graphs of all its forwards. So a small backward runs over one element of each parameter, and its gradient is
//! dropped.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// Makes Burn free what abandoned forwards of the module keep.
pub(in crate::stage) fn free_abandoned<M: Module>(module: &M) {
    struct Free;

    impl ModuleVisitor for Free {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if value.is_require_grad() && value.shape().num_elements() > 0 {
                drop(value.reshape([-1]).narrow(0, 0, 1).backward());
            }
        }
    }

    module.visit(&mut Free);
}
