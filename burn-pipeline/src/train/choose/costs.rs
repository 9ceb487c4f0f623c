//! The costs that plans are priced with: of layers if they may be cut, otherwise of the stages.
//!
//! Guarantees: ranks in processes use the same costs, to the last bit. Costs that the running stages show are used as
//! measured.
//!
//! 1. Seconds and bytes of the stages come from measured steps, with all ranks at work.
//! 2. If layers are finer than stages, or other numbers of microbatches are considered, each layer is measured alone on
//!    a microbatch of each size ([`Builder::measure_layers`]). Its seconds are then scaled, per operation, so that the
//!    layers of a stage together take the stage's measured time.
//! 3. Every number is the median over all ranks.

use super::decision::AutoError;
use super::links::slower;
use super::walk::MeasureError;
use crate::stage::Batch;
use crate::train::pipeline::Pipeline;
use crate::train::report::StepReport;
use crate::train::setup::Builder;
use burn_pipeline_plan::cost::{Layer, Layers, LinkCost, LinkCosts, Partition, Profile, StageCost};
use burn_pipeline_plan::planner::Workload;

/// The number of rounds over the layers; each number is the median over them.
const ROUNDS: usize = 5;

/// The costs that plans are priced with.
pub(super) struct Costs {
    /// The layers (or the stages, if they are kept) for each number of microbatches; that of the running plan is first.
    pub(super) workloads: Vec<Workload>,
    pub(super) links: LinkCosts,
    pub(super) cut: Partition,
}

/// What to measure costs for.
pub(super) struct Wanted<'a> {
    pub(super) builder: &'a Builder,
    /// The current cut, of layers or of stages that are kept.
    pub(super) cut: &'a Partition,
    /// The number of microbatches of one replica in the running plan, and others to consider.
    pub(super) microbatches: usize,
    pub(super) others: &'a [usize],
    /// True if bytes must be known.
    pub(super) bytes: bool,
}

impl Costs {
    /// Uses costs given by the user: of the layers, if their number matches, or of the stages.
    pub(super) fn known(pipeline: &mut Pipeline, own: &Profile, wanted: &Wanted<'_>) -> Result<Self, AutoError> {
        let profile = pipeline.agree_on_profile(own)?;
        let stages = wanted.cut.stages();
        let finest = |layers| Partition::even(layers, layers);
        let cut = match profile.stages().len() == wanted.cut.layers() {
            true => wanted.cut.clone(),
            false => finest(stages)?,
        };
        let skips = match cut.layers() == stages {
            true => pipeline.plans.skips.clone(),
            false => wanted.builder.skips_between(cut.layers()),
        };
        let layers = Layers::of_profile(&profile)?.with_skips(skips)?;
        let workloads = vec![Workload::new(wanted.microbatches, layers)];
        Ok(Self { workloads, links: profile.links().clone(), cut })
    }

    /// Computes costs from steps of the running plan, and from layers measured on a batch.
    pub(super) fn measured(
        pipeline: &mut Pipeline,
        steps: &[StepReport],
        batch: &Batch,
        wanted: &Wanted<'_>,
    ) -> Result<Self, AutoError> {
        let stages = StepReport::profile(pipeline.placement(), steps)?.with_links(pipeline.measure_links()?)?;
        let stages = stages.with_skips(pipeline.plans.skips.clone())?;
        let own = wanted.measure(&stages, steps, batch);
        let own = pipeline.agree_on_success(own)?;
        let mut workloads = Vec::new();
        let mut links = LinkCosts::default();
        for Workload { microbatches, layers, input_bytes, vocabulary } in own {
            let profile = finest(&layers, stages.links().clone())?;
            let agreed = pipeline.agree_on_profile(&profile)?;
            let layers = Layers::of_profile(&agreed)?;
            links = agreed.links().clone();
            workloads.push(Workload { microbatches, layers, input_bytes, vocabulary });
        }
        Ok(Self { workloads, links: everywhere(links), cut: wanted.cut.clone() })
    }
}

/// Treats layers as the stages of the finest cut.
fn finest(layers: &Layers, links: LinkCosts) -> Result<Profile, AutoError> {
    Ok(Partition::even(layers.len(), layers.len())?.profile(layers, links)?)
}

/// Links that were not measured, because the running plan does not use them, get the cost of the slowest measured link.
fn everywhere(links: LinkCosts) -> LinkCosts {
    let LinkCost { latency, bandwidth } = links.default;
    let measured = links.between.iter().map(|link| (link.latency, link.bandwidth));
    let (latency, bandwidth) = measured.fold((latency, bandwidth), slower);
    LinkCosts { default: LinkCost { latency, bandwidth }, ..links }
}

