//! `plan`: finds the best plan for a model, ranks, links and a memory cap.
//!
//! 1. The model is a file of layers, which the planner cuts into stages, or a profile of stages, which it does not cut.
//! 2. The report is printed as text or JSON. The plan and the costs of its stages can be written to files for `check`,
//!    `simulate` and the runtime.

use crate::failure::Failure;
use crate::overlap::OverlapArguments;
use crate::partition::read_layers;
use crate::source::TransferArguments;
use crate::values::{amount, parse, positive, write};
use burn_pipeline_plan::cost::{Layers, LinkCost, LinkCosts, Profile, VocabularyCost};
use burn_pipeline_plan::page::{Choices, Page};
use burn_pipeline_plan::planner::{Candidate, Cut, PlannerReport, Recompute, Request, Synthesis, Workload, best_plan};
use burn_pipeline_plan::trace::SvgOptions;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

/// The flags of `plan`.
#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("model").required(true).args(["layers", "profile"])))]
pub(crate) struct Arguments {
    /// The model's layers as JSON: {"layers": [...]}, or {"kinds": [...], "pattern": "E|A*4"}.
    #[arg(long, value_name = "FILE.json")]
    layers: Option<PathBuf>,
    /// A measured profile of stages and links instead of layers. Its stages are not cut again.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["rate", "latency", "bandwidth", "links", "chunks"])]
    profile: Option<PathBuf>,
    /// Number of ranks (devices).
    #[arg(long, value_name = "P")]
    ranks: usize,
    /// Numbers of microbatches to choose from, for the same batch.
    #[arg(long, value_name = "M", value_delimiter = ',', required = true)]
    microbatches: Vec<usize>,
    /// The number of microbatches at which the costs were measured [default: the first of --microbatches].
    #[arg(long, value_name = "M")]
    measured_at: Option<usize>,
    /// Seconds of each operation of a layer that do not depend on the size of a microbatch.
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = amount)]
    fixed: f64,
    /// Bytes of one microbatch's input to the model. A profile with a parallel vocabulary says it itself.
    #[arg(long, value_name = "BYTES", default_value_t = 0.0, value_parser = amount)]
    input_bytes: f64,
    /// Estimate the seconds of layers from their FLOPs, at this many FLOPs per second.
    #[arg(long, value_name = "FLOPS", value_parser = positive)]
    rate: Option<f64>,
    /// Seconds of latency of a message between two ranks.
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = amount)]
    latency: f64,
    /// Bytes per second between two ranks [default: unlimited].
    #[arg(long, value_name = "BYTES", value_parser = positive)]
    bandwidth: Option<f64>,
    /// Links in the form of a profile: {"default": {...}, "between": [...]}.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["latency", "bandwidth"])]
    links: Option<PathBuf>,
    /// The most bytes that a rank may hold.
    #[arg(long, value_name = "BYTES", value_parser = amount)]
    cap: Option<f64>,
    /// Bytes held for each byte of parameters: 2 with gradients, 4 with Adam's moments as well.
    #[arg(long, value_name = "X", value_parser = amount, default_value_t = 2.0)]
    state_factor: f64,
    /// Numbers of stages per rank to try.
    #[arg(long, value_name = "V", value_delimiter = ',', default_value = "1,2,4")]
    chunks: Vec<usize>,
    /// Do not synthesise schedules; try only those that `schedules` lists.
    #[arg(long)]
    no_synthesis: bool,
    /// Do not recompute forwards in the backward.
    #[arg(long)]
    no_recompute: bool,
    /// Try vocabulary-parallel plans too: the first layer is the embedding, the last one the head.
    #[arg(long, conflicts_with = "profile")]
    vocabulary_parallel: bool,
    /// Sizes of tensor-parallel groups to try beside 1. Layers need `summed_bytes`.
    #[arg(long, value_name = "T", value_delimiter = ',', conflicts_with = "profile")]
    tensor_groups: Vec<usize>,
    /// Do not try plans without a pipeline (one device, data parallelism).
    #[arg(long)]
    pipeline_only: bool,
    #[command(flatten)]
    transfers: TransferArguments,
    #[command(flatten)]
    overlap: OverlapArguments,
    /// List the dropped candidates with their reasons.
    #[arg(long)]
    dropped: bool,
    /// Write the best plan, with its sends and receives, as CSV.
    #[arg(long, value_name = "OUT.csv")]
    csv: Option<PathBuf>,
    /// Write the profile of the best plan's stages as JSON.
    #[arg(long, value_name = "OUT.json")]
    costs: Option<PathBuf>,
    /// Write the best plan's simulated timeline as SVG.
    #[arg(long, value_name = "OUT.svg")]
    svg: Option<PathBuf>,
    /// Write the best plan's timeline, idle times and memory, and all candidates, as one HTML page.
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Plans and prints the report.
pub(crate) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    let planned = best_plan(&request(arguments)?)?;
    write(arguments.csv.as_deref(), || planned.plan.plan().to_csv())?;
    write(arguments.costs.as_deref(), || planned.profile.to_json())?;
    write(arguments.svg.as_deref(), || {
        let track = planned.simulation.track(planned.best.to_string());
        track.svg(&SvgOptions::fitting(&track))
    })?;
    write(arguments.html.as_deref(), || {
        let page = Page::new(planned.best.to_string()).costs(planned.profile.clone());
        let page = page.simulation("predicted", &planned.simulation).choices(Choices::from(&planned));
        arguments.cap.into_iter().fold(page, Page::cap).html()
    })?;
    if arguments.json {
        writeln!(out, "{}", report(&planned))?;
        return Ok(());
    }
    writeln!(out, "{planned}")?;
    for (what, reason) in planned.dropped.iter().filter(|_| arguments.dropped) {
        writeln!(out, "  {what}: {reason}")?;
    }
    Ok(())
}

