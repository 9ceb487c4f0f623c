//! The checked flags of `train_gpt`.
//!
//! Guarantees: a [`Setup`] can be trained, as far as flags can tell: its plan exists and has backwards, the heads
//! divide the width, and a window fits into the text. Everything else is an [`OptionsError`] that says what to do.

use crate::corpus::Corpus;
use crate::cut::{Cut, CutError};
use crate::gpt::GptConfig;
use crate::learning_rate::learning_rates;
use crate::options::{LinkName, Options, PrecisionName};
use crate::options_error::OptionsError;
use crate::saved::RunFlags;
use crate::traces::TracePaths;
use burn::tensor::Device;
use burn_pipeline::link::{Launch, Launcher};
use burn_pipeline::plan::Plan;
use burn_pipeline::schedule::{Chunks, Size, by_name};
use burn_pipeline::train::AutoPipeline;

/// Checked options, and the values derived from them.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The flags.
    pub options: Options,
    /// The plan of a whole step, without transfers; with `--schedule auto`, that of the first steps.
    pub plan: Plan,
    /// The size of the schedule for `--schedule auto`.
    pub auto: Option<Size>,
    /// The model's size.
    pub model: GptConfig,
    /// The text.
    pub corpus: Corpus<'static>,
    /// The learning rate of each step.
    pub rates: Vec<f64>,
    /// The device of the ranks.
    pub device: Device,
    /// The files of the timeline.
    pub trace: TracePaths,
}

impl AsRef<Setup> for Setup {
    fn as_ref(&self) -> &Setup {
        self
    }
}

impl Options {
    /// Checks the flags and derives their values.
    ///
    /// # Errors
    /// Returns an [`OptionsError`] for invalid flags.
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
            model: RunFlags::of(&self).model().with_bf16(self.precision == PrecisionName::Bf16Alone),
            rates: learning_rates(self.lr, self.steps)?,
            device: self.open_device()?,
            trace: TracePaths::new(&self.trace),
            plan,
            auto,
            corpus,
            options: self,
        })
    }

    /// The plan of these flags.
    pub(crate) fn planned(&self) -> Result<Plan, OptionsError> {
        match &self.plan {
            Some(path) => self.read_plan(path),
            None if self.is_auto() => Ok(AutoPipeline::first_plan(self.size(None)?)?),
            None => self.build_plan(),
        }
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
        let chunks = match schedule.info().chunks {
            Chunks::Exactly(chunks) => Some(chunks),
            Chunks::Any => None,
        };
        Ok(schedule.build(self.size(chunks)?)?)
    }

    /// The requested size, with this many chunks by default. If a replica's part of a batch has fewer windows than
    /// microbatches, each window is a microbatch.
    fn size(&self, chunks: Option<usize>) -> Result<Size, OptionsError> {
        let chunks = self.chunks.or(chunks).unwrap_or(1);
        Ok(Size { ranks: self.ranks()?, chunks, microbatches: self.microbatches.min(self.batch / self.data_parallel) })
    }

    /// Returns true for `--schedule auto`.
    fn is_auto(&self) -> bool {
        self.schedule.eq_ignore_ascii_case("auto")
    }
}

impl Options {
    /// The device; over NCCL, the GPU of this process among those of its machine.
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

/// Returns true if this process was started beside others, or by an MPI, under which `mpirun` cannot run.
fn is_one_of_many(launch: &Launch) -> bool {
    launch.ranks > 1 || matches!(launch.launcher, Launcher::OpenMpi | Launcher::Mpich)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

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
            let name = schedule.info().name;
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
