//! Overlap passes on plans small enough to follow by hand, and their gain on every schedule.

use crate::brute_force::one_order;
use crate::check::plan;
use crate::pricing::{same_stages, stage};
use burn_pipeline_plan::cost::{Profile, ProfileError, StageCost};
use burn_pipeline_plan::pass::PassError;
use burn_pipeline_plan::pass::overlap::{OverlapOptions, OverlapPass, Overlapped, StartReport};
use burn_pipeline_plan::plan::{Action, CheckError, CheckOptions, Transport};
use burn_pipeline_plan::schedule::{Size, all, by_name};
use burn_pipeline_plan::simulate::{SimulateError, SimulateOptions, simulate};
use serde_json::json;

/// Every computation takes one second, an activation four bytes, a message one byte and `seconds`.
fn profile(stages: usize, seconds: f64) -> Profile {
    let stage = StageCost { activation_bytes: 4.0, message_bytes: 1.0, ..stage(1.0, 1.0, 1.0) };
    same_stages(stage, stages, seconds, None)
}

fn blocking() -> OverlapOptions {
    let simulate = SimulateOptions { overlap: false, ..SimulateOptions::default() };
    OverlapOptions { simulate, ..OverlapOptions::default() }
}

fn run(text: &str, seconds: f64, pass: OverlapPass, options: OverlapOptions) -> Overlapped {
    let plan = plan(text);
    plan.run_passes(&profile(plan.stages(), seconds), &[pass], &options).unwrap()
}

fn row(after: &Overlapped, rank: usize) -> String {
    after.plan.row(rank).iter().map(|action| action.to_string()).collect::<Vec<_>>().join(" ")
}

/// The report of one start.
fn fate<'a>(after: &'a Overlapped, start: &str) -> &'a StartReport {
    after.reports[0].starts.iter().find(|report| report.start.to_string() == start).unwrap()
}

/// The moves, the cells that moved along, and the reason why one start stopped.
fn stopped(after: &Overlapped, start: &str) -> (usize, usize, String) {
    let StartReport { moves, along, limit, .. } = fate(after, start);
    (*moves, along.len(), limit.to_string())
}

/// The cells that moved along with a start, and the computations that hide it.
fn company(after: &Overlapped, start: &str) -> (Vec<String>, Vec<(String, f64)>) {
    let StartReport { along, hidden_by, .. } = fate(after, start);
    let hidden_by = hidden_by.iter().map(|(action, seconds)| (action.to_string(), *seconds));
    (along.iter().map(Action::to_string).collect(), hidden_by.collect())
}

const RECEIVES: &str = "0F0,0SEND_F0,0F1,0SEND_F1\n\
    1RECV_F0,1WAIT_RECV_F0,1F0,1RECV_F1,1WAIT_RECV_F1,1F1\n";

#[test]
fn a_start_rises_until_it_is_hidden_or_something_stops_it() {
    let pass = OverlapPass::ReorderCommunication;
    // One more message beside an activation is one byte above the peak.
    let after = run(RECEIVES, 2.0, pass, blocking());
    assert_eq!(stopped(&after, "1RECV_F1"), (0, 0, "memory: 6 bytes".into()));
    assert_eq!(after.plan, plan(RECEIVES));
    let room = OverlapOptions { extra_bytes: 1.0, ..blocking() };
    let after = run(RECEIVES, 2.0, pass, room);
    assert_eq!(stopped(&after, "1RECV_F1"), (2, 0, "order of communication: 1RECV_F0".into()));
    assert_eq!(row(&after, 1), "1RECV_F0 1RECV_F1 1WAIT_RECV_F0 1F0 1WAIT_RECV_F1 1F1");
    let receive = fate(&after, "1RECV_F1");
    assert_eq!((receive.communication, receive.hidden), (2.0, 1.0));
    assert_eq!((receive.exposed_before, receive.exposed_after), (2.0, 1.0));
    assert_eq!(company(&after, "1RECV_F1"), (vec![], vec![("1F0".into(), 1.0)]));
    // One computation hides half a second.
    assert_eq!(stopped(&run(RECEIVES, 0.5, pass, room), "1RECV_F1"), (1, 0, "hidden by estimates".into()));
    let margin = OverlapOptions { margin: 1.5, ..room };
    assert_eq!(stopped(&run(RECEIVES, 0.5, pass, margin), "1RECV_F1").0, 2);
    // The same budget as a share of the peak, which is 5 bytes.
    let share = OverlapOptions { extra_share: 0.2, ..blocking() };
    assert_eq!(run(RECEIVES, 2.0, pass, share).plan, run(RECEIVES, 2.0, pass, room).plan);
    let less = OverlapOptions { extra_share: 0.19, ..blocking() };
    assert_eq!(run(RECEIVES, 2.0, pass, less).plan, plan(RECEIVES));
    let reach = OverlapOptions { reach: 0, ..room };
    assert_eq!(stopped(&run(RECEIVES, 2.0, pass, reach), "1RECV_F1"), (0, 0, "reach".into()));
}

