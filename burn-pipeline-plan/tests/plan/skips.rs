//! Skip edges: lowered for every schedule, checked like other transfers, and priced.

use crate::any_schedule;
use crate::brute_force::is_legal;
use crate::check::{TRANSPORTS, under};
use crate::golden_text as golden;
use burn_pipeline_plan::cost::{LinkCost, LinkCosts, Profile, StageCost};
use burn_pipeline_plan::pass;
use burn_pipeline_plan::plan::{Action, CheckError, CheckOptions, Plan, PlanError, SkipEdge, Task, Transport};
use burn_pipeline_plan::schedule::{ForwardOnly, GPipe, Schedule, Size};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use proptest::prelude::{Strategy, any, proptest};
use proptest::test_runner::Config;

/// A plan of any schedule with random edges, unlowered.
fn plans() -> impl Strategy<Value = Plan> {
    let ends = proptest::collection::vec((any::<usize>(), any::<usize>()), 0..6);
    (any_schedule::plans(4, 3, 5), ends).prop_map(|(plan, ends)| any_schedule::with_skips(plan.without_idle(), &ends))
}

fn transfers(plan: &Plan) -> Vec<Task> {
    (0..plan.ranks()).flat_map(|rank| plan.tasks(rank)).filter(|task| task.is_skip()).collect()
}

