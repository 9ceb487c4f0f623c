//! `train_gpt` from flags to output, at a size that takes seconds: what it prints, that its losses do not depend on
//! the cut, and that invalid flags end it with one message.

#![allow(clippy::unwrap_used, reason = "the helpers of tests may panic as tests do")]

use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::stage::{Names, Stage};
use burn_pipeline::train::{Checkpoints, StageContext};
use clap::Parser;
use pipeline_examples::generate_gpt::{self, GenerateOptions, texts};
use pipeline_examples::gpt::Signal;
use pipeline_examples::options::Options;
use pipeline_examples::saved::RunFlags;
use pipeline_examples::train_gpt::{Trainer, run};
use pipeline_examples::training::StepRecord;
use std::ffi::OsString;
use tempfile::{TempDir, tempdir};

const TINY: &str = "--d-model 16 --layers 4 --heads 2 --seq 16 --batch 8 --steps 3 --lr 0.01";

fn arguments(flags: &str) -> impl Iterator<Item = OsString> {
    ["train_gpt"].into_iter().chain(flags.split_whitespace()).map(OsString::from).collect::<Vec<_>>().into_iter()
}

/// The options of a tiny run; flags come before those of `TINY`.
fn options(flags: &str) -> Options {
    let given = |pair: &&str| pair.split(' ').next().is_some_and(|name| flags.contains(&format!("--{name} ")));
    let rest = TINY.split("--").filter(|pair| !pair.is_empty() && !given(pair));
    let rest: String = rest.map(|pair| format!(" --{}", pair.trim())).collect();
    Options::try_parse_from(arguments(&format!("{flags}{rest}"))).unwrap()
}

fn trainer(flags: &str) -> Trainer {
    Trainer::new(options(flags).check().unwrap()).unwrap()
}

fn trainer_error(flags: &str) -> String {
    Trainer::new(options(flags).check().unwrap()).unwrap_err().to_string()
}

/// The next step, saved if a save is due.
fn advance(trainer: &mut Trainer) -> Option<StepRecord> {
    let record = trainer.step().unwrap();
    trainer.save_if_due().unwrap();
    record
}

/// The losses and gradient norms of the remaining steps.
fn steps(trainer: &mut Trainer) -> Vec<(f64, f64)> {
    std::iter::from_fn(|| advance(trainer)).map(|record| (record.loss, record.gradient_norm)).collect()
}

/// The losses and gradient norms of all steps.
fn curve(flags: &str) -> Vec<(f64, f64)> {
    steps(&mut trainer(flags))
}