#[test]
fn what_a_start_needs_goes_along_or_stops_it() {
    let text = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n\
        1RECV_F0,1F0,1RECV_F1,1F1,1I0,1I1,1W0,1SEND_B0,1W1,1SEND_B1,1WAIT_SEND_B0,1WAIT_SEND_B1\n";
    // Send 0 passes W0 and I1 by itself, then takes I0, which makes its value, along over F1.
    let after = run(text, 9.0, OverlapPass::ReorderCommunication, OverlapOptions { extra_bytes: 9.0, ..blocking() });
    assert!(row(&after, 1).starts_with("1RECV_F0 1F0 1RECV_F1 1I0 1SEND_B0 1F1"), "{}", row(&after, 1));
    assert_eq!(stopped(&after, "1SEND_B0"), (3, 1, "order of communication: 1RECV_F1".into()));
    // The computations that it passed run beside it until the next message starts. A tenth of the seconds needs only
    // the first of them.
    let (along, hidden_by) = company(&after, "1SEND_B0");
    assert_eq!(along, ["1I0"]);
    assert_eq!(hidden_by.iter().map(|(action, _)| action.as_str()).collect::<Vec<_>>(), ["1F1", "1I1", "1W0", "1W1"]);
    let json = serde_json::to_value(&after.reports[0]).unwrap();
    let starts = json["starts"].as_array().unwrap();
    let send = starts.iter().find(|start| start["start"] == "1SEND_B0").unwrap();
    assert_eq!((&send["along"], &send["hidden_by"][0]), (&json!(["1I0"]), &json!(["1F1", 1.0])));
    let alone = OverlapOptions { extra_bytes: 9.0, group: 0, ..blocking() };
    let after = run(text, 9.0, OverlapPass::ReorderCommunication, alone);
    assert_eq!(stopped(&after, "1SEND_B0"), (2, 0, "data: 1I0".into()));
}

#[test]
fn a_wait_sinks_and_its_use_with_it() {
    let text = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0WAIT_RECV_B0,0I0,0RECV_B1,0WAIT_RECV_B1,0I1,0W0,0W1\n\
        1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n";
    let after = run(text, 2.0, OverlapPass::SinkWaitsIteratively, blocking());
    assert!(row(&after, 0).contains("0W0 0WAIT_RECV_B1 0I1 0W1"), "{}", row(&after, 0));
    assert!(after.reports[0].makespan_after < after.reports[0].makespan_before);
    assert!(after.reports[0].moves() > 0);
    let alone = run(text, 2.0, OverlapPass::SinkWaitsIteratively, OverlapOptions { group: 0, ..blocking() });
    assert_eq!(stopped(&alone, "0RECV_B1"), (0, 0, "data: 0I1".into()));
}

#[test]
fn the_greedy_scheduler_raises_sinks_and_fills() {
    let text = "0F0,0F1,0SEND_F0,0WAIT_SEND_F0,0F2,0SEND_F1,0WAIT_SEND_F1,0SEND_F2\n\
        1RECV_F0,1F0,1RECV_F1,1F1,1RECV_F2,1F2\n";
    let of = |pass| row(&run(text, 1.5, pass, OverlapOptions { extra_bytes: 9.0, ..blocking() }), 0);
    assert_eq!(
        of(OverlapPass::RaiseCommunication),
        "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0WAIT_SEND_F0 0WAIT_SEND_F1"
    );
    assert_eq!(of(OverlapPass::SinkWaits), "0F0 0F1 0SEND_F0 0F2 0SEND_F1 0SEND_F2 0WAIT_SEND_F0 0WAIT_SEND_F1");
    // Two computations cover a second and a half.
    assert_eq!(of(OverlapPass::ReorderCompute), "0F0 0SEND_F0 0F1 0F2 0SEND_F1 0SEND_F2 0WAIT_SEND_F0 0WAIT_SEND_F1");
    // With a reach of no computation, no start passes one; waits still make way for the inputs of a start.
    let still = OverlapOptions { extra_bytes: 9.0, reach: 0, ..blocking() };
    let bound = "0F0 0F1 0SEND_F0 0F2 0SEND_F1 0SEND_F2 0WAIT_SEND_F0 0WAIT_SEND_F1";
    assert_eq!(row(&run(text, 1.5, OverlapPass::RaiseCommunication, still), 0), bound);
}

const CROSSED: &str = "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,0WAIT_SEND_F0,0WAIT_SEND_F1,3WAIT_RECV_F0,3F0,3RECV_F1,3F1\n\
    1RECV_F0,1F0,2F0,2SEND_F0,1RECV_F1,1WAIT_RECV_F1,1F1,2F1,2WAIT_SEND_F0,2SEND_F1\n";

