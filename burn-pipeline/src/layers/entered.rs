//! One entry of a list of layers: a layer, or a repeated one.

use super::carried::Carried;
use super::layer::Layer;
use crate::payload::{Boundary, BoundaryError};
use burn::module::Module;
use std::fmt::Debug;
use std::sync::Arc;

/// An entry's forward: one layer, or several alike.
pub trait Entered: Clone + Debug + Send + Sync + 'static {
    /// A layer's module.
    type Module: Module + Sync + 'static;
    /// What it takes.
    type Input: Boundary;
    /// What it gives.
    type Output: Boundary;
    /// Runs the modules that the stage holds, of which there is at least one.
    ///
    /// # Errors
    /// Returns [`BoundaryError`] if the carried values are not theirs.
    fn run(
        &self,
        modules: &[Self::Module],
        input: Self::Input,
        carried: &mut Carried,
    ) -> Result<Self::Output, BoundaryError>;
    /// The layer.
    fn layer(&self) -> &Layer<Self::Module, Self::Input, Self::Output>;
}

/// A layer.
pub struct One<M, I, O>(pub(super) Arc<Layer<M, I, O>>);

/// A layer that is repeated.
pub struct Many<M, T>(pub(super) Arc<Layer<M, T, T>>);

impl<M, I, O> Clone for One<M, I, O> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M, T> Clone for Many<M, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M, I, O> Debug for One<M, I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<M, T> Debug for Many<M, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<M: Module + Sync + 'static, I: Boundary, O: Boundary> Entered for One<M, I, O> {
    type Module = M;
    type Input = I;
    type Output = O;

    fn run(&self, modules: &[M], input: I, carried: &mut Carried) -> Result<O, BoundaryError> {
        match modules {
            [module] => carried.in_layer(|carried| (self.0.run)(module, input, carried)),
            _ => Err(BoundaryError::Missing { expected: "a layer" }),
        }
    }

    fn layer(&self) -> &Layer<M, I, O> {
        &self.0
    }
}

impl<M: Module + Sync + 'static, T: Boundary> Entered for Many<M, T> {
    type Module = M;
    type Input = T;
    type Output = T;

    fn run(&self, modules: &[M], input: T, carried: &mut Carried) -> Result<T, BoundaryError> {
        let run = |value, module| carried.in_layer(|carried| (self.0.run)(module, value, carried));
        modules.iter().try_fold(input, run)
    }

    fn layer(&self) -> &Layer<M, T, T> {
        &self.0
    }
}
