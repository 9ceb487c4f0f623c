//! The passes compared with PyTorch's, cell by cell.

use crate::golden_text::{self as golden, canonical, fnv};
use burn_pipeline_plan::pass::PassError;
use burn_pipeline_plan::plan::{CheckOptions, Plan};
use burn_pipeline_plan::schedule::{Size, by_name};
use std::collections::BTreeMap;

#[test]
fn every_order_is_lowered_as_pytorch_lowers_it() {
    let orders = golden::orders();
    let mut compared: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for line in include_str!("goldens/passes/lowered_2.7.1.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let order = &orders[words[0]];
        let merged = order.merge_backward();
        for (kind, lowered) in [
            ("sendrecv", order.with_transfers()),
            ("comms", order.with_unshard(3).and_then(|p| p.with_transfers())),
            ("merge", Ok(merged.clone())),
            ("merge_sendrecv", merged.with_transfers()),
        ] {
            let Some(hash) = golden::value(&words, kind) else { continue };
            *compared.entry(kind).or_default() += 1;
            if fnv(&lowered.unwrap().to_csv()) != hash {
                wrong.push(format!("{} {kind}", words[0]));
            }
        }
    }
    println!("lowered orders compared with PyTorch 2.7.1: {compared:?}");
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(compared.values().sum::<usize>(), 559 * 2 + 87 * 2);
}

#[test]
fn the_text_behind_the_hashes_is_the_same() {
    let orders = golden::orders();
    let blocks = golden::blocks(include_str!("goldens/passes/lowered_text_2.7.1.txt"));
    for block in &blocks {
        let order = &orders[block.name];
        let ours = match block.words[0] {
            "sendrecv" => order.with_transfers().unwrap(),
            "comms" => order.with_unshard(3).unwrap().with_transfers().unwrap(),
            "merge" => order.merge_backward(),
            _ => order.merge_backward().with_transfers().unwrap(),
        };
        assert_eq!(canonical(&ours).trim_end(), block.body.trim_end(), "{} {}", block.name, block.words[0]);
    }
    println!("lowered texts compared with PyTorch 2.7.1: {}", blocks.len());
}

#[test]
fn idle_cells_left_in_take_a_turn_as_pytorchs_do() {
    let orders = golden::orders();
    let hashes: BTreeMap<&str, &str> =
        include_str!("goldens/passes/lowered_2.7.1.txt").lines().filter_map(raw).collect();
    let blocks = golden::blocks(include_str!("goldens/passes/idle_orders.txt"));
    for block in &blocks {
        let idle = Plan::infer(block.name, golden::rows(block.body)).unwrap();
        assert_eq!(idle.without_idle().rows(), orders[block.name].rows());
        let lowered = idle.with_transfers().unwrap();
        assert_eq!(fnv(&lowered.to_csv()), hashes[block.name], "{}", block.name);
        // The step numbers of idle cells matter: without them the order differs.
        assert_ne!(lowered.rows(), orders[block.name].with_transfers().unwrap().rows(), "{}", block.name);
    }
    println!("lowered orders with idle cells compared with PyTorch 2.7.1: {}", blocks.len());
    assert_eq!(blocks.len(), 136);
}

fn raw(line: &str) -> Option<(&str, &str)> {
    let words: Vec<&str> = line.split(' ').collect();
    Some((words[0], golden::value(&words, "raw")?))
}

#[test]
fn every_order_of_pytorch_2_15_is_lowered_as_there_dual_pipe_v_among_them() {
    let orders = golden::orders_2_15();
    let lines: Vec<&str> = include_str!("goldens/passes/lowered_2.15.0.txt").lines().collect();
    for line in &lines {
        let words: Vec<&str> = line.split(' ').collect();
        let lowered = (orders[words[0]]).with_transfers().unwrap();
        assert_eq!(fnv(&lowered.to_csv()), golden::value(&words, "sendrecv").unwrap(), "{line}");
    }
    println!("lowered orders compared with PyTorch 2.15.0: {}", lines.len());
    assert_eq!((lines.len(), lines.iter().filter(|l| l.starts_with("DualPipeV")).count()), (154, 25));
}

