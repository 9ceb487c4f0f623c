//! What enters and leaves a stage, for a cut of a model's layers.
//!
//! Guarantees: a pure function of the layers and their cut, so every rank gets the same.
//!
//! 1. [`pair`]: each value that a layer takes is the last one that was given under its key and not yet taken. Values
//!    are numbered in the order in which they are given.
//! 2. A value whose two layers are on one stage stays there. To the next stage it is part of the ordinary message,
//!    after the last layer's output. To a later one it goes along a skip edge, with all values for that stage.
//! 3. Layers of a stage that read the same extras as one type share them.

use super::error::LayersError;
use super::ports::{Extras, Port, Ports};
use crate::payload::{BoundaryError, Kinds, Payload, PayloadReader, alike, listed};
use crate::stage::check;
use burn_pipeline_plan::plan::SkipEdge;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// One layer of the model, without its types.
#[derive(Clone, Debug)]
pub(super) struct Described {
    pub(super) name: String,
    pub(super) ports: Ports,
    /// The kinds of its input and of its output.
    pub(super) kinds: [fn() -> Vec<String>; 2],
    pub(super) recomputed: bool,
}

/// A value that goes past layers.
#[derive(Clone, Debug)]
pub(super) struct Value {
    port: Port,
    from: usize,
    to: usize,
}

/// Pairs each value that a layer gives with the layer that takes it.
pub(super) fn pair(layers: &[Described]) -> Result<Vec<Value>, LayersError> {
    let mut values: Vec<(Port, usize, Option<usize>)> = Vec::new();
    for (to, layer) in layers.iter().enumerate() {
        if layer.kinds.iter().any(|kinds| Kinds::new(kinds(), Vec::new()).edge(0).is_some()) {
            return Err(LayersError::NotDeclared { layer: layer.name.clone() });
        }
        for taken in &layer.ports.takes {
            let last = values.iter_mut().rev().find(|(port, _, end)| port.key == taken.key && end.is_none());
            let not_given = || LayersError::NotGiven { layer: layer.name.clone(), key: taken.key };
            let (given, from, end) = last.ok_or_else(not_given)?;
            let (gives, takes) = ((given.kinds)(), (taken.kinds)());
            if !alike(&gives, &takes) {
                let (from, to) = (layers[*from].name.clone(), layer.name.clone());
                let (given, taken_kinds) = (listed(&gives), listed(&takes));
                return Err(LayersError::OtherType { key: taken.key, from, given, to, taken: taken_kinds });
            }
            *end = Some(to);
        }
        values.extend(layer.ports.gives.iter().map(|port| (port.clone(), to, None)));
    }
    let whole = |(port, from, to): (Port, usize, Option<usize>)| {
        let not_taken = || LayersError::NotTaken { layer: layers[from].name.clone(), key: port.key };
        Ok(Value { from, to: to.ok_or_else(not_taken)?, port })
    };
    values.into_iter().map(whole).collect()
}

fn stage_of(cut: &[Range<usize>], layer: usize) -> usize {
    cut.iter().position(|range| range.contains(&layer)).unwrap_or_default()
}

pub(super) fn edges(values: &[Value], cut: &[Range<usize>]) -> Vec<SkipEdge> {
    let edge = |value: &Value| SkipEdge { from: stage_of(cut, value.from), to: stage_of(cut, value.to) };
    let edges: BTreeSet<SkipEdge> = values.iter().map(edge).filter(|edge| edge.to > edge.from + 1).collect();
    edges.into_iter().collect()
}

/// Values with their numbers, by the stage at the other end.
type Ends = Vec<(usize, Vec<(usize, Port)>)>;

#[derive(Debug)]
pub(super) struct Wiring {
    pub(super) stage: usize,
    pub(super) stages: usize,
    /// The first of its layers.
    pub(super) first: usize,
    /// The extras that its layers read, each list once.
    pub(super) extras: Vec<Extras>,
    /// Values from earlier stages.
    pub(super) coming: Ends,
    /// Values for later stages.
    pub(super) going: Ends,
    /// The kinds of its input and of its output.
    pub(super) kinds: [Kinds; 2],
}

impl Wiring {
    pub(super) fn new(layers: &[Described], values: &[Value], cut: &[Range<usize>], stage: usize) -> Self {
        let own = cut.get(stage).cloned().unwrap_or_default();
        let mut extras: Vec<Extras> = Vec::new();
        for read in layers[own.clone()].iter().flat_map(|layer| &layer.ports.extras) {
            if !extras.iter().any(|known| known.is(&read.names, read.of)) {
                extras.push(read.clone());
            }
        }
        let ends = |mine: fn(&Value) -> usize, other: fn(&Value) -> usize| -> Ends {
            let mut ends: BTreeMap<usize, Vec<(usize, Port)>> = BTreeMap::new();
            let crosses = |value: &Value| own.contains(&mine(value)) && !own.contains(&other(value));
            for (number, value) in values.iter().enumerate().filter(|(_, value)| crosses(value)) {
                ends.entry(stage_of(cut, other(value))).or_default().push((number, value.port.clone()));
            }
            ends.into_iter().collect()
        };
        let coming = ends(|value| value.to, |value| value.from);
        let going = ends(|value| value.from, |value| value.to);
        let (start, first) = (own.start, layers.get(own.start).map(|layer| (layer.kinds[0])()).unwrap_or_default());
        let last = layers[own].last().map(|layer| (layer.kinds[1])()).unwrap_or_default();
        let input = kinds(first, &coming, |sender| sender + 1 == stage);
        let output = kinds(last, &going, |receiver| receiver == stage + 1);
        Self { stage, stages: cut.len(), first: start, extras, coming, going, kinds: [input, output] }
    }

    /// Checks that a payload holds the extras that the stage's layers read.
    pub(super) fn check_extras(&self, payload: Payload) -> Result<(), BoundaryError> {
        let mut reader = PayloadReader::new(payload);
        for extras in &self.extras {
            (extras.part)(&mut reader)?;
        }
        // Nothing may be left.
        check::<()>(reader.rest())
    }
}

/// The kinds of what crosses a stage's boundary.
fn kinds(mut value: Vec<String>, ends: &Ends, is_next: impl Fn(usize) -> bool) -> Kinds {
    let mut edges = Vec::new();
    for (other, ports) in ends {
        let of_ports = ports.iter().flat_map(|(_, port)| (port.kinds)());
        match is_next(*other) {
            true => value.extend(of_ports),
            false => edges.push(of_ports.collect()),
        }
    }
    Kinds::new(value, edges)
}
