//! Eager forwards under a seed: they draw from the device's only generator, with a proof that nobody else drew
//! meanwhile.
//!
//! Guarantees: a forward that draws returns numbers that depend only on its seed, or an error.
//!
//! 1. Forwards of the process's eager stages take turns. Each seeds the generator, runs, and then draws a few more
//!    numbers.
//! 2. If these are the first numbers of the seed, nothing was drawn ([`RngProbe`]).
//! 3. Otherwise the forward is recorded, once for each signature, to learn what it draws. A generator moves on and
//!    never back. So if the numbers are those that follow the forward's own draws, nobody else drew.
//! 4. Otherwise the buffers are restored, and the forward runs again, a few times.
//!
//! The members of a tensor-parallel group wait for each other inside their forwards, and so do expert-parallel
//! replicas: they cannot take turns. Their forwards are recorded before each run, and refused if anything draws
//! except layers that have the forward's own generator (`random::of_layers`). Without a seed, forwards of
//! tensor-parallel groups are recorded once for each signature, if possible, and refused if they draw.
//!
//! Only the generator of Flex can be followed this way. On other devices, and for a stage whose draws cannot be
//! recorded, a forward that may draw is refused.

use super::call::ForwardCall;
use super::function::StageCode;
use super::recording::{Parameters, Recorded, Refusal, Signature, record};
use crate::payload::AnyTensor;
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::options::StageOptions;
use crate::stage::random::{Drawn, ForwardSeed, RngProbe, device_generator, drawing};
use crate::stage::state::{Names, each_float, named_weights, with_weights};
use burn::module::{Module, ParamId};
use burn::tensor::Device;
use std::collections::HashMap;

/// The number of disturbed forwards after which the stage gives up.
const ATTEMPTS: usize = 16;

/// The number of signatures that are remembered.
const REMEMBERED: usize = 256;

/// Why a forward that other ranks wait for may not draw like this.
const DRAWS_OUTSIDE_LAYERS: &str = "its forward draws otherwise than by `nn::GroupDropout`, the only layer \
    that knows which piece of a tensor a rank has; use that layer instead of Burn's `Dropout`";

/// Why such a forward may not draw without a seed.
const NO_SEED: &str =
    "its forward draws without a seed that all of them draw from; give the pipeline one (`Builder::seed`)";

const DISTURBED: &str = "another thread, or `init_seeded` in the forward itself, used the device's generator each time";

/// Refuses a recorded forward of a tensor-parallel group, in which only layers that know their piece may draw, and
/// only from a seed.
pub(super) fn refuse_draws(recorded: &Recorded, seeded: bool) -> Result<(), StageError> {
    let why = match seeded {
        _ if recorded.draws_outside_layers() => DRAWS_OUTSIDE_LAYERS,
        false if !recorded.drawn().is_empty() => NO_SEED,
        _ => return Ok(()),
    };
    Err(StageError::DrawsInGroup { why })
}

/// The seed of a stage's eager forwards, and what recordings have shown of them.
#[derive(Default)]
pub(super) struct SeededDraws {
    pub(super) seed: ForwardSeed,
    /// True if other ranks wait for this one inside its forwards: its tensor-parallel group.
    awaited: bool,
    /// True if expert-parallel replicas do. Without a seed, forwards do not take turns at the device's generator, so
    /// none of them can wait for that.
    awaited_if_seeded: bool,
    capture: Option<Device>,
    /// True if the device lacks a float type; `None` before the first forward.
    pub(super) lacks_a_type: Option<bool>,
    /// What forwards draw that were recorded, and whose types were checked.
    known: HashMap<Signature, Drawn>,
    /// True if a recording was refused, and forwards may run without one.
    pub(super) unseen: bool,
}

impl SeededDraws {
    pub(super) fn new(options: &StageOptions) -> Self {
        Self { awaited: options.grouped, awaited_if_seeded: options.spread, ..Self::default() }
    }

    /// Remembers what a recorded call draws, whose types were checked.
    pub(super) fn learn(&mut self, signature: Signature, recorded: &Recorded) -> Drawn {
        let drawn = recorded.drawn();
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(signature, drawn.clone());
        drawn
    }

    /// Runs a forward whose random numbers come from the seed; without a seed, from the device's generator as it is.
    pub(super) fn run<M: Stage, T>(
        &mut self,
        code: &StageCode<'_, M>,
        call: ForwardCall,
        mut run: impl FnMut(ForwardCall) -> Result<T, StageError>,
    ) -> Result<T, StageError> {
        // A checkpoint may bring a seed.
        if self.awaited || self.awaited_if_seeded && self.seed.0.is_some() {
            return self.run_awaited(code, call, run);
        }
        let Some(seed) = self.seed.of(call.microbatch) else { return run(call) };
        let device = Parameters::of(code.module).device(&call).inner();
        let _turn = device_generator();
        let before = buffers(code.module);
        for attempt in 0..ATTEMPTS {
            device.seed(seed);
            let given = run(call.clone())?;
            let follows = |drawn: &[_]| RngProbe::after(&device, seed, drawn);
            let next = if follows(&[]).is_some() { Some(RngProbe::next(&device)?) } else { None };
            if next.is_some() && next == follows(&[]) {
                return Ok(given);
            }
            let drawn = self.drawn(code, &call, attempt > 0)?;
            if drawn.is_empty() || next.is_some() && next == follows(&drawn) {
                return Ok(given);
            }
            if next.is_none() {
                return Err(StageError::Draws { reason: "this device's generator cannot be followed".to_owned() });
            }
            restore(code.module, &before);
            std::thread::yield_now();
        }
        Err(StageError::Draws { reason: DISTURBED.to_owned() })
    }