#[test]
fn ranks_that_start_two_messages_the_other_way_round_are_given_one_order() {
    let crossed = plan(CROSSED);
    crossed.clone().check(&CheckOptions::default()).unwrap();
    assert_eq!(one_order(&crossed), None);
    let after = run(
        CROSSED,
        0.5,
        OverlapPass::OrderCommunication,
        OverlapOptions { extra_bytes: 9.0, ..OverlapOptions::default() },
    );
    let order = one_order(&after.plan).unwrap();
    assert_eq!(
        order.iter().map(|t| t.to_string()).collect::<Vec<_>>(),
        ["0SEND_F0", "0SEND_F1", "2SEND_F0", "2SEND_F1"]
    );
    // Messages that follow one order already are left alone.
    let again = run(&after.plan.to_csv(), 0.5, OverlapPass::OrderCommunication, OverlapOptions::default());
    assert_eq!((again.plan.rows(), again.reports[0].moves()), (after.plan.rows(), 0));
}

#[test]
fn a_result_that_is_slower_or_too_large_is_not_taken_and_the_report_says_so() {
    let schedule =
        |name: &str| by_name(name).unwrap().build(Size::new(4, 8).with_chunks(2)).unwrap().with_transfers().unwrap();
    let plan = schedule("Interleaved1F1B");
    let after = plan.overlap(&profile(8, 1.0), &[OverlapPass::ReorderCompute], &OverlapOptions::default()).unwrap();
    let report = &after.reports[0];
    let kept = report.kept.as_ref().unwrap();
    let makespan: f64 = kept.strip_prefix("the step would take ").unwrap().trim_end_matches(" s").parse().unwrap();
    assert!(makespan > report.makespan_before, "{report}");
    assert_eq!((report.makespan_after, report.peak_after), (report.makespan_before, report.peak_before));
    assert!(report.to_string().contains("the plan was left unchanged: the step would take"), "{report}");
    let after = plan.overlap(&profile(8, 1.0), &[OverlapPass::SinkWaits], &blocking()).unwrap();
    let report = &after.reports[0];
    let bytes = report.kept.as_ref().unwrap().split(" would hold ").nth(1).unwrap().trim_end_matches(" bytes");
    assert!(bytes.parse::<f64>().unwrap() > 46.0, "{report}");
    assert_eq!(report.peak_after, report.peak_before);
}

#[test]
fn the_report_is_a_table() {
    let after =
        run(RECEIVES, 2.0, OverlapPass::ReorderCommunication, OverlapOptions { extra_bytes: 1.0, ..blocking() });
    let text = after.reports[0].to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "reorder-communication: 4.0000 s exposed before, 3.0000 s after, 2 moves");
    assert_eq!(lines[1], "step 7.0000 s -> 7.0000 s, peak 5 -> 5 bytes");
    let [head, line] = [lines[2], lines[4]].map(|line| line.split_at(70));
    assert_eq!(
        head,
        (
            "rank start         takes     hidden exposed before exposed after moves",
            "  stopped by; moved along; hidden by"
        )
    );
    assert_eq!(
        line,
        (
            "   1 1RECV_F1     2.0000     1.0000         2.0000        1.0000     2",
            "  order of communication: 1RECV_F0; -; 1F0 1.0000"
        )
    );
}

#[test]
fn plans_and_profiles_that_cannot_be_worked_on_are_refused() {
    let refused = |text: &str, stages: usize| {
        plan(text).run_passes(&profile(stages, 1.0), &OverlapPass::ALL, &OverlapOptions::default()).unwrap_err()
    };
    assert_eq!(refused("0F0,0B0\n1F0,1B0\n", 2), PassError::NotLowered);
    assert!(
        matches!(refused("0F0,0SEND_F0\n1F0,1RECV_F0\n", 2), PassError::Check(e) if matches!(*e, CheckError::Unmet { .. }))
    );
    let other = PassError::Simulate(SimulateError::Profile(ProfileError::Stages { profile: 3, plan: 2 }));
    assert_eq!(refused(RECEIVES, 3), other);
    assert_eq!(OverlapPass::ALL.map(|pass| OverlapPass::from_name(pass.name())), OverlapPass::ALL.map(Some));
}

#[test]
fn every_schedule_gains_where_transfers_keep_ranks_from_computing() {
    for schedule in all() {
        let size = Size::new(4, 8);
        let built = schedule.build(size.with_chunks(2)).or_else(|_| schedule.build(size.with_chunks(1)));
        let lowered = built.unwrap().with_transfers().unwrap();
        let profile = profile(lowered.stages(), 1.0);
        for transport in [Transport::Rendezvous, Transport::Buffered(2)] {
            let simulate_options = SimulateOptions { transport, overlap: false };
            let options = OverlapOptions { simulate: simulate_options, extra_bytes: 8.0, ..OverlapOptions::default() };
            let before = simulate(&lowered, &profile, &simulate_options).unwrap();
            let after = lowered.overlap(&profile, &OverlapPass::USUAL, &options).unwrap();
            let last = after.reports.last().unwrap();
            println!("{:<24} {transport}: {} s -> {} s", lowered.name(), before.makespan, last.makespan_after);
            // With buffers, sends of messages without bytes block nobody.
            let gains = last.makespan_after < before.makespan;
            assert!(gains || transport != Transport::Rendezvous, "{}", lowered.name());
            assert!(last.peak_after <= before.peak_bytes() + 8.0, "{}", lowered.name());
        }
    }
}
