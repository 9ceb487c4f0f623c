//! The events for a subscriber: every message with peer, kind, shapes, types and bytes; the plan that was checked;
//! and which rank failed, and where in its row.

use crate::cases::noise;
use crate::contract::{Data, builder};
use crate::watchdog::quiet_ranks;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::plan::{Op, Plan};
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{Batch, Reduction, StageBox};
use burn_pipeline::train::Pipeline;
use pipeline_tests::mlp::{self, WIDTH};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// An event: its target, level and fields, including the message.
#[derive(Clone, Debug)]
struct Said {
    target: &'static str,
    level: Level,
    fields: BTreeMap<&'static str, String>,
}

impl Said {
    fn at(&self, field: &str) -> &str {
        self.fields.get(field).map_or("", String::as_str)
    }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

/// Keeps all events of all threads.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<Said>>>);

impl Events {
    fn take(&self) -> Vec<Said> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("burn_pipeline")
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut said = Said { target: metadata.target(), level: *metadata.level(), fields: BTreeMap::new() };
        event.record(&mut said);
        self.0.lock().unwrap().push(said);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
}

/// A subscriber for all threads belongs to the whole process, so each test below runs in its own process.
fn listen() -> Events {
    let events = Events::default();
    tracing::subscriber::set_global_default(events.clone()).unwrap();
    events
}

fn alone(test: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args([test, "--exact", "--ignored", "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// The sends of a plan in the form of events: rank, peer, kind, receiving stage, microbatch.
fn sends(plan: &Plan) -> Vec<[String; 5]> {
    let ranks = 0..plan.ranks();
    let tasks =
        ranks.flat_map(|rank| plan.tasks(rank).map(move |task| (rank, task))).filter(|(_, task)| task.op().is_send());
    let mut sends: Vec<_> = tasks
        .map(|(rank, task)| {
            let (kind, to) = match task.op() {
                Op::SendForward => ("Activation", plan.placement().next(task.stage()).unwrap()),
                _ => ("Gradient", task.stage().previous().unwrap()),
            };
            let peer = plan.placement().rank_of(to);
            [
                rank.to_string(),
                peer.to_string(),
                kind.to_owned(),
                to.to_string(),
                task.microbatch().unwrap().to_string(),
            ]
        })
        .collect();
    sends.sort();
    sends
}

#[test]
#[ignore = "run by the test below"]
fn of_transfers() {
    let events = listen();
    let (ranks, microbatches) = (3, 4);
    let mut pipeline = builder("ZBH1", ranks, microbatches, Reduction::Mean).build().unwrap();
    events.take();
    pipeline.step(Data::new(8).batch(0..8), 1e-3).unwrap();
    let told = events.take();
    let told: Vec<&Said> = told.iter().filter(|said| said.target == "burn_pipeline::transfer").collect();
    assert!(told.iter().all(|said| said.level == Level::DEBUG));
    let of = |message: &str, ends: [&str; 2]| {
        let fields = [ends[0], ends[1], "kind", "stage", "microbatch"];
        let of_plan = told
            .iter()
            .filter(|said| said.at("message") == message && ["Activation", "Gradient"].contains(&said.at("kind")));
        let mut all: Vec<[String; 5]> = of_plan.map(|said| fields.map(|field| said.at(field).to_owned())).collect();
        all.sort();
        all
    };
    // The sends of the plan and no others, and each is received.
    let plan = by_name("ZBH1").unwrap().build(Size::new(ranks, microbatches)).unwrap().with_transfers().unwrap();
    assert_eq!(of("sent", ["rank", "peer"]), sends(&plan));
    assert_eq!(of("received", ["peer", "rank"]), sends(&plan));
    // Two samples per microbatch: hidden states, and ids that need no gradient.
    let floats = 2 * WIDTH * 4;
    for said in told.iter().filter(|said| said.at("kind") == "Gradient") {
        assert_eq!(said.at("bytes"), floats.to_string(), "{said:?}");
        assert!(said.at("tensors").contains(&format!("float F32 [2, {WIDTH}]")), "{said:?}");
    }
    for said in told.iter().filter(|said| said.at("kind") == "Activation") {
        assert!(said.at("tensors").contains(&format!("float F32 [2, {WIDTH}]")), "{said:?}");
        assert!(
            said.at("tensors").contains("[2, 1]") && said.at("bytes").parse::<usize>().unwrap() > floats,
            "{said:?}"
        );
    }
}

#[test]
fn every_message_is_told_on_both_ends_with_peer_kind_shapes_types_bytes_and_microbatch() {
    alone("events::of_transfers");
}

#[test]
#[ignore = "run by the test below"]
fn of_replicas() {
    let events = listen();
    let stage = |at: &burn_pipeline::train::StageContext| {
        let part = mlp::part(at);
        if at.is_last() {
            return StageBox::with_loss(part, |(y, _): (Tensor<2>, Tensor<2, burn::tensor::Int>), t: Tensor<2>| {
                (y - t).square().mean()
            });
        }
        StageBox::new(part)
    };
    let builder = Pipeline::builder().schedule("1F1B", Size::new(2, 2)).devices(vec![Device::flex()]).stages(stage);
    let builder = builder.data_parallel(2).sharded(true).optimizer(|| SgdConfig::new().init());
    let mut pipeline = builder.build().unwrap();
    let rows = Tensor::<1>::from_floats(&*noise(3, 8 * WIDTH), &Device::flex()).reshape([8, WIDTH]);
    let ids = Tensor::<2, burn::tensor::Int>::zeros([8, 1], &Device::flex());
    events.take();
    pipeline.step(Batch::new((rows.clone(), ids)).target(rows), 0.1).unwrap();
    let told = events.take();
    let count = |kind: &str, message: &str| {
        let of = told.iter().filter(|said| said.target == "burn_pipeline::transfer");
        of.filter(|said| said.at("kind").starts_with(kind) && said.at("message") == message).count()
    };
    for kind in ["ReplicaGradient", "ParameterShard"] {
        assert!(count(kind, "sent") > 0 && count(kind, "sent") == count(kind, "received"), "{kind}");
    }
}

#[test]
fn messages_between_replicas_are_told_too() {
    alone("events::of_replicas");
}

#[test]
#[ignore = "run by the test below"]
fn of_a_failure() {
    quiet_ranks();
    let events = listen();
    let mut pipeline = builder("1F1B", 3, 4, Reduction::Mean).build().unwrap();
    let built = events.take();
    let proved: Vec<&Said> = built.iter().filter(|said| said.at("message") == "plan proved").collect();
    let first = proved.first().unwrap();
    assert_eq!((first.level, first.at("plan"), first.at("ranks"), first.at("stages")), (Level::INFO, "1F1B", "3", "3"));
    // The forwards of 1F1B before its first backward: ranks minus rank.
    assert_eq!((first.at("microbatches"), first.at("warm_up")), ("[4]", "[3, 2, 1]"));
    // A target of another width makes the loss fail on the last rank.
    let data = Data::new(8);
    let wrong = data
        .batch(0..8)
        .target((Tensor::<2>::zeros([8, WIDTH + 1], &Device::flex()), Tensor::<2>::zeros([8, WIDTH], &Device::flex())));
    pipeline.step(wrong, 1e-3).unwrap_err();
    let told = events.take();
    let errors: Vec<&Said> = told.iter().filter(|said| said.level == Level::ERROR).collect();
    let [error] = errors[..] else { panic!("{errors:?}") };
    let row = by_name("1F1B").unwrap().build(Size::new(3, 4)).unwrap().with_transfers().unwrap();
    let cell = row.row(2).iter().position(|action| action.to_string() == "2F0").unwrap();
    assert_eq!((error.at("rank"), error.at("task"), error.at("cell")), ("2", "2F0", cell.to_string().as_str()));
    assert!(error.at("error").contains("panicked") && error.at("error").contains("<-- ERROR HERE"), "{error:?}");
    // A subscriber at debug level gets the whole plan with the place.
    let whole = told.iter().find(|said| said.at("message") == "the whole plan of a failed run").unwrap();
    assert_eq!((whole.level, whole.at("rank"), whole.at("plan")), (Level::DEBUG, "2", row.grid_marked(cell).as_str()));
}

#[test]
fn the_plan_is_told_when_it_is_proved_and_a_failing_rank_says_where() {
    alone("events::of_a_failure");
}
