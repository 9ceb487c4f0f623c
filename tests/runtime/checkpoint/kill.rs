//! A process that is killed while it saves leaves a usable checkpoint: `KILLS` kills in each of five folders at the
//! same time.
//!
//! The job is a process: this test's binary, run with the filter `saves_until_it_is_killed`. Each time it resumes
//! from the last checkpoint, trains, prints that it starts to save, and is killed a random time later. A kill
//! counts if the save had not returned by then. This test also loads every checkpoint: its next loss must be that
//! of a job that never stopped.

use super::{Cut, RATE, SAMPLES};
use crate::cases::{Case, Text, noise};
use burn_pipeline::train::{CheckpointError, Checkpoints};
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::tempdir;

const FOLDER: &str = "BURN_PIPELINE_KILL_TEST_FOLDER";
/// The number of folders with jobs at the same time.
const LANES: usize = 5;
const CUT: Cut = Cut { schedule: "1F1B", ranks: 2, chunks: 1 };

#[test]
#[ignore = "the job that another test starts and kills"]
fn saves_until_it_is_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let (checkpoints, mut pipeline) = (Checkpoints::new(folder).keep(2), CUT.pipeline());
    match checkpoints.latest() {
        Ok(checkpoint) => pipeline.load(&checkpoint).unwrap(),
        Err(CheckpointError::None { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    println!("ready");
    loop {
        pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap();
        println!("saving {}", pipeline.progress().steps);
        pipeline.save(&checkpoints, &()).unwrap();
        println!("saved {}", pipeline.progress().steps);
    }
}

/// A job, and the lines that it prints.
struct Job {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Job {
    fn start(folder: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "checkpoint::kill::saves_until_it_is_killed", "--ignored", "--nocapture"]);
        let command = command.env(FOLDER, folder).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut job = Self { child, lines };
        job.wait_for("ready");
        job
    }

    fn wait_for(&mut self, word: &str) {
        let came = self.lines.by_ref().any(|line| line.unwrap().contains(word));
        assert!(came, "the job ended before it was {word}: it could not take up what was left");
    }

    /// Kills it. Returns the last step that it reported as saved, and whether it was saving another one.
    fn kill(mut self) -> (u64, bool) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let (mut saved, mut saving) = (0, true);
        for line in self.lines.map(Result::unwrap) {
            saving = line.starts_with("saving");
            saved = line.strip_prefix("saved ").map_or(saved, |step| step.parse().unwrap());
        }
        (saved, saving)
    }
}

/// The duration of a save, printed by a job that is not killed.
fn save_time() -> Duration {
    let folder = tempdir().unwrap();
    let mut job = Job::start(folder.path());
    let time = (0..5).map(|_| {
        job.wait_for("saving");
        let began = Instant::now();
        job.wait_for("saved");
        began.elapsed()
    });
    let time = time.max().unwrap();
    job.kill();
    time
}

/// Kills jobs in one folder during saves until `kills` of them were; returns how many left partial files behind.
fn kill_amid_saves(lane: usize, kills: usize, time: Duration) -> usize {
    let folder = tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path());
    // The job that is never stopped, as far as it is needed.
    let mut uninterrupted = CUT.pipeline();
    let mut losses = Vec::new();
    let mut loss_of = |step: usize| {
        while losses.len() <= step {
            losses.push(uninterrupted.step(Text::new(SAMPLES).batch(), RATE).unwrap().loss);
        }
        losses[step]
    };
    let (mut amid, mut reached, mut partial) = (0, 0, 0);
    let mut shares = noise(20 + lane as u64, 20 * kills).into_iter().map(|share| (share + 1.0) / 2.0);
    while amid < kills {
        let mut job = Job::start(folder.path());
        for _ in 0..=(shares.next().unwrap() * 3.0) as usize {
            job.wait_for("saving");
        }
        std::thread::sleep(time.mul_f32(shares.next().unwrap()));
        let (saved, saving) = job.kill();
        amid += usize::from(saving);
        let left = std::fs::read_dir(folder.path()).unwrap().flatten();
        partial += usize::from(left.filter(|e| e.file_name().to_string_lossy().ends_with(".partial")).count() > 0);
        let checkpoint = match checkpoints.latest() {
            Ok(checkpoint) => checkpoint,
            Err(CheckpointError::None { .. }) if saved.max(reached) == 0 => continue,
            Err(error) => panic!("after {amid} kills: {error}"),
        };
        checkpoint.verify().unwrap();
        let steps = checkpoint.progress().steps;
        assert!(steps >= saved.max(reached), "step {saved} was saved, and step {steps} is left");
        reached = steps;
        let mut pipeline = CUT.pipeline();
        pipeline.load(&checkpoint).unwrap();
        let loss = pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap().loss;
        assert_eq!(loss, loss_of(steps as usize), "after {amid} kills, step {steps}");
    }
    println!("{amid} kills amid saves of {time:?}; {partial} left files behind; {reached} steps were reached");
    partial
}

#[test]
fn each_of_many_kills_while_saving_leaves_a_checkpoint_to_go_on_from() {
    let kills = std::env::var("KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(25);
    let time = save_time();
    // Jobs mostly wait for the disk, so several folders are used at the same time.
    let partial: usize = std::thread::scope(|scope| {
        let lane = |lane| scope.spawn(move || kill_amid_saves(lane, kills / LANES, time));
        let lanes: Vec<_> = (0..LANES).map(lane).collect();
        lanes.into_iter().map(|lane| lane.join().unwrap()).sum()
    });
    assert!(partial > kills / 4, "only {partial} kills left files behind");
}