proptest! {
    #![proptest_config(Config { cases: 160, failure_persistence: None, ..Config::default() })]

    #[test]
    fn every_schedule_is_lowered_with_edges_and_proved_under_rendezvous(plan in plans()) {
        let lowered = plan.with_transfers().unwrap();
        for transport in TRANSPORTS {
            assert!(is_legal(&lowered, transport), "{transport}\n{}", lowered.grid());
        }
        let checked = lowered.clone().check(&under(Transport::Rendezvous));
        assert!(checked.is_ok(), "{}", checked.unwrap_err());
        for placing in [pass::Placing::AtOnce, pass::Placing::Late] {
            for skips in [false, true] {
                let given = pass::WaitOptions { skips, ..pass::WaitOptions::all(placing) };
                let waiting = lowered.with_waits(&given);
                for transport in TRANSPORTS {
                    let checked = waiting.clone().check(&under(transport));
                    assert!(checked.is_ok(), "{}", checked.unwrap_err());
                    assert!(is_legal(&waiting, transport), "{transport}\n{}", waiting.grid());
                }
                assert_eq!(golden::without_waits(&waiting), lowered);
                assert_eq!(waiting.with_waits(&given), waiting);
                // Every start has its wait, with the same stage, microbatch and peer; along skip edges only on
                // request.
                let there: std::collections::BTreeSet<Task> = (0..plan.ranks()).flat_map(|r| waiting.tasks(r)).collect();
                for task in (0..plan.ranks()).flat_map(|r| lowered.tasks(r)).filter(|task| task.op().is_transfer()) {
                    assert_eq!(there.contains(&task.wait().unwrap()), skips || !task.is_skip(), "{task}");
                }
                let tasks: usize = (0..plan.ranks()).map(|rank| waiting.tasks(rank).count()).sum();
                assert_eq!(there.len(), tasks, "no task comes twice");
            }
        }
        // Each value crosses once, and its gradient comes back once.
        let training = plan.has_backward();
        let crossing = |replica: usize, edge: &&SkipEdge| {
            let rank = |index| plan.placement().rank_of(burn_pipeline_plan::plan::StageId::in_route(replica, index));
            rank(edge.from) != rank(edge.to)
        };
        let values: usize = (0..plan.placement().routes())
            .map(|r| plan.skips().iter().filter(|edge| crossing(r, edge)).count() * plan.microbatches()[r])
            .sum();
        let moved = transfers(&lowered);
        assert_eq!(moved.len(), values * if training { 4 } else { 2 });
        // Without edges, the same plan has the same other cells in the same order.
        let bare = plan.clone().with_skips(vec![]).unwrap().with_transfers().unwrap();
        for rank in 0..plan.ranks() {
            let others: Vec<Task> = lowered.tasks(rank).filter(|task| !task.is_skip()).collect();
            assert_eq!(others, bare.tasks(rank).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_plan_with_edges_survives_csv_and_json(plan in plans()) {
        let lowered = plan.with_transfers().unwrap();
        let waiting = lowered.with_waits(&pass::WaitOptions::all(pass::Placing::Late));
        let json = serde_json::to_string(&waiting).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), waiting);
        if plan.placement().routes() == 1 {
            assert_eq!(Plan::from_csv("read", &waiting.to_csv()).unwrap().rows(), waiting.rows());
        }
        let json = serde_json::to_string(&lowered).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), lowered);
        if plan.placement().routes() == 1 {
            let read = Plan::from_csv("read", &lowered.to_csv()).unwrap();
            assert_eq!(read.rows(), lowered.rows());
            let crossing: Vec<SkipEdge> = plan.skips().iter().copied().filter(|edge| {
                let rank = |index: usize| plan.placement().rank_of(index.into());
                rank(edge.from) != rank(edge.to)
            }).collect();
            assert_eq!(read.skips(), crossing);
        }
    }

    #[test]
    fn check_and_a_plain_executor_agree_on_plans_with_one_thing_wrong(
        plan in plans(), at in any::<usize>(), other in any::<usize>(), edit in 0..4usize, waits in 0..3usize,
    ) {
        let placing = [pass::Placing::Implicit, pass::Placing::AtOnce, pass::Placing::Late][waits];
        let lowered = plan.with_transfers().unwrap().with_waits(&pass::WaitOptions::all(placing));
        let mut rows = lowered.rows().to_vec();
        let skip = |action: &Action| action.tasks().any(|task| task.is_skip());
        let places: Vec<(usize, usize)> = rows.iter().enumerate()
            .flat_map(|(rank, row)| row.iter().enumerate().filter(|(_, a)| skip(a)).map(move |(i, _)| (rank, i)))
            .collect();
        if places.is_empty() {
            return Ok(());
        }
        let (rank, index) = places[at % places.len()];
        let row = &mut rows[rank];
        let there = other % row.len();
        match edit {
            0 => drop(row.remove(index)),
            1 => row.insert(there, row[index]),
            2 => row.swap(index, there),
            _ => {
                let cell = row.remove(index);
                row.insert(there.min(row.len()), cell);
            }
        }
        let edited = lowered.with_rows(rows);
        for transport in TRANSPORTS {
            let ours = edited.clone().check(&under(transport));
            let legal = is_legal(&edited, transport);
            assert_eq!(ours.is_ok(), legal, "{transport}: {:?}\n{}", ours.map_err(|e| e.to_string()), edited.grid());
        }
    }

    #[test]
    fn passes_over_communication_keep_plans_with_edges_legal(plan in plans()) {
        let cost = StageCost { forward: 1.0, input: Some(1.0), weight: Some(1.0), message_bytes: 1.0, skip_bytes: 3.0, ..StageCost::default() };
        let links = LinkCosts { default: LinkCost { latency: 0.1, bandwidth: Some(4.0) }, between: vec![] };
        let profile = Profile::new(vec![cost; plan.stages()], links).unwrap();
        let lowered = plan.with_transfers().unwrap();
        for lowered in [lowered.with_waits(&pass::WaitOptions::all(pass::Placing::AtOnce)), lowered] {
            if !lowered.is_lowered() {
                continue;
            }
            let given = pass::overlap::OverlapOptions::default();
            let moved = lowered.overlap(&profile, &pass::overlap::OverlapPass::ALL, &given).unwrap();
            let checked = moved.plan.clone().check(&under(Transport::Rendezvous));
            assert!(checked.is_ok(), "{}", checked.unwrap_err());
            let time = |plan: &Plan| simulate(plan, &profile, &SimulateOptions::default()).unwrap().makespan;
            assert!(time(&moved.plan) <= time(&lowered) + 1e-9);
        }
    }

    #[test]
    fn transfers_that_take_no_time_change_no_makespan(plan in plans()) {
        let stage = StageCost { forward: 1.0, input: Some(1.0), weight: Some(1.0), ..StageCost::default() };
        let profile = Profile::new(vec![stage; plan.stages()], LinkCosts::default()).unwrap();
        let options = SimulateOptions { transport: Transport::Unbounded, ..SimulateOptions::default() };
        let time = |plan: &Plan| simulate(plan, &profile, &options).unwrap().makespan;
        let bare = plan.clone().with_skips(vec![]).unwrap();
        let lowered = |plan: &Plan| plan.with_transfers().unwrap();
        assert_eq!(time(&plan), time(&bare));
        let awaited = |plan: &Plan| lowered(plan).with_waits(&pass::WaitOptions::all(pass::Placing::Late));
        assert_eq!(time(&awaited(&plan)), time(&awaited(&bare)));
        assert_eq!(time(&lowered(&plan)), time(&lowered(&bare)));
    }
}

