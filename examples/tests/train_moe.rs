//! `train_moe` from flags to output, at a size that takes seconds.

#![allow(clippy::unwrap_used, reason = "the helpers of tests may panic as tests do")]

use burn::tensor::Device;
use burn_pipeline::link::{Admission, Rendezvous, TcpLink};
use burn_pipeline::train::Checkpoints;
use pipeline_examples::generate::Sampling;
use pipeline_examples::moe::options::MoeOptions;
use pipeline_examples::moe::record::MoeStepRecord;
use pipeline_examples::train_moe::{MoeTrainer, run};
use std::ffi::OsString;
use std::time::Duration;
use tempfile::tempdir;

const TINY: &str = "--d-model 16 --layers 4 --heads 2 --seq 16 --batch 8 --steps 3 --lr 0.01 --experts 4 --d-hidden 8 \
                    --pattern DEe --bos 10 --load-balance 0.1";

fn arguments(flags: &str) -> impl Iterator<Item = OsString> {
    let words = format!("train_moe {flags}");
    words.split_whitespace().map(OsString::from).collect::<Vec<_>>().into_iter()
}

fn trainer(flags: &str) -> MoeTrainer {
    let options = MoeOptions::from_arguments(arguments(&format!("{TINY} {flags}"))).unwrap();
    MoeTrainer::new(options.check().unwrap()).unwrap()
}

/// The next step, saved if a save is due.
fn advance(trainer: &mut MoeTrainer) -> Option<MoeStepRecord> {
    let record = trainer.step().unwrap();
    trainer.save_if_due().unwrap();
    record
}

/// Like [`curve`], with another number of steps in the flags.
fn curve_with(flags: &str) -> Vec<MoeStepRecord> {
    let tiny = TINY.replace("--steps 3", "");
    let options = MoeOptions::from_arguments(arguments(&format!("{tiny} {flags}"))).unwrap();
    let mut trainer = MoeTrainer::new(options.check().unwrap()).unwrap();
    std::iter::from_fn(|| advance(&mut trainer)).collect()
}

fn curve(flags: &str) -> Vec<MoeStepRecord> {
    let mut trainer = trainer(flags);
    std::iter::from_fn(|| advance(&mut trainer)).collect()
}

#[test]
fn losses_and_loads_do_not_depend_on_the_cut() {
    let alone = curve("--ranks 1");
    assert!(alone[0].step.loss > alone[2].step.loss, "the loss does not fall: {alone:?}");
    assert_eq!(alone[0].load.len(), 2, "DEeD has two layers with experts");
    // Eight windows of sixteen bytes, each byte with two experts; half of them bypass the third block.
    assert_eq!(alone[0].load.iter().map(|load| load.iter().sum()).collect::<Vec<f64>>(), [256.0, 128.0]);
    for flags in ["--ranks 2", "--schedule ZBVZeroBubble --ranks 2", "--schedule DualPipe --ranks 2"] {
        for (got, alone) in curve(flags).iter().zip(&alone) {
            assert!((got.step.loss - alone.step.loss).abs() < 1e-4, "{flags}: {got:?}");
            assert!((got.load_balance - alone.load_balance).abs() < 1e-3, "{flags}: {got:?}");
            assert!((got.step.gradient_norm / alone.step.gradient_norm - 1.0).abs() < 1e-3, "{flags}: {got:?}");
        }
    }
}

#[test]
fn a_run_goes_on_from_its_checkpoint_and_refuses_another_runs() {
    let folder = tempdir().unwrap();
    let save = format!("--save {} --save-every 2", folder.path().display());
    let whole = curve("");
    // The run ends after its second step; the third runs later, on another cut.
    let mut trainer = trainer(&save);
    assert!((0..2).all(|_| advance(&mut trainer).is_some()));
    drop(trainer);
    let again = curve(&format!("{save} --resume --schedule GPipe --ranks 4"));
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].step.step, &again[0].load), (3, &whole[2].load));
    assert!((again[0].step.loss - whole[2].step.loss).abs() < 1e-6);
    let options = MoeOptions::from_arguments(arguments(&format!("{TINY} {save} --resume --top-k 1"))).unwrap();
    let error = MoeTrainer::new(options.check().unwrap()).unwrap_err().to_string();
    assert!(error.contains("--top-k 2, not 1"), "{error}");
}

