//! Plans are listed, printed, lowered and checked.

use super::{file, json, print, run};

#[test]
fn schedules_are_listed_a_line_a_schedule() {
    let list = print("schedules");
    let schedules = burn_pipeline_plan::schedule::all();
    assert_eq!(list.lines().count(), schedules.len() + 1);
    for schedule in schedules {
        let schedule = schedule.info();
        let line = list.lines().find(|line| line.split_whitespace().next() == Some(schedule.name)).unwrap();
        assert!(line.contains(schedule.source) && line.contains(schedule.microbatches), "{line}");
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
fn stages_that_do_not_train_are_printed_drawn_and_checked_without_backwards() {
    let flags = "schedule --name 1F1B --ranks 3 --microbatches 2 --train-from 1";
    let csv = print(flags);
    assert_eq!(csv, "0F0,0F1\n1F0,1F1,1W0,1W1\n2F0,2B0,2F1,2B1\n");
    let path = file("frozen.csv", &print(&format!("{flags} --lower")));
    assert!(print(&format!("check {path} --lowered")).contains("ok under rendezvous"));
    // F, F and B of the last stage, then W: with the whole backward, two seconds more.
    let drawn = print(&format!("simulate --plan {path} --json"));
    let seconds = |text: &str| json(text)["makespan"].as_f64().unwrap();
    assert!(seconds(&drawn) < seconds(&print("simulate --name 1F1B --ranks 3 --microbatches 2 --json")));
    let outcome = run("schedule --name 1F1B --ranks 3 --microbatches 2 --train-from 3");
    assert!(outcome.code != 0 && outcome.err.contains("cannot train from stage 3"), "{}", outcome.err);
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
fn check_shows_the_whole_grid_with_the_mark_if_asked_to() {
    let csv = print("schedule --name 1F1B --ranks 2 --microbatches 20");
    let early = file("early_of_many.csv", &csv.replacen("1F18,1B18", "1B18,1F18", 1));
    let [excerpt, whole] = ["", "--grid"].map(|flag| run(&format!("check {early} {flag}")).err);
    assert!(whole.starts_with("error: rank 1, step 36: 1B18 needs 1F18"), "{whole}");
    let steps = |text: &str| text.lines().filter(|line| line.starts_with("Step ")).count();
    assert_eq!((steps(&excerpt), steps(&whole)), (8, 40), "{whole}");
    let marked: Vec<&str> = whole.lines().filter(|line| line.ends_with(" <-- ERROR HERE")).collect();
    assert!(marked.len() == 1 && marked[0].starts_with("Step 36: ") && marked[0].contains("1B18"), "{marked:?}");
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
