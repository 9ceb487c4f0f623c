//! Starting a pipeline: the first plan is proved, then each rank of this process gets its thread.
//!
//! 1. [`Pipeline::start`] holds all ranks: threads with a link between them. Plans are proved for rendezvous, the
//!    strictest transport.
//! 2. [`Pipeline::start_rank`] holds one rank, and a link to the others, which are processes. Plans are proved for
//!    what that link declares, and before stages are built all ranks compare their jobs ([`job`]).

use crate::execute::ExecuteError;
use crate::link::{Capabilities, Delayed, Link, Threads, WIRE_VERSION, Watch, checksum};
use crate::plan::{CheckedPlan, Plan, Transport};
use crate::simulate::SimulateOptions;
use crate::stage::Accumulation;
use crate::train::build::builder::Builder;
use crate::train::build_error::BuildError;
use crate::train::checkpoint::Progress;
use crate::train::control::command::Answer;
use crate::train::control::endings::Endings;
use crate::train::control::processes::Job;
use crate::train::control::worker::{Seat, run};
use crate::train::error::PipelineError;
use crate::train::pipeline::{Pipeline, SourceBox};
use crate::train::plans::source::split_stages;
use burn::tensor::Device;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::channel;

impl Pipeline {
    /// All ranks on threads of this process.
    pub(crate) fn start(builder: Builder) -> Result<Self, BuildError> {
        // Rendezvous is the strictest model: what is proved for it cannot deadlock on any link.
        let plan = first_plan(&builder, Transport::Rendezvous)?;
        let ranks = plan.plan().ranks() * builder.replicas;
        let threads = Threads::new(ranks);
        let links: Vec<(Box<dyn Link>, Device)> = (0..ranks)
            .map(|rank| {
                let device = device_of(&builder, rank, ranks)?;
                let link = Box::new(threads.link(rank, device.clone().inner()));
                Ok((delayed(&builder, link)?, device))
            })
            .collect::<Result<_, BuildError>>()?;
        Self::over(builder, plan, links, Arc::new(threads), None)
    }

    /// One rank of processes that all do the same.
    pub(crate) fn start_rank(builder: Builder, mut link: Box<dyn Link>) -> Result<Self, BuildError> {
        link = delayed(&builder, link)?;
        let prepared = prepare_rank(&builder, link.as_ref());
        // The others hear of it now, and not when they have waited for this rank in vain.
        let prepared = prepared.inspect_err(|error| link.abort(error.to_string()));
        let (plan, device) = prepared?;
        let (watch, job) = (link.watch(), job(&builder, &plan, &device));
        Self::over(builder, plan, vec![(link, device)], watch, Some(job))
    }

    fn over(
        builder: Builder,
        plan: Arc<CheckedPlan>,
        links: Vec<(Box<dyn Link>, Device)>,
        watch: Arc<dyn Watch>,
        job: Option<Job>,
    ) -> Result<Self, BuildError> {
        let source = builder.source.clone().ok_or(BuildError::NoSchedule)??.with_skips(&builder.skips);
        let placement = plan.plan().placement().clone();
        let splits = Arc::new(split_stages(plan.plan()));
        let (answer, replies) = channel();
        let travel = links.first().map_or_else(SimulateOptions::default, |(link, _)| travel(link.as_ref()));
        let (mut commands, mut members, mut endings) = (Vec::new(), Vec::new(), Endings::default());
        for (link, device) in links {
            let (command, orders) = channel();
            let rank = link.rank();
            commands.push(command);
            members.push(rank);
            let (placement, replies, splits) = (placement.clone(), answer.clone(), splits.clone());
            let alive = job.is_some().then(|| endings.another());
            let (job, builder) = (job.clone(), builder.clone());
            let seat = Seat { rank, device, placement, splits, job, builder, commands: orders, replies };
            let body = move || {
                run(seat, link);
                drop(alive);
            };
            let spawned = std::thread::Builder::new().name(format!("rank {rank}")).spawn(body);
            if let Err(error) = spawned {
                let error = ExecuteError::Device { rank, message: format!("no thread: {error}") };
                return Err(BuildError::Stages(Box::new(PipelineError::Rank(error))));
            }
        }
        let mut pipeline = Self {
            transport: plan.transport(),
            travel,
            training: HashMap::from([(plan.plan().total_microbatches(), plan)]),
            evaluation: HashMap::new(),
            source: Arc::new(SourceBox(source)),
            facts: Vec::new(),
            shared: Vec::new(),
            validate: builder.validate,
            learned: false,
            groups: builder.groups(),
            deadline: builder.timeout,
            closed: None,
            progress: Progress { seed: builder.seed, ..Progress::default() },
            waiting: 0,
            seed: builder.seed,
            together: job.is_some(),
            members,
            placement,
            watch,
            commands,
            replies,
            endings,
        };
        let answers = pipeline.answers().map_err(|error| BuildError::Stages(Box::new(error)))?;
        for answer in answers {
            if let Answer::Ready(facts, shared) = answer {
                pipeline.facts.extend(facts);
                pipeline.shared = shared;
            }
        }
        pipeline.facts.sort_by_key(|facts| facts.stage);
        // Data-parallel replicas say the same of a stage.
        pipeline.facts.dedup_by_key(|facts| facts.stage);
        if let Some((name, first, second)) = pipeline.claimed_twice() {
            tracing::warn!(name, first, second, "two stages claim one name: this pipeline cannot be saved");
        }
        Ok(pipeline)
    }
}

