//! The tasks that compute deferred weight gradients, between `I` and `W`.
//!
//! Guarantees: a task runs once, in the order of the backward that left it, and releases what it holds when it ends.
//! A scope ends with the call that opened it, even by a panic, and exists only for its own thread.

use crate::scoped::scoped;
use burn::backend::autodiff::grads::Gradients;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::Arc;

type Task = Box<dyn FnOnce(&mut Gradients) + Send>;

/// A gradient that does not fit its operand.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the deferred operation `{operation}` gave a gradient of shape {got:?} for operand {operand}, which has shape \
     {expected:?}; shape, element type and backend must be the operand's"
)]
pub struct DeferredError {
    /// The operation's name.
    pub operation: &'static str,
    /// The index of the operand, from 0.
    pub operand: usize,
    /// The shape of the gradient.
    pub got: Vec<usize>,
    /// The shape of the operand.
    pub expected: Vec<usize>,
}

burn_pipeline_plan::debug_as_text!(DeferredError);

#[derive(Default)]
struct Waiting {
    tasks: Vec<Task>,
    error: Option<Box<DeferredError>>,
}

/// The weight gradients of one microbatch that are still to be computed; clones share them.
#[derive(Clone, Default)]
pub struct Deferral(Arc<Mutex<Waiting>>);

thread_local! {
    static OPEN: RefCell<Option<Deferral>> = const { RefCell::new(None) };
}

impl std::fmt::Debug for Deferral {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deferral").field("waiting", &self.waiting()).finish()
    }
}

impl Deferral {
    /// Runs a forward whose deferred operations leave their weight gradients here.
    pub fn scope<T>(&self, forward: impl FnOnce() -> T) -> T {
        scoped(&OPEN, Some(self.clone()), forward).0
    }

    /// The innermost scope that this thread is in.
    pub fn open() -> Option<Self> {
        OPEN.with_borrow(Clone::clone)
    }

    /// Returns true if this thread is in a scope.
    pub fn is_open() -> bool {
        OPEN.with_borrow(Option::is_some)
    }

    /// The number of operations whose weight gradients are deferred: 0 before the backward and after [`Deferral::run`].
    pub fn waiting(&self) -> usize {
        self.0.lock().tasks.len()
    }

    /// Computes the weight gradients and adds them to those of the backward that left them.
    ///
    /// # Errors
    /// Returns [`DeferredError`] if an operation gave a gradient that does not fit its operand, now or in backward.
    pub fn run(&self, gradients: &mut Gradients) -> Result<(), Box<DeferredError>> {
        let tasks = std::mem::take(&mut self.0.lock().tasks);
        tasks.into_iter().for_each(|task| task(gradients));
        self.check()
    }

    /// Checks that every gradient so far fit its operand.
    ///
    /// # Errors
    /// Returns the first [`DeferredError`].
    pub fn check(&self) -> Result<(), Box<DeferredError>> {
        self.0.lock().error.take().map_or(Ok(()), Err)
    }

    /// Leaves a task for [`Deferral::run`].
    pub(super) fn push(&self, task: impl FnOnce(&mut Gradients) + Send + 'static) {
        self.0.lock().tasks.push(Box::new(task));
    }

    /// Records the first error; a step of a backward cannot return one.
    pub(super) fn fail(&self, error: DeferredError) {
        self.0.lock().error.get_or_insert_with(|| Box::new(error));
    }
}
