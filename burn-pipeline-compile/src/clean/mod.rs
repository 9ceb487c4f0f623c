//! Clean-up: rewrites graphs into smaller ones with the same kept tensors.
//!
//! Every pass is a function from graph to graph, and can run alone and at any time. In order: [`widened`]
//! (rounding matmuls read `bf16` operands as they are), [`constants`] (moves known values into operations), [`identities`]
//! (removes operations that change nothing), [`matmuls`] (merges matmuls over many rows), [`sums`] (merges sums of
//! matmuls), [`slices`] (reads slices past unrelated assignments), [`places`] (writes values into their final
//! tensor), [`common`] (computes duplicates once), [`dead`] (removes unused operations). At the end, once, [`narrowed`]
//! (stores operands of rounding matmuls in `bf16`).
//!
//! Guarantees: passes do not reorder or change nodes that the interpreter runs. They remove such a node only if
//! nothing reads its results, and never a random draw or an operation of a backend extension.

mod common;
mod constants;
mod dead;
mod identities;
mod links;
mod matmuls;
mod narrowed;
mod places;
mod replace;
mod slices;
mod sums;
mod widened;

use crate::graph::Graph;

pub(crate) use widened::widens;

/// The most rounds. A graph with a NaN never equals itself.
const ROUNDS: usize = 8;

/// Runs passes until none of them changes the graph, then [`narrowed`].
pub(crate) fn clean(mut graph: Graph) -> Graph {
    for _ in 0..ROUNDS {
        let before = graph.clone();
        graph = [
            widened::widened,
            constants::constants,
            identities::identities,
            matmuls::matmuls,
            sums::sums,
            slices::slices,
            places::places,
            common::common,
            dead::dead,
        ]
        .into_iter()
        .fold(graph, |graph, pass| pass(graph));
        if graph == before {
            break;
        }
    }
    narrowed::narrowed(graph)
}
