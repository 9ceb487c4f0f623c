//! Simulations of small plans that can be computed by hand.

use crate::check::plan;
use crate::pricing::stage;
use burn_pipeline_plan::cost::{LinkCost, LinkCosts, LinkOverride, Profile, StageCost, UniformCosts};
use burn_pipeline_plan::plan::{CheckError, CheckOptions, Plan, Transport};
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{Bounds, IdleCause, SimulateError, SimulateOptions, Simulation, simulate};

fn latency(latency: f64) -> LinkCosts {
    LinkCosts { default: LinkCost { latency, bandwidth: None }, between: Vec::new() }
}

fn run(text: &str, profile: &Profile, options: SimulateOptions) -> Simulation {
    simulate(&plan(text), profile, &options).unwrap()
}

fn times(step: &Simulation) -> Vec<(String, f64, f64)> {
    step.events.iter().map(|e| (e.action.to_string(), e.start, e.end)).collect()
}

/// Sends and receives block their ranks, under rendezvous.
const BLOCKING: SimulateOptions = SimulateOptions { transport: Transport::Rendezvous, overlap: false };

const TWO: &str = "0F0,0B0\n1F0,1B0\n";
const TWO_LOWERED: &str = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";

#[test]
fn stages_of_different_cost_and_a_latency_are_added_up() {
    let profile = Profile::new(vec![stage(1.0, 1.0, 1.0), stage(3.0, 2.0, 4.0)], latency(0.5)).unwrap();
    let step = run(TWO, &profile, SimulateOptions::default());
    // 1F0 from 1.5 to 4.5, 1B0 to 10.5, 0B0 from 11 to 13.
    assert_eq!((step.makespan, step.span, step.work), (13.0, 13.0, 6.0));
    assert_eq!(step.bubble_rate_span(), 7.0 / 13.0);
    let causes = |rank: usize| step.ranks[rank].idle.iter().map(|i| (i.start, i.end, i.cause)).collect::<Vec<_>>();
    assert_eq!(causes(0), [(1.0, 10.5, IdleCause::Gradient), (10.5, 11.0, IdleCause::Transfer)]);
    assert_eq!(causes(1), [(0.0, 1.5, IdleCause::WarmUp), (10.5, 13.0, IdleCause::CoolDown)]);
    assert_eq!((step.ranks[1].start, step.ranks[1].end, step.ranks[1].busy), (1.5, 10.5, 9.0));
}

#[test]
fn a_rank_that_waits_for_its_input_says_so() {
    let profile = Profile::new(vec![stage(2.0, 1.0, 1.0), stage(1.0, 1.0, 1.0)], latency(0.0)).unwrap();
    let step = run("0F0,0F1\n1F0,1F1\n", &profile, SimulateOptions::default());
    assert_eq!(step.ranks[1].idle_of(IdleCause::Input), 1.0);
    assert_eq!(step.ranks[1].idle_of(IdleCause::WarmUp), 2.0);
}

#[test]
fn bytes_take_time_on_the_link_that_they_cross() {
    let heavy = StageCost { message_bytes: 8.0, ..stage(1.0, 1.0, 1.0) };
    let back = LinkOverride { from: 1, to: 0, latency: 0.0, bandwidth: Some(2.0) };
    let links = LinkCosts { default: LinkCost { latency: 0.5, bandwidth: Some(4.0) }, between: vec![back] };
    let profile = Profile::new(vec![heavy, stage(1.0, 1.0, 1.0)], links).unwrap();
    let step = run(TWO, &profile, SimulateOptions::default());
    // Forward 0.5 + 8/4, back 8/2: the gradient is as large as its output.
    assert_eq!(step.makespan, 1.0 + 2.5 + 3.0 + 4.0 + 2.0);
}

#[test]
fn a_lowered_plans_transfers_keep_both_ranks_under_rendezvous() {
    let profile = Profile::new(vec![stage(1.0, 1.0, 1.0); 2], latency(0.5)).unwrap();
    let step = run(TWO_LOWERED, &profile, BLOCKING);
    let expected = [
        ("0F0", 0.0, 1.0),
        ("0SEND_F0", 1.0, 1.5),
        ("0RECV_B0", 4.5, 5.0),
        ("0B0", 5.0, 7.0),
        ("1RECV_F0", 1.0, 1.5),
        ("1F0", 1.5, 2.5),
        ("1B0", 2.5, 4.5),
        ("1SEND_B0", 4.5, 5.0),
    ];
    assert_eq!(times(&step), expected.map(|(action, start, end)| (action.to_owned(), start, end)));
    assert_eq!((step.ranks[0].occupied, step.ranks[0].idle_of(IdleCause::Gradient)), (1.0, 3.0));
}

