//! What a user implements: a part of a model as a Burn module.

#[cfg(doc)]
use crate::stage::batch::Loss;
use crate::stage::boundary::Boundary;
use burn::module::Module;

/// A contiguous part of a model, as a Burn module.
pub trait Stage: Module + Sync + 'static {
    /// What arrives from the stage before, or from the batch on the first stage.
    type Input: Boundary;
    /// What the stage reads beside its input, cut per microbatch (masks, document ids); `()` for nothing.
    type Extra: Boundary;
    /// What goes to the next stage, or to the loss on the last one.
    type Output: Boundary;

    /// Names of the batch's extras that make up [`Stage::Extra`], in its order.
    fn extras(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// The part's forward pass.
    fn forward(&self, input: Self::Input, extra: Self::Extra) -> Self::Output;

    /// The part once its weights were stepped; by default as it is. Here is moved what follows a rule instead of a
    /// gradient, such as a bias that balances the load of experts.
    ///
    /// `observed` is what the loss function had observed ([`Loss::observing`]) of every microbatch since the step before,
    /// accumulated batches in their order: the same on every rank and replica, whatever the schedule. What is moved must
    /// be no trained parameter (`set_require_grad(false)`), and keep its id; then it is saved, loaded and fed to captured
    /// programs as any parameter is, and stays whole where parameters are sharded (trained ones are pieces here).
    ///
    /// # Panics
    /// A panic is caught; it ends the step with an error that names rank and stage, and closes the pipeline.
    fn after_step(self, _observed: &[Vec<f64>]) -> Self {
        self
    }

    /// Why this part cannot be captured, if it is known: its forward reads values, or does something beside tensors.
    ///
    /// What is found when a capture is tried needs no mention. But a capture is tried by running the forward, which
    /// then ends in a caught panic, and the process's panic hook may print that; a part that says it first is not tried.
    fn skip_capture(&self) -> Option<&'static str> {
        None
    }
}
