//! The flags of `train_gpt`, and what they are checked for before anything runs.
//!
//! Guarantees: a [`Setup`] can be trained, up to what the machine does: its plan exists and has backwards, the
//! heads divide the width, a window fits into the text. Everything else is an [`OptionsError`] that says what to do.

use crate::corpus::Corpus;
use crate::cut::{Cut, CutError};
use crate::device::DeviceName;
use crate::gpt::GptConfig;
use crate::learning_rate::learning_rates;
use crate::options_error::OptionsError;
use crate::saved::RunFlags;
use crate::traces::TracePaths;
use burn::tensor::Device;
use burn_pipeline::link::{Launch, Launcher};
use burn_pipeline::plan::Plan;
use burn_pipeline::schedule::{Chunks, Size, by_name};
use burn_pipeline::train::AutoPipeline;
use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// Trains a byte-level GPT on Shakespeare's plays, as a pipeline of stages over ranks.
#[derive(Parser, Debug, Clone)]
#[command(name = "train_gpt")]
pub struct Options {
    /// Family of schedules, such as 1F1B, GPipe, Interleaved1F1B or ZBVZeroBubble; `auto` measures a few steps and takes
    /// up the schedule that the planner finds for them.
    #[arg(long, default_value = "1F1B", value_name = "NAME")]
    pub schedule: String,
    /// Ranks of a replica, each with its own stages and its own compute threads [default: 2; with `--link mpi`, as many as
    /// `mpirun` started, over `--data-parallel`].
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// What ranks are, and how they reach each other.
    #[arg(long, value_enum, default_value_t = LinkName::Threads, value_name = "NAME")]
    pub link: LinkName,
    /// Replicas of the pipeline, each with ranks of its own, which share every batch out among them.
    #[arg(long, default_value_t = 1, value_parser = at_least_one, value_name = "N")]
    pub data_parallel: usize,
    /// Keeps of each parameter, its gradient and optimizer state one piece a replica, instead of all on every one.
    #[arg(long)]
    pub sharded: bool,
    /// Starts so many processes on this machine, with `mpirun`, and runs one rank in each.
    #[arg(long, conflicts_with_all = ["link", "ranks"], value_parser = at_least_one, value_name = "N")]
    pub processes: Option<usize>,
    /// Goes on with the processes that are left when one is lost: from the latest checkpoint, with a plan for so many.
    #[arg(long, requires = "processes", requires = "save_every")]
    pub restart: bool,
    /// Stages a rank [default: what the schedule asks for, else 1].
    #[arg(long, value_name = "N")]
    pub chunks: Option<usize>,
    /// Microbatches that a replica cuts its part of a batch into.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub microbatches: usize,
    /// Training steps.
    #[arg(
        long, default_value_t = 450, default_value_if("long", "true", "1800"), value_parser = at_least_one, value_name = "N"
    )]
    pub steps: usize,
    /// Trains for 1,800 steps instead of a minute.
    #[arg(long, conflicts_with = "steps")]
    pub long: bool,
    /// Windows of text a step.
    #[arg(long, default_value_t = 8, value_parser = at_least_one, value_name = "N")]
    pub batch: usize,
    /// Bytes of a window.
    #[arg(long, default_value_t = 128, value_parser = at_least_one, value_name = "N")]
    pub seq: usize,
    /// Width of the hidden state.
    #[arg(long, default_value_t = 128, value_parser = at_least_one, value_name = "N")]
    pub d_model: usize,
    /// Transformer blocks.
    #[arg(long, default_value_t = 4, value_parser = at_least_one, value_name = "N")]
    pub layers: usize,
    /// Attention heads; they divide the width.
    #[arg(long, default_value_t = 4, value_parser = at_least_one, value_name = "N")]
    pub heads: usize,
    /// Learning rate at its highest: it rises linearly, then falls to a tenth along a cosine.
    #[arg(long, default_value_t = 3e-3, value_name = "RATE")]
    pub lr: f64,
    /// What initial weights, the order of data and the sample depend on.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = DeviceName::Flex, value_name = "NAME")]
    pub device: DeviceName,
    /// Compute threads of each rank (flex).
    #[arg(long, default_value_t = 1, value_parser = at_least_one, value_name = "N")]
    pub threads: usize,
    /// Seconds that a rank waits for another one before it gives it up for lost.
    #[arg(long, default_value_t = 120, value_parser = at_least_one_second, value_name = "SECONDS")]
    pub timeout: u64,
    /// Where the timeline of the last steps goes: a folder, or a file ending in .json or .svg (both are written).
    #[arg(long, default_value = "runs/train_gpt", value_name = "PATH")]
    pub trace: PathBuf,
    /// A plan as CSV (a row a rank, a cell an action) to run instead of a schedule; it sets ranks, chunks and
    /// microbatches.
    #[arg(long, value_name = "FILE.csv")]
    pub plan: Option<PathBuf>,
    /// Where to cut the model: `even` (by number of blocks), `optimal` (by what its layers take, measured first), or
    /// stages such as EAA|AAL (E the embedding, A a block, L the head).
    #[arg(long, default_value = "even", value_name = "CUT")]
    pub cut: Cut,
    /// The layers' costs for `--cut optimal`: read if the file is there, else measured and written.
    #[arg(long, value_name = "FILE.json")]
    pub costs: Option<PathBuf>,
    /// A folder for checkpoints: one is saved at the end, the last three are kept.
    #[arg(long, value_name = "FOLDER")]
    pub save: Option<PathBuf>,
    /// Saves a checkpoint every so many steps, too.
    #[arg(long, requires = "save", value_parser = at_least_one, value_name = "N")]
    pub save_every: Option<usize>,
    /// Goes on from the latest checkpoint in the folder, if there is one; schedule, ranks and device may be others.
    #[arg(long, requires = "save")]
    pub resume: bool,
    /// Keeps only the inputs of stages from forward to backward, and computes the rest again: less memory, more time.
    #[arg(long)]
    pub recompute: bool,
    /// `text` draws a progress bar; `json` writes one line a step on standard output and all else elsewhere.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub log: LogFormat,
}

