//! Waits: inserted as PyTorch 2.15 inserts them, checked, refused, and simulated.

use crate::check::{TRANSPORTS, plan, refused, under};
use crate::golden_text::{self as golden, canonical, fnv};
use crate::pricing::{same_stages, stage};
use burn_pipeline_plan::cost::{Profile, StageCost};
use burn_pipeline_plan::pass::{PassError, Placing, WaitOptions};
use burn_pipeline_plan::plan::{Action, CheckError, CheckOptions, Op, Plan, Task, Transport};
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{SimulateError, SimulateOptions, Simulation, simulate};
use burn_pipeline_plan::trace::chrome;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;

/// The plan that PyTorch 2.15 builds from an order. It also releases each stage after its last use, which
/// `Plan::with_unshard` leaves to the runtime.
fn prepared(order: &Plan, active: usize, reductions: Placing, outstanding: usize) -> Result<Plan, PassError> {
    let sharded = order.with_unshard(active)?;
    let rows = sharded.rows().iter().map(|row| released(row)).collect();
    let reduced = sharded.with_rows(rows).with_reduce_grad();
    let waits = reduced.with_waits(&WaitOptions { reductions, ..WaitOptions::default() });
    let options = WaitOptions { reductions, outstanding: NonZeroUsize::new(outstanding), ..WaitOptions::pytorch() };
    Ok(waits.with_transfers()?.with_waits(&options))
}

/// A row with each stage released after its last computation, if it has not been released by then.
fn released(row: &[Action]) -> Vec<Action> {
    let mut last = HashMap::new();
    let mut gathered = HashMap::new();
    for (step, action) in row.iter().enumerate() {
        for task in action.tasks() {
            last.insert(task.stage(), step);
            gathered.insert(task.stage(), task.op() != Op::Reshard);
        }
    }
    let release = |(step, action): (usize, &Action)| {
        let over = action.tasks().map(Task::stage).filter(|s| last[s] == step && gathered[s]);
        let over: Vec<Action> = over.map(|stage| Task::whole_stage(stage, Op::Reshard).into()).collect();
        std::iter::once(*action).chain(over).collect::<Vec<_>>()
    };
    row.iter().enumerate().flat_map(release).collect()
}

/// If outstanding sends are bounded, PyTorch sometimes awaits a send that is not the oldest to make room. Rows here
/// are equally legal and bounded, with two waits exchanged.
const OTHER_THAN_THE_OLDEST: [&str; 6] = [
    "Interleaved1F1B_p4_v2_m12 sends4",
    "InterleavedZeroBubble_p4_v2_m8 sends2",
    "ZBVZeroBubble_p4_v2_m12 sends2",
    "ZBVZeroBubble_p4_v2_m12 sends4",
    "ZBVZeroBubble_p4_v2_m8 sends2",
    "ZBVZeroBubble_p4_v2_m8 sends4",
];

#[test]
fn every_order_of_pytorch_2_15_is_built_into_its_cells_waits_and_all() {
    let orders = golden::orders_2_15();
    let mut compared: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for line in include_str!("goldens/passes/comms_2.15.0.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let order = &orders[words[0]];
        for (kind, active, reductions, outstanding) in [
            ("comms", 3, Placing::AtOnce, 0),
            ("active1", 1, Placing::AtOnce, 0),
            ("active2", 2, Placing::AtOnce, 0),
            ("active4", 4, Placing::AtOnce, 0),
            ("defer_reduce_grad_wait", 3, Placing::Late, 0),
            ("sends1", 3, Placing::AtOnce, 1),
            ("sends2", 3, Placing::AtOnce, 2),
            ("sends4", 3, Placing::AtOnce, 4),
        ] {
            let Some(hash) = golden::value(&words, kind) else { continue };
            *compared.entry(kind).or_default() += 1;
            if fnv(&prepared(order, active, reductions, outstanding).unwrap().to_csv()) != hash {
                wrong.push(format!("{} {kind}", words[0]));
            }
        }
    }
    println!("plans with waits compared with PyTorch 2.15.0: {compared:?}");
    assert_eq!(wrong, OTHER_THAN_THE_OLDEST);
    assert_eq!(compared.values().sum::<usize>(), 154 + 10 + 14 * 6);
}