/// The exit code, standard output and standard error.
fn output(flags: &str) -> (u8, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run(arguments(flags), &mut out, &mut err);
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[test]
fn losses_are_the_same_bits_whatever_the_cut() {
    let alone = curve("--ranks 1");
    assert_eq!(alone.len(), 3);
    assert!(alone[0].0 > alone[2].0, "the loss does not fall: {alone:?}");
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
fn every_schedule_reaches_the_same_losses() {
    let alone = curve("--ranks 1");
    for schedule in burn_pipeline::schedule::all() {
        let name = schedule.info().name;
        if name == "ForwardOnly" {
            continue;
        }
        // Some schedules run the backwards of microbatches in another order, so sums may round differently.
        for ((loss, norm), (alone_loss, alone_norm)) in
            curve(&format!("--schedule {name} --ranks 2")).iter().zip(&alone)
        {
            assert!((loss - alone_loss).abs() < 1e-4, "{name}: {loss} against {alone_loss}");
            assert!((norm - alone_norm).abs() < 1e-3, "{name}: {norm} against {alone_norm}");
        }
    }
}

#[test]
fn replicas_reach_the_same_losses_with_whole_parameters_and_with_sharded_ones() {
    let alone = curve("--ranks 1");
    for flags in [
        "--ranks 2 --data-parallel 2 --microbatches 2",
        "--ranks 2 --data-parallel 2 --microbatches 2 --sharded",
        "--schedule ZBVZeroBubble --ranks 2 --data-parallel 2 --microbatches 4 --sharded",
        "--ranks 1 --data-parallel 3 --microbatches 2 --sharded",
    ] {
        // Sums are added replica by replica, so they round differently.
        for ((loss, norm), (alone_loss, alone_norm)) in curve(flags).iter().zip(&alone) {
            assert!((loss - alone_loss).abs() < 1e-4, "{flags}: {loss} against {alone_loss}");
            assert!((norm - alone_norm).abs() < 1e-3, "{flags}: {norm} against {alone_norm}");
        }
    }
}

#[test]
fn a_schedule_that_chooses_itself_says_what_and_why_and_changes_no_loss() {
    let steps = 9;
    let alone = curve(&format!("--steps {steps} --ranks 1"));
    let folder = tempdir().unwrap();
    for flags in ["--schedule auto", "--schedule auto --chunks 2"] {
        let trace = folder.path().join("trace");
        let flags =
            format!("{flags} {} --log json --trace {}", TINY.replace("--steps 3", "--steps 9"), trace.display());
        let (code, out, err) = output(&flags);
        assert_eq!(code, 0, "{err}");
        let losses: Vec<f64> = out
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .map(|line| line["loss"].as_f64().unwrap())
            .collect();
        assert_eq!(losses.len(), steps);
        for (loss, (alone, _)) in losses.iter().zip(&alone) {
            assert!((loss - alone).abs() < 1e-4, "{flags}: {loss} against {alone}");
        }
        for says in ["the planner's best schedule takes over", "s a pass", "best: ", "where its seconds go:"] {
            assert!(err.contains(says), "{flags}: {says} is missing in {err}");
        }
        let profile = std::fs::read_to_string(trace.join("profile.json")).unwrap();
        assert!(burn_pipeline::cost::Profile::from_json(&profile).is_ok());
    }
    let (code, _, err) = output(&format!("{} --schedule auto --trace {}", TINY, folder.path().join("short").display()));
    assert_eq!(code, 0, "{err}");
}

#[test]
fn another_seed_gives_other_losses() {
    assert_ne!(curve("--seed 1"), curve("--seed 2"));
}

#[test]
fn half_precision_trains_with_masters_and_without() {
    let of = |name: &str| curve(&format!("--compile false --precision {name} "));
    let [full, bf16, f16, alone] = ["f32", "bf16", "f16", "bf16-alone"].map(of);
    for half in [&bf16, &f16, &alone] {
        assert!(half != &full && half.len() == full.len());
        assert!(
            half.iter().zip(&full).all(|(half, full)| (half.0 - full.0).abs() < 0.02 * full.0),
            "{half:?} {full:?}"
        );
    }
    // Rounded once, parameters are the same with masters and without; stepped, they are not.
    assert_eq!(bf16[0].0, alone[0].0);
    assert_ne!(bf16.last(), alone.last());
}

#[test]
fn a_plan_from_a_file_trains_like_its_schedule() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("plan.csv");
    std::fs::write(&path, "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n").unwrap();
    assert_eq!(curve(&format!("--plan {}", path.display())), curve("--ranks 2 --microbatches 4"));
}

#[test]
fn costs_are_measured_on_the_microbatches_that_a_rank_runs() {
    let folder = tempdir().unwrap();
    let flops = |flags: &str, file: &str| {
        let costs = folder.path().join(file);
        curve(&format!("{flags} --ranks 2 --cut optimal --costs {}", costs.display()));
        let (layers, _) = burn_pipeline::cost::Layers::from_json(&std::fs::read_to_string(&costs).unwrap()).unwrap();
        layers.all()[1].flops
    };
    // Eight samples: four microbatches of two.
    assert_eq!(flops("--data-parallel 2 --microbatches 2", "replicas"), flops("--microbatches 4", "one"));
}

#[test]
fn a_cut_by_measured_costs_and_one_that_was_given_change_no_loss() {
    let folder = tempdir().unwrap();
    let costs = folder.path().join("costs.json");
    let even = curve("--ranks 3");
    assert_eq!(curve("--ranks 3 --cut EA|AAA|L"), even);
    assert_eq!(curve(&format!("--ranks 3 --cut optimal --costs {}", costs.display())), even);
    // The measured costs are saved, for the next run and for the command line.
    let text = std::fs::read_to_string(&costs).unwrap();
    let (layers, _) = burn_pipeline::cost::Layers::from_json(&text).unwrap();
    let kinds: String = layers.all().iter().map(|layer| layer.kind).collect();
    assert_eq!(kinds, "EAAAAL");
    assert!(layers.all().iter().all(|layer| layer.forward > 0.0 && layer.parameters > 0));
    // Hand-written costs with all the weight in the head, so the other rank gets everything else.
    let heavy = layers.all().iter().map(|layer| {
        let seconds = if layer.kind == 'L' { 9.0 } else { 1.0 };
        layer.clone().with_seconds(seconds, 0.0, 0.0)
    });
    let heavy = heavy.map(|layer| burn_pipeline::cost::Layer { backward: None, ..layer });
    let heavy = burn_pipeline::cost::Layers::new(heavy.collect()).unwrap();
    std::fs::write(&costs, heavy.to_json().unwrap()).unwrap();
    let mut trainer = trainer(&format!("--cut optimal --costs {}", costs.display()));
    let blocks = trainer.stage_weights().unwrap();
    assert!(blocks[0].iter().any(|name| name.starts_with("blocks.3.")), "{:?}", blocks[0]);
    assert!(blocks[1].iter().all(|name| name.starts_with("head.")), "{:?}", blocks[1]);
    assert_eq!(steps(&mut trainer), even);
    let refused = |flags: &str| trainer_error(&format!("{flags} --ranks 3"));
    assert!(refused("--cut EAA|AAL").contains("2 stages, and the schedule runs 3"));
    assert!(refused("--cut EA|A|L").contains("EAAL, and the model is EAAAAL"));
    assert!(refused(&format!("--layers 2 --cut optimal --costs {}", costs.display())).contains("holds 6 layers"));
}

#[test]
fn json_alone_is_on_standard_output_and_the_timeline_is_where_it_says() {
    let folder = tempdir().unwrap();
    let (code, out, err) = output(&format!("{TINY} --log json --trace {}", folder.path().display()));
    assert_eq!(code, 0, "{err}");
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    let losses: Vec<f64> = lines.iter().map(|line| line["loss"].as_f64().unwrap()).collect();
    assert_eq!(losses, curve("").iter().map(|(loss, _)| *loss).collect::<Vec<_>>());
    assert!(lines.iter().all(|line| line["step_seconds"].as_f64() > Some(0.0)));
    assert!(lines.iter().all(|line| line["tokens_per_second"].as_f64() > Some(0.0)));

    assert!(err.contains("held-out loss") && err.contains("a sample at temperature"), "{err}");
    let trace = std::fs::read_to_string(folder.path().join("trace.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    // Three measured steps (process 0) and a predicted one, each of two ranks and four microbatches, with forward
    // and backward.
    for (process, steps) in [(0, 3), (1, 1)] {
        let here = |event: &&serde_json::Value| event["pid"] == process && event["cat"] == "computation";
        assert_eq!(events.iter().filter(here).count(), steps * 2 * 4 * 2);
    }
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(
        page.contains(r#""name":"predicted from the measured actions""#) && page.contains(r#""name":"measured, step "#)
    );
    assert!(std::fs::read_to_string(folder.path().join("timeline.svg")).unwrap().starts_with("<svg"));
    let profile = std::fs::read_to_string(folder.path().join("profile.json")).unwrap();
    let profile = burn_pipeline::cost::Profile::from_json(&profile).unwrap();
    assert!(profile.stages().iter().all(|stage| stage.forward > 0.0));
    assert!(profile.links().between.iter().all(|link| link.latency > 0.0));
}

/// The flags, with checkpoints in the folder.
fn saving(folder: &TempDir, flags: &str) -> String {
    format!("{flags} --save {}", folder.path().display())
}

#[test]
fn a_run_that_was_stopped_goes_on_as_if_it_had_not_been() {
    let folder = tempdir().unwrap();
    let whole = curve("--steps 6 --ranks 2");
    let mut stopped = trainer(&saving(&folder, "--steps 6 --save-every 2 --ranks 2"));
    let first: Vec<_> = (0..3).map(|_| advance(&mut stopped).unwrap().loss).collect();
    assert_eq!(first, whole[..3].iter().map(|(loss, _)| *loss).collect::<Vec<_>>());
    drop(stopped);
    // Step 3 was not saved: it runs again, on other ranks.
    let mut resumed = trainer(&saving(&folder, "--steps 6 --save-every 2 --resume --ranks 4 --schedule GPipe"));
    assert_eq!(resumed.done(), 2);
    assert_eq!(steps(&mut resumed), whole[2..]);
    let mut done = trainer(&saving(&folder, "--steps 6 --resume"));
    assert_eq!((done.done(), steps(&mut done).len()), (6, 0));
    let refused = |flags: &str| {
        let options = options(&saving(&folder, flags));
        Trainer::new(options.check().unwrap()).unwrap_err().to_string()
    };
    let other = refused("--steps 6 --resume --batch 4");
    let says = "the checkpoint was saved with --batch 8, not 4; use the same value, or another folder for --save";
    assert_eq!(other, says);
}

#[test]
fn resuming_without_a_checkpoint_starts_at_the_beginning() {
    let folder = tempdir().unwrap();
    assert_eq!(curve(&saving(&folder, "--resume")), curve(""));
}

#[test]
fn recomputing_changes_no_loss() {
    let kept = curve("--ranks 2");
    assert_eq!(curve("--ranks 2 --recompute"), kept);
    assert_eq!(curve("--ranks 2 --recompute --schedule GPipe"), kept);
}

#[test]
fn a_saved_model_writes_the_same_texts_over_any_number_of_ranks_and_alone() {
    let folder = tempdir().unwrap();
    curve(&saving(&folder, ""));
    let options = |flags: &str| {
        let flags = format!("generate_gpt --from {} --length 24 {flags}", folder.path().display());
        GenerateOptions::try_parse_from(flags.split_whitespace()).unwrap()
    };
    let alone = texts(&options("--prompt ROMEO: --ranks 1 --texts 3")).unwrap();
    assert_eq!(alone.iter().map(Vec::len).collect::<Vec<_>>(), [24; 3]);
    assert!(alone[0] != alone[1] && alone[1] != alone[2], "two texts are equal");
    for ranks in 2..=4 {
        let flags = format!("--prompt ROMEO: --ranks {ranks} --texts 3");
        assert_eq!(texts(&options(&flags)).unwrap(), alone, "{ranks} ranks");
    }
    assert_eq!(texts(&options("--prompt ROMEO:")).unwrap(), alone[..1]);

    // At a temperature near 0, the likeliest byte is drawn: the unpipelined model's, byte by byte.
    let checkpoint = Checkpoints::new(folder.path()).latest().unwrap();
    let (config, device) = (checkpoint.beside::<RunFlags>().unwrap().model(), Device::flex());
    let whole = config.part(&StageContext {
        index: 0,
        stages: 1,
        rank: 0,
        device: device.clone(),
        cut: None,
        group: Default::default(),
        replicas: Default::default(),
    });
    let whole = checkpoint.load_module(whole, &Names::default()).unwrap();
    let mut text = b"ROMEO:".to_vec();
    for _ in 0..24 {
        let seen: Vec<i32> = text[text.len().saturating_sub(config.seq)..].iter().copied().map(i32::from).collect();
        let tokens = Tensor::<1, Int>::from_ints(&*seen, &device).unsqueeze::<2>();
        let Signal::Logits(scores) = whole.forward(Signal::Tokens(tokens), ()) else { panic!("no scores") };
        let likeliest = scores.slice([0..1, seen.len() - 1..seen.len()]).argmax(2).into_scalar::<i64>();
        text.push(likeliest as u8);
    }
    let likeliest = |flags: &str| texts(&options(&format!("{flags} --temperature 0.0000001"))).unwrap();
    assert_eq!(likeliest("--prompt ROMEO: --ranks 3")[0], text[6..]);
    assert_eq!(likeliest("--prompt ROMEO: --ranks 3 --uncached")[0], text[6..]);
    for prompt in ["A", "ROMEO:", "sixteen-and-more", "the-window-is-sixteen-bytes-wide"] {
        let (kept, uncached) =
            (format!("--prompt {prompt} --texts 2"), format!("--prompt {prompt} --texts 2 --uncached"));
        assert_eq!(likeliest(&kept), likeliest(&uncached), "{prompt}");
    }
}

#[test]
fn texts_that_cannot_be_written_end_with_one_message() {
    for (flags, says) in [
        ("--from /no/such/folder", "there is no checkpoint in /no/such/folder"),
        ("--from /no/such/folder --texts 0", "--texts must be at least 1"),
        ("--from /no/such/folder --temperature 0", "--temperature 0 must be more than 0"),
        ("--from /no/such/folder --temperature NaN", "--temperature NaN must be more than 0"),
        ("--from /no/such/folder --prompt=", "--prompt is empty"),
    ] {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = generate_gpt::run(arguments(flags), &mut out, &mut err);
        let err = String::from_utf8(err).unwrap();
        assert_eq!((code, out.len()), (1, 0), "{flags}");
        assert!(err.starts_with("error: ") && err.contains(says), "{flags}: {err}");
    }
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