#[test]
fn edges_that_are_none_are_refused() {
    let plan = |edges: &[(usize, usize)]| {
        let plan = GPipe.build(Size::new(4, 1)).unwrap();
        plan.with_skips(edges.iter().map(|&edge| edge.into()).collect())
    };
    let refused = |edges: &[(usize, usize)]| match plan(edges) {
        Err(PlanError::Skip { edge, reason }) => ((edge.from, edge.to), reason),
        other => panic!("{other:?}"),
    };
    let assert_refused = |edges: &[(usize, usize)], edge, part: &str| {
        let (refused, reason) = refused(edges);
        assert!(refused == edge && reason.contains(part), "{refused:?} {reason}");
    };
    assert_refused(&[(2, 0)], (2, 0), "does not lead to a later stage");
    assert_refused(&[(1, 1)], (1, 1), "does not lead to a later stage");
    assert_refused(&[(0, 2), (1, 2)], (1, 2), "leads to the next stage");
    assert_refused(&[(1, 4)], (1, 4), "needs a stage 4, but the plan has 4");
    assert_refused(&[(0, 3), (0, 2), (0, 3)], (0, 3), "is listed twice");
    assert_eq!(plan(&[(1, 3), (0, 2)]).unwrap().skips(), [(0, 2).into(), (1, 3).into()]);
    let long = GPipe.build(Size::new(140, 1)).unwrap();
    let error = long.clone().with_skips(vec![(0, 128).into()]).unwrap_err();
    assert_eq!(error.to_string(), "the edge 0 -> 128 spans more than 127 stages; pass the value in two edges");
    let lowered = long.with_skips(vec![(0, 127).into()]).unwrap().with_transfers().unwrap();
    assert!(lowered.check(&under(Transport::Rendezvous)).is_ok());
}

fn refusal(csv: &str, edges: &[(usize, usize)]) -> CheckError {
    let plan = Plan::from_csv("mine", csv).unwrap();
    let plan = plan.with_skips(edges.iter().map(|&edge| edge.into()).collect()).unwrap();
    *plan.check(&under(Transport::Rendezvous)).unwrap_err()
}

#[test]
fn what_is_missing_or_too_much_is_named() {
    let text = |task: &str| task.parse::<Task>().unwrap();
    let good = "0F0,0SEND_F0,0SEND_F0>2\n1RECV_F0,1F0,1SEND_F0\n2RECV_F0<0,2RECV_F0,2F0\n";
    assert!(Plan::from_csv("good", good).unwrap().check(&under(Transport::Rendezvous)).is_ok());
    let error = refusal("0F0,0SEND_F0,0SEND_F0>2\n1RECV_F0,1F0,1SEND_F0\n2RECV_F0,2F0,2RECV_F0<0\n", &[(0, 2)]);
    assert!(matches!(error, CheckError::Unmet { needs, .. } if needs == text("2RECV_F0<0")), "{error}");
    let error = refusal("0F0,0SEND_F0\n1RECV_F0,1F0,1SEND_F0\n2RECV_F0<0,2RECV_F0,2F0\n", &[(0, 2)]);
    assert!(matches!(error, CheckError::Missing { task, .. } if task == text("0SEND_F0>2")), "{error}");
    let error = refusal("0SEND_F0>2,0F0,0SEND_F0\n1RECV_F0,1F0,1SEND_F0\n2RECV_F0<0,2RECV_F0,2F0\n", &[(0, 2)]);
    assert!(matches!(error, CheckError::Unmet { needs, .. } if needs == text("0F0")), "{error}");
    let error = refusal(good, &[]);
    assert!(matches!(error, CheckError::NoSuchSkip { rank: 0, step: 2, .. }), "{error}");
    let same_rank = "0F0,0SEND_F0,0SEND_F0>2,2RECV_F0<0,2RECV_F0,2F0\n1RECV_F0,1F0,1SEND_F0\n";
    let error = refusal(same_rank, &[(0, 2)]);
    assert!(error.to_string().contains("stage 2 is on the same rank"), "{error}");
    // The value past stage 1 comes first here, and last there.
    let crossed =
        "0F0,0SEND_F0>2,1F0,0F1,0SEND_F1>2,1SEND_F0,1F1,1SEND_F1\n2RECV_F0,2RECV_F0<0,2F0,2RECV_F1<0,2RECV_F1,2F1\n";
    let error = refusal(crossed, &[(0, 2)]);
    assert!(matches!(error, CheckError::ChannelOrder { position: 0, .. }), "{error}");
}

