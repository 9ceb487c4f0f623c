//! A rank that was started with another plan, version, model, or data types than the others.

use crate::cases::{Case, Text};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, DeviceConfig, FloatDType};
use burn_pipeline::link::{Activity, Header, Link, LinkError, Message, Monitor};
use burn_pipeline::payload::Payload;
use burn_pipeline::schedule::{GPipe, OneFOneB, Schedule, Size};
use burn_pipeline::train::{BuildError, Pipeline};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What may differ on a rank, and what every rank reports.
pub(crate) const FIELDS: [(&str, &str); 4] = [
    ("plan", "the plan: it has GPipe #"),
    ("version", "the version of burn-pipeline: it has 9.1.0 (messages "),
    ("model", "the model: it has a large one, and they have a small one"),
    ("types", "the default data types: it has F16 and I32, and they have F32 and I32"),
];

/// Builds a rank that differs from the others in one of [`FIELDS`], or in nothing. Default data types belong to the
/// whole process and are chosen once.
pub(crate) fn build(link: Box<dyn Link>, field: Option<&str>) -> Result<Pipeline, BuildError> {
    let mut device = Device::flex();
    if field == Some("types") {
        device.configure(DeviceConfig::default().float_dtype(FloatDType::F16)).unwrap();
    }
    let schedule: Box<dyn Schedule> = if field == Some("plan") { Box::new(GPipe) } else { Box::new(OneFOneB) };
    let size = Size::new(link.ranks(), 4);
    Pipeline::builder()
        .schedule(schedule, size)
        .devices(vec![device])
        .stages(Text::stage)
        .optimizer(|| AdamWConfig::new().init())
        .timeout(Duration::from_secs(20))
        .model(if field == Some("model") { "a large one" } else { "a small one" })
        .build_rank(if field == Some("version") { Box::new(Newer(link)) } else { link })
}

/// A link on which this rank reports a newer version of the library.
struct Newer(Box<dyn Link>);

impl Newer {
    /// Replaces the version's first digit by a 9, so that texts keep their length.
    fn rewritten(mut bytes: Vec<u8>) -> Vec<u8> {
        let own = concat!(env!("CARGO_PKG_VERSION"), " (messages ").as_bytes();
        if let Some(start) = bytes.windows(own.len()).position(|window| window == own) {
            bytes[start] = b'9';
        }
        bytes
    }
}

impl Link for Newer {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn ranks(&self) -> usize {
        self.0.ranks()
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        self.0.monitor()
    }

    fn to_device(&self, payload: Payload) -> Payload {
        self.0.to_device(payload)
    }

    fn set_activity(&mut self, activity: Activity) {
        self.0.set_activity(activity);
    }

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        self.0.send(to, message, deadline)
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        self.0.receive(from, header, deadline)
    }

    fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError> {
        self.0.all_gather(Self::rewritten(bytes), deadline)
    }

    fn abort(&mut self, message: String) {
        self.0.abort(message);
    }
}
