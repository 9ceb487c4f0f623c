//! One layer of a model: its name, how its module is made, and its forward.

use super::carried::Carried;
use super::context::{ForwardContext, LayerContext, LayerGroups};
use super::ports::{Extras, Port, Ports};
use crate::payload::{Boundary, BoundaryError, Skip};
use crate::stage::init_seeded;
use burn::module::Module;
use std::any::TypeId;
use std::sync::Arc;

pub(super) type Make<M> = Arc<dyn Fn(u64, &LayerContext, &LayerGroups) -> M + Send + Sync>;
type RunOf<M, I, O> = dyn Fn(&M, I, &mut Carried) -> Result<O, BoundaryError> + Send + Sync;
type Run<M, I, O> = Arc<RunOf<M, I, O>>;
/// Runs the modules that a stage holds of a layer, of which there is at least one.
pub(super) type RunHeld<M, I, O> = fn(&Layer<M, I, O>, &[M], I, &mut Carried) -> Result<O, BoundaryError>;
type Rule<M> = Arc<dyn Fn(M, usize, &[Vec<f64>]) -> M + Send + Sync>;
type Reason<M> = Arc<dyn Fn(&M) -> Option<&'static str> + Send + Sync>;

/// A layer that turns an `I` into an `O`, with a module `M` of any type.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Bool, Tensor, activation::gelu};
/// use burn_pipeline::layers::Layer;
///
/// let linear = |at: &burn_pipeline::layers::LayerContext| LinearConfig::new(8, 8).init(&at.device);
/// // The module's own method, a closure, and a closure that also reads an extra of the batch.
/// let plain: Layer<_, Tensor<3>, Tensor<3>> = Layer::new("up", linear, Linear::forward);
/// let curved = Layer::new("up", linear, |up: &Linear, x: Tensor<3>| gelu(up.forward(x)));
/// let masked = Layer::new("up", linear, |up: &Linear, (x, mask): (Tensor<3>, Tensor<3, Bool>)| {
///     up.forward(x).mask_fill(mask, 0.0)
/// });
/// let masked = masked.extras(["mask"]);
/// # let _ = (plain, curved, masked);
/// ```
pub struct Layer<M, I, O> {
    pub(super) name: String,
    pub(super) make: Make<M>,
    pub(super) run: Run<M, I, O>,
    pub(super) rule: Option<Rule<M>>,
    pub(super) reason: Option<Reason<M>>,
    pub(super) ports: Ports,
    pub(super) recomputed: bool,
}

impl<M, I, O> Layer<M, I, O> {
    /// Runs a single layer.
    pub(super) fn run_one(&self, modules: &[M], input: I, carried: &mut Carried) -> Result<O, BoundaryError> {
        match modules {
            [module] => carried.in_layer(&self.name, |carried| (self.run)(module, input, carried)),
            _ => Err(BoundaryError::Missing { expected: "a layer" }),
        }
    }
}

impl<M, T> Layer<M, T, T> {
    /// Runs a repeated layer.
    pub(super) fn run_each(&self, modules: &[M], input: T, carried: &mut Carried) -> Result<T, BoundaryError> {
        let run = |value, module| carried.in_layer(&self.name, |carried| (self.run)(module, value, carried));
        modules.iter().try_fold(input, run)
    }
}

/// A whole layer whose values are drawn from this seed.
fn seeded<W: Module>(seed: u64, at: &LayerContext, make: &dyn Fn(&LayerContext) -> W) -> W {
    init_seeded(seed, &at.device, |device| make(&LayerContext { device: device.clone(), ..at.clone() }))
}