impl Wanted<'_> {
    /// Measures this process's costs.
    fn measure(&self, stages: &Profile, steps: &[StepReport], batch: &Batch) -> Result<Vec<Workload>, AutoError> {
        let as_they_are = self.cut.layers() == self.cut.stages();
        let unknown = |layer, reason: &str| Err(AutoError::UnknownBytes { layer, reason: reason.to_owned() });
        if as_they_are && self.others.is_empty() {
            let known = |step: &StepReport, stage: usize| step.activations.get(stage).copied().flatten().is_some();
            let silent =
                (stages.first_trained()..self.cut.stages()).find(|&stage| !steps.iter().any(|step| known(step, stage)));
            if let (true, Some(stage)) = (self.bytes, silent) {
                return unknown(stage, "its engine cannot tell");
            }
            return Ok(vec![self.workload(self.microbatches, Layers::of_profile(stages)?, batch)?]);
        }
        let mut alone = Vec::new();
        for &microbatches in std::iter::once(&self.microbatches).chain(self.others) {
            let cut = batch.clone().cut(microbatches * self.builder.replicas).map_err(MeasureError::from)?;
            if cut.len() != microbatches * self.builder.replicas {
                // Too few samples, or the batch was given in microbatches.
                continue;
            }
            let kinds = vec!['L'; self.cut.layers()];
            let measured = self.builder.measure_parts(cut.alone(0), &kinds, ROUNDS)?;
            // Layers before the first that trains hold nothing.
            let first = measured.layers.first_trained();
            let unread = measured.uncaptured.iter().find(|(layer, _)| *layer >= first);
            if let (true, Some((layer, reason))) = (self.bytes, unread) {
                return unknown(*layer, reason);
            }
            alone.push((microbatches, measured.layers));
        }
        let Some((_, first)) = alone.first() else { return unknown(0, "the batch cannot be cut as before") };
        let scales = scales(first, self.cut, stages)?;
        let scaled = |(microbatches, layers): &(usize, Layers)| {
            self.workload(*microbatches, beside_others(layers, &scales)?, batch)
        };
        alone.iter().map(scaled).collect()
    }

    fn workload(&self, microbatches: usize, layers: Layers, batch: &Batch) -> Result<Workload, AutoError> {
        let bytes = batch.whole_input().bytes() as f64 / (microbatches * self.builder.replicas) as f64;
        Ok(Workload { input_bytes: bytes, ..Workload::new(microbatches, layers) })
    }
}

/// For each layer, the ratio of its stage's measured `F`, `I`, `W` and `B` to the sum over its layers measured alone.
fn scales(alone: &Layers, cut: &Partition, stages: &Profile) -> Result<Vec<[f64; 4]>, AutoError> {
    let summed = cut.profile(alone, LinkCosts::default())?;
    let mut scales = Vec::new();
    for ((range, sum), stage) in cut.ranges().zip(summed.stages()).zip(stages.stages()) {
        let ratio = |measured: f64, sum: f64| if sum > 0.0 { measured / sum } else { 1.0 };
        let split = stage.input_backward() + stage.weight_backward();
        let whole = ratio(split, sum.input_backward() + sum.weight_backward());
        let of = |part: fn(&StageCost) -> f64| ratio(part(stage), part(sum));
        // In the first stage that trains, `W` is the whole backward.
        let input = if sum.input_backward() > 0.0 { of(StageCost::input_backward) } else { whole };
        let backward = stage.backward.map_or(whole, |backward| ratio(backward, sum.full_backward()));
        let scale = [ratio(stage.forward, sum.forward), input, of(StageCost::weight_backward), backward];
        scales.extend(range.map(|_| scale));
    }
    Ok(scales)
}

/// Scales the seconds of layers.
fn beside_others(layers: &Layers, scales: &[[f64; 4]]) -> Result<Layers, AutoError> {
    let scaled = |(layer, [forward, input, weight, backward]): (&Layer, &[f64; 4])| Layer {
        forward: layer.forward * forward,
        input: layer.input * input,
        weight: layer.weight * weight,
        backward: layer.backward.map(|seconds| seconds * backward),
        ..layer.clone()
    };
    Ok(layers.with_costs(layers.all().iter().zip(scales).map(scaled).collect())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_a_stage_take_what_it_was_measured_to_take_and_keep_their_shares() {
        let layer = |seconds: f64| Layer {
            backward: Some(2.5 * seconds),
            ..Layer::new('L').with_seconds(seconds, 2.0 * seconds, seconds)
        };
        let alone = Layers::new(vec![layer(1.0), layer(3.0), layer(5.0)]).unwrap();
        let cut = Partition::from_boundaries(3, &[2]).unwrap();
        let stage = |seconds: f64, backward| StageCost {
            input: Some(10.0 * seconds),
            weight: Some(seconds),
            backward,
            ..StageCost { forward: seconds, ..StageCost::default() }
        };
        let stages = Profile::new(vec![stage(8.0, Some(30.0)), stage(10.0, None)], LinkCosts::default()).unwrap();
        let scaled = beside_others(&alone, &scales(&alone, &cut, &stages).unwrap()).unwrap();
        let together = cut.profile(&scaled, LinkCosts::default()).unwrap();
        for (got, wanted) in together.stages().iter().zip(stages.stages()) {
            assert_eq!((got.forward, got.input, got.weight), (wanted.forward, wanted.input, wanted.weight));
        }
        // As measured; if only the parts were measured, scaled like them.
        assert_eq!(together.stages()[0].backward, Some(30.0));
        assert!((together.stages()[1].backward.unwrap() - 12.5 * 110.0 / 15.0).abs() < 1e-9);
        assert_eq!(scaled.all()[1].forward, 3.0 * scaled.all()[0].forward);
    }
}
