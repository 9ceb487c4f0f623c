//! The unit-step simulation compared with PyTorch's `_simulate_comms_compute`, cell by cell, idle cells included.

use crate::golden_text::{blocks, fnv, plan, rows};
use burn_pipeline_plan::plan::{Action, Plan};
use burn_pipeline_plan::schedule::{Size, by_name};
use burn_pipeline_plan::simulate::{SimulateError, unit_steps};

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
        error.to_string().contains("rank 0 stands at step 0 (0RECV_B0) and waits for 1SEND_B0 on rank 1"),
        "{error}"
    );
    let SimulateError::Deadlock { waiting } = error else { panic!("{error}") };
    assert_eq!(waiting.len(), 2);
}
