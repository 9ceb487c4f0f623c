//! Changed messages of another rank: rank 0 makes every call of a pipeline, with two stages or two replicas. Rank
//! 1's messages and replies come from a recorded job, with the edits in the input. Calls may succeed or fail, but
//! the code of this repository must not panic.
//!
//! The first byte chooses the job. An edit is five bytes: which message, what to do, where (2), and with which
//! byte.
#![no_main]

use burn::optim::AdamWConfig;
use burn::tensor::{Bytes, Device, Tensor};
use burn_pipeline::link::LinkError;
use burn_pipeline::link::kit::{Endpoint, Envelope, Frame, Mailbox, Peers};
use burn_pipeline::payload::Validate;
use burn_pipeline::stage::{Batch, Names, StageBox};
use burn_pipeline::train::{Checkpoints, Pipeline, SharedParameter, StageContext};
use burn_pipeline::{Size, init_seeded};
use libfuzzer_sys::fuzz_target;
use pipeline_fuzz::checkpoint::{Model, folder};
use pipeline_fuzz::recorded::{RecordedMessage, give};
use pipeline_fuzz::{caught, frames, recorded};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// The most bytes of tensors that a changed message may declare.
const MOST: usize = 1 << 16;

/// A job of two ranks, and rank 1's messages in it.
struct Recorded {
    replicas: usize,
    folder: PathBuf,
    messages: Vec<RecordedMessage>,
}

static RECORDED: LazyLock<[Recorded; 2]> = LazyLock::new(|| {
    caught::allow_in_burn();
    [1, 2].map(record)
});

fuzz_target!(|bytes: &[u8]| {
    let Some((&job, edits)) = bytes.split_first() else { return };
    let recorded = &RECORDED[usize::from(job) % RECORDED.len()];
    let mut messages = recorded.messages.clone();
    for &[which, what, low, high, byte] in edits.as_chunks().0.iter().take(8) {
        let place = usize::from(which) % messages.len();
        edit(&mut messages[place], what, u16::from_le_bytes([low, high]).into(), byte);
    }
    let unchanged = messages == recorded.messages;
    let saves = folder("replies");
    let result = calls(recorded::link(2, &messages), recorded.replicas, &saves, &recorded.folder);
    assert!(!unchanged || result.is_ok(), "{result:?}");
});

/// Makes every call of one rank. It saves to `saves` and loads from `loads`.
fn calls<P: Peers>(link: Endpoint<P>, replicas: usize, saves: &Path, loads: &Path) -> Result<(), Box<dyn Error>> {
    let device = Device::flex();
    let mut builder = Pipeline::builder()
        .schedule("GPipe", Size::new(2 / replicas, 2))
        .stages(stage)
        .optimizer(|| AdamWConfig::new().init())
        .devices(vec![device.clone()])
        .data_parallel(replicas)
        .sharded(replicas > 1)
        .clip_norm(1.0)
        .validate(Validate::EveryMicrobatch)
        .timeout(Duration::from_secs(5));
    if replicas == 1 {
        builder = builder.share(SharedParameter::new("bias").at("linear.bias"));
    }
    let mut pipeline = builder.build_rank(Box::new(link))?;
    let x = Tensor::<2>::ones([4, 2], &device);
    let batch = || Batch::new(x.clone()).target(x.clone());
    pipeline.step(batch(), 1e-2)?;
    pipeline.accumulate(batch())?;
    pipeline.take_gradients()?;
    drop((pipeline.eval(batch())?, pipeline.metadata(batch())?, pipeline.engines()?));
    drop((pipeline.weights()?, pipeline.named_weights()?));
    pipeline.save(&Checkpoints::new(saves).keep(1), &())?;
    pipeline.load(&Checkpoints::new(loads).latest()?)?;
    pipeline.export(saves.join("model.safetensors"))?;
    Ok(())
}

fn stage(at: &StageContext) -> StageBox {
    let model = init_seeded(7, &at.device, Model::new);
    let loss = |y: Tensor<2>, target: Tensor<2>| (y - target).square().mean();
    let stage = if at.is_last() { StageBox::with_loss(model, loss) } else { StageBox::new(model) };
    let first = at.index;
    stage.named(Names::default().renamed(move |name| format!("{first}.{name}")))
}

/// A rank whose messages are recorded.
#[derive(Debug)]
struct Recorder {
    own: Arc<Mailbox>,
    other: Arc<Mailbox>,
    messages: Arc<Mutex<Vec<RecordedMessage>>>,
}

impl Peers for Recorder {
    fn mailbox(&self) -> &Mailbox {
        &self.own
    }

    fn send(&self, to: usize, envelope: Envelope, bodies: Vec<Bytes>) -> Result<(), LinkError> {
        let copy = (envelope.clone(), bodies.iter().map(|body| body.to_vec()).collect());
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(copy);
        if let Some(answer) = give(&self.other, self.own.rank, envelope, &bodies) {
            self.own.handle(to, answer);
        }
        Ok(())
    }

    fn close(&self) {
        self.other.handle(self.own.rank, Envelope::Close);
    }
}

/// Runs a job of two ranks in threads.
fn record(replicas: usize) -> Recorded {
    let folder = folder(&format!("recorded-{replicas}"));
    let ranks = [0, 1].map(|rank| Arc::new(Mailbox::new(rank, 2)));
    let messages = [0, 1].map(|_| Arc::new(Mutex::default()));
    std::thread::scope(|scope| {
        for rank in [0, 1] {
            let [own, other] = [rank, 1 - rank].map(|rank| ranks[rank].clone());
            let recorder = Recorder { own, other, messages: messages[rank].clone() };
            let folder = &folder;
            scope.spawn(move || {
                let link = Endpoint::new(Arc::new(recorder), Device::flex());
                calls(link, replicas, folder, folder).expect("the recorded job succeeds");
            });
        }
    });
    let messages = messages[1].lock().unwrap_or_else(PoisonError::into_inner).clone();
    Recorded { replicas, folder, messages }
}

/// Changes a message at one place.
fn edit((envelope, _): &mut RecordedMessage, what: u8, at: usize, byte: u8) {
    match envelope {
        Envelope::Gather { bytes, .. } => change(bytes, what, at, byte),
        Envelope::Message(frame) => {
            let mut content = frames::content(frame).unwrap_or_default().to_vec();
            change(&mut content, what, at, byte);
            *frame = frames::frame(&content);
            let announced = |frame: Frame| frame.lengths().fold(0, usize::saturating_add);
            if Frame::read(frame).map_or(0, announced) > MOST {
                *envelope = Envelope::Ask { question: 0 };
            }
        }
        _ => {}
    }
}

fn change(bytes: &mut Vec<u8>, what: u8, at: usize, byte: u8) {
    let at = at % (bytes.len() + 1);
    match what % 4 {
        0 => bytes.iter_mut().skip(at).take(1).for_each(|old| *old = byte),
        1 => bytes.insert(at, byte),
        2 => drop((at < bytes.len()).then(|| bytes.remove(at))),
        _ => bytes.truncate(at),
    }
}
