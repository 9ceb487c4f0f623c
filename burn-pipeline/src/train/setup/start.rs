//! Starts a pipeline: proves the first plan, then starts a thread for each rank of this process.
//!
//! 1. [`Builder::build`] starts all ranks: threads with a link between them.
//! 2. [`Builder::build_rank`] starts one rank; its link connects it to the others, which are processes. Before stages
//!    are built all ranks compare their jobs ([`job`]).

use super::builder::Builder;
use super::job::job;
use super::rank::Blueprint;
use crate::link::{Delayed, Link, Monitor, Threads, one_queue};
use crate::panics::quietly;
use crate::payload::Validate;
use crate::program::{Bf16, Matmuls, compiles};
use crate::stage::{Accumulation, Reduction};
use crate::train::checkpoint::Branch;
use crate::train::control::{Job, Ranks};
use crate::train::error::BuildError;
use crate::train::features::{Feature, NotTogether};
use crate::train::pipeline::Pipeline;
use crate::train::plans::{Plans, VocabularyPass};
use crate::train::progress::Training;
use crate::train::stages::Stages;
use crate::vocabulary::{Piece, Vocabulary};
use burn::tensor::Device;
use burn_pipeline_plan::cost::{Partition, PartitionError};
use burn_pipeline_plan::plan::{Plan, Transport};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use std::sync::Arc;

