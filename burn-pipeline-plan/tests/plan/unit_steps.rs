//! The unit-step simulation compared with PyTorch's `_simulate_comms_compute`, cell by cell, idle cells included.

use crate::golden_text::{blocks, fnv, plan, rows};
use burn_pipeline_plan::cost::{Profile, UniformCosts};
use burn_pipeline_plan::plan::{Action, Plan};
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{SimulateError, SimulateOptions, simulate, unit_steps};
use burn_pipeline_plan::trace::Track;

fn csv(rows: &[Vec<Action>]) -> String {
    let line = |row: &Vec<Action>| row.iter().map(Action::to_string).collect::<Vec<_>>().join(",") + "\n";
    rows.iter().map(line).collect()
}

#[test]
fn recorded_steps_come_out_cell_by_cell() {
    let texts =
        [include_str!("goldens/simulate/unit_steps.txt"), include_str!("goldens/simulate/unit_steps_2.15.0.txt")];
    let counts = texts.map(|text| {
        let blocks = blocks(text);
        for block in &blocks {
            let steps = unit_steps(&plan(block.name, rows(block.part("in").unwrap()))).unwrap();
            assert_eq!(csv(&steps).trim_end(), block.part("out").unwrap().trim_end(), "{}", block.name);
        }
        blocks.len()
    });
    println!("compared in full: {} files of 2.7.1, {} of 2.15.0", counts[0], counts[1]);
    assert_eq!(counts, [192, 77]);
}

#[test]
fn every_configuration_takes_the_steps_that_pytorch_counts() {
    let mut compared = 0;
    for line in include_str!("goldens/simulate/unit_steps.hashes").lines() {
        let [name, steps, hash] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let [schedule, p, v, m] = name.split('_').collect::<Vec<_>>().try_into().unwrap();
        let number = |text: &str| text[1..].parse().unwrap();
        let size = Size::new(number(p), number(m)).with_chunks(number(v));
        let order = by_name(schedule).unwrap().build(size).unwrap();
        let rows = unit_steps(&order.without_idle().with_transfers().unwrap()).unwrap();
        assert_eq!(rows.iter().map(Vec::len).max().unwrap().to_string(), steps, "{name}");
        assert_eq!(fnv(&csv(&rows)), hash, "{name}");
        compared += 1;
    }
    println!("compared by hash: {compared} configurations of 2.7.1");
    assert_eq!(compared, 559);
}

#[test]
fn what_pytorchs_function_does_not_know_is_refused() {
    let refuse = |text: &str| unit_steps(&Plan::from_csv("t", text).unwrap()).unwrap_err();
    assert!(matches!(refuse("0UNSHARD,0F0\n"), SimulateError::Unsupported { rank: 0, .. }));
    let error = refuse("0F0,0F1,(0F2;0B0)OVERLAP_F_B\n");
    assert!(error.to_string().contains("cannot run (0F2;0B0)OVERLAP_F_B"), "{error}");
}

#[test]
fn a_step_without_progress_names_every_rank_that_waits() {
    let plan = Plan::from_csv("t", "0RECV_B0,0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n").unwrap();
    let error = unit_steps(&plan).unwrap_err();
    assert!(
        error.to_string().contains("rank 0 is stuck at step 0 (0RECV_B0) and waits for 1SEND_B0 on rank 1"),
        "{error}"
    );
    let SimulateError::Deadlock { waiting, so_far } = error else { panic!("{error}") };
    assert_eq!((waiting.len(), so_far.events.len()), (2, 0));
}

#[test]
fn a_deadlock_keeps_the_steps_until_then() {
    // The second microbatch's gradient is awaited before its forward is sent.
    let stuck = "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0RECV_B1,0SEND_F1,0B1\n\
                 1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
    let plan = Plan::from_csv("t", stuck).unwrap();
    let SimulateError::Deadlock { waiting, so_far } = unit_steps(&plan).unwrap_err() else { panic!("no deadlock") };
    // PyTorch's first five steps of the same rows without the second microbatch, and the forward that needs no rank.
    let first = Plan::from_csv("t", "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n").unwrap();
    let mut rows = unit_steps(&first).unwrap();
    rows[0].push(Action::forward(0, 1));
    assert_eq!(*so_far, Track::of_steps("t", &rows), "{}", so_far.ascii(80));
    assert_eq!(waiting.iter().map(|w| w.action.to_string()).collect::<Vec<_>>(), ["0RECV_B1", "1RECV_F1"]);
    // The cost-based simulator stops in the same places, with its own times.
    let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
    let error = simulate(&plan, &profile, &SimulateOptions::default()).unwrap_err();
    let SimulateError::Deadlock { so_far: timed, .. } = error else { panic!("{error}") };
    let actions = |track: &Track, rank| {
        let of_rank = track.events.iter().filter(move |event| event.rank == rank);
        of_rank.map(|event| event.action.to_string()).collect::<Vec<_>>()
    };
    for rank in 0..2 {
        assert_eq!(actions(&timed, rank), actions(&so_far, rank));
    }
    assert_eq!(timed.events.iter().find(|event| event.action == Action::forward(0, 1)).unwrap().end, 7.0);
}
