//! The command line as a user sees it: output, exit codes, messages.

use serde_json::Value;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_burn-pipeline");

struct Outcome {
    code: i32,
    out: String,
    err: String,
}

fn run(arguments: &str) -> Outcome {
    let output = Command::new(PROGRAM).args(arguments.split_whitespace()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let outcome = Outcome { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) };
    assert!(!outcome.err.contains("panicked"), "{arguments}: {}", outcome.err);
    outcome
}

/// The output of a command that must succeed.
fn print(arguments: &str) -> String {
    let outcome = run(arguments);
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""), "{arguments}");
    outcome.out
}

/// A file of this test binary's own folder, with this text.
fn file(name: &str, text: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn near(value: &Value, expected: f64) -> bool {
    (value.as_f64().unwrap() - expected).abs() < 1e-9
}

#[test]
fn schedules_are_listed_a_line_a_family() {
    let list = print("schedules");
    let families = burn_pipeline_plan::schedule::all();
    assert_eq!(list.lines().count(), families.len() + 1);
    for family in families {
        let family = family.family();
        let line = list.lines().find(|line| line.split_whitespace().next() == Some(family.name)).unwrap();
        assert!(line.contains(family.source) && line.contains(family.microbatches), "{line}");
    }
}

#[test]
fn a_schedule_is_printed_in_three_forms() {
    let csv = print("schedule --name 1f1b --ranks 2 --microbatches 2");
    assert_eq!(csv, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    let grid = print("schedule --name 1F1B --ranks 2 --microbatches 2 --format grid");
    assert!(grid.contains("Rank 0") && grid.contains("Step 3: 0B1"), "{grid}");
    let plan = json(&print("schedule --name zbv --ranks 2 --microbatches 2 --format json"));
    assert_eq!(plan["rows"].as_array().unwrap().len(), 2);
    assert_eq!(plan["microbatches"][0], 2);
}

#[test]
fn lowering_and_sharding_come_as_asked() {
    let lowered = print("schedule --name 1F1B --ranks 2 --microbatches 1 --lower");
    assert_eq!(lowered, "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
    let both = print("schedule --name Interleaved1F1B --ranks 2 --chunks 2 --microbatches 2 --lower --shard");
    assert!(both.contains("0UNSHARD") && both.contains("RESHARD") && both.contains("SEND_F"), "{both}");
}

#[test]
fn check_accepts_what_schedule_prints() {
    for flags in ["", "--lower", "--lower --shard"] {
        let csv = print(&format!("schedule --name ZBV --ranks 4 --microbatches 6 {flags}"));
        let path = file(&format!("zbv{}.csv", flags.replace(' ', "")), &csv);
        let lowered = if flags.is_empty() { "" } else { "--lowered" };
        for transport in ["rendezvous", "buffered=2", "unbounded"] {
            let summary = print(&format!("check {path} {lowered} --transport {transport}"));
            assert!(summary.contains(&format!("ok under {transport}")), "{summary}");
            assert!(summary.contains("4 ranks, 8 stages (V placement), 6 microbatches"), "{summary}");
        }
    }
}

#[test]
fn check_refuses_with_exit_code_1_and_says_where() {
    let early = file("early.csv", "0F0,0B0\n1B0,1F0\n");
    let outcome = run(&format!("check {early}"));
    assert_eq!((outcome.code, outcome.out.as_str()), (1, ""));
    assert!(outcome.err.starts_with("error: rank 1, step 0: 1B0 needs 1F0"), "{}", outcome.err);
    let crossed = file(
        "crossed.csv",
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
    );
    let outcome = run(&format!("check {crossed} --lowered"));
    assert!(
        outcome.code == 1 && outcome.err.contains("0SEND_F1") && outcome.err.contains("1SEND_B0"),
        "{}",
        outcome.err
    );
    assert_eq!(run(&format!("check {crossed} --lowered --transport buffered=1")).code, 0);
    let whole = file("whole.csv", "0F0,0F1,0B0,0B1\n");
    assert_eq!((run(&format!("check {whole} --cap 2")).code, run(&format!("check {whole} --cap 1")).code), (0, 1));
    let unlowered = file("unlowered.csv", "0F0,0B0\n1F0,1B0\n");
    assert_eq!(run(&format!("check {unlowered} --lowered")).code, 1);
}

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
    // Fused actions are split, which the seed's function needs.
    let steps = print("simulate --name DualPipeV --ranks 2 --microbatches 4 --unit-steps");
    assert!(!steps.contains("OVERLAP") && steps.contains("0SEND_F3"), "{steps}");
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
    let families = report["families"].as_array().unwrap();
    let numbers = |key: &str| families.iter().map(|f| f[key].as_f64().unwrap()).collect::<Vec<_>>();
    let (makespans, peaks) = (numbers("makespan"), numbers("peak_activations"));
    assert!(makespans.is_sorted(), "{makespans:?}");
    for (i, family) in families.iter().enumerate() {
        let no_worse = |j: usize| makespans[j] <= makespans[i] + 1e-9 && peaks[j] <= peaks[i];
        let better = |j: usize| makespans[j] < makespans[i] - 1e-9 || peaks[j] < peaks[i];
        let beaten = (0..families.len()).any(|j| no_worse(j) && better(j));
        assert_eq!(family["pareto"], !beaten, "{family}");
    }
    assert!(families.iter().any(|f| f["name"] == "Interleaved1F1B" && f["chunks"] == 4));
    let capped = print("compare --ranks 4 --microbatches 8 --cap 3");
    let (used, refused) = capped.split_once("not used:").unwrap();
    assert!(used.contains("VHalf") && !used.contains("GPipe"), "{capped}");
    assert!(refused.contains("GPipe") && refused.contains("8 rank-microbatches, above the cap of 3"), "{capped}");
    // An odd number of ranks has no bidirectional placement: refused with a reason, the rest compared.
    let odd = print("compare --ranks 3 --microbatches 4");
    assert!(odd.split_once("not used:").unwrap().1.contains("DualPipe cannot be built for 3 ranks"), "{odd}");
    assert_eq!(run("compare --ranks 4 --microbatches 8 --cap 0.1").code, 1);
}

/// Eight blocks, and a head that weighs five of them; one file a test, since they run side by side.
fn model(test: &str) -> String {
    let kinds = r#"{"kind": "E", "parameters": 1000, "bytes": {"f32": 4000}, "output_bytes": 64},
        {"kind": "A", "forward": 1, "input": 1, "weight": 1, "flops": 8, "activation_bytes": 100, "output_bytes": 64},
        {"kind": "L", "forward": 5, "input": 5, "weight": 5, "flops": 40}"#;
    file(&format!("{test}.json"), &format!(r#"{{"kinds": [{kinds}], "pattern": "EA*4|A*4L"}}"#))
}

#[test]
fn partition_cuts_reports_and_hands_its_profile_on() {
    let model = model("partition_cuts_reports_and_hands_its_profile_on");
    let best = json(&print(&format!("partition --layers {model} --ranks 2 --json")));
    assert_eq!((best["pattern"].as_str(), best["optimal"]["proved"].as_bool()), (Some("EA*6|AAL"), Some(true)));
    assert!(near(&best["optimal"]["largest"], 21.0) && near(&best["rank_seconds"][0], 18.0), "{best}");
    assert_eq!(best["stages"][0]["kinds"]["A"], 6);
    let (even, reported) = ("--by even", "--by pattern");
    for cut in [even, reported, "--boundaries 5", "--pattern EA*4|A*4L"] {
        let report = print(&format!("partition --layers {model} --ranks 2 {cut}"));
        assert!(report.starts_with("EA*4|A*4L   (5+5 layers, loop placement)"), "{report}");
        assert!(report.contains("A4 L1") && report.contains("f32 4000"), "{report}");
        assert!(report.contains("rank 1: 27.0000 s") && report.contains("average: 1.3846"), "{report}");
    }
    let estimated = print(&format!("partition --layers {model} --ranks 2 --measure flops --rate 2"));
    assert!(estimated.contains("busiest rank by Flops: 56.000000 (no cut is better)"), "{estimated}");
    let v = json(&print(&format!("partition --layers {model} --ranks 2 --placement v --json")));
    assert!(near(&v["optimal"]["largest"], 21.0) && v["stages"].as_array().unwrap().len() == 4, "{v}");
    let profile = file("cut.json", "");
    print(&format!("partition --layers {model} --ranks 2 --profile {profile}"));
    let step = json(&print(&format!("simulate --name 1F1B --ranks 2 --microbatches 1 --profile {profile} --json")));
    assert!(near(&step["makespan"], 39.0), "{step}");
}

#[test]
fn plan_answers_with_a_plan_that_checks_and_costs_that_simulate_alike() {
    let (model, csv, costs) = (
        model("plan_answers_with_a_plan_that_checks_and_costs_that_simulate_alike"),
        file("best.csv", ""),
        file("best.json", ""),
    );
    let flags =
        "--ranks 2 --microbatches 4,8 --measured-at 8 --fixed 0.1 --latency 0.1 --bandwidth 1000 --chunks 1,2,8";
    let answer =
        json(&print(&format!("plan --layers {model} {flags} --pipeline-only --csv {csv} --costs {costs} --json")));
    let best = &answer["best"];
    let seconds = best["seconds"].as_f64().unwrap();
    assert!(answer["bound"].as_f64().unwrap() <= seconds && best["pareto"] == true, "{best}");
    let candidates = answer["candidates"].as_array().unwrap();
    assert!(candidates.iter().all(|c| c["seconds"].as_f64().unwrap() >= seconds));
    assert!(candidates.iter().any(|c| c["way"] == "1F1B") && candidates.iter().any(|c| c["way"] == "synthesised"));
    assert!(!answer["dropped"].as_array().unwrap().is_empty());
    assert!(print(&format!("check {csv} --lowered")).contains("ok under rendezvous"));
    let step = json(&print(&format!("simulate --plan {csv} --profile {costs} --json")));
    let reduction = answer["limits"]["reduction"].as_f64().unwrap();
    assert!(near(&step["makespan"], seconds - reduction), "{step}");
}

#[test]
fn plan_says_what_limits_it_and_what_was_dropped() {
    let model = model("plan_says_what_limits_it_and_what_was_dropped");
    let flags = "--ranks 2 --microbatches 6 --bandwidth 100 --cap 9000 --no-synthesis --dropped";
    let words = print(&format!("plan --layers {model} {flags}"));
    for part in ["best: ", "no candidate can beat", "work of a rank on average", "nothing is both faster and leaner"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert!(words.contains("above the cap of 9.0000e3") && !words.contains("synthesised"), "{words}");
    let stages = file("stages.json", r#"{"stages": [{"forward": 1, "backward": 2}, {"forward": 3, "backward": 6}]}"#);
    let kept = json(&print(&format!("plan --profile {stages} --ranks 2 --microbatches 4 --pipeline-only --json")));
    assert!(kept["candidates"].as_array().unwrap().iter().all(|c| c["partition"] == "1+1"), "{kept}");
    let odd = run(&format!("plan --profile {stages} --ranks 3 --microbatches 4"));
    assert!(odd.code == 2 && odd.err.contains("2 stages do not go onto 3 ranks evenly"), "{}", odd.err);
    let full = run(&format!("plan --layers {model} --ranks 2 --microbatches 4 --cap 10"));
    assert!(full.code == 1 && full.err.contains("the leanest holds"), "{}", full.err);
}

#[test]
fn bad_input_gives_one_message_and_an_exit_code() {
    let broken = file("broken.csv", "0F0,0B0\n1F0,1X0\n");
    let deadlock = file("deadlock.csv", "0F0,0B0\n1B0,1F0\n");
    let profile = file("negative.json", r#"{"stages": [{"forward": -1}]}"#);
    let binary = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("binary.csv");
    std::fs::write(&binary, [0xff, 0xfe, 0x00]).unwrap();
    let model = model("bad_input_gives_one_message_and_an_exit_code");
    let cut = |flags: &str| format!("partition --layers {model} {flags}");
    let cases = [
        (cut("--ranks 11"), 1, "ask for 1 to 10"),
        (cut("--ranks 2 --cap 10"), 1, "no cut into 2 stages fits 10 bytes"),
        (cut("--ranks 2 --pattern EA*4||A*4L"), 2, "--pattern: column 6: the stage that ends here has no layer"),
        (cut("--ranks 2 --pattern EA*5|A*4L"), 2, "layer 9 is of kind `L`, but the pattern has `A` there"),
        (cut("--ranks 2 --boundaries 5,3"), 2, "boundary 1 is layer 3"),
        (cut("--ranks 3 --by pattern"), 2, "the cut has 2 stages, but there are 3"),
        (cut("--ranks 0"), 2, "at least one rank"),
        (cut("--ranks 2 --rate 0"), 2, "a positive number"),
        (format!("plan --layers {model} --ranks 2 --microbatches 0"), 2, "at least one microbatch"),
        (format!("plan --layers {model} --ranks 0 --microbatches 2"), 2, "0 ranks"),
        ("plan --ranks 2 --microbatches 2".to_owned(), 2, "--layers"),
        ("schedule --name foo --ranks 2 --microbatches 2".to_owned(), 2, "no schedule named `foo`; known are"),
        ("schedule --name 1F1B --ranks 0 --microbatches 2".to_owned(), 1, "at least one rank"),
        ("schedule --name 1F1B --ranks 2 --microbatches 0".to_owned(), 1, "at least one microbatch"),
        ("schedule --name 1F1B --ranks 2 --microbatches 2 --chunks 2".to_owned(), 1, "exactly 1 chunk"),
        ("schedule --name GPipe --ranks 2 --microbatches 99999999999".to_owned(), 1, "at most 100000000"),
        ("schedule --name GPipe --ranks -2 --microbatches 9".to_owned(), 2, "unexpected argument"),
        (format!("check {broken}"), 2, "broken.csv: line 2, cell 2: `1X0` is not an action"),
        (format!("simulate --plan {broken}"), 2, "line 2, cell 2"),
        (format!("simulate --plan {deadlock}"), 1, "deadlock: rank 0 stands at step 1 (0B0)"),
        (format!("simulate --plan {}", file("empty.csv", "")), 2, "empty.csv"),
        (format!("simulate --plan {}", file("far.csv", "0F4000000000\n")), 1, "4000000001 microbatches"),
        (format!("simulate --plan {}", binary.to_str().unwrap()), 2, "cannot read"),
        (format!("simulate --plan {deadlock} --profile {profile}"), 2, "stage 0: `forward` is -1"),
        ("simulate --name 1F1B --ranks 2 --microbatches 2 --forward -1".to_owned(), 2, "zero or a positive number"),
        ("simulate --name 1F1B --ranks 2 --microbatches 2 --weight nan".to_owned(), 2, "zero or a positive number"),
        ("simulate --ranks 2 --microbatches 2".to_owned(), 2, "--name"),
        ("simulate".to_owned(), 2, "--plan"),
        ("check missing.csv".to_owned(), 2, "cannot read missing.csv"),
        (format!("check {deadlock} --transport pigeon"), 2, "rendezvous, buffered=K or unbounded"),
        ("fly".to_owned(), 2, "unrecognized subcommand"),
    ];
    for (arguments, code, message) in cases {
        let outcome = run(&arguments);
        assert_eq!(outcome.code, code, "{arguments}: {}", outcome.err);
        assert!(outcome.err.contains(message), "{arguments}: {}", outcome.err);
        assert_eq!(outcome.out, "", "{arguments}");
    }
}

#[test]
fn a_reader_that_stops_listening_is_no_failure() {
    let arguments = ["schedule", "--name", "GPipe", "--ranks", "16", "--microbatches", "4000"];
    let mut child =
        Command::new(PROGRAM).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 3];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut first).unwrap();
    drop(out);
    let outcome = child.wait_with_output().unwrap();
    assert_eq!((&first, outcome.status.code(), outcome.stderr.len()), (b"0F0", Some(0), 0));
}

#[test]
fn waits_are_written_and_checked() {
    let size = "--name 1f1b --ranks 2 --microbatches 1 --lower";
    let late = print(&format!("schedule {size} --waits late"));
    assert_eq!(
        late,
        "0F0,0SEND_F0,0RECV_B0,0WAIT_RECV_B0,0B0,0WAIT_SEND_F0\n1RECV_F0,1WAIT_RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n"
    );
    let torch = print(&format!("schedule {size} --waits pytorch"));
    assert_eq!(torch, "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n");
    print(&format!("check {}", file("waits.csv", &late)));
    let bad = file("bad_waits.csv", &late.replace("0WAIT_RECV_B0,0B0", "0B0,0WAIT_RECV_B0"));
    let refused = run(&format!("check {bad}"));
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("0WAIT_RECV_B0 comes after 0B0"), "{}", refused.err);
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
    // The plan that was written takes what the last line says.
    let step = json(&print(&format!("simulate --plan {plan} --transfer 0.5 --blocking --json")));
    assert!((step["makespan"].as_f64().unwrap() - times[1]).abs() < 1e-4, "{last}");
    let only = print(&format!("overlap {size} --passes sink-waits"));
    assert_eq!(only.matches("stopped by").count(), 1);
    let wrong = run(&format!("overlap {size} --passes sink"));
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("reorder-communication"), "{}", wrong.err);
}

#[test]
fn values_past_the_next_layer_are_cut_planned_and_simulated() {
    let layer = r#"{"kind": "A", "forward": 1, "input": 1, "weight": 1, "output_bytes": 10, "skip_bytes": 40}"#;
    let layers = |skips: &str| format!(r#"{{"layers": [{}], "skips": {skips}}}"#, [layer; 6].join(", "));
    let name = |what: &str| format!("values_past_the_next_layer_{what}.json");
    let model = file(&name("model"), &layers("[[0, 5], [1, 4], [2, 4]]"));
    let profile = file(&name("profile"), "");
    // 2 + 2 + 2: from the first stage past the second one, and from the second one along to the third.
    print(&format!("partition --layers {model} --ranks 3 --by even --profile {profile}"));
    let written = json(&std::fs::read_to_string(&profile).unwrap());
    assert_eq!(written["skips"], json("[[0, 2]]"));
    assert_eq!(
        (&written["stages"][0]["skip_bytes"], &written["stages"][1]["message_bytes"]),
        (&json("80.0"), &json("50.0"))
    );
    let moved = print(&format!("overlap --name 1F1B --ranks 3 --microbatches 4 --profile {profile}"));
    assert!(moved.contains("0SEND_F0"), "{moved}");
    let (plan, costs) = (file(&name("plan.csv"), ""), file(&name("costs"), ""));
    let asked = format!("plan --layers {model} --ranks 3 --microbatches 4 --chunks 1 --bandwidth 20 --pipeline-only");
    let best = json(&print(&format!("{asked} --no-synthesis --csv {plan} --costs {costs} --json")));
    let seconds = best["best"]["seconds"].as_f64().unwrap();
    let again = json(&print(&format!("simulate --plan {plan} --profile {costs} --json")));
    assert!(near(&again["makespan"], seconds) || best["best"]["placement"] == "bidirectional", "{best} {again}");
    assert!(std::fs::read_to_string(&plan).unwrap().contains("SEND_F0>2"));
    // An edge that is none is refused by name.
    let wrong = run(&format!("partition --layers {} --ranks 3", file(&name("wrong"), &layers("[[4, 5]]"))));
    assert!(wrong.code != 0 && wrong.err.contains("the edge 4 -> 5 leads to the next stage"), "{}", wrong.err);
}
