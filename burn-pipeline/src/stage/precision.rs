//! The element types of a training in mixed precision.
//!
//! Guarantees: the optimizer never steps a half-precision number, and gradients are added in f32 over microbatches,
//! replicas, routes and tied copies. The plain loop that this equals is in the guide (`half_precision`).
//!
//! 1. A stage's module computes with rounded copies of its parameters. The values that it was built with, or that were
//!    loaded, are the *masters*, in f32; the optimizer steps these, and its state is f32. After each step the copies
//!    are rounded anew.
//! 2. A gradient has the type of the copy in the backward of one microbatch. It is widened to f32 before it is added
//!    to other microbatches', replicas' or routes' gradients.
//!    [`Precision::reduce_in_half`] rounds it again where it crosses to another replica.
//! 3. Messages between stages have the type that the module gives them: half, if the module computes in half.
//! 4. In f16, small gradients would become 0, so the loss is multiplied by a factor ([`LossScale`]) before its
//!    backward, and the sums are divided by it.
//!
//! After PyTorch's `MixedPrecisionPolicy` (FSDP2) and `GradScaler`, and Micikevicius et al. 2018 (arXiv 1710.03740).

use burn::module::{ParamGroup, ParamId};
use burn::tensor::{DType, FloatDType};

/// How parameters are rounded for forward and backward; masters, gradient sums and optimizer state are f32.
///
/// f64 parameters and running statistics are not rounded. The module's own casts decide which operations compute in
/// f32 (norms, softmax, the loss). Parameters of those operations stay as they are with [`Precision::keep`].
///
/// ```
/// use burn::module::ParamGroup;
/// use burn_pipeline::stage::Precision;
///
/// let bf16 = Precision::bf16().keep(ParamGroup::from_predicate("norm"));
/// # let _ = bf16;
/// ```
#[derive(Clone, Debug)]
pub struct Precision {
    computed: FloatDType,
    /// The groups of kept parameters, each of which must match some.
    pub(crate) kept: Vec<ParamGroup>,
    pub(crate) loss_scale: Option<LossScale>,
    /// True if replicas send each other rounded gradients.
    pub(crate) reduces_in_half: bool,
}

impl Precision {
    /// Parameters rounded to bf16, which has f32's range and 8 bits.
    pub fn bf16() -> Self {
        Self { computed: FloatDType::BF16, kept: Vec::new(), loss_scale: None, reduces_in_half: false }
    }

    /// Parameters rounded to f16, which has 11 bits and a smaller range, with a loss scale that adapts itself.
    pub fn f16() -> Self {
        Self { computed: FloatDType::F16, loss_scale: Some(LossScale::default()), ..Self::bf16() }
    }

    /// Parameters in this group, by their names in the whole model, keep the type that the module gives them.
    pub fn keep(mut self, group: ParamGroup) -> Self {
        self.kept.push(group);
        self
    }

    /// Sets the loss scale.
    pub fn loss_scale(mut self, scale: LossScale) -> Self {
        self.loss_scale = Some(scale);
        self
    }

    /// Rounds the gradients that data-parallel replicas send each other to the copies' type: half the bytes. They are
    /// added in f32, and each sum is rounded once, before it is sent back.
    pub fn reduce_in_half(mut self) -> Self {
        self.reduces_in_half = true;
        self
    }

    /// The type in which a module uses a parameter of this name, which it holds in its `own` type.
    pub(in crate::stage) fn computed(&self, id: ParamId, name: &str, own: DType) -> DType {
        let keeps = || self.kept.iter().any(|group| group.matches(&id, Some(name)));
        if own == DType::F64 || keeps() { own } else { self.computed.into() }
    }
}

/// A factor of the loss in its backward, which keeps small gradients in the range of f16. It falls when a gradient
/// overflows, and that step is skipped on all ranks; it grows after a number of steps without overflow.
///
/// All factors should be powers of two: these change no digit of a gradient. It is part of checkpoints.
/// The defaults are PyTorch's (`GradScaler`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LossScale {
    /// The factor of the first step; 65,536 by default.
    pub initial: f64,
    /// What it is multiplied by when it grows; 2 by default. 1 never grows.
    pub growth: f64,
    /// What it is multiplied by after an overflow; 0.5 by default.
    pub backoff: f64,
    /// The number of steps in a row without overflow after which it grows; 2,000 by default.
    pub interval: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { initial: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000 }
    }
}

impl LossScale {
    /// Why these numbers are no loss scale, if they are none.
    pub(crate) fn refused(&self) -> Option<&'static str> {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        match () {
            () if !positive(self.initial) => Some("its initial factor must be above 0"),
            () if !(positive(self.growth) && self.growth >= 1.0) => Some("it must grow by 1 or more"),
            () if !(positive(self.backoff) && self.backoff < 1.0) => Some("it must fall by a factor below 1"),
            () if self.interval == 0 => Some("its interval must be 1 or more"),
            () => None,
        }
    }
}