#[test]
fn pytorchs_waits_are_put_back_where_it_put_them_and_its_plans_are_proved() {
    let blocks = golden::blocks(include_str!("goldens/passes/comms_text_2.15.0.txt"));
    let (mut rewritten, mut crossed) = (0, 0);
    for block in &blocks {
        let theirs = golden::plan(block.name, golden::rows(block.body));
        for transport in TRANSPORTS {
            let checked = theirs.clone().check(&under(transport));
            // With deferred receives, PyTorch lets the two ends of a channel disagree on the order of gradients and
            // outputs, and tells them apart by tags. Here a channel keeps one order.
            let defers = block.words[0].starts_with("defer");
            match checked.map_err(|error| *error) {
                Err(CheckError::ChannelOrder { .. }) if defers => crossed += 1,
                Err(error) => panic!("{} {:?}: {error}", block.name, block.words),
                Ok(_) => {}
            }
        }
        // If the number of outstanding sends is bounded, PyTorch moves waits up.
        if block.words[0] != "defer_recv_sends2" {
            let sent = |action: &Action| matches!(action, Action::Single(t) if t.op() == Op::WaitSendForward || t.op() == Op::WaitSendBackward);
            let rows = theirs.rows().iter().map(|row| row.iter().copied().filter(|a| !sent(a)).collect());
            let ours = theirs.with_rows(rows.collect()).with_waits(&WaitOptions::pytorch());
            assert_eq!(canonical(&ours), canonical(&theirs), "{} {:?}", block.name, block.words);
            rewritten += 1;
        }
    }
    println!(
        "PyTorch 2.15.0's plans proved: {}, their waits rewritten: {rewritten}, channels out of order: {crossed}",
        blocks.len()
    );
    assert_eq!((blocks.len(), rewritten, crossed), (99, 86, 40));
}

#[test]
fn waits_change_nothing_but_themselves_and_every_plan_stays_legal() {
    for (name, order) in golden::orders_2_15() {
        let lowered = order.with_reduce_grad().with_unshard(3).unwrap().with_transfers().unwrap();
        for placing in [Placing::AtOnce, Placing::Late] {
            let options = WaitOptions::all(placing);
            let waits = lowered.with_waits(&options);
            assert_eq!(golden::without_waits(&waits), lowered, "{name}");
            assert_eq!(waits.with_waits(&options), waits, "{name}");
            assert_eq!(waits.with_waits(&WaitOptions::all(Placing::AtOnce)), waits, "{name}");
            let count = |plan: &Plan, test: fn(Op) -> bool| {
                plan.rows().iter().flatten().flat_map(|a| a.tasks()).filter(|t| test(t.op())).count()
            };
            assert_eq!(count(&waits, Op::is_wait), count(&lowered, |op| op.wait().is_some()), "{name}");
            for transport in TRANSPORTS {
                waits.clone().check(&under(transport)).unwrap_or_else(|e| panic!("{name} {placing:?}: {e}"));
            }
        }
    }
}

#[test]
fn waits_survive_csv_json_and_the_grid() {
    let text = "0F0,0SEND_F0,0WAIT_SEND_F0,0RECV_B0,0WAIT_RECV_B0,0B0\n1RECV_F0,1WAIT_RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n";
    let plan = plan(text);
    assert_eq!(plan.to_csv(), text);
    assert_eq!(serde_json::from_str::<Plan>(&serde_json::to_string(&plan).unwrap()).unwrap(), plan);
    assert!(plan.grid().contains("0WAIT_SEND_F0 1F0"), "{}", plan.grid());
    assert!(plan.has_waits());
}

