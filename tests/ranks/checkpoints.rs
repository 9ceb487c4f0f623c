//! Checkpoints that ranks in processes write and resume, and what remains when one of them is killed meanwhile.

use crate::cases::{Case, Text, read};
use crate::parity::{RATE, builder};
use burn::tensor::Device;
use burn_pipeline::link::{Activity, Link};
use burn_pipeline::schedule::{Chunks, Size, by_name};
use burn_pipeline::train::{Builder, CheckpointError, Checkpoints, Pipeline, PipelineError};
use burn_pipeline_mpi::Mpi;
use pipeline_tests::faulty_link::{Fault, signal};

const SAMPLES: usize = 6;
/// The steps of a whole run.
const STEPS: u64 = 4;

fn text() -> Text {
    Text::new(SAMPLES)
}

fn cut(schedule: &str, ranks: usize) -> Builder {
    let chunks = match by_name(schedule).unwrap().info().chunks {
        Chunks::Exactly(chunks) => chunks,
        Chunks::Any => 1,
    };
    builder::<Text>(schedule, Size { ranks, chunks, microbatches: SAMPLES })
}

fn linked(mpi: &Mpi, schedule: &str) -> Pipeline {
    cut(schedule, mpi.ranks()).build_rank(Box::new(mpi.link(Device::flex()).unwrap())).unwrap()
}

fn step(pipeline: &mut Pipeline) -> f64 {
    pipeline.step(text().batch(), RATE).unwrap().loss
}

/// The losses and weights from here to the end.
fn rest(pipeline: &mut Pipeline) -> Vec<(f64, Vec<Vec<f32>>)> {
    let mut rest = Vec::new();
    while pipeline.progress().steps < STEPS {
        let loss = step(pipeline);
        rest.push((loss, pipeline.weights().unwrap().iter().flatten().map(read).collect()));
    }
    rest
}

/// Trains two steps and saves. With `threads`, rank 0 trains alone, over as many threads.
pub(crate) fn save(mpi: &Mpi, schedule: &str, folder: &str, threads: bool) {
    if threads && mpi.rank() > 0 {
        return;
    }
    let mut pipeline = if threads { cut(schedule, mpi.ranks()).build().unwrap() } else { linked(mpi, schedule) };
    step(&mut pipeline);
    step(&mut pipeline);
    let complete = pipeline.save(&Checkpoints::new(folder), &"two steps").unwrap();
    assert!(complete.join("manifest.json").exists(), "{}", complete.display());
}

/// Exports the whole model into one file, which must equal that of threads byte for byte.
pub(crate) fn export(mpi: &Mpi, schedule: &str, folder: &str) {
    let [processes, threads] = ["processes", "threads"].map(|name| format!("{folder}-{name}"));
    let mut pipeline = linked(mpi, schedule);
    step(&mut pipeline);
    pipeline.export(&processes).unwrap();
    if mpi.rank() == 0 {
        let mut alone = cut(schedule, mpi.ranks()).build().unwrap();
        step(&mut alone);
        alone.export(&threads).unwrap();
        let [got, expected] = [processes, threads].map(|path| {
            let bytes = std::fs::read(&path).unwrap();
            std::fs::remove_file(path).unwrap();
            bytes
        });
        assert!(got == expected, "another file");
    }
}

/// Resumes from the checkpoint; losses and weights are those of threads that never stopped.
pub(crate) fn resume(mpi: &Mpi, schedule: &str, folder: &str) {
    let checkpoint = Checkpoints::new(folder).latest().unwrap();
    let done = checkpoint.progress().steps;
    let mut pipeline = linked(mpi, schedule);
    pipeline.load(&checkpoint).unwrap();
    assert_eq!(pipeline.progress().steps, done);
    let resumed = rest(&mut pipeline);
    drop(pipeline);
    if mpi.rank() == 0 {
        let mut never_stopped = cut("GPipe", 2).build().unwrap();
        let whole = rest(&mut never_stopped);
        assert!(!resumed.is_empty() && resumed == whole[done as usize..], "{resumed:?}, and without a stop {whole:?}");
        println!("{schedule} on {} went on after step {done}", mpi.ranks());
    }
    // Threads resume from the same files.
    if mpi.rank() == 0 {
        let mut threads = cut("1F1B", 3).build().unwrap();
        threads.load(&checkpoint).unwrap();
        assert_eq!(rest(&mut threads), resumed);
    }
}

