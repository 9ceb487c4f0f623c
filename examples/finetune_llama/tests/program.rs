//! The program from flags to files: it resumes with the same bits, goes on with what it stored, and refuses by name.

#![allow(clippy::unwrap_used, reason = "the helpers of tests may panic as tests do")]

mod shared;

use finetune_llama::run;
use shared::{all_floats, folder};
use std::ffi::OsString;
use std::path::Path;
use tempfile::tempdir;

const SHORT: [(&str, &str); 3] = [("--seq", "16"), ("--batch", "4"), ("--length", "6")];

/// The exit code, standard output and standard error.
fn output(flags: &str, folder: &Path) -> (u8, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let given = |flag: &str| flags.split_whitespace().any(|given| given.split('=').next() == Some(flag));
    let short = SHORT.iter().filter(|(flag, _)| !given(flag)).map(|(flag, value)| format!("{flag}={value} "));
    let flags = format!("finetune_llama {}--out {} {flags}", short.collect::<String>(), folder.display());
    let code = run(flags.split_whitespace().map(OsString::from), &mut out, &mut err);
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

fn written(flags: &str, folder: &Path) -> String {
    let (code, out, err) = output(flags, folder);
    assert_eq!((code, err.as_str()), (0, ""), "{flags}");
    out
}

#[test]
fn a_run_that_resumes_on_other_ranks_stores_the_same_adapters_and_writes_the_same_text() {
    let (whole, parts) = (tempdir().unwrap(), tempdir().unwrap());
    let text = |out: &str| out.split("adapters: ").last().unwrap().split_once("\n\n").unwrap().1.to_owned();
    let once = written("--steps 6 --save-every 2 --compile false", whole.path());
    let (of_two, of_base) = (size(&whole.path().join("checkpoints")), size(&folder("tiny")));
    assert!(of_two < of_base / 2, "{of_two} and {of_base} bytes");
    // The second run has steps 5 and 6 left, after the first one's checkpoint.
    std::fs::create_dir_all(parts.path().join("checkpoints")).unwrap();
    for entry in std::fs::read_dir(whole.path().join("checkpoints")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().unwrap().to_string_lossy().ends_with('4') {
            copy(&path, &parts.path().join("checkpoints").join(path.file_name().unwrap()));
        }
    }
    let resumed = written("--steps 6 --resume --ranks 4 --schedule GPipe --compile false", parts.path());
    assert!(resumed.contains("resuming after step 4"), "{resumed}");
    let file = "adapters/adapter_model.safetensors";
    assert!(all_floats(&whole.path().join(file)) == all_floats(&parts.path().join(file)));
    assert_eq!(text(&once), text(&resumed));
}

/// The bytes of all files below a folder.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| if entry.path().is_dir() { size(&entry.path()) } else { entry.metadata().unwrap().len() }).sum()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn stored_adapters_and_the_merged_model_write_the_same_text() {
    let folder = tempdir().unwrap();
    let flags = "--steps 3 --lr 0.05 --merge --rank 3 --target q_proj,o_proj,up_proj --temperature 0";
    let first = written(flags, folder.path());
    let text = first.split_once("ROMEO").unwrap().1;
    let adapters = written(
        &format!("--steps 0 --adapters {} --temperature 0", folder.path().join("adapters").display()),
        folder.path(),
    );
    let merged =
        written(&format!("--steps 0 --base {} --temperature 0", folder.path().join("merged").display()), folder.path());
    let base = written("--steps 0 --temperature 0 --lr 0.05", folder.path());
    assert!(adapters.ends_with(text), "{adapters} against {text}");
    assert!(merged.ends_with(text), "{merged} against {text}");
    assert!(!base.ends_with(text), "three steps changed nothing");
}

#[test]
fn a_text_keeps_the_space_after_its_prompt_where_decoders_drop_that_of_a_first_token() {
    let base = tempdir().unwrap();
    copy(&folder("tiny"), base.path());
    // Spaces become part of the words after them, as SentencePiece has them; every token is a word.
    let words = (0..512_u32).map(|id| (format!("\u{2581}w{id}"), serde_json::Value::from(id)));
    let vocab = serde_json::Value::Object(words.collect());
    let spaces =
        serde_json::json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": true});
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": spaces, "post_processor": null, "decoder": spaces,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "\u{2581}w0"},
    });
    std::fs::write(base.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let flags = format!("--steps 0 --base {} --prompt=w17 --length 6", base.path().display());
    let out = written(&flags, base.path());
    let words: Vec<&str> = out.trim().split(' ').collect();
    assert!(words.len() == 7 && words[0] == "w17", "{out}");
    assert!(words.iter().all(|word| word.strip_prefix('w').is_some_and(|id| id.parse::<u32>().is_ok())), "{out}");
}

#[test]
fn given_adapters_are_merged_without_training() {
    let (trained, other) = (tempdir().unwrap(), tempdir().unwrap());
    let first = written("--steps 2 --lr 0.05 --merge --temperature 0", trained.path());
    let adapters = trained.path().join("adapters");
    let merged = format!("--steps 0 --adapters {} --merge --temperature 0", adapters.display());
    assert!(written(&merged, other.path()).ends_with(first.split_once("ROMEO").unwrap().1));
    let file = "merged/model.safetensors";
    assert!(all_floats(&trained.path().join(file)) == all_floats(&other.path().join(file)));
    // They are read from the folder beside the merged model, too.
    written(&merged, trained.path());
}

