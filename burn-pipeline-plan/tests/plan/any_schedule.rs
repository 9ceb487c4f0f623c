//! Plans of any schedule and size, for property tests.

use burn_pipeline_plan::plan::{Plan, SkipEdge};
use burn_pipeline_plan::schedule::{GPipe, Schedule, Size, all};
use proptest::prelude::Strategy;
use std::collections::BTreeSet;

/// A plan of any schedule, up to this size. If the schedule does not accept the chunks or ranks, others are used, or
/// GPipe's plan.
pub(crate) fn plans(ranks: usize, chunks: usize, microbatches: usize) -> impl Strategy<Value = Plan> {
    (0..all().len(), 1..=ranks, 1..=chunks, 1..=microbatches).prop_map(|(schedule, p, v, m)| {
        let build = |v| all()[schedule].build(Size::new(p, m).with_chunks(v));
        build(v).or_else(|_| build(2)).or_else(|_| build(1)).or_else(|_| GPipe.build(Size::new(p, m))).unwrap()
    })
}

/// The plan with skip edges between random stages, made of pairs of a stage and a span.
pub(crate) fn with_skips(plan: Plan, ends: &[(usize, usize)]) -> Plan {
    let edge = |&(from, span): &(usize, usize)| {
        let from = from % plan.stages();
        let room = plan.stages().checked_sub(from + 2).filter(|&room| room > 0)?;
        Some(SkipEdge { from, to: from + 2 + span % room })
    };
    let edges: BTreeSet<SkipEdge> = ends.iter().filter_map(edge).collect();
    plan.with_skips(edges.into_iter().collect()).unwrap()
}
