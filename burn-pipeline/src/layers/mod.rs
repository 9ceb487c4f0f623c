//! A model as a list of layers, which the pipeline cuts into stages.
//!
//! Guarantees: the output type of each layer is the input type of the next one, checked by the compiler. A model's
//! numbers, parameter names and initial values do not depend on its cut.
//!
//! 1. A [`Layer`] is a name, a function that makes a module, and the module's forward. What it reads besides the output
//!    of the layer before (extras of the batch, values from further back) is declared by name, and typed as well.
//! 2. A [`Sequential`] joins layers, and its loss makes it a [`Model`], whose stages can hold any consecutive layers.
//! 3. `Wiring` decides, from the cut, what enters and leaves a stage. All that crosses its boundary travels as one
//!    flat list.
//! 4. A stage's module is a chain of all entries, each with the layers that the stage holds. Burn visits it as a module
//!    with one field for each entry, so parameters have the same names in every cut.
//!
//! Reading order: `ports`, `layer`, `sequential`, `model`, `wiring`, `carried` (a forward's values that go past
//! layers), `entry`, `chain` (the module of a stage), `part` (it as a stage). After PyTorch's
//! `nn.Sequential` and DeepSpeed's `PipelineModule`.

// Public for the types of `Sequential`, which the compiler must be able to name.
#[doc(hidden)]
pub mod carried;
#[doc(hidden)]
pub mod chain;
mod context;
mod entry;
mod error;
mod layer;
mod model;
mod part;
mod ports;
mod sequential;
mod wiring;

pub use chain::Chain;
pub use context::{ForwardContext, LayerContext, LayerGroups};
pub use error::LayersError;
pub use layer::Layer;
pub use model::Model;
pub use sequential::Sequential;