#[test]
fn a_wait_needs_the_one_start_before_it() {
    assert!(matches!(
        refused("0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
        CheckError::Unmet { rank: 0, step: 1, needs, .. } if needs == Task::new(0, Op::SendForward, 0)
    ));
    assert!(matches!(
        refused("0F0,0SEND_F0,0WAIT_RECV_B0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
        CheckError::Unmet { rank: 0, step: 2, needs, .. } if needs == Task::new(0, Op::ReceiveBackward, 0)
    ));
    assert!(matches!(
        refused("0WAIT_UNSHARD,0UNSHARD,0F0,0B0\n"),
        CheckError::Unmet { rank: 0, step: 0, needs, .. } if needs == Task::whole_stage(0, Op::Unshard)
    ));
    assert!(matches!(
        refused("0UNSHARD,0F0,0RESHARD,0WAIT_UNSHARD,0UNSHARD,0B0\n"),
        CheckError::Unmet { rank: 0, step: 3, needs, .. } if needs == Task::whole_stage(0, Op::Unshard)
    ));
    assert!(matches!(
        refused("0F0,0B0,0WAIT_REDUCE_GRAD,0REDUCE_GRAD\n"),
        CheckError::Unmet { rank: 0, step: 2, needs, .. } if needs == Task::whole_stage(0, Op::ReduceGrad)
    ));
    assert!(matches!(
        refused("0F0,0WAIT_SEND_F0,0B0\n"),
        CheckError::NeedlessTransfer { .. } | CheckError::Unmet { .. }
    ));
}

#[test]
fn a_wait_comes_once() {
    let rest = "\n1RECV_F0,1F0,1B0,1SEND_B0\n";
    let twice = format!("0F0,0SEND_F0,0WAIT_SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0{rest}");
    assert!(matches!(refused(&twice), CheckError::Duplicate { rank: 0, step: 3, first: 2, .. }));
    let twice = format!("0F0,0SEND_F0,0RECV_B0,0WAIT_RECV_B0,0WAIT_RECV_B0,0B0{rest}");
    assert!(matches!(refused(&twice), CheckError::Duplicate { rank: 0, step: 4, first: 3, .. }));
    assert!(matches!(refused("0UNSHARD,0WAIT_UNSHARD,0WAIT_UNSHARD,0F0,0B0\n"), CheckError::Duplicate { step: 2, .. }));
    let twice = "0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0WAIT_REDUCE_GRAD\n";
    assert!(matches!(refused(twice), CheckError::Duplicate { step: 4, first: 3, .. }));
    // A stage that is gathered again is awaited again.
    plan("0UNSHARD,0WAIT_UNSHARD,0F0,0RESHARD,0UNSHARD,0WAIT_UNSHARD,0B0\n").check(&CheckOptions::default()).unwrap();
}

#[test]
fn nothing_is_used_before_its_wait() {
    let late = |text: &str| match refused(text) {
        CheckError::LateWait { rank, step, task, user, first, .. } => {
            (rank, step, task.to_string(), user.to_string(), first)
        }
        other => panic!("{other}"),
    };
    assert_eq!(
        late("0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
        (0, 4, "0WAIT_RECV_B0".into(), "0B0".into(), 3)
    );
    assert_eq!(
        late("0F0,0SEND_F0,0RECV_B0,0I0,0WAIT_RECV_B0,0W0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
        (0, 4, "0WAIT_RECV_B0".into(), "0I0".into(), 3)
    );
    assert_eq!(
        late("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1WAIT_RECV_F0,1B0,1SEND_B0\n"),
        (1, 2, "1WAIT_RECV_F0".into(), "1F0".into(), 1)
    );
    assert_eq!(late("0UNSHARD,0F0,0WAIT_UNSHARD,0B0\n"), (0, 2, "0WAIT_UNSHARD".into(), "0F0".into(), 1));
    let text = refused("0UNSHARD,0F0,0WAIT_UNSHARD,0B0\n").to_string();
    assert!(
        text.contains("0WAIT_UNSHARD comes after 0F0 (step 1), which uses its result; move the wait before it"),
        "{text}"
    );
}

#[test]
fn payloads_that_no_wait_has_let_go_of_stay_under_their_cap() {
    let lowered = by_name("GPipe").unwrap().build(Size::new(3, 6)).unwrap().with_transfers().unwrap();
    let peak = |placing: Placing| {
        let waits = lowered.with_waits(&WaitOptions { sends: placing, ..WaitOptions::default() });
        let fits = |cap| waits.clone().check(&CheckOptions { sent_cap: Some(cap), ..CheckOptions::default() });
        let least = (0..100).find(|&cap| fits(cap).is_ok()).unwrap();
        assert!(
            least == 0
                || matches!(*fits(least - 1).unwrap_err(), CheckError::SentCap { held, cap, .. } if held == cap + 1)
        );
        least
    };
    // Rank 1 sends six outputs before the first gradient comes back, and its gradients at the end of the step.
    assert_eq!((peak(Placing::Implicit), peak(Placing::AtOnce), peak(Placing::Late)), (0, 1, 6));
    let options = WaitOptions { outstanding: NonZeroUsize::new(2), ..WaitOptions::all(Placing::Late) };
    let bound = lowered.with_waits(&options);
    bound.check(&CheckOptions { sent_cap: Some(2), ..CheckOptions::default() }).unwrap();
}

#[test]
fn a_start_does_not_hold_its_rank_up_and_a_wait_does() {
    // Both ranks send first: a cycle if sends block, none if they are awaited after the receives.
    let cycle =
        "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
    assert!(matches!(refused(cycle), CheckError::Deadlock { .. }));
    let waits = cycle.replace("0SEND_F1,", "0SEND_F1,0RECV_B0,0WAIT_SEND_F1,").replace("0RECV_B0,0B0", "0B0");
    plan(&waits).check(&CheckOptions::default()).unwrap();
    let early = cycle.replace("0SEND_F1,", "0SEND_F1,0WAIT_SEND_F1,");
    match refused(&early) {
        CheckError::Deadlock { cycle, .. } => {
            let stands: Vec<String> = cycle.iter().map(|w| format!("{} for {}", w.action, w.needs)).collect();
            assert_eq!(stands, ["0WAIT_SEND_F1 for 1RECV_F1", "1SEND_B0 for 0RECV_B0"]);
        }
        other => panic!("{other}"),
    }
    // With a buffer for one payload, the second send is over once the first is received.
    plan(&early).check(&under(Transport::Buffered(1))).unwrap();
}

/// Two ranks; a computation takes one second, a crossing two (one of them on the wire).
fn profile() -> Profile {
    let stage = StageCost { message_bytes: 1.0, unshard: 2.0, reduce_grad: 3.0, ..stage(1.0, 1.0, 1.0) };
    same_stages(stage, 2, 1.0, Some(1.0))
}

fn run(text: &str, overlap: bool) -> Simulation {
    let options = SimulateOptions { overlap, ..SimulateOptions::default() };
    simulate(&plan(text), &profile(), &options).unwrap()
}

#[test]
fn a_started_transfer_runs_beside_computations_and_the_wait_stands() {
    let peer = "\n1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n";
    let blocking = format!("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1{peer}");
    let started = format!("0F0,0SEND_F0,0F1,0WAIT_SEND_F0,0SEND_F1,0WAIT_SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1{peer}");
    let span = |step: &Simulation, name: &str| {
        let event = step.events.iter().find(|event| event.action.to_string() == name).unwrap();
        (event.start, event.end)
    };
    // Blocking: the second forward starts when the first message has arrived, at 3.
    assert_eq!(span(&run(&blocking, false), "0F1"), (3.0, 4.0));
    let step = run(&started, false);
    assert_eq!((span(&step, "0SEND_F0"), span(&step, "0F1")), ((1.0, 3.0), (1.0, 2.0)));
    assert_eq!(span(&step, "0WAIT_SEND_F0"), (2.0, 3.0));
    assert!(step.makespan <= run(&blocking, false).makespan);
    // The payload is held from the send to the wait.
    let held: Vec<(f64, f64)> = step.ranks[0].memory.iter().map(|p| (p.time, p.send_buffers)).collect();
    assert!(held.contains(&(1.0, 1.0)) && held.iter().any(|&(time, held)| time == 3.0 && held == 0.0), "{held:?}");
}

#[test]
fn collectives_run_beside_computations_until_their_waits() {
    let text = "0UNSHARD,0WAIT_UNSHARD,1UNSHARD,0F0,1WAIT_UNSHARD,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD,1WAIT_REDUCE_GRAD,0WAIT_REDUCE_GRAD\n";
    for overlap in [false, true] {
        // 0: gather 0..2; F 2..3 while 1 is gathered 2..4; F 4..5, B 5..7, reduce 7..10 beside B 7..9, reduce 10..13.
        let step = run(text, overlap);
        assert_eq!((step.makespan, step.ranks[0].busy), (13.0, 6.0), "{:?}", step.events);
        let waits: Vec<f64> =
            step.events.iter().filter(|e| e.action.tasks().all(|t| t.op().is_wait())).map(|e| e.end).collect();
        assert_eq!(waits, [2.0, 4.0, 10.0, 13.0]);
    }
    // Without waits and without overlap, each blocks the rank: 2 * (2 + 1 + 2 + 3).
    assert_eq!(run(&golden::without_waits(&plan(text)).to_csv(), false).makespan, 16.0);
}

#[test]
fn a_wait_that_can_never_end_is_a_deadlock_that_names_what_it_waits_for() {
    let text = "0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";
    match simulate(&plan(text), &profile(), &SimulateOptions::default()).unwrap_err() {
        SimulateError::Deadlock { waiting, .. } => {
            let stands: Vec<String> =
                waiting.iter().map(|b| format!("{} for {} on {}", b.action, b.needs, b.on)).collect();
            assert_eq!(stands, ["0WAIT_SEND_F0 for 0SEND_F0 on 0", "1RECV_F0 for 0SEND_F0 on 0"]);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn waits_are_drawn_and_traced() {
    let text = "0F0,0SEND_F0,0WAIT_SEND_F0,0RECV_B0,0WAIT_RECV_B0,0B0\n1RECV_F0,1WAIT_RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n";
    let track = run(text, true).track("waits");
    assert!(track.ascii(60).contains('~'));
    assert!(chrome(std::slice::from_ref(&track)).contains("0WAIT_RECV_B0"));
    assert!(track.svg(&Default::default()).contains("0WAIT_RECV_B0"));
}