#[test]
fn a_damaged_checkpoint_ends_only_a_run_that_resumes() {
    let folder = tempdir().unwrap();
    std::fs::create_dir(folder.path().join("checkpoints")).unwrap();
    std::fs::write(folder.path().join("checkpoints/LATEST"), "nothing").unwrap();
    written("--steps 1", folder.path());
    let (code, _, err) = output("--steps 1 --resume", folder.path());
    assert!(code == 1 && err.contains("is damaged: it names no checkpoint"), "{err}");
}

#[test]
fn a_run_resumes_with_the_flags_of_its_checkpoint_or_is_told_which_to_change() {
    let folder = tempdir().unwrap();
    written("--steps 1 --save-every 1", folder.path());
    let (code, _, err) = output("--steps 1 --resume --seed 2", folder.path());
    let says = "the checkpoint was saved with --seed 1, not 2; use the same value, or another folder for --out";
    assert!(code == 1 && err.contains(says), "{err}");
}

#[test]
fn a_run_replaces_what_an_earlier_one_wrote_and_nothing_else() {
    let out = tempdir().unwrap();
    let [adapters, merged] = ["adapters", "merged"].map(|name| out.path().join(name));
    written("--steps 1 --merge", out.path());
    written("--steps 1 --merge --rank 1", out.path());
    // What a run reads, under another path.
    let around = |name: &str| out.path().join("merged").join("..").join(name).display().to_string();
    for flags in [
        format!("--base {} --merge", around("merged")),
        format!("--adapters {}", around("adapters")),
        format!("--adapters {} --merge", around("adapters")),
    ] {
        let (code, _, err) = output(&format!("--steps 1 {flags}"), out.path());
        assert!(code == 1 && err.contains("which this run replaces; give another --out"), "{flags}: {err}");
    }
    assert!(merged.join("tokenizer.json").exists() && adapters.join("adapter_config.json").exists());
    // A model that another program wrote, and a file beside this program's.
    std::fs::remove_dir_all(&merged).unwrap();
    copy(&folder("tiny"), &merged);
    std::fs::write(adapters.join("notes.txt"), "mine").unwrap();
    for (flags, says) in [
        ("--steps 1", "adapters holds `notes.txt`, which this program did not write"),
        (&*format!("--steps 0 --adapters {} --merge", adapters.display()), "merged holds `"),
    ] {
        let (code, written, err) = output(flags, out.path());
        assert!(code == 1 && written.is_empty() && err.contains(says), "{flags}: {err}");
    }
    assert_eq!(size(&merged), size(&folder("tiny")));
    assert!(adapters.join("notes.txt").exists());
}

#[test]
fn the_base_in_bf16_and_a_schedule_that_chooses_itself_train_too() {
    let folder = tempdir().unwrap();
    for flags in
        ["--steps 3 --precision bf16 --compile false --merge", "--steps 5 --schedule auto", "--steps 2 --texts 2"]
    {
        let out = written(flags, folder.path());
        assert!(out.contains("after training") && !out.contains("NaN"), "{flags}: {out}");
    }
}

#[test]
fn flags_and_files_that_describe_no_run_are_refused_with_what_to_do() {
    let folder = tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "gpt2"}"#).unwrap();
    let missing = format!("--base {}", folder.path().join("nothing").display());
    for (flags, says) in [
        ("--target qkv", "--target qkv is no projection; there are q_proj"),
        ("--seq 600", "--seq asks for sequences of 600 tokens, and the model was made for 512"),
        ("--length 600", "and the model was made for 512"),
        ("--temperature NaN", "--temperature NaN must be at least 0"),
        ("--prompt=", "--prompt is empty"),
        ("--lr 0", "--lr 0 must be more than 0"),
        ("--schedule 2F2B", "known are"),
        ("--text /no/such/text", "/no/such/text cannot be read"),
        (missing.as_str(), "config.json cannot be read"),
        (&format!("--base {}", folder.path().display()), "config.json: missing field"),
    ] {
        let (code, _, err) = output(&format!("{flags} --steps 1"), folder.path());
        assert!(code == 1 && err.contains(says), "{flags}: {err}");
    }
    for flags in ["--speed 3", "--seq 0", "--batch 0", "--rank 0", "--texts 0", "--microbatches 0"] {
        assert_eq!(output(flags, folder.path()).0, 2, "{flags}");
    }
    assert_eq!(output("--adapters x --rank 3", folder.path()).0, 2);
    for flag in ["--resume", "--save-every 1", "--merge"] {
        let (code, _, err) = output(&format!("--steps 0 {flag}"), folder.path());
        let name = flag.split(' ').next().unwrap();
        assert!(code == 1 && err.starts_with(&format!("error: {name}")) && err.contains("with --steps 0"), "{err}");
    }
    let file = folder.path().join("config.json");
    let (code, _, err) = output("--steps 1", &file);
    assert!(code == 1 && err.contains("config.json cannot be written"), "{err}");
}