/// What ranks are, and how they reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinkName {
    /// Threads of this process.
    Threads,
    /// Processes that `mpirun` started, on one machine or many; feature `mpi`.
    Mpi,
    /// Processes that torchrun, Slurm or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT made ranks, over TCP.
    Tcp,
    /// The same, each with a GPU of its own, over NCCL; feature `nccl`. `--device` is `cuda` then.
    Nccl,
}

/// How steps are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A progress bar, and a line now and then.
    Text,
    /// One JSON object a step.
    Json,
}

/// Options that were checked, with what they stand for.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The flags.
    pub options: Options,
    /// The plan of a whole step, without transfers; of the first steps, where the schedule chooses itself.
    pub plan: Plan,
    /// The size of a schedule that chooses itself.
    pub auto: Option<Size>,
    /// The model's size.
    pub model: GptConfig,
    /// The text.
    pub corpus: Corpus<'static>,
    /// The learning rate of each step.
    pub rates: Vec<f64>,
    /// Where ranks compute.
    pub device: Device,
    /// Where the timeline goes.
    pub trace: TracePaths,
}

impl AsRef<Setup> for Setup {
    fn as_ref(&self) -> &Setup {
        self
    }
}

impl Options {
    /// Checks the flags and makes what they stand for.
    ///
    /// # Errors
    /// [`OptionsError`] for flags that no run can have.
    pub fn check(self) -> Result<Setup, OptionsError> {
        let (heads, d_model) = (self.heads, self.d_model);
        if !d_model.is_multiple_of(heads) {
            return Err(OptionsError::Heads { heads, d_model });
        }
        if (self.link == LinkName::Mpi || self.processes.is_some()) && !cfg!(feature = "mpi") {
            return Err(OptionsError::NoMpi);
        }
        if self.processes.is_some()
            && let Some(launch) = Launch::from_environment()?.filter(is_one_of_many)
        {
            return Err(OptionsError::Started(launch.launcher));
        }
        if (self.link != LinkName::Threads || self.processes.is_some())
            && self.cut == Cut::Optimal
            && !self.costs.as_ref().is_some_and(|path| path.exists())
        {
            return Err(CutError::NoCosts.into());
        }
        let replicas = self.data_parallel;
        if self.sharded && replicas < 2 {
            return Err(OptionsError::Sharded);
        }
        if self.batch < replicas {
            return Err(OptionsError::Replicas { replicas, microbatches: 1 });
        }
        if self.link == LinkName::Nccl && !cfg!(feature = "nccl") {
            return Err(OptionsError::NoNccl);
        }
        let corpus = Corpus::shakespeare();
        corpus.fits(self.seq)?;
        let auto = if self.plan.is_none() && self.is_auto() { Some(self.size(None)?) } else { None };
        if auto.is_some() && self.cut != Cut::Even {
            return Err(OptionsError::AutoCut);
        }
        let plan = self.planned()?;
        if !plan.has_backward() {
            return Err(OptionsError::NoBackward { plan: plan.name().to_owned() });
        }
        Ok(Setup {
            model: RunFlags::of(&self).model(),
            rates: learning_rates(self.lr, self.steps)?,
            device: self.open_device()?,
            trace: TracePaths::new(&self.trace),
            plan,
            auto,
            corpus,
            options: self,
        })
    }