#[test]
fn a_buffered_send_lets_its_rank_go_on() {
    // Rank 0 sends twice while rank 1 still computes: a rendezvous waits for it, a buffer of one only once.
    let text = "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2\n1RECV_F0,1F0,1RECV_F1,1F1,1RECV_F2,1F2\n";
    let profile = Profile::new(vec![stage(1.0, 0.0, 0.0), stage(5.0, 0.0, 0.0)], latency(0.0)).unwrap();
    let end = |transport| run(text, &profile, SimulateOptions { transport, overlap: false }).ranks[0].end;
    assert_eq!(end(Transport::Rendezvous), 7.0);
    assert_eq!(end(Transport::Buffered(1)), 3.0);
    assert_eq!(end(Transport::Buffered(0)), end(Transport::Rendezvous));
    assert_eq!(end(Transport::Unbounded), 3.0);
}

#[test]
fn with_overlap_messages_queue_on_their_link_and_not_on_their_rank() {
    let heavy = StageCost { message_bytes: 3.0, ..stage(1.0, 0.0, 0.0) };
    let links = LinkCosts { default: LinkCost { latency: 0.0, bandwidth: Some(1.0) }, between: Vec::new() };
    let profile = Profile::new(vec![heavy, stage(1.0, 0.0, 0.0)], links).unwrap();
    let text = "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1RECV_F1,1F0,1F1\n";
    let options = SimulateOptions { transport: Transport::Unbounded, overlap: true };
    let step = run(text, &profile, options);
    // The second message is ready at 2 and leaves at 4, when the link is free.
    assert_eq!(step.ranks[0].end, 2.0);
    assert_eq!(step.makespan, 8.0);
    let sent: Vec<_> = times(&step).into_iter().filter(|(action, ..)| action == "0SEND_F1").collect();
    assert_eq!(sent, [("0SEND_F1".to_owned(), 4.0, 7.0)]);
}

#[test]
fn a_fused_action_takes_its_own_time_and_gives_both_results_at_its_end() {
    let text = "0F0,1F0,(0F1;1B0)OVERLAP_F_B,1F1,0B0,1B1,0B1\n";
    let whole =
        |costs| run(text, &Profile::uniform(plan(text).placement(), costs).unwrap(), SimulateOptions::default());
    assert_eq!(whole(UniformCosts::new(1.0, 1.0, 1.0)).makespan, 6.0);
    let fused = whole(UniformCosts::new(1.0, 1.0, 1.0).with_overlap(2.0));
    assert_eq!(fused.makespan, 5.5);
    assert_eq!(fused.events.len(), 7);
}

#[test]
fn memory_is_held_from_f_freed_in_part_at_i_and_all_at_w() {
    let cost = StageCost {
        activation_bytes: 10.0,
        freed_at_input_bytes: 4.0,
        weight_bytes: 100.0,
        unsharded_bytes: 50.0,
        ..stage(1.0, 1.0, 1.0)
    };
    let profile = Profile::new(vec![cost], LinkCosts::default()).unwrap();
    let step = run("0UNSHARD,0F0,0F1,0I0,0W0,0I1,0RESHARD,0W1\n", &profile, BLOCKING);
    let rank = &step.ranks[0];
    let curve: Vec<_> = rank.memory.iter().map(|p| (p.time, p.activations, p.unsharded)).collect();
    let expected = [
        (0.0, 0.0, 50.0),
        (0.0, 10.0, 50.0),
        (1.0, 20.0, 50.0),
        (3.0, 16.0, 50.0),
        (4.0, 10.0, 50.0),
        (5.0, 6.0, 50.0),
        (5.0, 6.0, 0.0),
        (6.0, 0.0, 0.0),
    ];
    assert_eq!(curve, expected);
    assert_eq!((rank.peak_bytes, rank.weight_bytes, rank.peak_activations), (170.0, 100.0, 2.0));
}

