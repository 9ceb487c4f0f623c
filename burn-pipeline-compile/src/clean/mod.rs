//! Clean-up: graphs rewritten into smaller ones that give the same kept tensors.
//!
//! Every pass is a function from graph to graph, and may be run alone and at any time. In order: [`rounded`] (products read rounded
//! operands as they are held), [`constants`] (values known ahead move into the operations that read them), [`identities`] (operations that
//! change nothing disappear), [`products`] (over many rows at once), [`sums`] (of products), [`slices`] (read past what was assigned
//! elsewhere), [`places`] (values are written where they end up), [`common`] (what is computed twice is computed once), [`dead`] (what
//! nothing reads is not computed).
//!
//! Guarantees: no pass reorders nodes that the interpreter runs; random draws, operations of backend extensions and others that the interpreter runs are left
//! alone, the last unless nothing reads what they give.

mod common;
mod constants;
mod dead;
mod identities;
mod places;
mod products;
mod replace;
mod rounded;
mod slices;
mod sums;

use crate::graph::Graph;

/// Rounds at most. A graph that holds a NaN never equals itself.
const ROUNDS: usize = 8;

/// All passes, until none of them finds anything.
pub(crate) fn clean(mut graph: Graph) -> Graph {
    for _ in 0..ROUNDS {
        let before = graph.clone();
        graph = [
            rounded::rounded,
            constants::constants,
            identities::identities,
            products::products,
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
    graph
}