#[test]
fn received_values_that_wait_count_towards_the_cap() {
    let plan = Plan::from_csv("mine", "0F0\n1F0\n2F0\n").unwrap().with_skips(vec![(0, 2).into()]).unwrap();
    let lowered = plan.with_transfers().unwrap();
    let capped = |cap| CheckOptions { received_cap: Some(cap), ..CheckOptions::default() };
    assert!(lowered.clone().check(&capped(2)).is_ok());
    assert!(matches!(*lowered.check(&capped(1)).unwrap_err(), CheckError::ReceivedCap { rank: 2, held: 2, .. }));
}

#[test]
fn a_slow_edge_holds_its_later_stage_back_and_stands_in_a_buffer() {
    // Four stages of 1 s each; messages between neighbours take no time, the edge 0 -> 3 takes 10 bytes at 2 bytes/s.
    let cost = StageCost { forward: 1.0, backward: Some(2.0), skip_bytes: 10.0, ..StageCost::default() };
    let links = LinkCosts { default: LinkCost { latency: 0.5, bandwidth: Some(2.0) }, between: vec![] };
    let profile = Profile::new(vec![cost; 4], links).unwrap();
    let placement = GPipe.build(Size::new(4, 1)).unwrap().placement().clone();
    let forward = ForwardOnly::over(placement, vec![1]).unwrap().with_skips(vec![(0, 3).into()]).unwrap();
    let run = |plan: &Plan| simulate(plan, &profile, &SimulateOptions::default()).unwrap();
    for plan in [forward.clone(), forward.with_transfers().unwrap()] {
        let step = run(&plan);
        // The chain ends at 3 * (1 + 0.5) = 4.5; the edge at 1 + 5 + 0.5 = 6.5.
        assert_eq!(step.makespan, 7.5);
        let peak = step.ranks[3].memory.iter().map(|point| point.total()).fold(0.0, f64::max);
        assert_eq!(peak, 10.0);
    }
    // Training: stage 0's backward waits for the gradient that comes back along the edge.
    let training = GPipe.build(Size::new(4, 1)).unwrap().with_skips(vec![(0, 3).into()]).unwrap();
    let step = run(&training);
    // 3B0 ends at 9.5. Along the chain, 0B0 could start at 9.5 + 0.5 + 2 * (2 + 0.5) = 15; along the edge, at 9.5 +
    // 5.5.
    assert_eq!(step.makespan, 17.0);
    let slower = LinkCosts { default: LinkCost { latency: 0.5, bandwidth: Some(1.0) }, between: vec![] };
    let profile = profile.with_links(slower).unwrap();
    let step = simulate(&training, &profile, &SimulateOptions::default()).unwrap();
    // Forward along the edge: 1 + 10.5 = 11.5; 3B0 ends at 14.5; the gradient is back at 25.
    assert_eq!(step.makespan, 27.0);
}