impl Builder {
    /// Checks the plan, starts one thread for each rank, and builds the stages there.
    ///
    /// # Errors
    /// Returns [`BuildError`] if something is missing, the plan is not legal, or a stage cannot be made.
    pub fn build(self) -> Result<Pipeline, BuildError> {
        let plans = self.plans()?;
        let ranks = plans.ranks();
        let threads = Threads::new(ranks);
        let (mut links, mut devices) = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            let device = self.device(rank, ranks)?;
            links.push(self.delay_link(Box::new(threads.link(rank, device.clone().inner())))?);
            devices.push(device);
        }
        self.start(plans, links, devices, Arc::new(threads), None)
    }

    /// Builds one rank in this process, connected by `link` to the others: processes, or threads that each hold their
    /// own pipeline. Each calls this with its own end of the link and an equal builder. All of them must then make the
    /// same calls, with the same batches, in the same order; they get the same losses, reports, outputs and weights.
    /// Each cuts the batch and takes the parts that its stages read: the first stage the input, the last one the
    /// target, and each the extras that it lists (with [`Builder::vocabulary`], all ranks read input and target). For
    /// what its stages do not read, a process may give a placeholder: of the same types and number of samples, whatever
    /// its other sizes and values.
    ///
    /// Between two calls a process may be busy with other work for up to sixty timeouts; the others wait, with a
    /// warning each.
    ///
    /// # Errors
    /// Same as [`Builder::build`]. Also fails if the link has another number of ranks than the plan, or, naming the
    /// rank, if a rank runs another version, plan, model, loss contract or data types.
    pub fn build_rank(self, link: Box<dyn Link>) -> Result<Pipeline, BuildError> {
        let mut link = self.delay_link(link)?;
        // If this process refuses to start, the others learn it now instead of waiting for this rank.
        let prepared = self.prepare(link.as_ref()).inspect_err(|error| link.abort(error.to_string()));
        let (mut plans, device) = prepared?;
        let (monitor, job) = (link.monitor(), job(&self, plans.current()?.plan(), &device));
        self.start(plans, vec![link], vec![device], monitor, Some(job))
    }

    /// The plan for ranks in processes, with as many ranks as the link, and this rank's device.
    fn prepare(&self, link: &dyn Link) -> Result<(Plans, Device), BuildError> {
        let (linked, plans) = (link.ranks(), self.plans()?);
        let (ranks, all) = (plans.placement.ranks(), plans.ranks());
        match all {
            _ if all == linked => Ok((plans, self.device(link.rank(), linked)?)),
            _ if all == ranks => Err(BuildError::Ranks { ranks, linked }),
            _ => Err(BuildError::Replicas { ranks, all, linked }),
        }
    }

    /// The first plan, if the user's choices can be combined.
    pub(crate) fn plans(&self) -> Result<Plans, BuildError> {
        let source = self.source.clone().ok_or(BuildError::NoSchedule)??;
        if self.factory.is_none() {
            return Err(BuildError::NoStages);
        }
        if self.replicas == 0 {
            return Err(BuildError::NoReplicas);
        }
        if self.members.given().is_empty() || self.members.given().contains(&0) {
            return Err(BuildError::NoMembers);
        }
        if self.vocabulary.as_ref().is_some_and(|vocabulary| vocabulary.pieces().is_empty()) {
            return Err(BuildError::EmptyVocabulary);
        }
        Feature::check(&self.features())?;
        if self.sharded && self.replicas == 1 {
            return Err(BuildError::NothingToShardOver);
        }
        if let Some(reason) =
            self.precision.as_ref().and_then(|precision| precision.loss_scale).and_then(|scale| scale.refused())
        {
            return Err(BuildError::LossScale { reason });
        }
        if let Some(norm) = self.settings.clip_norm.filter(|&norm| norm.is_nan() || norm <= 0.0) {
            return Err(BuildError::ClipNorm { norm });
        }
        self.multiplies(self.matmuls.detect())?;
        let skips = self.skips_of(&source)?;
        let pieces = self.vocabulary.as_ref().map(Vocabulary::layers).unwrap_or_default();
        let vocabulary = VocabularyPass { pieces, profile: self.planned.clone() };
        let plans = Plans::new(source, &skips, self.replication(), vocabulary)?;
        let stages = plans.placement.stages();
        match self.cut.as_ref().map(Partition::stages).filter(|cut| *cut != stages) {
            Some(cut) => Err(PartitionError::Size { what: "stages", cut, given: stages }.into()),
            None => Ok(plans),
        }
    }

    /// Refuses matmuls other than of `f32` if they would be slower, or would not be used.
    fn multiplies(&self, found: Option<Bf16>) -> Result<(), BuildError> {
        let elsewhere = self.devices.iter().find(|device| found.is_none() || !compiles(device));
        match (self.matmuls, elsewhere) {
            (Matmuls::F32, _) | (_, None) => Ok(()),
            (matmuls, Some(device)) => {
                Err(BuildError::NoMatmuls { matmuls, device: format!("{:?}", device.clone().inner()) })
            }
        }
    }

    /// The chosen features that not every other one goes with.
    fn features(&self) -> Vec<Feature> {
        let head = self.vocabulary.as_ref().is_some_and(|vocabulary| vocabulary.layers().contains(&Piece::Head));
        Feature::chosen([
            (Feature::TensorParallel, self.members.largest() > 1),
            (Feature::Vocabulary, self.vocabulary.is_some()),
            (Feature::InputGradients, self.input_gradients),
            (Feature::Share, !self.shared.is_empty()),
            (Feature::Validate, self.settings.validate != Validate::Off),
            (Feature::WeightedReduction, self.settings.reduction == Reduction::Weighted && head),
            (Feature::OrderedAccumulation, self.accumulation == Accumulation::Ordered),
            (Feature::MergedWeights, self.tuning.merge_weights),
            (Feature::Matmuls, self.matmuls != Matmuls::F32),
            (Feature::Precision, self.precision.is_some()),
            (Feature::HalfReduction, self.precision.as_ref().is_some_and(|precision| precision.reduces_in_half)),
        ])
    }

    pub(crate) fn goes_with(&self, call: Feature) -> Result<(), NotTogether> {
        call.goes_with(&self.features())
    }

    /// A rank's end of the link, delayed if a network was given.
    fn delay_link(&self, link: Box<dyn Link>) -> Result<Box<dyn Link>, BuildError> {
        match &self.delay {
            Some(network) => Ok(Box::new(Delayed::new(link, network.clone())?)),
            None => Ok(link),
        }
    }

    /// The device of a rank, with autodiff.
    fn device(&self, rank: usize, ranks: usize) -> Result<Device, BuildError> {
        let device = match self.devices.as_slice() {
            [one] => one.clone(),
            several if several.len() == ranks => several[rank].clone(),
            others => return Err(BuildError::Devices { devices: others.len(), ranks }),
        };
        answers(&device).map_err(|message| BuildError::NoDevice { device: format!("{device:?}"), message })?;
        Ok(if device.is_autodiff() { device } else { device.autodiff() })
    }

    /// The predicted peak bytes of the plan on each pipeline rank, if there is a profile.
    fn predicted(&self, plan: &Plan, options: &SimulateOptions) -> Result<Vec<u64>, BuildError> {
        let Some(profile) = &self.planned else { return Ok(Vec::new()) };
        let plan = &plan.train_from(profile.first_trained())?;
        let simulated = simulate(plan, profile, options).map_err(|error| BuildError::Planned(error.to_string()))?;
        Ok(simulated.ranks.iter().map(|rank| rank.peak_bytes as u64).collect())
    }

    fn start(
        self,
        mut plans: Plans,
        links: Vec<Box<dyn Link>>,
        devices: Vec<Device>,
        monitor: Arc<dyn Monitor>,
        job: Option<Job>,
    ) -> Result<Pipeline, BuildError> {
        one_queue();
        // The proof assumed a stricter transport; the simulation assumes sends that do not wait.
        let simulate = SimulateOptions { transport: Transport::Unbounded, overlap: true };
        let (processes, first_rank) = (job.is_some(), links.first().map_or(0, |link| link.rank()));
        let plan = plans.current()?;
        let predicted = self.predicted(plan.plan(), &simulate)?;
        let blueprint = Arc::new(Blueprint { builder: self.clone(), plan, job, predicted });
        let build = move |link: Box<dyn Link>| {
            let device = devices[link.rank() - first_rank].clone();
            blueprint.build(link, device)
        };
        let started = Ranks::start(links, processes, monitor, self.timeout, self.threads, build);
        let (ranks, built) = started.map_err(|error| BuildError::Stages(Box::new(error)))?;
        let stages = Stages::of_ranks(built, self.input_gradients);
        stages.refuse_empty_group(
            self.groups.iter().chain(self.precision.iter().flat_map(|precision| &precision.kept)),
        )?;
        stages.fit_together(&plans.skips)?;
        plans.train_from(stages.first_trained())?;
        stages.refuse_unused()?;
        let named = self.layers.is_some() || stages.facts.iter().any(|facts| facts.named);
        match stages.claimed_twice() {
            Some((name, first, second)) if named => {
                return Err(BuildError::SameName { name, first, second });
            }
            Some((name, first, second)) => {
                tracing::warn!(name, first, second, "two stages claim one name: this pipeline cannot be saved");
            }
            None => {}
        }
        let pipeline = Pipeline {
            ranks,
            plans,
            stages,
            training: Training::new(self.seed, self.precision.as_ref().and_then(|precision| precision.loss_scale)),
            settings: self.settings,
            learns_metadata: self.settings.learns_metadata(),
            cut: self.cut,
            is_as_built: true,
            lacks_optimizer: self.optimizers.is_none(),
            widens: self.precision.is_some(),
            compares_batches: processes && self.compare_batches,
            branch: Branch::default(),
            simulate,
        };
        if self.input_gradients {
            pipeline.goes_with(Feature::InputGradients)?;
        }
        Ok(pipeline)
    }
}

/// Checks that the device works. Backends panic at the first use of a device without a driver, some on another thread.
fn answers(device: &Device) -> Result<(), String> {
    let plain = device.clone().inner();
    // No tensor is made, because the first one fixes the device's default element types.
    quietly(|| plain.sync().map_err(|error| error.to_string())).and_then(|answered| answered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_matmuls_are_refused_without_avx_512() {
        let builder = Pipeline::builder().devices(vec![Device::flex()]).matmuls(Matmuls::Bf16);
        let refused = builder.multiplies(None).unwrap_err();
        assert!(matches!(&refused, BuildError::NoMatmuls { device, .. } if device.contains("Flex")), "{refused}");
        assert!(refused.to_string().contains("AVX-512"), "{refused}");
        assert!(builder.matmuls(Matmuls::F32).multiplies(None).is_ok());
    }
}
