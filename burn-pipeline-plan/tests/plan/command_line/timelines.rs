//! Plans are simulated, drawn, compared and overlapped.

use super::{file, json, near, print, run};
use std::path::PathBuf;

#[test]
fn simulate_prints_the_fields_that_scripts_read() {
    let report = json(&print("simulate --name 1F1B --ranks 4 --microbatches 8 --json"));
    assert!(near(&report["makespan"], 33.0), "{report}");
    assert!(near(&report["bubble_rate_span"], 3.0 / 11.0) && near(&report["bubble_rate_makespan"], 3.0 / 11.0));
    assert!(near(&report["peak_activations"], 4.0));
    let ranks = report["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 4);
    for (rank, report) in ranks.iter().enumerate() {
        assert!(near(&report["start"], rank as f64) && near(&report["busy"], 24.0), "{report}");
        assert!(near(&report["end"], 33.0 - 2.0 * rank as f64) && near(&report["peak_activations"], 4.0 - rank as f64));
    }
    // The closed form with transfers: 9 of bubble and (2*3*(8/4+1)-2) messages of 0.1.
    let report = json(&print("simulate --name 1F1B --ranks 4 --microbatches 8 --transfer 0.1 --json"));
    assert!(near(&report["makespan"], 34.6), "{report}");
    // The same, and (8 + 4 - 1) (2 + 6), with factors.
    let report =
        json(&print("simulate --name 1F1B --ranks 4 --microbatches 8 --transfer 0.05 --scale transfer=2 --json"));
    assert!(near(&report["makespan"], 34.6), "{report}");
    let report = json(&print("simulate --name 1F1B --ranks 4 --microbatches 8 --scale forward=2,backward=3 --json"));
    assert!(near(&report["makespan"], 88.0), "{report}");
    for (wrong, says) in
        [("sideways=2", "the kinds are"), ("transfer", "KIND=FACTOR"), ("input=-1", "zero or a positive")]
    {
        let outcome = run(&format!("simulate --name 1F1B --ranks 4 --microbatches 8 --scale {wrong}"));
        assert!(outcome.code == 2 && outcome.err.contains(says), "{wrong}: {}", outcome.err);
    }
    let costs = "--forward 10 --input 12 --weight 9 --fused 28";
    let report = json(&print(&format!("simulate --name DualPipe --ranks 4 --microbatches 8 {costs} --json")));
    let idle = report["makespan"].as_f64().unwrap() - report["ranks"][0]["busy"].as_f64().unwrap();
    assert!(idle <= 22.0, "the project's bound: {report}");
}

#[test]
fn simulate_takes_plans_and_profiles_from_files() {
    let plan = file("plan.csv", &print("schedule --name GPipe --ranks 2 --microbatches 3"));
    let profile = r#"{"stages": [{"forward": 1, "input": 1, "weight": 1}, {"forward": 2, "input": 2, "weight": 2}]}"#;
    let profile = file("profile.json", profile);
    let report = json(&print(&format!("simulate --plan {plan} --profile {profile} --json")));
    // Rank 1 starts at 1, runs 3 times 2 and 3 times 4; the last backward of rank 0 takes 2 more.
    assert!(near(&report["makespan"], 21.0), "{report}");
    let lowered = file("lowered.csv", &print("schedule --name 1F1B --ranks 4 --microbatches 8 --lower"));
    let report = json(&print(&format!("simulate --plan {lowered} --json")));
    assert!(near(&report["makespan"], 33.0), "transfers that take no time change nothing: {report}");
    let crossed = file("both_send.csv", "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1\n");
    assert_eq!(run(&format!("simulate --plan {crossed}")).code, 1);
    assert_eq!(run(&format!("simulate --plan {crossed} --transport buffered=1")).code, 0);
    let wrong = file("wrong.json", r#"{"stages": [{"forward": 1}]}"#);
    let outcome = run(&format!("simulate --plan {plan} --profile {wrong}"));
    assert!(
        outcome.code == 2 && outcome.err.contains("the profile has 1 stages, but the plan has 2"),
        "{}",
        outcome.err
    );
}

#[test]
fn simulate_prints_the_unit_steps() {
    let steps = print("simulate --name 1F1B --ranks 2 --microbatches 1 --unit-steps");
    assert_eq!(steps, "0F0,0SEND_F0,,,0RECV_B0,0B0\n,1RECV_F0,1F0,1B0,1SEND_B0\n");
    // Fused actions are split, as PyTorch's function requires.
    let steps = print("simulate --name DualPipeV --ranks 2 --microbatches 4 --unit-steps");
    assert!(!steps.contains("OVERLAP") && steps.contains("0SEND_F3"), "{steps}");
}

#[test]
fn unit_steps_are_drawn_a_second_a_step() {
    let [trace, svg, html] = ["unit.json", "unit.svg", "unit.html"].map(|name| file(name, ""));
    let outputs = format!("--trace {trace} --svg {svg} --html {html} --ascii 60");
    let steps = print(&format!("simulate --name 1F1B --ranks 2 --microbatches 1 --unit-steps {outputs}"));
    assert!(steps.starts_with("0F0,0SEND_F0,,,0RECV_B0,0B0\n,1RECV_F0,1F0,1B0,1SEND_B0\n\n"), "{steps}");
    assert!(steps.contains("rank 1 |"), "{steps}");
    let events = json(&std::fs::read_to_string(trace).unwrap());
    let drawn = events["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
    // As PyTorch's `_dump_chrometrace`: a step takes one unit and starts at its number (microseconds there, seconds
    // here).
    let drawn: Vec<_> = drawn.map(|e| (e["name"].as_str().unwrap(), e["ts"].as_f64().unwrap() / 1e6)).collect();
    assert_eq!(drawn.len(), 8);
    for expected in [("0F0", 0.0), ("0RECV_B0", 4.0), ("0B0", 5.0), ("1RECV_F0", 1.0), ("1SEND_B0", 4.0)] {
        assert!(drawn.contains(&expected), "{drawn:?}");
    }
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg "));
    assert!(std::fs::read_to_string(html).unwrap().contains("0RECV_B0"));
}

#[test]
fn of_a_deadlock_what_ran_before_is_drawn() {
    let plan = file("stuck.csv", "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1SEND_B0,1B0\n");
    for unit in ["", "--unit-steps"] {
        let trace = file("stuck.json", "");
        let outcome = run(&format!("simulate --plan {plan} --trace {trace} --ascii 60 {unit}"));
        assert!(outcome.code == 1 && outcome.err.contains("rank 1 is stuck at step 2 (1SEND_B0)"), "{}", outcome.err);
        assert!(outcome.out.contains("rank 0 |0F0"), "{}", outcome.out);
        let trace = std::fs::read_to_string(trace).unwrap();
        assert!(
            trace.contains("1F0") && !trace.contains("1SEND_B0") && trace.contains("until the deadlock"),
            "{trace}"
        );
    }
}

#[test]
fn simulate_draws() {
    let (trace, svg) = (file("out.json", ""), file("out.svg", ""));
    let report =
        print(&format!("simulate --name ZBV --ranks 2 --microbatches 3 --trace {trace} --svg {svg} --ascii 60"));
    assert!(report.contains("rank 0 |0F0"), "{report}");
    let events = json(&std::fs::read_to_string(trace).unwrap());
    assert_eq!(events["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X").count(), 2 * 2 * 3 * 3);
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg "));
    assert_eq!(run("simulate --name ZBV --ranks 2 --microbatches 3 --svg /nowhere/out.svg").code, 2);
}

#[test]
fn compare_sorts_marks_the_front_and_says_what_was_refused() {
    let report = json(&print("compare --ranks 4 --microbatches 8 --chunks 2,4 --json"));
    let schedules = report["schedules"].as_array().unwrap();
    let numbers = |key: &str| schedules.iter().map(|f| f[key].as_f64().unwrap()).collect::<Vec<_>>();
    let (makespans, peaks) = (numbers("makespan"), numbers("peak_activations"));
    assert!(makespans.is_sorted(), "{makespans:?}");
    for (i, schedule) in schedules.iter().enumerate() {
        let no_worse = |j: usize| makespans[j] <= makespans[i] + 1e-9 && peaks[j] <= peaks[i];
        let better = |j: usize| makespans[j] < makespans[i] - 1e-9 || peaks[j] < peaks[i];
        let beaten = (0..schedules.len()).any(|j| no_worse(j) && better(j));
        assert_eq!(schedule["pareto"], !beaten, "{schedule}");
    }
    assert!(schedules.iter().any(|f| f["name"] == "Interleaved1F1B" && f["chunks"] == 4));
    let capped = print("compare --ranks 4 --microbatches 8 --cap 3");
    let (used, refused) = capped.split_once("not used:").unwrap();
    assert!(used.contains("VHalf") && !used.contains("GPipe"), "{capped}");
    assert!(refused.contains("GPipe") && refused.contains("8 rank-microbatches, above the cap of 3"), "{capped}");
    // An odd number of ranks has no bidirectional placement: those schedules are refused with a reason, the rest
    // compared.
    let odd = print("compare --ranks 3 --microbatches 4");
    assert!(odd.split_once("not used:").unwrap().1.contains("DualPipe cannot be built for 3 ranks"), "{odd}");
    assert_eq!(run("compare --ranks 4 --microbatches 8 --cap 0.1").code, 1);
}

#[test]
fn overlap_prints_a_table_a_pass_and_writes_the_plan() {
    let size = "--name zbh1 --ranks 4 --microbatches 8 --transfer 0.5 --blocking --extra-bytes 2";
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("overlapped.csv");
    let table = print(&format!("overlap {size} --out {}", out.display()));
    for pass in ["reorder-compute:", "sink-waits-iteratively:", "reorder-communication:"] {
        assert!(table.contains(pass), "{table}");
    }
    assert_eq!(table.matches("stopped by").count(), 3);
    let last = table.lines().last().unwrap();
    let times: Vec<f64> = last.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(last.starts_with("ZBH1: step") && times[1] < times[0], "{last}");
    let plan = out.to_str().unwrap();
    print(&format!("check {plan}"));
    // The written plan takes the seconds of the last line.
    let step = json(&print(&format!("simulate --plan {plan} --transfer 0.5 --blocking --json")));
    assert!((step["makespan"].as_f64().unwrap() - times[1]).abs() < 1e-4, "{last}");
    // Some of the moves, then all of them, which gives the plan again; and other moves without estimates.
    let written = || std::fs::read_to_string(&out).unwrap();
    let whole = written();
    let some = print(&format!("overlap {size} --moves 3 --out {plan}"));
    assert!(some.contains("3 of ") && written() != whole, "{some}");
    print(&format!("check {plan}"));
    print(&format!("overlap {size} --moves 100000 --out {plan}"));
    assert_eq!(written(), whole);
    print(&format!("overlap {size} --no-estimates --out {plan}"));
    assert_ne!(written(), whole);
    print(&format!("check {plan}"));
    // As JSON, with every start of every pass: a line of the table each.
    let report = json(&print(&format!("overlap {size} --json")));
    let starts = report["passes"].as_array().unwrap().iter().flat_map(|pass| pass["starts"].as_array().unwrap());
    let lines = table.lines().filter(|line| line.contains("SEND_") || line.contains("RECV_"));
    assert_eq!(starts.count(), lines.count());
    assert!((report["makespan"][1].as_f64().unwrap() - times[1]).abs() < 1e-4, "{report}");
    // Two more bytes are half of the peak of 4.
    let share = size.replace("--extra-bytes 2", "--extra-share 0.5");
    print(&format!("overlap {share} --out {plan}"));
    assert_eq!(written(), whole);
    let only = print(&format!("overlap {size} --passes sink-waits"));
    assert_eq!(only.matches("stopped by").count(), 1);
    let wrong = run(&format!("overlap {size} --passes sink"));
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("reorder-communication"), "{}", wrong.err);
}

#[test]
fn a_profile_of_frozen_stages_is_compared_without_their_backwards() {
    let stage = r#"{"forward": 1, "input": 1, "weight": 1, "message_bytes": 10}"#;
    let frozen = r#"{"forward": 1, "message_bytes": 10}"#;
    let profile = |first: usize, stages: [&str; 3]| {
        let text = format!(
            r#"{{"stages": [{}], "first_trained": {first}, "links": {{"default": {{"latency": 1}}}}}}"#,
            stages.join(", ")
        );
        file(&format!("frozen_{first}.json"), &text)
    };
    let size = "--ranks 3 --microbatches 4";
    let (all, last) = (profile(0, [stage; 3]), profile(2, [frozen, frozen, r#"{"forward": 1, "weight": 2}"#]));
    let given = json(&print(&format!("simulate --name 1F1B {size} --train-from 2 --profile {last} --json")));
    let own = json(&print(&format!("simulate --name 1F1B {size} --profile {last} --json")));
    assert_eq!(own["makespan"], given["makespan"]);
    let seconds = |profile: &str| {
        let table = json(&print(&format!("compare {size} --profile {profile} --json")));
        let rows = table["schedules"].as_array().unwrap().clone();
        rows.iter().find(|row| row["name"] == "1F1B").unwrap()["makespan"].as_f64().unwrap()
    };
    assert!(near(&own["makespan"], seconds(&last)), "{own}");
    assert!(seconds(&last) < seconds(&all));
}

#[test]
fn compare_exits_with_1_without_a_usable_schedule_in_either_form() {
    for form in ["", "--json"] {
        let outcome = run(&format!("compare --ranks 2 --microbatches 4 --cap 0.001 {form}"));
        assert_eq!(outcome.code, 1, "{form}: {}", outcome.err);
        assert!(outcome.err.contains("no schedule can be used"), "{form}: {}", outcome.err);
    }
}

#[test]
fn a_trace_of_the_last_stage_number_is_reported() {
    let event = |name: &str, ts: usize| {
        format!(r#"{{"name": "{name}", "ph": "X", "ts": {ts}, "dur": 5, "args": {{"rank": 0}}}}"#)
    };
    let events = [event("0F0", 0), event("65535B0", 20)].join(", ");
    let trace = file("last_stage.json", &format!(r#"{{"traceEvents": [{events}]}}"#));
    let page = file("last_stage.html", "");
    print(&format!("report {trace} {page}"));
    assert!(std::fs::read_to_string(&page).unwrap().contains("65535B0"));
}
