//! Invalid input, and a reader that goes away.

use super::{PROGRAM, file, model, run};
use std::io::Read;
use std::process::{Command, Stdio};

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
        (cut("--ranks 11"), 1, "choose 1 to 10"),
        (cut("--ranks 2 --cap 10"), 1, "no cut into 2 stages fits 10 bytes"),
        (cut("--ranks 2 --pattern EA*4||A*4L"), 2, "--pattern: column 6: the stage that ends here has no layer"),
        (cut("--ranks 2 --pattern EA*5|A*4L"), 2, "layer 9 is of kind `L`, but the pattern has `A` there"),
        (cut("--ranks 2 --boundaries 5,3"), 2, "boundary 1 is layer 3"),
        (cut("--ranks 3 --by pattern"), 2, "the cut has 2 stages, but there are 3"),
        (cut("--ranks 0"), 2, "at least one rank"),
        (cut("--ranks 2 --rate 0"), 2, "a positive number"),
        (format!("plan --layers {model} --ranks 2 --microbatches 0"), 2, "at least one microbatch"),
        (format!("plan --layers {model} --ranks 2 --microbatches 100000000000"), 2, "has at most 4194304"),
        (format!("plan --layers {model} --ranks 0 --microbatches 2"), 2, "0 ranks"),
        ("plan --ranks 2 --microbatches 2".to_owned(), 2, "--layers"),
        ("schedule --name foo --ranks 2 --microbatches 2".to_owned(), 2, "no schedule named `foo`; known are"),
        ("schedule --name 1F1B --ranks 0 --microbatches 2".to_owned(), 1, "at least one rank"),
        ("schedule --name 1F1B --ranks 2 --microbatches 0".to_owned(), 1, "at least one microbatch"),
        ("schedule --name 1F1B --ranks 2 --microbatches 2 --chunks 2".to_owned(), 1, "exactly 1 chunk"),
        ("schedule --name GPipe --ranks 2 --microbatches 99999999999".to_owned(), 1, "the limit is 100000000"),
        ("schedule --name GPipe --ranks -2 --microbatches 9".to_owned(), 2, "unexpected argument"),
        (format!("check {broken}"), 2, "broken.csv: line 2, cell 2: `1X0` is not an action"),
        (format!("simulate --plan {broken}"), 2, "line 2, cell 2"),
        (format!("simulate --plan {deadlock}"), 1, "deadlock: rank 0 is stuck at step 1 (0B0)"),
        (format!("simulate --plan {}", file("empty.csv", "")), 2, "empty.csv"),
        (format!("simulate --plan {}", file("far.csv", "0F4000000000\n")), 1, "4000000001 microbatches"),
        (format!("simulate --plan {}", binary.to_str().unwrap()), 2, "cannot read"),
        (format!("simulate --plan {deadlock} --profile {profile}"), 2, "negative.json: stage 0: `forward` is -1"),
        (format!("compare --ranks 2 --microbatches 4 --profile {profile}"), 2, "negative.json: stage 0"),
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