/// The planner's request from the flags.
fn request(arguments: &Arguments) -> Result<Request, Failure> {
    let Model { layers, vocabulary, links, chunks, cuts } = model(arguments)?;
    let first = arguments.microbatches.first().copied().unwrap_or(1);
    let measured_at = arguments.measured_at.unwrap_or(first);
    if measured_at == 0 || arguments.microbatches.contains(&0) {
        return Err(Failure::Input("a step needs at least one microbatch".into()));
    }
    let input_bytes = vocabulary.map_or(arguments.input_bytes, |pieces| pieces.embedded_bytes);
    let measured = Workload { input_bytes, vocabulary, ..Workload::new(measured_at, layers) };
    let recut = |&microbatches: &usize| measured.recut(microbatches, arguments.fixed);
    let workloads = arguments.microbatches.iter().map(recut).collect::<Result<_, _>>()?;
    let recompute = if arguments.no_recompute { vec![Recompute::Never] } else { Recompute::ALL.to_vec() };
    Ok(Request {
        cap: arguments.cap,
        state_factor: arguments.state_factor,
        chunks,
        cuts,
        recompute,
        overlap_passes: arguments.overlap.passes.clone(),
        overlap: arguments.overlap.options(arguments.transfers.options()),
        synthesis: (!arguments.no_synthesis).then(Synthesis::default),
        unpipelined: !arguments.pipeline_only,
        members: arguments.tensor_groups.clone(),
        vocabulary_parallel: arguments.vocabulary_parallel,
        simulate: arguments.transfers.options(),
        ..Request::new(workloads, arguments.ranks, links)
    })
}

/// What the planner may cut, and how.
struct Model {
    layers: Layers,
    /// The pieces of embedding and head, of a profile whose vocabulary is parallel.
    vocabulary: Option<VocabularyCost>,
    links: LinkCosts,
    chunks: Vec<usize>,
    cuts: Vec<Cut>,
}

/// The model from the flags.
fn model(arguments: &Arguments) -> Result<Model, Failure> {
    if let Some(path) = &arguments.profile {
        let profile = parse(path, Profile::from_json)?;
        let stages = profile.stages().len();
        if arguments.ranks == 0 || !stages.is_multiple_of(arguments.ranks) {
            return Err(Failure::Input(format!(
                "{}: {stages} stages do not divide evenly among {} ranks; measure another cut, or give the layers",
                path.display(),
                arguments.ranks
            )));
        }
        return Ok(Model {
            layers: Layers::of_profile(&profile)?,
            vocabulary: profile.vocabulary().copied(),
            links: profile.links().clone(),
            chunks: vec![stages / arguments.ranks],
            cuts: vec![Cut::Even],
        });
    }
    let Some(path) = &arguments.layers else { return Err(Failure::Input("give --layers or --profile".into())) };
    let (layers, _) = read_layers(path, arguments.rate)?;
    let links = match &arguments.links {
        Some(path) => parse(path, |text| serde_json::from_str(text))?,
        None => LinkCosts {
            default: LinkCost { latency: arguments.latency, bandwidth: arguments.bandwidth },
            between: Vec::new(),
        },
    };
    Ok(Model { layers, vocabulary: None, links, chunks: arguments.chunks.clone(), cuts: Cut::ALL.to_vec() })
}

fn report(planned: &PlannerReport) -> Value {
    let candidate = |c: &Candidate| {
        json!({
            "way": c.strategy.to_string(), "seconds": c.seconds, "peak_bytes": c.peak_bytes, "pareto": c.pareto,
            "placement": c.placement, "chunks": c.chunks, "cut": c.cut.to_string(),
            "partition": c.partition.to_string(), "boundaries": c.partition.boundaries(),
            "microbatches": c.microbatches, "recomputing": c.recomputing,
            "passes": c.passes.to_string(), "vocabulary_parallel": c.vocabulary_parallel,
            "members": c.members, "groups": c.groups,
        })
    };
    let limits = planned.breakdown;
    let faster = planned.faster_without_cap.as_ref();
    let dropped = planned.dropped.iter().map(|(what, reason)| json!({ "what": what, "reason": reason }));
    json!({
        "best": candidate(&planned.best),
        "overlap": planned.overlap,
        "bound": planned.bound,
        "limits": {
            "work": limits.work, "imbalance": limits.imbalance, "ends": limits.ends, "waiting": limits.waiting,
            "transfer": limits.transfer, "reduction": limits.reduction,
        },
        "faster_without_cap": faster.map(|(what, seconds)| json!({ "what": what, "seconds": seconds })),
        "candidates": planned.candidates.iter().map(candidate).collect::<Vec<_>>(),
        "dropped": dropped.collect::<Vec<_>>(),
    })
}
