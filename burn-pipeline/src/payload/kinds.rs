//! Compares what a stage gives with what another one takes, by their types, before anything runs.
//!
//! Guarantees: two types differ if the parts of one would be misread as the other's, including ranks and kinds of
//! tensors. Types made of the same parts are alike whatever their names, except enums and types with their own
//! `Boundary` implementation, which are identified by name.
//!
//! 1. [`Boundary::kinds`] lists the kinds of a type's parts, with a mark before each value that goes past the next
//!    stage.
//! 2. [`Kinds`] cuts the list at the marks: the part for the next stage, and one for each edge.

use super::values::{ANY_TENSOR, Boundary};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::any::type_name;

/// The mark before the kinds of one value that goes past the next stage.
pub(super) const ONE_EDGE: &str = "skip";
/// The mark before the kinds of any number of such values, all of one type.
pub(super) const ANY_EDGES: &str = "skips";

/// The kinds of a stage's input or output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kinds(Vec<String>);

impl Kinds {
    pub(crate) fn of<T: Boundary>() -> Self {
        Self(T::kinds())
    }

    /// A value for the next stage, and one for each edge.
    pub(crate) fn new(value: Vec<String>, edges: Vec<Vec<String>>) -> Self {
        let marked = edges.into_iter().flat_map(|edge| [vec![ONE_EDGE.to_owned()], edge].concat());
        Self(value.into_iter().chain(marked).collect())
    }

    /// The value received from the stage before, or sent to the next one.
    pub(crate) fn next(&self) -> &[String] {
        let end = self.0.iter().position(|kind| is_mark(kind)).unwrap_or(self.0.len());
        &self.0[..end]
    }

    /// The value of an edge past the next stage, by its index among the stage's edges; `None` if there is none.
    pub(crate) fn edge(&self, place: usize) -> Option<&[String]> {
        let marks: Vec<usize> = (0..self.0.len()).filter(|&at| is_mark(&self.0[at])).collect();
        let any = marks.iter().position(|&at| self.0[at] == ANY_EDGES).unwrap_or(usize::MAX);
        let &start = marks.get(place.min(any))?;
        let end = marks.get(place.min(any) + 1).copied().unwrap_or(self.0.len());
        Some(&self.0[start + 1..end])
    }
}

fn is_mark(kind: &str) -> bool {
    kind == ONE_EDGE || kind == ANY_EDGES
}

/// Returns true if `given` can be read as `taken`.
pub(crate) fn alike(given: &[String], taken: &[String]) -> bool {
    let tensors = type_name::<Tensor<1>>().split('<').next().unwrap_or_default();
    let is_tensor = |kind: &str| kind == ANY_TENSOR || kind.split('<').next() == Some(tensors);
    let any = |(a, b): (&String, &String)| (a == ANY_TENSOR || b == ANY_TENSOR) && is_tensor(a) && is_tensor(b);
    let same = |(a, b): (&String, &String)| a == b || any((a, b));
    given.len() == taken.len() && given.iter().zip(taken).all(same)
}

/// Kinds as messages show them: without module paths.
pub(crate) fn listed(kinds: &[String]) -> String {
    let mut text = String::new();
    for piece in kinds.join(", ").split_inclusive(['<', '>', ',', ' ', '(', ')']) {
        text.push_str(piece.rsplit("::").next().unwrap_or(piece));
    }
    format!("`({text})`")
}

#[cfg(test)]
mod tests {
    use super::super::{AnyTensor, Skip, Skips};
    use super::*;
    use burn::tensor::Int;

    struct Hidden {
        x: Tensor<3>,
        at: Tensor<2, Int>,
    }
    crate::boundary!(struct Hidden { x, at });

    fn next<A: Boundary, B: Boundary>() -> bool {
        alike(Kinds::of::<A>().next(), Kinds::of::<B>().next())
    }

    #[test]
    fn types_of_the_same_parts_are_alike_and_others_are_not() {
        assert!(next::<Hidden, (Tensor<3>, Tensor<2, Int>)>() && next::<(Tensor<2>,), Tensor<2>>());
        assert!(next::<AnyTensor, Tensor<2, Int>>() && next::<usize, i64>() && next::<(), ()>());
        assert!(!next::<Tensor<2>, Tensor<3>>() && !next::<Tensor<2>, Tensor<2, Int>>());
        assert!(!next::<Hidden, Tensor<3>>() && !next::<Option<Tensor<2>>, Tensor<2>>() && !next::<AnyTensor, f64>());
    }

    #[test]
    fn each_edge_has_its_own_kinds() {
        let sent = Kinds::of::<(Tensor<4>, Skip<Tensor<2>>, Skip<(Tensor<1>, f64)>)>();
        assert_eq!(listed(sent.next()), "`(Tensor<4>)`");
        assert_eq!(sent.edge(1).map(listed).as_deref(), Some("`(Tensor<1>, f64)`"));
        assert_eq!(sent.edge(2), None);
        let any = Kinds::of::<(Tensor<4>, Skips<Tensor<2>>)>();
        assert!(
            alike(sent.edge(0).unwrap(), any.edge(7).unwrap()) && !alike(sent.edge(1).unwrap(), any.edge(1).unwrap())
        );
    }
}
