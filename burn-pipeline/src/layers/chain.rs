//! All entries of a list of layers, with their types, and the module that a stage holds of them.
//!
//! A list is a type, not a vector of trait objects, because Burn's modules take generic visitors.
//!
//! 1. [`Start`] is the empty list. [`Then`] is a list with one more entry: a layer, which may be repeated.
//! 2. For a range of layers, a list makes a chain of modules of its own shape: [`Joined`] has an `Entry` for each,
//!    most of them empty.
//! 3. A forward passes through the whole chain. It reads its input where the stage's first layer is, and keeps its
//!    output after the last one; both are in [`Carried`].

use super::carried::Carried;
use super::context::{LayerContext, LayerGroups};
use super::entry::Entry;
use super::layer::{Layer, RunHeld};
use crate::panics::located;
use crate::payload::{Boundary, BoundaryError};
use crate::stage::{Names, named_weights};
use crate::transparent::transparent;
use burn::module::{Module, ParamId};
use burn::tensor::Device;
use std::any::Any;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// The types of a list of layers; [`Sequential`](super::Sequential) makes them.
pub trait Chain: Send + Sync + 'static {
    /// What the first layer takes.
    type Input: Boundary;
    /// What the last layer gives.
    type Output: Boundary;
    /// The module of a stage.
    #[doc(hidden)]
    type Module: Links<Input = Self::Input, Output = Self::Output>;
    /// The number of layers.
    #[doc(hidden)]
    fn layers(&self) -> usize;
    /// The module of a stage that holds these layers; `seed` is the model's.
    #[doc(hidden)]
    fn make(&self, held: &Range<usize>, device: &Device, groups: &LayerGroups, seed: u64) -> Self::Module;
}

/// The module that a stage holds of a list of layers. The default methods are those of a list without layers.
pub trait Links: Module + Sync + 'static {
    /// What the first layer takes.
    type Input: Boundary;
    /// What the last layer gives.
    type Output: Boundary;
    /// Runs the layers that the stage holds. Returns the last layer's output if the stage holds it; the output of an
    /// earlier one is in `carried`.
    ///
    /// # Errors
    /// Returns [`BoundaryError`] if the input is not theirs.
    fn run(&self, carried: &mut Carried) -> Result<Option<Self::Output>, BoundaryError>;
    /// Applies the layers' own rules.
    fn after_step(self, observed: &[Vec<f64>]) -> Self {
        let _ = observed;
        self
    }
    /// Returns true if a layer has a rule.
    fn has_rule(&self) -> bool {
        false
    }
    /// The parameters of layers that have a rule.
    fn ruled(&self) -> Vec<ParamId> {
        Vec::new()
    }
    /// Gives the module of the layer before which the stage holds this many, in an `Option`, and its position to
    /// `change`.
    fn with_layer(self, before: &mut Option<usize>, change: &mut dyn FnMut(&mut dyn Any, usize)) -> Self {
        let _ = (before, change);
        self
    }
    /// Returns the first layer's reason not to capture the stage.
    fn skip_capture(&self) -> Option<&'static str> {
        None
    }
}

/// The empty list before a model's first layer, and its module.
pub struct Start<I>(pub(super) PhantomData<fn(I) -> I>);

impl<I> Clone for Start<I> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<I> Debug for Start<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Start")
    }
}

/// A list with one more entry.
pub struct Then<C: Chain, M, O> {
    pub(super) before: C,
    pub(super) layer: Arc<Layer<M, C::Output, O>>,
    pub(super) run: RunHeld<M, C::Output, O>,
    /// How often the layer is repeated; `None` for a single one.
    pub(super) times: Option<usize>,
}

impl<C: Chain + Debug, M, O> Debug for Then<C, M, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entry(&self.before).entry(&self.layer.name).finish()
    }
}

/// The modules that a stage holds of a list with one more entry.
pub struct Joined<A: Links, M, O> {
    before: A,
    entry: Entry<M>,
    layer: Arc<Layer<M, A::Output, O>>,
    run: RunHeld<M, A::Output, O>,
}

impl<A: Links, M: Clone, O> Clone for Joined<A, M, O> {
    fn clone(&self) -> Self {
        let Self { before, entry, layer, run } = self;
        Self { before: before.clone(), entry: entry.clone(), layer: layer.clone(), run: *run }
    }
}

