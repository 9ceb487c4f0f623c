//! `partition`: cuts a model's layers into stages, and reports the costs of each.
//!
//! 1. Layers come from a JSON file that lists every layer, or kinds and a pattern.
//! 2. The cut is even, greedy by weight, optimal, or given (by boundaries, or a pattern with `|`).
//! 3. The profile of the stages can be written to a file for `simulate`.

use crate::failure::Failure;
use crate::values::{amount, measure, parse, placement, positive, write};
use burn_pipeline_plan::cost::{
    Layers, LinkCosts, Measure, OptimalPartition, Partition, PartitionOptions, PartitionReport, Pattern,
};
use burn_pipeline_plan::plan::{Placement, PlacementKind};
use clap::ValueEnum;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The flags of `partition`.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The model's layers as JSON: {"layers": [...]}, or {"kinds": [...], "pattern": "E|A*4"}.
    #[arg(long, value_name = "FILE.json")]
    layers: PathBuf,
    /// Number of ranks (devices).
    #[arg(long, value_name = "P")]
    ranks: usize,
    /// Number of stages per rank.
    #[arg(long, value_name = "V", default_value_t = 1)]
    chunks: usize,
    /// How stages are placed on ranks: loop, v, wave or bidirectional. V has 2 stages per rank; bidirectional has 1 of
    /// each of two routes.
    #[arg(long, default_value = "loop", value_parser = placement)]
    placement: PlacementKind,
    /// How to cut the layers.
    #[arg(long, value_enum, default_value_t = By::Optimal)]
    by: By,
    /// What weighted and optimal cuts balance: seconds, flops or parameters.
    #[arg(long, default_value = "seconds", value_parser = measure)]
    measure: Measure,
    /// Cut at these layers, counted from 0, instead of --by. Each begins a stage; the first stage is not listed.
    #[arg(long, value_name = "L", value_delimiter = ',', conflicts_with = "by")]
    boundaries: Option<Vec<usize>>,
    /// Cut as this pattern says, such as EAAM|AAML*2, instead of --by. Its kinds must match the layers.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["by", "boundaries"])]
    pattern: Option<String>,
    /// Estimate the seconds of layers from their FLOPs, at this many FLOPs per second.
    #[arg(long, value_name = "FLOPS", value_parser = positive)]
    rate: Option<f64>,
    /// The most bytes that a rank may hold, for optimal cuts.
    #[arg(long, value_name = "BYTES", value_parser = amount)]
    cap: Option<f64>,
    /// Bytes held for each byte of parameters: 2 with gradients, 4 with Adam's moments as well.
    #[arg(long, value_name = "X", value_parser = amount, default_value_t = 2.0, requires = "cap")]
    state_factor: f64,
    /// Microbatches whose activations each stage holds at its peak, one number per stage [default: 1 each].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = amount, requires = "cap")]
    held: Vec<f64>,
    /// Write the profile of the stages as JSON.
    #[arg(long, value_name = "OUT.json")]
    profile: Option<PathBuf>,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// How to cut the layers.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// The same number of layers in each stage.
    Even,
    /// Each stage takes layers until it has its share of the weight.
    Weighted,
    /// The load of the busiest rank is as small as possible.
    Optimal,
    /// At the boundaries of the pattern in the file.
    Pattern,
}

/// Reads layers, and the pattern if the file has one.
pub(crate) fn read_layers(path: &Path, rate: Option<f64>) -> Result<(Layers, Option<Pattern>), Failure> {
    let (layers, pattern) = parse(path, Layers::from_json)?;
    match rate {
        None => Ok((layers, pattern)),
        Some(rate) => {
            let estimated = layers.all().iter().map(|layer| layer.clone().estimated(rate)).collect();
            Ok((layers.with_costs(estimated)?, pattern))
        }
    }
}

/// Cuts the layers and prints the report.
pub(crate) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    let (layers, pattern) = read_layers(&arguments.layers, arguments.rate)?;
    let placement = Placement::of_kind(arguments.placement, arguments.ranks, arguments.chunks)?;
    let (partition, best) = cut(arguments, &layers, pattern, &placement)?;
    let report = PartitionReport::new(&layers, &partition, &placement)?;
    let text = Pattern::new(&layers, &partition)?;
    if let Some(path) = &arguments.profile {
        let profile = partition.profile(&layers, LinkCosts::default())?;
        write(Some(path), || profile.to_json())?;
    }
    if arguments.json {
        let best = best.map(|b| json!({ "largest": b.largest, "lower_bound": b.lower_bound, "proved": b.proved }));
        let mut json = json!(report);
        json["pattern"] = json!(text.to_string());
        json["boundaries"] = json!(partition.boundaries());
        json["imbalance"] = json!(report.imbalance());
        json["optimal"] = json!(best);
        writeln!(out, "{json}")?;
        return Ok(());
    }
    writeln!(out, "{text}   ({partition} layers, {} placement)\n{report}", placement.kind())?;
    if let Some(best) = best {
        let unit = arguments.measure;
        let (largest, bound) = (best.largest, best.lower_bound);
        let verdict = if best.proved { "no cut is better".into() } else { format!("no cut is below {bound:.6}") };
        writeln!(out, "busiest rank by {unit:?}: {largest:.6} ({verdict})")?;
    }
    Ok(())
}

/// The cut from the flags, with the search's result if the cut is optimal.
fn cut(
    arguments: &Arguments,
    layers: &Layers,
    pattern: Option<Pattern>,
    placement: &Placement,
) -> Result<(Partition, Option<OptimalPartition>), Failure> {
    if let Some(boundaries) = &arguments.boundaries {
        return Ok((Partition::from_boundaries(layers.len(), boundaries)?, None));
    }
    if let Some(text) = &arguments.pattern {
        let pattern: Pattern = text.parse().map_err(|error| Failure::Input(format!("--pattern: {error}")))?;
        return Ok((pattern.partition_of(layers)?, None));
    }
    let (stages, measure) = (placement.stages(), arguments.measure);
    match (arguments.by, pattern) {
        (By::Even, _) => Ok((Partition::even(layers.len(), stages)?, None)),
        (By::Weighted, _) => {
            let weights: Vec<f64> = layers.all().iter().map(|layer| measure.of(layer)).collect();
            Ok((Partition::weighted(&weights, stages)?, None))
        }
        (By::Optimal, _) => {
            let (cap, state_factor, held) = (arguments.cap, arguments.state_factor, arguments.held.clone());
            let options = PartitionOptions { measure, cap, state_factor, held, ..PartitionOptions::default() };
            let best = Partition::optimal(layers, placement, &options)?;
            Ok((best.partition.clone(), Some(best)))
        }
        (By::Pattern, Some(pattern)) => Ok((pattern.partition(), None)),
        (By::Pattern, None) => Err(Failure::Input("the file has no pattern; give --pattern".into())),
    }
}