impl<M, I, O> std::fmt::Debug for Layer<M, I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layer").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<M: Module + Sync + 'static, I: 'static, O: 'static> Layer<M, I, O> {
    /// A layer of this name, which is the first part of its parameters' names: `head.weight`, or `blocks.4.weight` if
    /// it is repeated.
    ///
    /// `make` is called on the rank that holds the layer. It must make everything on the context's device. What it
    /// draws is seeded by the layer's index ([`init_seeded`](crate::init_seeded)). It cannot exchange anything with
    /// other ranks: see [`Layer::cut`].
    pub fn new(
        name: impl Into<String>,
        make: impl Fn(&LayerContext) -> M + Send + Sync + 'static,
        forward: impl Fn(&M, I) -> O + Send + Sync + 'static,
    ) -> Self {
        Self::made(name.into(), Arc::new(move |seed, at, _| seeded(seed, at, &make)), forward)
    }

    /// A layer of which each rank that holds its stage has a piece: `make` makes the whole one, as for [`Layer::new`],
    /// and `cut` takes this rank's piece of it. All members of a group cut together.
    pub fn cut<W: Module>(
        name: impl Into<String>,
        make: impl Fn(&LayerContext) -> W + Send + Sync + 'static,
        cut: impl Fn(W, &LayerGroups) -> M + Send + Sync + 'static,
        forward: impl Fn(&M, I) -> O + Send + Sync + 'static,
    ) -> Self {
        // A cut exchanges values with other ranks, so it cannot be part of what is made twice, in turns.
        Self::made(name.into(), Arc::new(move |seed, at, groups| cut(seeded(seed, at, &make), groups)), forward)
    }

    fn made(name: String, make: Make<M>, forward: impl Fn(&M, I) -> O + Send + Sync + 'static) -> Self {
        let run: Run<M, I, O> = Arc::new(move |module, input, _| Ok(forward(module, input)));
        Self { name, make, run, rule: None, reason: None, ports: Ports::default(), recomputed: false }
    }

    /// Sets the rule that changes parameters after each step, as [`Stage::after_step`](crate::Stage::after_step) does.
    /// It also gets the layer's [`position`](LayerContext::position).
    pub fn after_step(mut self, rule: impl Fn(M, usize, &[Vec<f64>]) -> M + Send + Sync + 'static) -> Self {
        self.rule = Some(Arc::new(rule));
        self
    }

    /// Sets the function that gives a reason not to capture a stage that holds the layer, as
    /// [`Stage::skip_capture`](crate::Stage::skip_capture) does.
    pub fn skip_capture(mut self, reason: impl Fn(&M) -> Option<&'static str> + Send + Sync + 'static) -> Self {
        self.reason = Some(Arc::new(reason));
        self
    }

    /// Recomputes the activations of every stage that holds this layer ([`StageBox::recomputed`]), whichever layers the
    /// cut puts beside it: a stage is one graph of Burn's autodiff, and is recomputed whole.
    ///
    /// [`StageBox::recomputed`]: crate::stage::StageBox::recomputed
    pub fn recomputed(mut self) -> Self {
        self.recomputed = true;
        self
    }

    /// The layer with a forward that calls its own one.
    fn around<J, P>(
        self,
        around: impl Fn(&RunOf<M, I, O>, &M, J, &mut Carried) -> Result<P, BoundaryError> + Send + Sync + 'static,
    ) -> Layer<M, J, P> {
        let Self { name, make, run, rule, reason, ports, recomputed } = self;
        let run: Run<M, J, P> = Arc::new(move |module, input, carried| around(&*run, module, input, carried));
        Layer { name, make, run, rule, reason, ports, recomputed }
    }
}

impl<M: Module + Sync + 'static, I: 'static, E: Boundary, O: 'static> Layer<M, (I, E), O> {
    /// Reads extras of the batch as the second value of the forward's input: one value, or a tuple with one for each
    /// name. Every batch must hold them.
    pub fn extras<const N: usize>(mut self, names: [&'static str; N]) -> Layer<M, I, O> {
        self.ports.extras.push(Extras::of::<E>(names.to_vec()));
        self.around(move |run, module, input, carried| {
            let extra = E::from_payload(carried.extras(&names, TypeId::of::<E>()))?;
            run(module, (input, extra), carried)
        })
    }
}

impl<M: Module + Sync + 'static, I: 'static, O: 'static> Layer<M, (I, ForwardContext), O> {
    /// Gives the forward its context as the second value of its input.
    ///
    /// A number of the context is a number of the host: a captured stage is recorded for each microbatch, and keeps
    /// programs for each value that changes its operations
    /// ([`Tuning::captured_programs`](crate::execute::Tuning::captured_programs) bounds them).
    pub fn with_context(self) -> Layer<M, I, O> {
        self.around(|run, module, input, carried| {
            let context = carried.context();
            run(module, (input, context), carried)
        })
    }
}

impl<M: Module + Sync + 'static, I: 'static, T: Boundary, O: 'static> Layer<M, (I, Skip<T>), O> {
    /// Takes the value that an earlier layer gave under this key ([`Layer::skip_out`]) as the second value of the
    /// forward's input: the last one that no layer has taken. A repeated layer takes one in each repetition.
    pub fn skip_in(mut self, key: &'static str) -> Layer<M, I, O> {
        self.ports.takes.insert(0, Port::of::<T>(key));
        self.around(move |run, module, input, carried| {
            let value = T::from_payload(carried.take(key)?)?;
            run(module, (input, Skip(value)), carried)
        })
    }
}

impl<M: Module + Sync + 'static, I: 'static, O: 'static, T: Boundary> Layer<M, I, (O, Skip<T>)> {
    /// Gives the second value of the forward's output to the later layer that takes it ([`Layer::skip_in`]), past the
    /// layers between. If the two are on different stages, it goes there directly, as
    /// [`Builder::skip`](crate::Builder::skip) does.
    pub fn skip_out(mut self, key: &'static str) -> Layer<M, I, O> {
        self.ports.gives.push(Port::of::<T>(key));
        self.around(move |run, module, input, carried| {
            let (output, Skip(value)) = run(module, input, carried)?;
            carried.give(key, value.into_payload());
            Ok(output)
        })
    }
}