impl<A: Links, M: Debug, O> Debug for Joined<A, M, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entry(&self.before).entry(&self.entry).finish()
    }
}

impl<I: Boundary> Chain for Start<I> {
    type Input = I;
    type Output = I;
    type Module = Self;

    fn layers(&self) -> usize {
        0
    }

    fn make(&self, _: &Range<usize>, _: &Device, _: &LayerGroups, _: u64) -> Self {
        self.clone()
    }
}

impl<C: Chain, M: Module + Sync + 'static, O: Boundary> Chain for Then<C, M, O> {
    type Input = C::Input;
    type Output = O;
    type Module = Joined<C::Module, M, O>;

    fn layers(&self) -> usize {
        self.before.layers() + self.times.unwrap_or(1)
    }

    fn make(&self, held: &Range<usize>, device: &Device, groups: &LayerGroups, seed: u64) -> Self::Module {
        let before = self.before.make(held, device, groups, seed);
        let (start, layer) = (self.before.layers(), self.layer.clone());
        let own: Vec<usize> = (start..self.layers()).filter(|layer| held.contains(layer)).collect();
        let make = |&index: &usize| {
            let seed = seed.wrapping_mul(LAYERS).wrapping_add(index as u64);
            let at = LayerContext { layer: index, position: index - start, device: device.clone() };
            located(|| format!("layer {index} (`{}`)", layer.name), || (layer.make)(seed, &at, groups))
        };
        let entry = Entry {
            name: layer.name.as_str().into(),
            repeated: self.times.is_some(),
            first: own.first().map_or(0, |first| first - start),
            modules: own.iter().map(make).collect(),
        };
        Joined { before, entry, layer, run: self.run }
    }
}

/// Keeps the seeds of two models' layers apart: a layer's is the model's times this, plus the layer's index.
const LAYERS: u64 = 1_000_003;

impl<I: Boundary> Links for Start<I> {
    type Input = I;
    type Output = I;

    fn run(&self, _: &mut Carried) -> Result<Option<I>, BoundaryError> {
        Ok(None)
    }
}

impl<A: Links, M: Module + Sync + 'static, O: Boundary> Links for Joined<A, M, O> {
    type Input = A::Input;
    type Output = O;

    fn run(&self, carried: &mut Carried) -> Result<Option<O>, BoundaryError> {
        let value = self.before.run(carried)?;
        if self.entry.modules.is_empty() {
            if let Some(value) = value {
                carried.finish(value);
            }
            return Ok(None);
        }
        let value = value.map_or_else(|| carried.enter(), Ok)?;
        (self.run)(&self.layer, &self.entry.modules, value, carried).map(Some)
    }

    fn after_step(self, observed: &[Vec<f64>]) -> Self {
        let before = self.before.after_step(observed);
        let entry = match &self.layer.rule {
            Some(rule) => self.entry.changed(|module, position| rule(module, position, observed)),
            None => self.entry,
        };
        Self { before, entry, ..self }
    }

    fn has_rule(&self) -> bool {
        self.before.has_rule() || (self.layer.rule.is_some() && !self.entry.modules.is_empty())
    }

    fn ruled(&self) -> Vec<ParamId> {
        let mut ids = self.before.ruled();
        if self.layer.rule.is_some() {
            ids.extend(named_weights(&self.entry, &Names::default()).into_iter().map(|weight| weight.id));
        }
        ids
    }

    fn with_layer(self, before: &mut Option<usize>, change: &mut dyn FnMut(&mut dyn Any, usize)) -> Self {
        let chain = self.before.with_layer(before, change);
        let entry = self.entry.changed(|module, position| {
            let mut module = Some(module);
            if *before == Some(0) {
                change(&mut module, position);
            }
            *before = before.and_then(|left| left.checked_sub(1));
            // The function takes the module only to put another one there.
            module.unwrap_or_else(|| panic!("the layer's new module is missing"))
        });
        Self { before: chain, entry, ..self }
    }

    fn skip_capture(&self) -> Option<&'static str> {
        let own = || self.entry.modules.iter().find_map(|module| self.layer.reason.as_ref()?(module));
        self.before.skip_capture().or_else(own)
    }
}

transparent!([I: Boundary] Start<I> {});
transparent!([A: Links, M: Module + Sync + 'static, O: Boundary] Joined<A, M, O> { before, entry });