    /// Like [`Self::run`], for forwards in which other ranks wait for this one.
    fn run_awaited<M: Stage, T>(
        &mut self,
        code: &StageCode<'_, M>,
        call: ForwardCall,
        mut run: impl FnMut(ForwardCall) -> Result<T, StageError>,
    ) -> Result<T, StageError> {
        let generator = self.seed.generator(call.microbatch);
        let seeded = generator.is_some();
        match seeded {
            true => refuse_draws(&self.recorded(code, &call)?, seeded)?,
            // Each rank would draw different numbers.
            false => self.inspect(code, &call, Drawn::is_empty, |recorded| refuse_draws(recorded, false))?,
        }
        let (given, drawn) = drawing(generator, || run(call));
        match drawn.is_empty() || seeded {
            true => given,
            false => Err(StageError::DrawsInGroup { why: NO_SEED }),
        }
    }

    /// Checks a forward as far as it can be recorded; one whose signature is known not to need it is not recorded.
    pub(super) fn inspect<M: Stage>(
        &mut self,
        code: &StageCode<'_, M>,
        call: &ForwardCall,
        is_checked: impl FnOnce(&Drawn) -> bool,
        check: impl FnOnce(&Recorded) -> Result<(), StageError>,
    ) -> Result<(), StageError> {
        let parameters = Parameters::of(code.module);
        let signature = Signature::new(call, &parameters, &[]);
        if !self.known.get(&signature).is_some_and(is_checked)
            && let Some(recorded) = self.try_record(code, call, &parameters)?
        {
            check(&recorded)?;
            self.learn(signature, &recorded);
        }
        Ok(())
    }

    fn drawn<M: Stage>(
        &mut self,
        code: &StageCode<'_, M>,
        call: &ForwardCall,
        anew: bool,
    ) -> Result<Drawn, StageError> {
        let signature = Signature::new(call, &Parameters::of(code.module), &[]);
        // Some forwards draw only later (a dropout whose probability grows), so a forward without draws is recorded
        // again.
        if let Some(known) = self.known.get(&signature).filter(|known| !anew && !known.is_empty()) {
            return Ok(known.clone());
        }
        let recorded = self.recorded(code, call)?;
        Ok(self.learn(signature, &recorded))
    }

    fn recorded<M: Stage>(&mut self, code: &StageCode<'_, M>, call: &ForwardCall) -> Result<Recorded, StageError> {
        self.record(code, call, &Parameters::of(code.module)).map_err(|refusal| match refusal {
            Refusal::Stage(error) => error,
            Refusal::Cannot(reason) => StageError::Draws { reason: format!("the stage cannot be captured: {reason}") },
        })
    }

    /// Records a forward if it can be recorded; once one cannot, no other is tried.
    fn try_record<M: Stage>(
        &mut self,
        code: &StageCode<'_, M>,
        call: &ForwardCall,
        parameters: &Parameters,
    ) -> Result<Option<Recorded>, StageError> {
        if self.unseen {
            return Ok(None);
        }
        match self.record(code, call, parameters) {
            Ok(recorded) => Ok(Some(recorded)),
            Err(Refusal::Stage(error)) => Err(error),
            Err(Refusal::Cannot(reason)) => {
                tracing::debug!(reason, "what the stage draws and casts to is not known, as it cannot be recorded");
                self.unseen = true;
                Ok(None)
            }
        }
    }

    fn record<M: Stage>(
        &mut self,
        code: &StageCode<'_, M>,
        call: &ForwardCall,
        parameters: &Parameters,
    ) -> Result<Recorded, Refusal> {
        match code.module.skip_capture() {
            Some(reason) => Err(Refusal::Cannot(reason.to_owned())),
            None => record(&mut self.capture, code, call, parameters, &[]),
        }
    }
}

/// The values of a module that has frozen float parameters, such as running statistics; `None` for other modules.
pub(super) fn buffers<M: Module>(module: &M) -> Option<HashMap<ParamId, AnyTensor>> {
    let mut frozen = false;
    each_float(module, |_, param| frozen |= !param.is_trained());
    let weights = frozen.then(|| named_weights(module, &Names::default()));
    weights.map(|weights| weights.into_iter().map(|weight| (weight.id, weight.value)).collect())
}

/// Restores buffers. Copies of a module share their state, so restoring the copy's restores the module's.
pub(super) fn restore<M: Module>(module: &M, before: &Option<HashMap<ParamId, AnyTensor>>) {
    if let Some(before) = before {
        drop(with_weights(module.clone(), before));
    }
}