#[test]
fn gradients_gather_from_the_first_backward_and_leave_their_piece_behind_the_reduction() {
    let cost = StageCost { weight_bytes: 8.0, gradient_bytes: 8.0, optimizer_bytes: 16.0, ..stage(1.0, 1.0, 1.0) };
    let text = "0UNSHARD,0F0,0F1,0B0,0I1,0W1,0REDUCE_GRAD\n";
    let simulated = |cost: StageCost| {
        let step = run(text, &Profile::new(vec![cost], LinkCosts::default()).unwrap(), BLOCKING);
        let rank = &step.ranks[0];
        let curve: Vec<_> = rank.memory.iter().map(|p| (p.time, p.unsharded, p.gradients)).collect();
        (curve, rank.weight_bytes, rank.optimizer_bytes, rank.peak_bytes)
    };
    // The second microbatch's gradients are added to the first one's while its `W` runs.
    let whole = [(2.0, 0.0, 8.0), (5.0, 0.0, 16.0), (6.0, 0.0, 8.0)];
    assert_eq!(simulated(cost), (whole.to_vec(), 8.0, 16.0, 8.0 + 16.0 + 16.0));
    let sharded = [(0.0, 8.0, 0.0), (2.0, 8.0, 8.0), (5.0, 8.0, 16.0), (6.0, 8.0, 8.0), (6.0, 8.0, 2.0)];
    assert_eq!(simulated(cost.sharded(4)), (sharded.to_vec(), 2.0, 4.0, 2.0 + 4.0 + 8.0 + 16.0));
}

#[test]
fn a_receive_buffer_lives_until_its_value_is_used() {
    let profile = Profile::new(
        vec![StageCost { message_bytes: 7.0, ..stage(1.0, 1.0, 1.0) }, stage(1.0, 1.0, 1.0)],
        latency(0.5),
    );
    let step = run(TWO_LOWERED, &profile.unwrap(), BLOCKING);
    let buffers = |rank: usize| {
        let points = step.ranks[rank].memory.iter();
        points.map(|p| (p.time, p.receive_buffers)).collect::<Vec<_>>()
    };
    assert_eq!(buffers(1), [(1.0, 7.0), (2.5, 0.0)]);
    assert_eq!(buffers(0), [(4.5, 7.0), (7.0, 0.0)]);
}

#[test]
fn a_value_that_stays_on_its_rank_is_held_until_it_is_used() {
    let first = StageCost { message_bytes: 7.0, ..stage(1.0, 1.0, 1.0) };
    let profile = Profile::new(vec![first, stage(1.0, 1.0, 1.0)], LinkCosts::default()).unwrap();
    let step = run("0F0,0F1,1F0,1F1\n", &profile, BLOCKING);
    let curve: Vec<_> = step.ranks[0].memory.iter().map(|p| (p.time, p.receive_buffers)).collect();
    assert_eq!(curve, [(1.0, 7.0), (2.0, 14.0), (3.0, 7.0), (4.0, 0.0)]);
}

#[test]
fn a_known_peak_stands_for_all_that_its_microbatch_holds_while_the_action_runs() {
    let second = StageCost {
        activation_bytes: 10.0,
        freed_at_input_bytes: 4.0,
        gradient_bytes: 3.0,
        weight_bytes: 100.0,
        forward_peak_bytes: Some(25.0),
        input_peak_bytes: Some(30.0),
        weight_peak_bytes: Some(12.0),
        ..stage(1.0, 1.0, 1.0)
    };
    let first = StageCost { message_bytes: 7.0, ..stage(1.0, 0.0, 0.0) };
    let profile = Profile::new(vec![first, second], LinkCosts::default()).unwrap();
    let text = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1F1,1I0,1W0,1I1,1W1\n";
    let rank = run(text, &profile, SimulateOptions::default()).ranks.remove(1);
    // The last point of each instant.
    let mut curve: Vec<(f64, f64, f64)> = Vec::new();
    for point in &rank.memory {
        curve.retain(|(time, ..)| *time != point.time);
        curve.push((point.time, point.total(), point.gradients));
    }
    let expected = [
        // `F`: its message is part of its peak; the next message waits.
        (1.0, 25.0, 0.0),
        // `F` of the next microbatch, beside the activations of the first.
        (2.0, 10.0 + 25.0, 0.0),
        // `I` of the first microbatch, beside the activations of the second; then its `W`.
        (3.0, 10.0 + 30.0, 0.0),
        (4.0, 10.0 + 12.0, 0.0),
        // The same for the second microbatch, beside the sum of gradients.
        (5.0, 3.0 + 30.0, 3.0),
        (6.0, 3.0 + 12.0, 3.0),
        (7.0, 3.0, 3.0),
    ];
    assert_eq!(curve, expected);
    assert_eq!(rank.peak_bytes, 100.0 + 40.0);
}

