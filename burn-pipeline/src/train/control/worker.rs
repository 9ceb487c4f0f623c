//! A rank's thread: builds the rank's stages, then answers commands until the pipeline is dropped.
//!
//! Where ranks are processes there is one such thread in each, and what ranks tell each other of a command goes over
//! the link: see `together.rs`.
//!
//! Each thread works inside a compute pool of its own, so that ranks do not fight over one. A panic outside a
//! stage's task (in a factory or an optimizer) is caught here, named, and told to the other ranks.

use crate::execute::{ExecuteError, Executor, ReplicaShare, RunOptions, panic_message};
use crate::group::Grid;
use crate::link::{Activity, Failure, Link};
use crate::plan::{Placement, StageId};
use crate::stage::{AnyTensor, ErasedStage, NamedWeight, Validate};
use crate::train::build::builder::{Builder, StageContext};
use crate::train::choose::links;
use crate::train::control::command::{Answer, Command, Reply, StageFacts};
use crate::train::control::processes::{Job, agree_on_job, obey_together, share_facts};
use crate::train::shared::SharedReport;
use crate::train::step::rank::Rank;
use burn::module::ParamId;
use burn::tensor::Device;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

/// What a rank's thread starts from.
pub(crate) struct Seat {
    pub(crate) rank: usize,
    pub(crate) device: Device,
    pub(crate) placement: Placement,
    /// Stages whose backward the plan splits.
    pub(crate) splits: Arc<BTreeSet<StageId>>,
    /// What all ranks must have in common, where they are processes.
    pub(crate) job: Option<Job>,
    pub(crate) builder: Builder,
    pub(crate) commands: Receiver<Command>,
    pub(crate) replies: Sender<Reply>,
}

/// The thread's whole life.
pub(crate) fn run(seat: Seat, link: Box<dyn Link>) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(seat.builder.threads);
    let named = pool.thread_name({
        let rank = seat.rank;
        move |thread| format!("rank {rank} compute {thread}")
    });
    match named.build() {
        Ok(pool) => pool.install(move || serve(&seat, link)),
        Err(error) => {
            let error = ExecuteError::Device { rank: seat.rank, message: format!("no compute threads: {error}") };
            // A send fails only when the pipeline is gone, and then nobody wants the answer.
            let _ = seat.replies.send((seat.rank, Err(error)));
        }
    }
}

fn serve(seat: &Seat, link: Box<dyn Link>) {
    let (rank_number, watch) = (seat.rank, link.watch());
    let built = caught(rank_number, || "building its stages".to_owned(), || build(seat, link));
    let mut rank = match built {
        Ok((rank, facts, shared)) => {
            let _ = seat.replies.send((rank_number, Ok(vec![Answer::Ready(facts, shared)])));
            rank
        }
        Err(error) => {
            watch.abort(Failure { rank: rank_number, message: error.to_string() });
            let _ = seat.replies.send((rank_number, Err(error)));
            return;
        }
    };
    while let Ok(command) = seat.commands.recv() {
        let (clip_norm, validate) = (seat.builder.clip_norm, seat.builder.validate);
        let doing = command.doing();
        let answer = caught(
            rank_number,
            || doing.to_owned(),
            || match seat.job {
                None => obey(&mut rank, command, clip_norm, validate).map(|answer| vec![answer]),
                Some(_) => obey_together(&mut rank, command, clip_norm, validate),
            },
        );
        if let Err(error @ ExecuteError::RankPanic { .. }) = &answer {
            rank.executor().fail(error);
        }
        if seat.replies.send((rank_number, answer)).is_err() {
            return;
        }
    }
}

/// Runs user code outside a stage's task: a panic becomes an error that says what the rank was doing.
pub(crate) fn caught<T>(
    rank: usize,
    doing: impl FnOnce() -> String,
    f: impl FnOnce() -> Result<T, ExecuteError>,
) -> Result<T, ExecuteError> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        Err(ExecuteError::RankPanic { rank, doing: doing(), message: panic_message(panic.as_ref()) })
    })
}

/// Element types and shapes, in visiting order.
fn described(weights: &[(ParamId, AnyTensor)]) -> String {
    let described = weights.iter().map(|(_, weight)| format!("{:?}{:?}", weight.dtype(), weight.shape().to_vec()));
    described.collect::<Vec<_>>().join(" ")
}

type Built = (Rank, Vec<StageFacts>, Vec<SharedReport>);