    fn planned(&self) -> Result<Plan, OptionsError> {
        match &self.plan {
            Some(path) => self.read_plan(path),
            None if self.is_auto() => Ok(AutoPipeline::first_plan(self.size(None)?)?),
            None => self.build_plan(),
        }
    }

    /// The ranks of the plan that these flags make.
    pub(crate) fn planned_ranks(&self) -> Result<usize, OptionsError> {
        self.planned().map(|plan| plan.ranks())
    }

    fn read_plan(&self, path: &std::path::Path) -> Result<Plan, OptionsError> {
        let path = path.to_owned();
        let text = std::fs::read_to_string(&path);
        let text = text.map_err(|source| OptionsError::ReadPlan { path: path.clone(), source })?;
        let plan = Plan::from_csv(path.display().to_string(), &text);
        let plan = plan.map_err(|source| OptionsError::ParsePlan { path, source })?;
        let (microbatches, batch) = (plan.total_microbatches(), self.batch);
        if microbatches > batch {
            return Err(OptionsError::BatchTooSmall { microbatches, batch });
        }
        if microbatches * self.data_parallel > batch {
            return Err(OptionsError::Replicas { replicas: self.data_parallel, microbatches });
        }
        Ok(plan)
    }

    /// The schedule's plan.
    fn build_plan(&self) -> Result<Plan, OptionsError> {
        let schedule = by_name(&self.schedule)?;
        let chunks = match schedule.family().chunks {
            Chunks::Exactly(chunks) => Some(chunks),
            Chunks::Any => None,
        };
        Ok(schedule.build(self.size(chunks)?)?)
    }

    /// The size that was asked for, with this many chunks unless said otherwise. A part of a batch of fewer windows than
    /// microbatches gets one microbatch a window.
    fn size(&self, chunks: Option<usize>) -> Result<Size, OptionsError> {
        let chunks = self.chunks.or(chunks).unwrap_or(1);
        Ok(Size { ranks: self.ranks()?, chunks, microbatches: self.microbatches.min(self.batch / self.data_parallel) })
    }

    /// Does the schedule choose itself?
    fn is_auto(&self) -> bool {
        self.schedule.eq_ignore_ascii_case("auto")
    }
}

impl Options {
    /// The device; over NCCL the GPU that is this process's among those on its machine.
    #[cfg(feature = "nccl")]
    fn open_device(&self) -> Result<Device, OptionsError> {
        if self.link != LinkName::Nccl {
            return Ok(self.device.open()?);
        }
        let launch = Launch::from_environment()?.ok_or(OptionsError::NoLauncher)?;
        let gpu = burn_pipeline_nccl::NcclLink::gpu_of(&launch);
        gpu.map_err(|error| crate::device::DeviceError::NotThere { name: "cuda", message: error.to_string() }.into())
    }

    #[cfg(not(feature = "nccl"))]
    fn open_device(&self) -> Result<Device, OptionsError> {
        Ok(self.device.open()?)
    }

    fn ranks(&self) -> Result<usize, OptionsError> {
        let started = match self.link {
            LinkName::Threads => None,
            LinkName::Mpi | LinkName::Tcp | LinkName::Nccl => Launch::from_environment()?.map(|launch| launch.ranks),
        };
        let processes = self.processes.or(started).map(|processes| (processes / self.data_parallel).max(1));
        Ok(self.ranks.or(processes).unwrap_or(2))
    }
}

/// Has this process been started beside others, or by an MPI, which starts no other within?
fn is_one_of_many(launch: &Launch) -> bool {
    launch.ranks > 1 || matches!(launch.launcher, Launcher::OpenMpi | Launcher::Mpich)
}