/// The losses and loads of ranks that each have their own trainer, connected by TCP like processes. They are equal
/// on every rank.
fn curve_of_ranks(ranks: usize, flags: &str, steps: usize) -> Vec<(f64, Vec<Vec<f64>>)> {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let flags = &format!("{} {flags}", TINY.replace("--steps 3", ""));
    let of_rank = move |rank: usize| {
        let place = Rendezvous {
            rank,
            ranks,
            address: ("127.0.0.1".to_owned(), address.port()),
            admission: Admission::ThisMachine,
        };
        let link = TcpLink::connect(&place, Device::flex(), Duration::from_secs(30)).unwrap();
        let setup = MoeOptions::from_arguments(arguments(flags)).unwrap().check().unwrap();
        let mut trainer = MoeTrainer::over(setup, Some(Box::new(link))).unwrap();
        let records = std::iter::from_fn(|| advance(&mut trainer)).take(steps);
        records.map(|record| (record.step.loss, record.load)).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || of_rank(rank))).collect();
        let mut all: Vec<_> = running.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
        all.swap_remove(0)
    })
}

#[test]
fn ranks_of_their_own_save_together_and_go_on_to_the_bit_as_threads_do() {
    let folder = tempdir().unwrap();
    let model = "--bias-rate 0.01 --scoring sigmoid --steps 4".to_owned();
    let steps = |curve: Vec<MoeStepRecord>| curve.into_iter().map(|record| (record.step.loss, record.load));
    let whole: Vec<_> = steps(curve_with(&model)).collect();
    assert_eq!(whole.len(), 4);
    for (saving, resuming) in [(2, 4), (4, 1)] {
        let save = format!("{model} --save {}/{saving} --save-every 2", folder.path().display());
        // They end after the second step.
        assert_eq!(curve_of_ranks(saving, &format!("--ranks {saving} {save}"), 2), whole[..2]);
        let copy = folder.path().join("copy");
        let latest = Checkpoints::new(folder.path().join(saving.to_string())).latest().unwrap();
        std::fs::create_dir_all(&copy).unwrap();
        let aside = copy.join(latest.folder().file_name().unwrap());
        std::fs::create_dir_all(&aside).unwrap();
        for entry in std::fs::read_dir(latest.folder()).unwrap().flatten() {
            std::fs::copy(entry.path(), aside.join(entry.file_name())).unwrap();
        }
        let resumed = curve_of_ranks(resuming, &format!("--ranks {resuming} {save} --resume"), 9);
        assert_eq!(resumed, whole[2..], "{saving} ranks, then {resuming}");
        // Threads resume from the same checkpoint, with another schedule.
        let threads = format!("{model} --save {} --resume --schedule GPipe --ranks 2", copy.display());
        assert_eq!(steps(curve_with(&threads)).collect::<Vec<_>>(), whole[2..], "{saving} ranks, then threads");
        std::fs::remove_dir_all(copy).unwrap();
    }
}

/// Every optional part of the model beside blocks.
const PARTS: &str = "--ahead De --windows 0,5 --rotary --without-rotary 1 --ngram 97 --structure --platform --squash \
                     --relations";

