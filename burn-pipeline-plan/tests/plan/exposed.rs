//! Exposed communication, compared with times added by hand and with the simulator.

use burn_pipeline_plan::cost::{LinkCosts, Profile, StageCost, UniformCosts};
use burn_pipeline_plan::plan::{Action, Op, Plan, Task, Transport};
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate};
use burn_pipeline_plan::trace::{Event, Track, chrome};
use serde_json::Value;

fn event(rank: usize, op: Op, stage: usize, microbatch: usize, start: f64, end: f64) -> Event {
    Event { rank, action: Action::Single(Task::new(stage, op, microbatch)), start, end }
}

fn track(events: Vec<Event>) -> Track {
    Track { name: "by hand".to_owned(), ranks: 2, events }
}

fn parts(track: &Track) -> Vec<(f64, f64)> {
    track.exposed_times().iter().map(|wait| (wait.early, wait.exposed)).collect()
}

#[test]
fn waiting_for_a_neighbour_that_computes_is_not_communication() {
    let step = |at: f64| {
        vec![
            event(0, Op::Forward, 0, 0, at, at + 2.0),
            event(0, Op::SendForward, 0, 0, at + 2.0, at + 2.25),
            // The wait starts before the value is made, and ends one second after.
            event(1, Op::ReceiveForward, 1, 0, at + 0.5, at + 3.0),
            event(1, Op::Forward, 1, 0, at + 3.0, at + 4.0),
            event(1, Op::Backward, 1, 0, at + 4.0, at + 6.0),
            // The wait starts after the value is made.
            event(0, Op::ReceiveBackward, 0, 0, at + 7.0, at + 7.5),
        ]
    };
    let one = [(0.0, 0.25), (1.5, 1.0), (0.0, 0.5)];
    assert_eq!(parts(&track(step(0.0))), one);
    // Several steps in one track: each receive waits for the value of its step.
    assert_eq!(parts(&track([step(0.0), step(10.0)].concat())), [one, one].concat());
}

#[test]
fn what_the_rank_computes_meanwhile_hides_a_transfer() {
    let events = vec![
        event(0, Op::Forward, 0, 0, 0.0, 1.0),
        event(1, Op::ReceiveForward, 1, 0, 1.0, 4.0),
        event(1, Op::BackwardWeight, 1, 7, 0.0, 2.0),
        event(1, Op::BackwardWeight, 1, 8, 2.5, 3.0),
        event(1, Op::BackwardWeight, 1, 9, 3.75, 9.0),
    ];
    // 1..2, 2.5..3 and 3.75..4 are computation.
    assert_eq!(parts(&track(events)), [(0.0, 1.25)]);
    assert!(track(Vec::new()).exposed_times().is_empty());
}

fn whole(op: Op, stage: usize, start: f64, end: f64) -> Event {
    Event { rank: 0, action: Action::Single(Task::whole_stage(stage, op)), start, end }
}

#[test]
fn of_what_replicas_exchange_only_the_waits_are_exposed() {
    let measured = vec![
        whole(Op::Unshard, 1, 0.0, 1.5),
        whole(Op::WaitUnshard, 1, 1.0, 1.5),
        event(0, Op::Backward, 1, 0, 1.5, 3.0),
        whole(Op::ReduceGrad, 1, 3.0, 9.0),
        // The neighbour is late, which does not count as time of the reduction.
        event(0, Op::ReceiveBackward, 0, 0, 3.0, 6.0),
        event(0, Op::Backward, 0, 0, 6.0, 8.0),
        whole(Op::ReduceGrad, 0, 8.0, 10.0),
        whole(Op::WaitReduceGrad, 1, 8.0, 9.0),
        whole(Op::WaitReduceGrad, 0, 9.0, 10.0),
    ];
    let exposures: Vec<_> = track(measured).exposed_times().iter().map(|e| (e.task.to_string(), e.exposed)).collect();
    let expected = [("1UNSHARD", 0.5), ("1REDUCE_GRAD", 1.0), ("0RECV_B0", 3.0), ("0REDUCE_GRAD", 1.0)];
    assert_eq!(exposures, expected.map(|(task, exposed)| (task.to_owned(), exposed)));
}

#[test]
fn a_simulated_reduction_is_exposed_where_its_rank_has_computed_everything() {
    let plan = Plan::from_csv("mine", "0UNSHARD,1UNSHARD,0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD\n").unwrap();
    let cost = StageCost { forward: 1.0, backward: Some(2.0), unshard: 2.0, reduce_grad: 3.0, ..StageCost::default() };
    let profile = Profile::new(vec![cost; 2], LinkCosts::default()).unwrap();
    let step = simulate(&plan, &profile, &SimulateOptions::default()).unwrap();
    let exposures: Vec<_> = step
        .track("predicted")
        .exposed_times()
        .iter()
        .map(|e| (e.task.to_string(), e.event.start, e.exposed))
        .collect();
    // Stage 0 is gathered until 2 and stage 1 until 4, of which its forward hides one second. Both have computed
    // everything at 9, when stage 1's reduction has one second left and stage 0's all three.
    let expected =
        [("0UNSHARD", 0.0, 2.0), ("1UNSHARD", 2.0, 1.0), ("1REDUCE_GRAD", 7.0, 1.0), ("0REDUCE_GRAD", 10.0, 3.0)];
    assert_eq!(exposures, expected.map(|(task, start, exposed)| (task.to_owned(), start, exposed)));
}

#[test]
fn free_transfers_expose_nothing_and_dear_ones_do() {
    for name in ["1F1B", "ZBH1", "GPipe"] {
        let plan = by_name(name).unwrap().build(Size::new(4, 8)).unwrap().with_transfers().unwrap();
        let simulated = |transfer: f64| {
            let costs = UniformCosts::new(1.0, 1.0, 1.0).with_transfer(transfer);
            let profile = Profile::uniform(plan.placement(), costs).unwrap();
            let options = SimulateOptions { transport: Transport::Unbounded, overlap: true };
            let track = simulate(&plan, &profile, &options).unwrap().track(name);
            track.exposed_times().iter().map(|wait| wait.exposed).sum::<f64>()
        };
        assert_eq!(simulated(0.0), 0.0, "{name}");
        assert!(simulated(0.5) > 0.0, "{name}: the first microbatch's way down the pipeline is exposed");
    }
}

#[test]
fn the_chrome_trace_tells_it_of_every_transfer() {
    let track = track(vec![
        event(0, Op::Forward, 0, 0, 0.0, 2.0),
        event(1, Op::ReceiveForward, 1, 0, 0.5, 3.0),
        event(1, Op::Forward, 1, 0, 3.0, 4.0),
    ]);
    let json: Value = serde_json::from_str(&chrome(&[track])).unwrap();
    let reported = json["traceEvents"].as_array().unwrap().iter().filter_map(|event| {
        let name = event["name"].as_str()?;
        Some((name, event["args"]["exposed_us"].as_f64()?, event["args"]["early_us"].as_f64()?))
    });
    assert_eq!(reported.collect::<Vec<_>>(), [("1RECV_F0", 1e6, 1.5e6)]);
}
