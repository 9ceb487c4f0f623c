//! `partition`: cut a model's layers into stages and report what each holds.
//!
//! 1. Layers come from a JSON file: every layer, or kinds and a pattern.
//! 2. The cut is even, greedy by weight, the best there is, or as told (boundaries, or a pattern with `|`).
//! 3. The profile of the stages can be written for `simulate`.

use crate::costs::seconds;
use crate::failure::Failure;
use crate::source::{read, write};
use burn_pipeline_plan::cost::{
    Layers, LinkCosts, Measure, MemoryLimits, OptimalPartition, Partition, PartitionOptions, PartitionReport, Pattern,
    optimal_partition,
};
use burn_pipeline_plan::plan::{Placement, PlacementKind};
use clap::ValueEnum;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The flags of `partition`.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The model: {"layers": [...]}, or {"kinds": [...], "pattern": "E|A*4"}.
    #[arg(long, value_name = "FILE.json")]
    layers: PathBuf,
    /// Ranks (devices).
    #[arg(long, value_name = "P")]
    ranks: usize,
    /// Stages a rank.
    #[arg(long, value_name = "V", default_value_t = 1)]
    chunks: usize,
    /// Where stages go; V has 2 chunks a rank, bidirectional 1 of each replica.
    #[arg(long, value_enum, default_value_t = Shape::Loop)]
    placement: Shape,
    /// How to cut.
    #[arg(long, value_enum, default_value_t = By::Optimal)]
    by: By,
    /// What a layer weighs, for weighted and optimal cuts.
    #[arg(long, value_enum, default_value_t = Weight::Seconds)]
    measure: Weight,
    /// The layers at which stages begin (without the first stage), instead of --by.
    #[arg(long, value_name = "L", value_delimiter = ',', conflicts_with = "by")]
    boundaries: Option<Vec<usize>>,
    /// The cut as a text, such as EAAM|AAML*2, instead of --by; kinds have to be those of the layers.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["by", "boundaries"])]
    pattern: Option<String>,
    /// Estimate seconds from FLOPs at this many a second.
    #[arg(long, value_name = "FLOPS", value_parser = positive)]
    rate: Option<f64>,
    /// Bytes that a rank may hold, for optimal cuts.
    #[arg(long, value_name = "BYTES", value_parser = seconds)]
    cap: Option<f64>,
    /// Bytes held for each byte of parameters (parameters, gradients, optimizer).
    #[arg(long, value_name = "X", value_parser = seconds, default_value_t = 2.0, requires = "cap")]
    state_factor: f64,
    /// Microbatches whose activations each stage holds [default: 1 each].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = seconds, requires = "cap")]
    held: Vec<f64>,
    /// Write the profile of the stages.
    #[arg(long, value_name = "OUT.json")]
    profile: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Where stages go.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Shape {
    Loop,
    V,
    Wave,
    Bidirectional,
}

/// How to cut.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// As many layers in each stage.
    Even,
    /// Greedily by weight.
    Weighted,
    /// The busiest rank as little busy as can be.
    Optimal,
    /// At the boundaries of the file's pattern.
    Pattern,
}

/// What a layer weighs.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Weight {
    Seconds,
    Flops,
    Parameters,
}

impl Shape {
    fn place(self, ranks: usize, chunks: usize) -> Result<Placement, Failure> {
        let kind = match self {
            Shape::Loop => PlacementKind::Loop,
            Shape::V => PlacementKind::V,
            Shape::Wave => PlacementKind::Wave,
            Shape::Bidirectional => PlacementKind::Bidirectional,
        };
        let placed = match kind {
            PlacementKind::V => Placement::v(ranks),
            PlacementKind::Wave => Placement::wave(ranks, chunks),
            PlacementKind::Bidirectional => Placement::bidirectional(ranks),
            _ => Placement::looped(ranks, chunks),
        };
        placed.map_err(|error| Failure::Input(error.to_string()))
    }
}

impl Weight {
    fn measure(self) -> Measure {
        match self {
            Weight::Seconds => Measure::Seconds,
            Weight::Flops => Measure::Flops,
            Weight::Parameters => Measure::Parameters,
        }
    }
}

/// Parses a positive number.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("write a positive number".into()),
    }
}

/// Reads layers, and the pattern that the file has.
pub(crate) fn read_layers(path: &Path, rate: Option<f64>) -> Result<(Layers, Option<Pattern>), Failure> {
    let (layers, pattern) =
        Layers::from_json(&read(path)?).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    match rate {
        None => Ok((layers, pattern)),
        Some(rate) => {
            let estimated = layers.all().iter().map(|layer| layer.clone().estimated(rate)).collect();
            Ok((Layers::new(estimated)?, pattern))
        }
    }
}

/// Cuts and reports.
pub(crate) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    let (layers, pattern) = read_layers(&arguments.layers, arguments.rate)?;
    let placement = arguments.placement.place(arguments.ranks, arguments.chunks)?;
    let (partition, best) = cut(arguments, &layers, pattern, &placement)?;
    let report = PartitionReport::new(&layers, &partition, &placement)?;
    let text = Pattern::new(&layers, &partition)?;
    if let Some(path) = &arguments.profile {
        write(path, &partition.profile(&layers, LinkCosts::default())?.to_json())?;
    }
    if arguments.json {
        let best = best.map(|b| json!({ "largest": b.largest, "lower_bound": b.lower_bound, "proved": b.proved }));
        let report = json!({
            "pattern": text.to_string(), "boundaries": partition.boundaries(), "stages": report.stages,
            "rank_seconds": report.rank_seconds, "imbalance": report.imbalance(), "optimal": best,
        });
        writeln!(out, "{report}")?;
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
    let (stages, measure) = (placement.stages(), arguments.measure.measure());
    match (arguments.by, pattern) {
        (By::Even, _) => Ok((Partition::even(layers.len(), stages)?, None)),
        (By::Weighted, _) => {
            let weights: Vec<f64> = layers.all().iter().map(|layer| measure.of(layer)).collect();
            Ok((Partition::weighted(&weights, stages)?, None))
        }
        (By::Optimal, _) => {
            let (state_factor, held) = (arguments.state_factor, arguments.held.clone());
            let memory = arguments.cap.map(|cap| MemoryLimits { cap, state_factor, held });
            let best = optimal_partition(
                layers,
                placement,
                &PartitionOptions { measure, memory, ..PartitionOptions::default() },
            )?;
            Ok((best.partition.clone(), Some(best)))
        }
        (By::Pattern, Some(pattern)) => Ok((pattern.partition(), None)),
        (By::Pattern, None) => Err(Failure::Input("the file has no pattern; give --pattern".into())),
    }
}
