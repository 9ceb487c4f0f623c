//! Draws that are not recorded with a forward: those on a device that the forward names itself (a coin for stochastic
//! depth, read back by `into_scalar`). They come from that device's generator, which the pipeline's seed does not
//! set.
//!
//! Guarantees, under a seed: a stage whose forwards all make such draws is refused after [`ENOUGH`] of them were
//! recorded, unless other threads draw without a pause. A stage without such draws is refused with a probability of at
//! most 2^-32, whatever other threads draw.
//!
//! 1. In doubt, a forward is recorded while no other code that seeds the generators runs: they are seeded, the
//!    forward is recorded, and the next numbers are compared with those that follow the seed. If they are equal,
//!    nobody drew, and there is no doubt until a new forward is recorded.
//! 2. Otherwise the same is done without a forward, for as long. If others drew in that time too, nothing is known.
//! 3. If they did not, the forward likely drew. [`ENOUGH`] such forwards in a row, without one that did not draw, are
//!    proof: others who draw in a share p of all such times cause it with probability (p / (1 + p))^[`ENOUGH`].

use crate::stage::error::StageError;
use crate::stage::random::{RngProbe, device_generator};
use burn::tensor::Device;
use std::time::Instant;

/// The number of likely draws that are proof.
const ENOUGH: usize = 32;

const DRAWS: &str = "its forwards draw on a device that they name themselves, from a generator that the seed does \
    not reach (draw on the device of the input, `x.device()`, and read nothing back; or take coins from a generator \
    of your own, or give them to the batch as extras)";

/// What is known about a stage's unrecorded draws.
#[derive(Debug, Default)]
pub(super) struct UntrackedDraws {
    /// True if a forward like the last one was shown not to draw.
    trusted: bool,
    /// The number of forwards that likely drew.
    suspicions: usize,
}

impl UntrackedDraws {
    /// Watches forwards again.
    pub(super) fn doubt(&mut self) {
        self.trusted = false;
    }

    /// Records a forward, and watches the generators meanwhile if in doubt.
    pub(super) fn watched<T>(
        &mut self,
        seed: u64,
        device: &Device,
        record: impl FnOnce() -> T,
    ) -> Result<T, StageError> {
        if std::mem::replace(&mut self.trusted, true) {
            return Ok(record());
        }
        let _turn = device_generator();
        let mut devices = vec![device.clone()];
        devices.extend(Some(Device::flex()).filter(|host| host != device));
        let mut took = std::time::Duration::ZERO;
        let (recorded, drawn) = drew(seed, &devices, || {
            let began = Instant::now();
            let recorded = record();
            took = began.elapsed();
            recorded
        })?;
        if !drawn {
            self.suspicions = 0;
            return Ok(recorded);
        }
        self.trusted = false;
        let pause = || {
            let until = Instant::now() + took;
            while Instant::now() < until {
                std::thread::yield_now();
            }
        };
        let ((), others) = drew(seed, &devices, pause)?;
        self.suspicions += usize::from(!others);
        match self.suspicions {
            ENOUGH.. => Err(StageError::Draws { reason: DRAWS.to_owned() }),
            _ => Ok(recorded),
        }
    }
}

/// Runs a function, and returns true with its result if anybody drew from these devices' generators meanwhile.
fn drew<T>(seed: u64, devices: &[Device], run: impl FnOnce() -> T) -> Result<(T, bool), StageError> {
    let follow: Vec<RngProbe> =
        devices.iter().map(|device| RngProbe::of_seed(device, seed)).collect::<Result<_, _>>()?;
    devices.iter().for_each(|device| device.seed(seed));
    let given = run();
    let next: Vec<RngProbe> = devices.iter().map(RngProbe::next).collect::<Result<_, _>>()?;
    Ok((given, next != follow))
}
