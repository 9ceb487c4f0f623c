//! The next numbers of a device's generator. They show whether anybody drew: a generator moves on and never back.

use crate::payload::AnyTensor;
use crate::program::drawn_as;
use crate::stage::error::StageError;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchDevice};
use burn::tensor::{DType, Device, Distribution, FloatDType, Shape, TensorData};
use rand::SeedableRng;
use rand::rngs::StdRng;

/// Enough numbers to distinguish two states of a generator.
const PROBED: usize = 4;

/// What is drawn, in order.
pub(in crate::stage) type Drawn = Vec<(Shape, DType, Distribution)>;

/// The next numbers of a generator.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::stage) struct RngProbe(TensorData);

impl RngProbe {
    /// Draws the next numbers of a device's generator.
    pub(in crate::stage) fn next(device: &Device) -> Result<Self, StageError> {
        let (shape, from, device) = (Shape::new([PROBED]), Distribution::Default, device.clone().inner());
        let drawn = Dispatch::float_random(shape, from, device.as_dispatch(), FloatDType::F32);
        AnyTensor::from_dispatch(drawn).to_data().map_err(StageError::Device).map(Self)
    }

    /// The first numbers of a seed. Devices other than Flex are seeded to get them.
    pub(in crate::stage) fn of_seed(device: &Device, seed: u64) -> Result<Self, StageError> {
        match Self::after(device, seed, &[]) {
            Some(first) => Ok(first),
            None => {
                device.seed(seed);
                Self::next(device)
            }
        }
    }

    /// The numbers that follow these draws from a seed; `None` if the device's generator is not known.
    pub(in crate::stage) fn after(device: &Device, seed: u64, drawn: &[(Shape, DType, Distribution)]) -> Option<Self> {
        is_flex(device).then(|| {
            let mut generator = StdRng::seed_from_u64(seed);
            for (shape, dtype, from) in drawn {
                drawn_as(shape.clone(), *dtype, *from, &mut generator);
            }
            Self(drawn_as(Shape::new([PROBED]), DType::F32, Distribution::Default, &mut generator))
        })
    }
}

fn is_flex(device: &Device) -> bool {
    matches!(device.clone().inner().as_dispatch(), DispatchDevice::Flex(_))
}