/// If one rank's call is refused, it is refused on all ranks, and the pipeline continues.
pub(crate) fn refusals(mpi: &Mpi, folder: &str) {
    let last = mpi.ranks() - 1;
    let odd = mpi.rank() == last;
    let mut pipeline = linked(mpi, "1F1B");
    let good = Checkpoints::new(folder);
    // A folder that rank 0 has not created.
    let elsewhere = if odd { Checkpoints::new(format!("{folder}-of-another-machine")) } else { good.clone() };
    match (odd, pipeline.save(&elsewhere, &()).unwrap_err()) {
        (true, CheckpointError::NotShared { folder }) => assert!(folder.ends_with("step-00000000.partial")),
        (false, CheckpointError::Elsewhere { rank, message }) => {
            assert!(rank == last && message.contains("on a file system that all processes share"), "{message}");
        }
        (_, error) => panic!("{error}"),
    }
    assert!(good.all().unwrap().is_empty());
    // With unapplied gradients, it is refused everywhere at once.
    pipeline.accumulate(text().batch()).unwrap();
    assert!(matches!(pipeline.save(&good, &()), Err(CheckpointError::MidStep)));
    step(&mut pipeline);
    let first = pipeline.save(&good, &1).unwrap();
    step(&mut pipeline);
    pipeline.save(&good, &2).unwrap();
    // Two different checkpoints: the one that differs is named before anything is read.
    let latest = good.latest().unwrap();
    let mine = if odd { burn_pipeline::train::Checkpoint::open(&first).unwrap() } else { latest.clone() };
    match pipeline.load(&mine).unwrap_err() {
        CheckpointError::Pipeline(PipelineError::Diverged { rank, theirs, .. }) => {
            assert!(rank == last && theirs.contains("step-00000001, step 1"), "{theirs}");
        }
        error => panic!("{error}"),
    }
    // All ranks refuse a damaged file and name the rank that found it.
    let file = latest.folder().join(format!("stage-{last:03}.safetensors"));
    let mut bytes = std::fs::read(&file).unwrap();
    let place = bytes.len() - 1;
    bytes[place] ^= 1;
    pipeline.eval(text().batch()).unwrap();
    if odd {
        std::fs::write(&file, &bytes).unwrap();
    }
    pipeline.eval(text().batch()).unwrap();
    let error = pipeline.load(&latest).unwrap_err();
    assert!(
        error.to_string().contains("is damaged") && error.to_string().contains(&format!("stage-{last:03}")),
        "{error}"
    );
    assert_eq!(matches!(error, CheckpointError::Damaged { .. }), odd, "{error}");
    assert_eq!(pipeline.progress().steps, 2);
    pipeline.load(&burn_pipeline::train::Checkpoint::open(first).unwrap()).unwrap();
    assert_eq!(pipeline.progress().steps, 1);
    step(&mut pipeline);
}

/// A link whose rank fails in its n-th save, after a given number of progress messages: in the middle of a file, or
/// at the end of its last one if there are no more.
struct StruckWhileSaving {
    link: Box<dyn Link>,
    fault: Fault,
    save: usize,
    within: usize,
    saving: bool,
}

impl Link for StruckWhileSaving {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, send, receive, probe);
    burn_pipeline::forward_link!(link: all_gather, abort);

    fn set_activity(&mut self, activity: Activity) {
        let saving = activity == Activity::Saving;
        let ends = self.saving && !saving;
        self.saving = saving;
        if self.save == 1 && saving {
            self.within = self.within.saturating_sub(1);
        }
        if self.save == 1 && (ends || saving && self.within == 0) {
            match self.fault {
                Fault::Kill => signal("-KILL"),
                _ => panic!("the disk is gone"),
            }
        }
        self.save -= usize::from(ends);
        self.link.set_activity(activity);
    }
}

/// Trains and saves step by step, resuming from the last checkpoint, until a rank fails in the middle of a file.
pub(crate) fn until_struck(
    mpi: &Mpi,
    folder: &str,
    fault: &str,
    [failing, save, within]: [usize; 3],
) -> Result<(), String> {
    let checkpoints = Checkpoints::new(folder).keep(2);
    let mut link: Box<dyn Link> = Box::new(mpi.link(Device::flex()).unwrap());
    if mpi.rank() == failing {
        link = Box::new(StruckWhileSaving { link, fault: Fault::named(fault), save, within, saving: false });
    }
    let mut pipeline = cut("1F1B", mpi.ranks()).build_rank(link).unwrap();
    match checkpoints.latest() {
        Ok(checkpoint) => pipeline.load(&checkpoint).unwrap(),
        Err(CheckpointError::None { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    loop {
        step(&mut pipeline);
        if let Err(error) = pipeline.save(&checkpoints, &()) {
            println!("rank {} was told: {error}", mpi.rank());
            return Err(error.to_string());
        }
        if mpi.rank() == 0 {
            println!("saved {}", pipeline.progress().steps);
        }
    }
}
