//! The spans that a subscriber gets from the runtime: a call, its ranks, their tasks.

use crate::contract::{Data, builder};
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::Reduction;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[derive(Clone, Debug, Default)]
struct Span {
    name: &'static str,
    parent: Option<u64>,
    fields: BTreeMap<&'static str, String>,
}

impl Visit for Span {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

/// Keeps all spans; a span's number is its position.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Span>>>);

thread_local! {
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let here = || ENTERED.with_borrow(|entered| entered.last().copied());
        let parent = attributes.parent().map(Id::into_u64).or_else(here);
        let mut span = Span { name: attributes.metadata().name(), parent, ..Span::default() };
        attributes.record(&mut span);
        let mut spans = self.0.lock().unwrap();
        spans.push(span);
        Id::from_u64(spans.len() as u64)
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.into_u64()));
    }

    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.pop());
    }

    fn event(&self, _: &Event<'_>) {}
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
}

/// A subscriber for all threads belongs to the whole process, so this runs in its own process.
#[test]
#[ignore = "run by the test below"]
fn of_a_step() {
    let spans = Spans::default();
    tracing::subscriber::set_global_default(spans.clone()).unwrap();
    let mut pipeline = builder("1F1B", 2, 2, Reduction::Mean).build().unwrap();
    pipeline.step(Data::new(4).batch(0..4), 1e-3).unwrap();
    let first = spans.0.lock().unwrap().len();
    pipeline.step(Data::new(4).batch(0..4), 1e-3).unwrap();
    let spans = spans.0.lock().unwrap();
    let below = |parent: usize, name: &str| -> Vec<usize> {
        let of = |&at: &usize| spans[at].parent == Some(parent as u64 + 1) && spans[at].name == name;
        (first..spans.len()).filter(of).collect()
    };
    let calls: Vec<usize> = (first..spans.len()).filter(|&at| spans[at].name == "command").collect();
    let said = |at: usize, field: &str| spans[at].fields[field].as_str();
    let named: Vec<_> = calls.iter().map(|&at| (said(at, "otel.name"), said(at, "step"))).collect();
    assert_eq!(named, [("training", "2"), ("stepping the weights", "2")]);
    let plan = by_name("1F1B").unwrap().build(Size::new(2, 2)).unwrap().with_transfers().unwrap();
    let mut computed = Vec::new();
    for rank in below(calls[0], "rank") {
        // Each task with its cell, which is its position in the plan's row.
        let row = plan.row(said(rank, "rank").parse().unwrap());
        let cells = below(rank, "task").into_iter().map(|task| said(task, "cell").parse::<usize>().unwrap());
        assert!(cells.eq(0..row.len()), "{:?}", below(rank, "task"));
        let tasks = below(rank, "task").into_iter().map(|task| said(task, "otel.name"));
        let tasks: Vec<&str> = tasks.filter(|task| !task.contains('_')).collect();
        computed.push((said(rank, "rank"), tasks));
    }
    computed.sort();
    assert_eq!(computed, [("0", vec!["0F0", "0F1", "0B0", "0B1"]), ("1", vec!["1F0", "1B0", "1F1", "1B1"])]);
    assert_eq!(below(calls[1], "rank").len(), 2);
}

#[test]
fn a_call_has_a_span_for_each_rank_and_those_one_for_each_task() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["spans::of_a_step", "--exact", "--ignored", "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
