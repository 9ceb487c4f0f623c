//! Models are cut, planned for and simulated.

use super::{file, json, model, near, print, run};

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
    assert!(odd.code == 2 && odd.err.contains("2 stages do not divide evenly among 3 ranks"), "{}", odd.err);
    for none in ["--microbatches 0", "--microbatches 4 --measured-at 0"] {
        let refused = run(&format!("plan --layers {model} --ranks 2 {none}"));
        assert!(refused.code == 2 && refused.err.contains("at least one microbatch"), "{none}: {}", refused.err);
    }
    let full = run(&format!("plan --layers {model} --ranks 2 --microbatches 4 --cap 10"));
    assert!(full.code == 1 && full.err.contains("the leanest holds"), "{}", full.err);
}

#[test]
fn values_past_the_next_layer_are_cut_planned_and_simulated() {
    let layer = r#"{"kind": "A", "forward": 1, "input": 1, "weight": 1, "output_bytes": 10, "skip_bytes": 40}"#;
    let layers = |skips: &str| format!(r#"{{"layers": [{}], "skips": {skips}}}"#, [layer; 6].join(", "));
    let name = |what: &str| format!("values_past_the_next_layer_{what}.json");
    let model = file(&name("model"), &layers("[[0, 5], [1, 4], [2, 4]]"));
    let profile = file(&name("profile"), "");
    // 2 + 2 + 2: from the first stage past the second one, and from the second one to the third.
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
    // The message names an edge that does not exist.
    let wrong = run(&format!("partition --layers {} --ranks 3", file(&name("wrong"), &layers("[[4, 5]]"))));
    assert!(wrong.code != 0 && wrong.err.contains("the edge 4 -> 5 leads to the next stage"), "{}", wrong.err);
}

#[test]
fn a_vocabulary_parallel_is_planned_checked_and_simulated() {
    let name = "a_vocabulary_parallel_is_planned_checked_and_simulated";
    let (model, csv, costs) = (model(name), file("spread.csv", ""), file("spread.json", ""));
    // Three ranks: two could run the model in both directions at once, which balances as well.
    let flags = "--ranks 3 --microbatches 8 --chunks 1 --no-synthesis --pipeline-only --no-recompute";
    let out = format!("--csv {csv} --costs {costs} --json");
    let alone = json(&print(&format!("plan --layers {model} {flags} --json")));
    let answer = json(&print(&format!("plan --layers {model} {flags} --vocabulary-parallel --tensor-groups 3 {out}")));
    let best = &answer["best"];
    assert_eq!((best["vocabulary_parallel"].as_bool(), best["members"].as_u64()), (Some(true), Some(1)), "{best}");
    assert!(best["seconds"].as_f64() < alone["best"]["seconds"].as_f64(), "{answer}");
    assert!(print(&format!("check {csv} --lowered")).contains("ok under rendezvous"));
    let step = json(&print(&format!("simulate --plan {csv} --profile {costs} --json")));
    assert!(near(&step["makespan"], best["seconds"].as_f64().unwrap()), "{step}");
    // The profile is of stages between the embedding and the head, whose pieces it also has.
    let flags = "--ranks 3 --microbatches 8 --no-synthesis --pipeline-only --no-recompute";
    let again = json(&print(&format!("plan --profile {costs} {flags} --json")));
    assert_eq!(again["best"]["vocabulary_parallel"].as_bool(), Some(true), "{again}");
    assert!(near(&again["best"]["seconds"], best["seconds"].as_f64().unwrap()), "{again}");
}