#[test]
fn a_model_of_all_parts_learns_and_goes_on_from_its_checkpoint_on_another_cut() {
    let folder = tempdir().unwrap();
    let save = format!("{PARTS} --save {} --save-every 2", folder.path().display());
    let whole = curve(&format!("{PARTS} --ranks 1"));
    assert!(
        whole[0].step.loss > whole[2].step.loss && whole[0].ahead > whole[2].ahead,
        "the loss does not fall: {whole:?}"
    );
    assert_eq!(whole[0].load.len(), 3, "two blocks with experts, and one of a token ahead");
    for other in
        ["--schedule ZBVZeroBubble --balance flops", "--schedule Interleaved1F1B --chunks 2 --balance parameters"]
    {
        let got = curve(&format!("{PARTS} {other}"));
        for (got, whole) in got.iter().zip(&whole) {
            assert!((got.step.loss - whole.step.loss).abs() < 1e-3, "{other}: {got:?}");
            assert!((got.ahead - whole.ahead).abs() < 1e-3, "{other}: {got:?}");
        }
    }
    let mut trainer = trainer(&save);
    assert!((0..2).all(|_| advance(&mut trainer).is_some()));
    drop(trainer);
    let again = curve(&format!("{save} --resume --schedule ZBVZeroBubble --balance parameters"));
    assert_eq!((again.len(), again[0].step.step), (1, 3));
    assert!((again[0].step.loss - whole[2].step.loss).abs() < 1e-3, "{again:?}");
    let other = format!("{TINY} {} --resume", save.replace("--windows 0,5", "--windows 0,4"));
    let options = MoeOptions::from_arguments(arguments(&other));
    let error = MoeTrainer::new(options.unwrap().check().unwrap()).unwrap_err().to_string();
    assert!(error.contains("--windows [0,5], not [0,4]"), "{error}");
}

#[test]
fn a_model_of_all_parts_writes_the_same_texts_whatever_the_cut() {
    // Longer than a window, so that it slides; and from fewer bytes than there are tokens ahead.
    let sampling = Sampling { length: 20, texts: 2, temperature: 0.8, seed: 3 };
    let texts = |flags: &str| trainer(&format!("{PARTS} {flags}")).sample(b'\n', &sampling).unwrap();
    let alone = texts("--ranks 1");
    assert_eq!(alone.iter().map(Vec::len).collect::<Vec<_>>(), [20, 20]);
    assert_ne!(alone[0], alone[1]);
    assert_eq!(texts("--ranks 2 --schedule ZBVZeroBubble"), alone);
    assert_eq!(texts("--ranks 2 --data-parallel 2 --microbatches 2"), alone);
}

#[test]
fn three_trainings_make_one_drawing() {
    let folder = tempdir().unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let path = folder.path().join("new/load.svg");
    let flags = format!("{TINY} --log json --curves {}", path.display());
    assert_eq!(run(arguments(&flags), &mut out, &mut err), 0, "{}", String::from_utf8_lossy(&err));
    let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
    assert_eq!((out.lines().count(), err.matches("inner stages").count()), (9, 3), "{err}");
    let drawing = std::fs::read_to_string(path).unwrap();
    assert_eq!(drawing.matches("<polyline").count(), 6);
}

#[test]
fn replicas_reach_the_same_losses_with_whole_parameters_and_with_sharded_ones() {
    let biased = "--bias-rate 0.01";
    let alone = curve(&format!("--ranks 1 {biased}"));
    for flags in [
        "--ranks 2 --data-parallel 2 --microbatches 2",
        "--ranks 2 --data-parallel 2 --microbatches 2 --sharded",
        "--schedule ZBVZeroBubble --ranks 2 --data-parallel 2 --microbatches 2 --sharded",
    ] {
        // Four microbatches in all, as on one rank: each has its own load-balancing loss. The first step's choices
        // are those of the initial weights, on any rank.
        let got = curve(&format!("{flags} {biased}"));
        assert_eq!(got[0].load, alone[0].load, "{flags}");
        for (got, alone) in got.iter().zip(&alone) {
            assert!((got.step.loss - alone.step.loss).abs() < 1e-4, "{flags}: {got:?}");
            assert!((got.step.gradient_norm - alone.step.gradient_norm).abs() < 1e-3, "{flags}: {got:?}");
        }
    }
}

#[test]
fn a_bias_is_moved_and_changes_what_experts_are_chosen() {
    let (with, without) = (curve("--bias-rate 0.05"), curve(""));
    assert_eq!(with[0].load, without[0].load);
    assert_ne!(with[1].load, without[1].load);
    assert_eq!(with[0].step.loss, without[0].step.loss);
}