fn build(seat: &Seat, mut link: Box<dyn Link>) -> Result<Built, ExecuteError> {
    let mut stages: BTreeMap<StageId, Box<dyn ErasedStage>> = BTreeMap::new();
    let mut facts = Vec::new();
    if let Some(job) = &seat.job {
        agree_on_job(link.as_mut(), job, seat.builder.timeout)?;
    }
    let grid = Grid::new(seat.rank, seat.builder.replicas);
    for stage in seat.placement.stages_of(grid.pipeline_rank()) {
        let (rank, device) = (seat.rank, seat.device.clone());
        let context = StageContext { index: stage.index(), stages: seat.placement.stages(), rank, device };
        let factory = seat.builder.factory.as_ref().ok_or(ExecuteError::NoStage { rank, stage })?;
        link.announce(Activity::Building(stage));
        let held = caught(
            rank,
            || format!("building stage {stage}"),
            || {
                let mut held = factory(&context).into_inner();
                let chosen = held.choose(seat.builder.split, seat.splits.contains(&stage), seat.builder.keep_outputs);
                chosen.map_err(|error| ExecuteError::Device { rank, message: error.to_string() })?;
                held.prepare(seat.builder.accumulation, seat.builder.optimizers.as_ref().map(|make| make()));
                Ok(held)
            },
        )?;
        tracing::info!(rank, %stage, module = held.module_type(), engine = %held.report().engine, "stage built");
        let weights = held.weights();
        let (weight_bytes, parameters) = (weights.iter().map(|(_, w)| w.bytes()).sum(), described(&weights));
        let (extras, has_loss, takes) = (held.extras(), held.has_loss(), held.takes());
        let declared = held.declared().is_some();
        let named = |weight: NamedWeight| weight.names.into_iter().map(move |name| (weight.path.clone(), name));
        let names = held.named_weights().into_iter().flat_map(named).collect();
        facts.push(StageFacts { stage, extras, has_loss, declared, weight_bytes, takes, parameters, names });
        stages.insert(stage, held);
    }
    if seat.job.is_some() {
        facts = share_facts(link.as_mut(), facts, seat.builder.timeout)?;
    }
    link.announce(Activity::Idle);
    let options = RunOptions {
        timeout: seat.builder.timeout,
        synchronize: seat.builder.synchronize,
        merge_weights: seat.builder.merge_weights,
        fused: seat.builder.fused,
    };
    let executor = Executor::new(link, stages, seat.device.clone(), options).among(seat.builder.replicas);
    let mut rank = Rank::new(executor, seat.placement.clone(), seat.builder.reduction)?;
    let shared = rank.share(&seat.builder.shared)?.to_vec();
    rank.shard(seat.builder.sharded)?;
    Ok((rank, facts, shared))
}

/// Does what it is asked to; where parameters are sharded, with whole ones, if they are to be read.
pub(crate) fn obey(
    rank: &mut Rank,
    command: Command,
    clip_norm: Option<f64>,
    validate: Validate,
) -> Result<Answer, ExecuteError> {
    if !rank.executor().is_sharded() {
        return obey_whole(rank, command, clip_norm, validate);
    }
    if let Command::Gradients = command {
        let whole = rank.executor().gather_gradients();
        rank.told(whole)?;
    }
    let reads = matches!(
        command,
        Command::Weights | Command::NamedWeights | Command::Modules | Command::Save { .. } | Command::Export { .. }
    );
    if reads || matches!(command, Command::Offer { .. }) {
        let gathered = rank.executor().gather_all();
        rank.told(gathered)?;
    }
    let answer = obey_whole(rank, command, clip_norm, validate);
    if reads {
        rank.executor().release_all();
    }
    answer
}

fn obey_whole(
    rank: &mut Rank,
    command: Command,
    clip_norm: Option<f64>,
    validate: Validate,
) -> Result<Answer, ExecuteError> {
    let first = rank.executor().grid().replica() == 0;
    match command {
        Command::Learn { plan, zeros } => {
            let (mode, known) = rank.learn(&plan, &zeros, validate)?;
            Ok(Answer::Learned(mode, known.into_iter().collect()))
        }
        Command::Accumulate { shares, batch, began, seed, last } => {
            rank.draw_from(seed);
            let (part, plan) = shares.of(rank.executor().grid().replica());
            let part = ReplicaShare { reduce: last, ..part };
            rank.accumulate_part(plan, &batch, began, part).map(Answer::Batch)
        }
        Command::Apply { learning_rate } => rank.apply(learning_rate, clip_norm).map(Answer::Applied),
        Command::Evaluate { shares, batch, began, .. } => {
            let (part, plan) = shares.of(rank.executor().grid().replica());
            rank.evaluate_part(plan, &batch, began, part).map(Answer::Batch)
        }
        Command::FinishGradients => rank.finish_gradients(clip_norm).map(|_| Answer::Done),
        Command::Forget => {
            rank.forget();
            Ok(Answer::Done)
        }
        // Data-parallel replicas are equal: the first one tells and writes.
        Command::NamedWeights if !first => Ok(Answer::NamedWeights(Vec::new())),
        Command::Gradients | Command::Weights if !first => Ok(Answer::Tensors(Vec::new())),
        Command::NamedWeights => {
            let stages = rank.executor().stages().iter();
            Ok(Answer::NamedWeights(stages.map(|(&stage, held)| (stage, held.named_weights())).collect()))
        }
        Command::Save { folder } => rank.save(&folder).map(Answer::Saved),
        Command::Export { path } => rank.export(&path).map(Answer::Exported),
        Command::Offer { checkpoint, parts } => Ok(Answer::Offered(rank.offer(&checkpoint, parts))),
        Command::Conclude { adopt } => {
            rank.conclude(adopt)?;
            Ok(Answer::Done)
        }
        Command::Gradients => {
            let gradients = |stage: &mut Box<dyn ErasedStage>| {
                let parameters = stage.parameters();
                parameters.into_iter().map(|id| stage.gradients().get(id).cloned()).collect()
            };
            Ok(Answer::Tensors(rank.executor().stages().iter_mut().map(|(&s, held)| (s, gradients(held))).collect()))
        }
        Command::Weights => {
            let weights =
                |stage: &mut Box<dyn ErasedStage>| stage.weights().into_iter().map(|(_, w)| Some(w)).collect();
            Ok(Answer::Tensors(rank.executor().stages().iter_mut().map(|(&s, held)| (s, weights(held))).collect()))
        }
        Command::Refuse(_) => Ok(Answer::Done),
        Command::MeasureLinks => links::measure(rank).map(Answer::Links),
        Command::Tell(bytes) => Ok(Answer::Told(bytes.to_vec())),
        Command::Engines => {
            Ok(Answer::Engines(rank.executor().stages().iter().map(|(&s, held)| (s, held.report())).collect()))
        }
        Command::Modules => {
            Ok(Answer::Modules(rank.executor().stages().iter().map(|(&s, held)| (s, held.module())).collect()))
        }
    }
}