fn first_plan(builder: &Builder, transport: Transport) -> Result<Arc<CheckedPlan>, BuildError> {
    let source = builder.source.clone().ok_or(BuildError::NoSchedule)??.with_skips(&builder.skips);
    if builder.factory.is_none() {
        return Err(BuildError::NoStages);
    }
    if builder.replicas == 0 {
        return Err(BuildError::NoReplicas);
    }
    if builder.sharded && builder.replicas == 1 {
        return Err(BuildError::NothingToShardOver);
    }
    if builder.merge_weights && builder.accumulation == Accumulation::Ordered {
        return Err(BuildError::MergedAndOrdered);
    }
    Ok(Arc::new(source.training_plan(source.microbatches(), transport, builder.groups())?))
}

/// A rank's end of the link, as slow as was asked for.
fn delayed(builder: &Builder, link: Box<dyn Link>) -> Result<Box<dyn Link>, BuildError> {
    match &builder.delay {
        Some(network) => Ok(Box::new(Delayed::new(link, network.clone())?)),
        None => Ok(link),
    }
}

/// The device of a rank, with autodiff.
fn device_of(builder: &Builder, rank: usize, ranks: usize) -> Result<Device, BuildError> {
    let device = match builder.devices.as_slice() {
        [one] => one.clone(),
        several if several.len() == ranks => several[rank].clone(),
        others => return Err(BuildError::Devices { devices: others.len(), ranks }),
    };
    Ok(if device.is_autodiff() { device } else { device.autodiff() })
}

fn prepare_rank(builder: &Builder, link: &dyn Link) -> Result<(Arc<CheckedPlan>, Device), BuildError> {
    let capabilities = link.capabilities();
    if !capabilities.ordered {
        return Err(BuildError::Unordered);
    }
    let plan = first_plan(builder, capabilities.transport)?;
    let (ranks, replicas, linked) = (plan.plan().ranks(), builder.replicas, link.ranks());
    if ranks * replicas != linked {
        return Err(match replicas {
            1 => BuildError::Ranks { ranks, linked },
            _ => BuildError::Replicas { ranks, replicas, linked },
        });
    }
    if replicas > 1 && capabilities.transport == Transport::Rendezvous {
        return Err(BuildError::Rendezvous);
    }
    Ok((plan, device_of(builder, link.rank(), linked)?))
}

/// How a link's messages travel: what was proved for a stricter transport is priced for this one.
fn travel(link: &dyn Link) -> SimulateOptions {
    let Capabilities { transport, overlaps, .. } = link.capabilities();
    SimulateOptions { transport, overlap: overlaps }
}

/// What all ranks of a job must have in common.
fn job(builder: &Builder, plan: &CheckedPlan, device: &Device) -> Job {
    let plan = plan.plan();
    let settings = device.clone().inner().settings();
    let numbers = format!("{:?} and {:?}", settings.float_dtype, settings.int_dtype);
    let (reduction, accumulation, clip) = (builder.reduction, builder.accumulation, builder.clip_norm);
    let (seed, groups) = (builder.seed, builder.groups());
    vec![
        ("the version of burn-pipeline", format!("{} (messages {WIRE_VERSION})", env!("CARGO_PKG_VERSION"))),
        ("the plan", format!("{} #{:016x}", plan.name(), fingerprint(plan))),
        ("the loss contract", format!("{reduction:?}, {accumulation:?} accumulation, clip norm {clip:?}")),
        ("the data-parallel replicas", format!("{groups:?}")),
        ("the seed", format!("{seed:?}")),
        ("the default data types", numbers),
        ("the model", builder.model.clone().unwrap_or_else(|| "no description".to_owned())),
    ]
}

/// A number for all of a plan: placement, microbatches, and every action of every rank.
pub(crate) fn fingerprint(plan: &Plan) -> u64 {
    // Plans are plain numbers and text: writing one cannot fail, and if it did, all ranks would agree on that.
    checksum(&serde_json::to_vec(plan).unwrap_or_default())
}