#[test]
fn a_schedule_that_chooses_itself_says_what_and_why_and_changes_no_loss() {
    let tiny = TINY.replace("--steps 3", "--steps 9");
    let folder = tempdir().unwrap();
    let run = |flags: &str| {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let flags =
            format!("{tiny} --capacity 1.5 --bias-rate 0.01 --log json --trace {} {flags}", folder.path().display());
        assert_eq!(run(arguments(&flags), &mut out, &mut err), 0, "{}", String::from_utf8_lossy(&err));
        let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["loss"].as_f64().unwrap();
        let losses: Vec<f64> = String::from_utf8(out).unwrap().lines().map(line).collect();
        (losses, String::from_utf8(err).unwrap())
    };
    let (alone, _) = run("--ranks 1");
    let (losses, err) = run("--schedule auto");
    assert_eq!(losses.len(), 9);
    for (loss, alone) in losses.iter().zip(&alone) {
        assert!((loss - alone).abs() < 1e-4, "{loss} against {alone}");
    }
    for says in ["the planner's best schedule takes over", "s a pass", "best: "] {
        assert!(err.contains(says), "{says} is missing in {err}");
    }
}

#[test]
fn recomputed_stages_learn_the_same() {
    assert_eq!(
        curve("--recompute").iter().map(|record| record.step.loss).collect::<Vec<f64>>(),
        curve("").iter().map(|record| record.step.loss).collect::<Vec<f64>>()
    );
}

#[test]
fn injection_reaches_the_gradients() {
    let (on, off) = (curve(""), curve("--injection nowhere"));
    assert_eq!(on[0].step.loss, off[0].step.loss);
    assert_ne!(on[0].step.gradient_norm, off[0].step.gradient_norm);
}

#[test]
fn a_run_tells_steps_as_json_and_writes_its_drawings() {
    let folder = tempdir().unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let flags = format!("{TINY} --log json --trace {}", folder.path().display());
    assert_eq!(run(arguments(&flags), &mut out, &mut err), 0, "{}", String::from_utf8_lossy(&err));
    let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line["loss"].is_f64() && line["imbalance"].as_array().unwrap().len() == 2));
    assert!(err.contains("held-out loss") && err.contains("max/mean load"), "{err}");
    let sample = err.split("a sample at temperature 0.8:\n").nth(1).unwrap();
    assert_eq!(sample.strip_suffix('\n').unwrap().len(), 400, "{err}");
    let drawing = std::fs::read_to_string(folder.path().join("expert_load.svg")).unwrap();
    assert!(drawing.starts_with("<svg") && folder.path().join("timeline.svg").exists());
}

#[test]
fn a_model_that_its_ranks_cannot_build_ends_it_with_code_2_before_a_rank_starts() {
    for (flags, says) in [
        ("--layers 1", "1 blocks make no 2 stages"),
        ("--ranks 5", "4 blocks make no 5 stages"),
        ("--schedule Interleaved1F1B --chunks 3", "4 blocks make no 6 stages"),
        ("--schedule auto --ranks 5", "4 blocks make no 5 stages"),
        ("--rotary --d-model 36 --heads 4", "makes heads of 9"),
        ("--d-model 30 --heads 4", "--heads 4 does not divide --d-model 30"),
    ] {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(arguments(flags), &mut out, &mut err);
        let err = String::from_utf8(err).unwrap();
        assert!(code == 2 && out.is_empty() && err.starts_with("error: ") && err.contains(says), "{flags}: {err}");
    }
    // The ranks that are left when one is lost, and models as close.
    for flags in [
        "--ranks 4",
        "--ranks 3",
        "--ranks 2",
        "--ranks 1",
        "--layers 1 --ranks 1",
        "--rotary --d-model 40 --heads 4",
        "--d-model 36 --heads 4",
        "--rotary --without-rotary 0,1,2,3 --d-model 36 --heads 4",
    ] {
        let small = format!("--experts 4 --d-hidden 8 --seq 16 {flags}");
        let setup = MoeOptions::from_arguments(arguments(&small)).unwrap().check().unwrap();
        MoeTrainer::new(setup).unwrap();
    }
}

#[test]
fn bad_flags_end_it_with_one_message_and_code_2() {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    assert_eq!(run(arguments("--pattern DQ"), &mut out, &mut err), 2);
    assert!(out.is_empty() && String::from_utf8(err).unwrap().starts_with("error: --pattern"));
}
