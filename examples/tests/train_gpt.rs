//! `train_gpt` from flags to output, at a size that takes seconds: what it prints where, that its losses do not
//! depend on the cut, and that bad flags end it with one message.

#![allow(clippy::unwrap_used, reason = "the helpers of tests may panic as tests do")]

use clap::Parser;
use pipeline_examples::options::Options;
use pipeline_examples::run;
use pipeline_examples::training::Trainer;
use std::ffi::OsString;

const TINY: &str = "--d-model 16 --layers 4 --heads 2 --seq 16 --batch 8 --steps 3 --lr 0.01";

fn arguments(flags: &str) -> impl Iterator<Item = OsString> {
    ["train_gpt"].into_iter().chain(flags.split_whitespace()).map(OsString::from).collect::<Vec<_>>().into_iter()
}

/// Losses and gradient norms of all steps.
fn curve(flags: &str) -> Vec<(f64, f64)> {
    let options = Options::try_parse_from(arguments(&format!("{TINY} {flags}"))).unwrap();
    let mut trainer = Trainer::new(options.check().unwrap()).unwrap();
    std::iter::from_fn(|| trainer.step().unwrap()).map(|record| (record.loss, record.gradient_norm)).collect()
}

/// Exit code, standard output and standard error.
fn output(flags: &str) -> (u8, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run::main(arguments(flags), &mut out, &mut err);
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[test]
fn losses_are_the_same_bits_whatever_the_cut() {
    let alone = curve("--ranks 1");
    assert_eq!(alone.len(), 3);
    assert!(alone[0].0 > alone[2].0, "it learns: {alone:?}");
    for flags in [
        "--ranks 2",
        "--ranks 4",
        "--schedule GPipe --ranks 2",
        "--schedule GPipe --ranks 3",
        "--schedule Interleaved1F1B --ranks 2 --chunks 2",
    ] {
        assert_eq!(curve(flags), alone, "{flags}");
    }
}

#[test]
fn every_family_reaches_the_same_losses() {
    let alone = curve("--ranks 1");
    for schedule in burn_pipeline::schedule::all() {
        let name = schedule.family().name;
        if name == "ForwardOnly" {
            continue;
        }
        // Some families run the backwards of microbatches in another order, so sums may round otherwise.
        for ((loss, norm), (alone_loss, alone_norm)) in
            curve(&format!("--schedule {name} --ranks 2")).iter().zip(&alone)
        {
            assert!((loss - alone_loss).abs() < 1e-4, "{name}: {loss} against {alone_loss}");
            assert!((norm - alone_norm).abs() < 1e-3, "{name}: {norm} against {alone_norm}");
        }
    }
}

#[test]
fn another_seed_gives_other_losses() {
    assert_ne!(curve("--seed 1"), curve("--seed 2"));
}

#[test]
fn a_plan_from_a_file_trains_like_its_schedule() {
    let path = std::env::temp_dir().join(format!("train-gpt-plan-{}.csv", std::process::id()));
    std::fs::write(&path, "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n").unwrap();
    let planned = curve(&format!("--plan {}", path.display()));
    std::fs::remove_file(path).unwrap();
    assert_eq!(planned, curve("--ranks 2 --microbatches 4"));
}

#[test]
fn json_alone_is_on_standard_output_and_the_timeline_is_where_it_says() {
    let folder = std::env::temp_dir().join(format!("train-gpt-run-{}", std::process::id()));
    let (code, out, err) = output(&format!("{TINY} --log json --trace {}", folder.display()));
    assert_eq!(code, 0, "{err}");
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    let losses: Vec<f64> = lines.iter().map(|line| line["loss"].as_f64().unwrap()).collect();
    assert_eq!(losses, curve("").iter().map(|(loss, _)| *loss).collect::<Vec<_>>());
    assert!(lines.iter().all(|line| line["step_seconds"].as_f64() > Some(0.0)));
    assert!(lines.iter().all(|line| line["tokens_per_second"].as_f64() > Some(0.0)));

    assert!(err.contains("held-out loss") && err.contains("a sample at temperature"), "{err}");
    let trace = std::fs::read_to_string(folder.join("trace.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    // Three measured steps (process 0) and a predicted one, each of two ranks and four microbatches, forward and
    // backward.
    for (process, steps) in [(0, 3), (1, 1)] {
        let here = |event: &&serde_json::Value| event["pid"] == process && event["cat"] == "computation";
        assert_eq!(events.iter().filter(here).count(), steps * 2 * 4 * 2);
    }
    assert!(std::fs::read_to_string(folder.join("timeline.svg")).unwrap().starts_with("<svg"));
    let profile = std::fs::read_to_string(folder.join("profile.json")).unwrap();
    let profile = burn_pipeline::cost::Profile::from_json(&profile).unwrap();
    assert!(profile.stages().iter().all(|stage| stage.forward > 0.0));
    assert!(profile.links().between.iter().all(|link| link.latency > 0.0));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn bad_flags_end_with_a_message_and_code_two() {
    for (flags, says) in [
        ("--schedule 2F2B", "there is no schedule named `2F2B`"),
        ("--heads 5", "--heads 5 does not divide"),
        ("--ranks none", "--ranks"),
        ("--plan /no/such.csv", "/no/such.csv cannot be read"),
        ("--no-such-flag", "--no-such-flag"),
    ] {
        let (code, out, err) = output(flags);
        assert_eq!(code, 2, "{flags}: {err}");
        assert_eq!(out, "");
        assert!(err.starts_with("error: ") && err.contains(says), "{flags}: {err}");
    }
}

#[test]
fn a_timeline_that_cannot_be_written_ends_the_run_before_it_trains() {
    let (code, out, err) = output(&format!("{TINY} --trace /dev/null/x"));
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("/dev/null/x"), "{err}");
}