#[test]
fn a_wait_past_a_neighbour_follows_its_start_once_and_comes_before_the_use() {
    let text = |task: &str| task.parse::<Task>().unwrap();
    let plan = |first: &str, last: &str| format!("{first}\n1RECV_F0,1F0,1SEND_F0\n{last}\n");
    let (first, last) = ("0F0,0SEND_F0,0SEND_F0>2,0WAIT_SEND_F0>2", "2RECV_F0<0,2RECV_F0,2WAIT_RECV_F0<0,2F0");
    let good = plan(first, last);
    let read = Plan::from_csv("good", &good).unwrap();
    assert_eq!(read.to_csv(), good);
    for transport in [Transport::Rendezvous, Transport::Buffered(1), Transport::Buffered(4), Transport::Unbounded] {
        assert!(read.clone().check(&under(transport)).is_ok(), "{transport:?}");
    }
    // One end waits apart from its start, the other does not.
    let half = Plan::from_csv("half", &plan(first, "2RECV_F0<0,2RECV_F0,2F0")).unwrap();
    assert!(half.check(&under(Transport::Rendezvous)).is_ok());
    // Rank 1 receives microbatch 1 before it sends on microbatch 0, for which rank 0 waits before it sends microbatch 1.
    let rows = [
        "0F0,0SEND_F0,0SEND_F0>3,0WAIT_SEND_F0>3,2RECV_F0,2F0,0F1,0SEND_F1,2SEND_F0,0SEND_F1>3,2RECV_F1,2F1,2SEND_F1",
        "1RECV_F0,1F0,3RECV_F0<0,1RECV_F1,1F1,1SEND_F0,3WAIT_RECV_F0<0,3RECV_F0,3F0,3RECV_F1<0,1SEND_F1,3RECV_F1,3F1",
    ];
    let circle = Plan::from_csv("circle", &format!("{}\n{}\n", rows[0], rows[1])).unwrap();
    let error = *circle.check(&under(Transport::Rendezvous)).unwrap_err();
    assert!(matches!(error, CheckError::Deadlock { .. }), "{error}");
    let error = refusal(&plan("0F0,0SEND_F0,0WAIT_SEND_F0>2,0SEND_F0>2", last), &[(0, 2)]);
    assert!(matches!(error, CheckError::Unmet { step: 2, needs, .. } if needs == text("0SEND_F0>2")), "{error}");
    let error = refusal(&plan(&format!("{first},0WAIT_SEND_F0>2"), last), &[(0, 2)]);
    assert!(matches!(error, CheckError::Duplicate { rank: 0, step: 4, first: 3, .. }), "{error}");
    let error = refusal(&plan(first, "2RECV_F0<0,2RECV_F0,2F0,2WAIT_RECV_F0<0"), &[(0, 2)]);
    assert!(matches!(error, CheckError::LateWait { rank: 2, step: 3, first: 2, .. }), "{error}");
    let error = refusal(&good, &[]);
    assert!(matches!(error, CheckError::NoSuchSkip { rank: 0, step: 2, .. }), "{error}");
    let capped = CheckOptions { sent_cap: Some(0), ..under(Transport::Rendezvous) };
    let error = *Plan::from_csv("good", &good).unwrap().check(&capped).unwrap_err();
    assert!(matches!(error, CheckError::SentCap { rank: 0, held: 1, .. }), "{error}");
}

#[test]
fn a_started_value_past_a_neighbour_crosses_beside_computations_and_its_wait_stands() {
    // Stages of 1 s; the edge 0 -> 2 takes 10 bytes at 2 bytes/s and 0.5 s, messages between neighbours 0.5 s.
    let cost = StageCost { forward: 1.0, backward: Some(2.0), skip_bytes: 10.0, ..StageCost::default() };
    let links = LinkCosts { default: LinkCost { latency: 0.5, bandwidth: Some(2.0) }, between: vec![] };
    let profile = Profile::new(vec![cost; 3], links).unwrap();
    let rest = "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1\n2RECV_F0<0,2RECV_F0,2F0,2RECV_F1<0,2RECV_F1,2F1\n";
    let blocking = format!("0F0,0SEND_F0,0SEND_F0>2,0F1,0SEND_F1,0SEND_F1>2\n{rest}");
    let started = format!("0F0,0SEND_F0,0SEND_F0>2,0F1,0WAIT_SEND_F0>2,0SEND_F1,0SEND_F1>2\n{rest}");
    let given = SimulateOptions { overlap: false, ..SimulateOptions::default() };
    let run = |text: &str| simulate(&Plan::from_csv("mine", text).unwrap(), &profile, &given).unwrap();
    let span = |text: &str, name: &str| {
        let step = run(text);
        let event = step.events.iter().find(|event| event.action.to_string() == name).unwrap();
        (event.start, event.end)
    };
    // 0F0 ends at 1, and its message reaches stage 1 at 1.5. The value takes from then to 7.
    assert_eq!(span(&blocking, "0F1"), (7.0, 8.0));
    assert_eq!((span(&started, "0SEND_F0>2"), span(&started, "0F1")), ((1.5, 7.0), (1.5, 2.5)));
    assert_eq!(span(&started, "0WAIT_SEND_F0>2"), (2.5, 7.0));
    let held = run(&started).ranks[0].memory.iter().map(|point| point.send_buffers).fold(0.0, f64::max);
    assert_eq!(held, 10.0);
    assert!(run(&started).makespan <= run(&blocking).makespan);
}