#[test]
fn forward_only_plans_hold_no_activations_beyond_their_forward() {
    let plan = by_name("ForwardOnly").unwrap().build(Size::new(3, 5)).unwrap();
    let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
    let step = simulate(&plan, &profile, &SimulateOptions::default()).unwrap();
    assert_eq!((step.makespan, step.peak_activations()), (7.0, 1.0));
}

#[test]
fn collectives_run_beside_computations_only_with_overlap() {
    let cost = StageCost { unshard: 2.0, reduce_grad: 3.0, ..stage(1.0, 1.0, 1.0) };
    let profile = Profile::new(vec![cost; 2], LinkCosts::default()).unwrap();
    let text = "0UNSHARD,1UNSHARD,0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD\n";
    let end = |overlap| run(text, &profile, SimulateOptions { overlap, ..SimulateOptions::default() }).makespan;
    // One after the other: 2+2+1+1+2+3+2+3. Beside: stage 0 at 2, stage 1 at 4, its B until 7, reductions 7 to 10 and
    // 10 to 13.
    assert_eq!((end(false), end(true)), (16.0, 13.0));
}

#[test]
fn a_deadlock_names_ranks_actions_and_what_they_wait_for() {
    let profile = Profile::new(vec![stage(1.0, 1.0, 1.0); 2], LinkCosts::default()).unwrap();
    let error = |text: &str| simulate(&plan(text), &profile, &SimulateOptions::default()).unwrap_err().to_string();
    let backward_first = error("0F0,0B0\n1B0,1F0\n");
    assert!(backward_first.contains("rank 1 is stuck at step 0 (1B0) and waits for 1F0 on rank 1"), "{backward_first}");
    assert!(backward_first.contains("rank 0 is stuck at step 1 (0B0) and waits for 1B0 on rank 1"), "{backward_first}");
    // Both ranks send first: a rendezvous never completes; a buffer of one is enough.
    let crossed = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1\n";
    let text = error(crossed);
    assert!(text.contains("rank 0 is stuck at step 3 (0SEND_F1) and waits for 1RECV_F1 on rank 1"), "{text}");
    assert!(text.contains("rank 1 is stuck at step 3 (1SEND_B0) and waits for 0RECV_B0 on rank 0"), "{text}");
    let options = SimulateOptions { transport: Transport::Buffered(1), overlap: false };
    assert!(simulate(&plan(crossed), &profile, &options).is_ok());
}

#[test]
fn plans_that_do_not_hold_together_are_refused_and_not_run() {
    let profile = Profile::new(vec![stage(1.0, 1.0, 1.0)], LinkCosts::default()).unwrap();
    let refuse = |text: &str| simulate(&plan(text), &profile, &SimulateOptions::default()).unwrap_err();
    assert!(matches!(refuse("0F4000000000\n"), SimulateError::Sparse { .. }));
    assert!(matches!(refuse("0F0,0SEND_F0\n"), SimulateError::Foreign { rank: 0, step: 1, .. }));
    assert!(matches!(refuse(TWO), SimulateError::Profile(_)));
    let placement = plan(TWO).placement().clone();
    let rows = plan("1F0\n0F0\n").rows().to_vec();
    let elsewhere = Plan::new("t", placement, vec![1], rows).unwrap();
    let two = Profile::new(vec![stage(1.0, 1.0, 1.0); 2], LinkCosts::default()).unwrap();
    let error = simulate(&elsewhere, &two, &SimulateOptions::default()).unwrap_err();
    assert!(error.to_string().contains("the stage is on another rank"), "{error}");
}

#[test]
fn bounds_stand_beside_the_result() {
    let plan = by_name("1F1B").unwrap().build(Size::new(4, 8)).unwrap();
    let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
    let bounds = Bounds::new(&plan, &profile).unwrap();
    // One microbatch: 4 F and 4 B. A rank: 8 of both. Rank 0 warms up with 4: at least (p-1)I of bubble.
    assert_eq!((bounds.critical_path, bounds.busiest_rank, bounds.memory_bubble), (12.0, 24.0, Some(3.0)));
    assert_eq!(bounds.makespan(), 27.0);
}

#[test]
fn a_fused_action_awaits_the_inputs_of_both_parts_as_the_check_says() {
    let waits = plan("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n");
    let refused = waits.clone().check(&CheckOptions::default()).unwrap_err();
    assert!(matches!(*refused, CheckError::Deadlock { .. }), "{refused}");
    let profile = Profile::uniform(waits.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
    let outcome = simulate(&waits, &profile, &SimulateOptions::default());
    assert!(matches!(outcome, Err(SimulateError::Deadlock { .. })), "{outcome:?}");
}