fn at_least_one_second(text: &str) -> Result<u64, String> {
    at_least_one(text).map(|seconds| seconds as u64)
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(0) => Err("it is at least 1".to_owned()),
        other => other.map_err(|_| "it is a whole number of at least 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(flags: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(std::iter::once("train_gpt").chain(flags.split_whitespace()))
    }

    fn refusal(flags: &str) -> String {
        parse(flags).unwrap().check().unwrap_err().to_string()
    }

    fn with_plan(name: &str, text: &str, flags: &str) -> Result<Setup, OptionsError> {
        let path = std::env::temp_dir().join(format!("train-gpt-{}-{name}.csv", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let setup = parse(&format!("{flags} --plan {}", path.display())).unwrap().check();
        std::fs::remove_file(path).unwrap();
        setup
    }

    #[test]
    fn the_defaults_describe_a_run() {
        let setup = parse("").unwrap().check().unwrap();
        assert_eq!((setup.plan.name(), setup.plan.ranks()), ("1F1B", 2));
        assert_eq!(setup.rates.len(), setup.options.steps);
        let long = parse("--long").unwrap();
        assert!(long.steps > setup.options.steps);
        assert!(parse("--long --steps 9").is_err());
    }

    #[test]
    fn every_schedule_that_trains_is_taken_by_its_name() {
        for schedule in burn_pipeline::schedule::all() {
            let name = schedule.family().name;
            let setup = parse(&format!("--schedule {name} --ranks 2 --microbatches 8")).unwrap().check();
            match name {
                "ForwardOnly" => assert!(matches!(setup, Err(OptionsError::NoBackward { .. }))),
                _ => assert_eq!(setup.map_err(|e| e.to_string()).unwrap().plan.total_microbatches(), 8, "{name}"),
            }
        }
    }

    #[test]
    fn a_schedule_that_chooses_itself_starts_with_one_of_its_size() {
        let setup = parse("--schedule Auto --ranks 3 --chunks 2 --batch 5 --microbatches 8").unwrap().check().unwrap();
        assert_eq!(setup.auto, Some(Size { ranks: 3, chunks: 2, microbatches: 5 }));
        assert_eq!((setup.plan.ranks(), setup.plan.stages(), setup.plan.total_microbatches()), (3, 6, 5));
        assert_eq!(parse("").unwrap().check().unwrap().auto, None);
    }

    #[test]
    fn flags_that_no_run_can_have_are_refused_with_what_to_do() {
        for (flags, says) in [
            ("--schedule 2F2B", "known are ForwardOnly, GPipe, 1F1B"),
            ("--ranks 0", "at least one rank"),
            ("--chunks 0", "at least one chunk"),
            ("--microbatches 0", "at least one microbatch"),
            ("--chunks 2", "exactly 1 chunk"),
            ("--schedule DualPipe --ranks 3 --microbatches 6", "even number of ranks"),
            ("--heads 3", "--heads 3 does not divide --d-model 128"),
            ("--sharded", "--sharded needs --data-parallel of at least 2"),
            ("--data-parallel 9", "--data-parallel 9 needs a --batch of at least 9"),
            ("--seq 200000", "--seq of at most 111538"),
            ("--lr 0", "--lr 0"),
            ("--lr 2", "--lr 2"),
            ("--lr NaN", "--lr NaN"),
            ("--plan /no/such/plan.csv", "/no/such/plan.csv cannot be read"),
        ] {
            let message = refusal(flags);
            assert!(message.contains(says), "{flags}: {message}");
            assert!(!message.contains('\n'), "{flags}: {message}");
        }
    }

    #[test]
    fn flags_that_are_no_numbers_are_refused_by_name() {
        for flags in ["--steps 0", "--batch=-1", "--seq x", "--threads 0", "--device tpu", "--log xml", "--speed 3"] {
            let error = parse(flags).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{flags}");
            assert!(error.to_string().contains(flags.split([' ', '=']).next().unwrap()), "{error}");
        }
    }

    #[test]
    fn a_plan_from_a_file_sets_ranks_and_microbatches() {
        let setup = with_plan("good", "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n", "--ranks 7").unwrap();
        assert_eq!((setup.plan.ranks(), setup.plan.total_microbatches()), (2, 3));
    }

    #[test]
    fn a_plan_that_cannot_be_run_is_refused() {
        let message = with_plan("typo", "0F0,0X0\n", "").unwrap_err().to_string();
        assert!(message.contains("is not a plan: line 1, cell 2"), "{message}");
        let message = with_plan("large", "0F0,0F1,0F2,0B0,0B1,0B2\n", "--batch 2").unwrap_err().to_string();
        assert!(message.contains("3 microbatches, more than the 2 windows"), "{message}");
        let message = with_plan("forward", "0F0\n", "").unwrap_err().to_string();
        assert!(message.contains("forwards alone"), "{message}");
    }

    #[test]
    fn a_small_batch_gets_one_microbatch_a_window() {
        let setup = parse("--batch 3 --microbatches 8").unwrap().check().unwrap();
        assert_eq!(setup.plan.total_microbatches(), 3);
    }
}