#[test]
fn stages_are_unsharded_as_pytorch_does_it() {
    let orders = golden::orders();
    let lines: Vec<&str> = include_str!("goldens/passes/unshard_2.7.1.txt").lines().collect();
    for line in &lines {
        let words: Vec<&str> = line.split(' ').collect();
        let sharded = (orders[words[0]]).with_unshard(words[1].parse().unwrap()).unwrap();
        assert_eq!(fnv(&sharded.to_csv()), words[2], "{line}");
    }
    println!("unshard passes compared with PyTorch 2.7.1: {}", lines.len());
}

#[test]
fn the_plan_that_the_bench_times_has_787136_actions() {
    let plan = by_name("Interleaved1F1B").unwrap().build(Size::new(64, 512).with_chunks(4)).unwrap();
    let lowered = plan.with_unshard(3).unwrap().with_transfers().unwrap();
    assert_eq!(lowered.rows().iter().map(Vec::len).sum::<usize>(), 787_136);
    lowered.check(&CheckOptions::default()).unwrap();
}

/// Hand-made orders. PyTorch 2.15 also reshards every stage after its last use, and waits for each reduction in a
/// separate cell. Here the runtime does both, so they are removed from PyTorch's rows before comparing.
#[test]
fn hand_made_orders_come_out_as_pytorchs() {
    let blocks = golden::blocks(include_str!("goldens/passes/hand.txt"));
    let mut compared = 0;
    for block in &blocks {
        let (kind, torch) = (block.name.split("__").next().unwrap(), block.words[0]);
        if block.words.contains(&"defer") {
            continue; // Only the place of the wait differs from the case without.
        }
        let plan = golden::plan(block.name, golden::rows(block.part("in").unwrap()));
        let ours = match kind {
            "merge_bw" => Ok(plan.merge_backward()),
            "unshard" => plan.with_unshard(block.value("max_active").unwrap().parse().unwrap()),
            "reduce_grad" => Ok(plan.with_reduce_grad()),
            "sendrecv" => plan.with_transfers(),
            other => panic!("unknown kind {other}"),
        };
        match (block.part("out"), ours) {
            (Some(out), Ok(ours)) => {
                let ours = without_last_reshards(&canonical(&ours), torch);
                assert_eq!(ours.trim_end(), expected(out, torch).trim_end(), "{} {torch}", block.name);
            }
            (None, Err(error)) => assert!(matches!(error, PassError::Check(_)), "{error}"),
            // PyTorch 2.7.1 fails on a row of a single I. Here it stays unchanged, as in 2.15.
            (None, Ok(ours)) => assert_eq!((block.name, canonical(&ours)), ("merge_bw__hand_only_I", "0I0\n".into())),
            (Some(_), Err(error)) => panic!("{}: {error}", block.name),
        }
        if let Some(out) = block.part("out_none_stripped_first") {
            let stripped = plan.without_idle().with_transfers().unwrap();
            assert_eq!(canonical(&stripped).trim_end(), out.trim_end());
        }
        compared += 1;
    }
    println!("hand-made passes compared with PyTorch: {compared}");
    assert_eq!(compared, blocks.len() - 1);
}

fn expected(out: &str, torch: &str) -> String {
    let cells = |line: &str| {
        let kept = line.split(',').filter(|cell| !cell.contains("WAIT_REDUCE_GRAD") && !cell.is_empty());
        kept.collect::<Vec<_>>().join(",")
    };
    let text = out.lines().map(|line| cells(line) + "\n").collect::<String>();
    without_last_reshards(&text, torch)
}

/// PyTorch 2.15 releases each stage after its last use; 2.7.1 and this library release it only to make room.
fn without_last_reshards(text: &str, torch: &str) -> String {
    if torch == "2.7.1" {
        return text.to_owned();
    }
    let line = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let kept = cells.iter().enumerate().filter(|(i, cell)| {
            let stage = cell.strip_suffix("RESHARD").filter(|s| !s.ends_with("UN"));
            stage.is_none_or(|stage| cells[i + 1..].contains(&format!("{stage}UNSHARD").as_str()))
        });
        kept.map(|(_, cell)| *cell).collect::<Vec<_>>().join(",") + "\n"
    };
    text.lines().map(line).collect()
}
