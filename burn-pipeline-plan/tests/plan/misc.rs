//! Text, grids and refusals compared with PyTorch's; idempotence of passes; parsing of arbitrary texts.

use crate::any_schedule;
use crate::golden_text as golden;
use burn_pipeline_plan::pass::PassError;
use burn_pipeline_plan::plan::{Action, CheckError, CheckOptions, Op, Placement, Plan};
use proptest::prelude::{Strategy, any, prop, proptest};
use proptest::test_runner::Config;
use serde_json::Value;
use std::collections::BTreeSet;

#[test]
fn grids_are_laid_out_as_pytorchs() {
    let blocks = golden::blocks(include_str!("goldens/passes/format_2.7.1.txt"));
    for block in &blocks {
        let plan = golden::plan(block.name, golden::rows(block.part("in").unwrap()));
        let marked = block.value("step").and_then(|step| step.parse().ok());
        let grid = marked.map_or_else(|| plan.grid(), |step| plan.grid_marked(step));
        assert_eq!(grid.trim_end_matches('\n'), block.part("text").unwrap().trim_end_matches('\n'), "{}", block.name);
    }
    println!("grids compared with PyTorch 2.7.1: {}", blocks.len());
    assert_eq!(blocks.len(), 10);
}

#[test]
fn a_grid_of_more_ranks_than_steps_can_be_drawn() {
    let row = vec![Action::forward(0, 0)];
    let placement = Placement::free(3, vec![0]).unwrap();
    let plan = Plan::new("test", placement, vec![1], vec![row.clone(), vec![], row]).unwrap();
    assert_eq!(plan.grid(), "        Rank 0 Rank 1 Rank 2\nStep 0: 0F0           0F0   \n");
    assert!(plan.excerpt(2, 0).ends_with("Step 0: 0F0           0F0    <-- ERROR HERE"), "{}", plan.excerpt(2, 0));
}

/// Texts that PyTorch's parser accepts and this library's refuses.
const STRICTER_TEXT: [(&str, &str); 10] = [
    ("2F", "a forward of no microbatch cannot be run"),
    ("1UNSHARD5", "parameters are gathered for a stage, not for a microbatch"),
    ("0F0junk", "trailing junk is dropped there"),
    ("0FF0", "trailing junk is dropped there"),
    ("1F0;2F0", "trailing junk is dropped there"),
    ("()OVERLAP_F_B", "nothing is fused"),
    ("(0F4)OVERLAP_F_B", "one task is not fused with anything"),
    ("(0F4;7B0)F", "two tasks are no forward"),
    ("0OVERLAP_F_B", "refused by both"),
    ("(0F4;7B0)", "refused by both"),
];

#[test]
fn actions_are_read_as_pytorch_reads_them_unless_the_table_says_why_not() {
    let files = [
        include_str!("goldens/passes/action_parse_2.7.1.json"),
        include_str!("goldens/passes/action_parse_2.15.0.json"),
    ];
    let (mut compared, mut stricter) = (0, BTreeSet::new());
    for file in files {
        let Value::Object(cases) = serde_json::from_str(file).unwrap() else { panic!("a table of cases") };
        for (text, torch) in cases {
            let ours = text.parse::<Action>();
            match (torch.get("ok"), ours) {
                (Some(Value::Null), Ok(action)) => assert!(action.is_idle(), "{text}"),
                (Some(torch), Ok(action)) => assert_eq!(torch["repr"], action.to_string(), "{text}"),
                (None, Err(_)) => {}
                (None, Ok(action)) => panic!("{text}: PyTorch refuses, ours is {action}"),
                (Some(_), Err(error)) => {
                    assert!(STRICTER_TEXT.iter().any(|(listed, _)| *listed == text), "{text}: {error}");
                    stricter.insert(text.clone());
                }
            }
            compared += 1;
        }
    }
    println!("texts compared with PyTorch: {compared}, of which refused here alone: {}", stricter.len());
    for (text, why) in STRICTER_TEXT.iter().filter(|(_, why)| *why != "refused by both") {
        println!("  {text}: {why}");
        assert!(stricter.contains(*text), "{text}: a row of the table that nothing needs");
    }
}

/// Plans that PyTorch's `_validate_schedule` accepts and `check` refuses, by the golden's note.
const STRICTER_CHECK: [(&str, &str); 5] = [
    (
        "3I+1W counts as 2 full backwards (accepted although Ws are missing)",
        "0I0 repeats the backward of step 3 in the other form",
    ),
    ("duplicate F is not noticed", "0F0 has already run"),
    ("duplicate B is not noticed", "0B0 has already run"),
    ("microbatch index beyond m is only caught by count", "0F5 is beyond the route's 1 microbatches"),
    ("cross-rank order is not checked", "deadlock"),
];

/// A golden case as a plan. A stage is on the rank that names it first.
fn validated(case: &Value) -> Result<Plan, String> {
    let count = |key: &str| case[key].as_u64().unwrap() as usize;
    let rows = case["rows"].as_object().unwrap();
    let last = rows.keys().map(|rank| rank.parse::<usize>().unwrap()).max().unwrap();
    let row = |rank: usize| golden::rows(rows.get(&rank.to_string()).map_or("", |r| r.as_str().unwrap())).pop();
    let rows: Vec<Vec<Action>> = (0..=last).map(|rank| row(rank).unwrap_or_default()).collect();
    let home = |stage: usize| {
        let runs = |row: &Vec<Action>| row.iter().flat_map(|a| a.tasks()).any(|t| t.stage().index() == stage);
        rows.iter().position(runs).unwrap_or(stage % count("p"))
    };
    let placement = Placement::free(count("p"), (0..count("n")).map(home).collect()).map_err(|e| e.to_string())?;
    Plan::new(case["note"].as_str().unwrap(), placement, vec![count("m")], rows).map_err(|e| e.to_string())
}

#[test]
fn check_refuses_what_pytorchs_validator_refuses_and_more() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("goldens/passes/validate_schedule_2.7.1.json")).unwrap();
    let mut stricter = 0;
    for case in &cases {
        let note = case["note"].as_str().unwrap();
        let ours = validated(case).and_then(|p| p.check(&CheckOptions::default()).map_err(|e| e.to_string()));
        match (case["result"].get("ok").is_some(), ours) {
            (true, Ok(_)) | (false, Err(_)) => {}
            (false, Ok(_)) => panic!("{note}: accepted here alone"),
            (true, Err(error)) => {
                let row = STRICTER_CHECK.iter().find(|(listed, _)| *listed == note);
                let (_, part) = row.unwrap_or_else(|| panic!("{note}: {error}"));
                assert!(error.contains(part), "{note}: {error}");
                println!("  refused here alone: {note}: {}", error.lines().next().unwrap());
                stricter += 1;
            }
        }
    }
    println!("validator cases compared with PyTorch 2.7.1: {}, of which refused here alone: {stricter}", cases.len());
    assert_eq!(stricter, STRICTER_CHECK.len());
}

/// The fault that `check` found in a plan that a pass refused.
fn fault(error: PassError) -> CheckError {
    match error {
        PassError::Check(fault) => *fault,
        other => panic!("{other}"),
    }
}

#[test]
fn what_cannot_be_lowered_says_which_ranks_are_stuck() {
    let plan = Plan::from_csv("test", "0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0\n").unwrap();
    let error = plan.with_transfers().unwrap_err();
    assert!(error.to_string().contains("rank 0 is stuck at step 1 (0B0) and waits for 1B0 on rank 1"), "{error}");
    let CheckError::Deadlock { cycle, .. } = fault(error) else { panic!("it is no deadlock") };
    let reported: Vec<_> = cycle.iter().map(|s| (s.rank, s.step, s.action.to_string(), s.needs.to_string())).collect();
    assert_eq!(reported, [(0, 1, "0B0".into(), "1B0".into()), (1, 1, "1F1".into(), "0F1".into())]);
}

#[test]
fn a_task_that_no_rank_runs_is_named() {
    let plan = Plan::from_csv("test", "0F0,0B0,0F1,0B1\n1F0,1B0,1F1\n").unwrap();
    for error in [plan.with_transfers().unwrap_err(), plan.with_idle().unwrap_err()] {
        assert!(error.to_string().starts_with("rank 1 never runs 1B1; insert it"), "{error}");
        assert!(matches!(fault(error), CheckError::Missing { rank: 1, step: 3, .. }));
    }
    let split = Plan::from_csv("test", "0F0,0I0,0W0\n1F0,1W0\n").unwrap().with_transfers().unwrap_err();
    assert!(split.to_string().starts_with("rank 1, step 1: 1W0 needs 1I0 earlier in the row"), "{split}");
}

#[test]
fn passes_refuse_cells_that_do_not_fit_the_plan() {
    let placement = Placement::free(2, vec![0, 1]).unwrap();
    let with = |rows: &str| Plan::new("test", placement.clone(), vec![1], golden::rows(rows)).unwrap();
    let error = |rows: &str| fault(with(rows).with_transfers().unwrap_err());
    assert!(matches!(error("0F0,1F0\n1F0"), CheckError::WrongRank { rank: 0, step: 1, placed: 1, .. }));
    assert!(matches!(error("0F0,7F0\n1F0"), CheckError::NoSuchStage { rank: 0, step: 1, .. }));
    assert!(matches!(error("0F0,7UNSHARD\n1F0"), CheckError::NoSuchStage { rank: 0, step: 1, .. }));
    assert!(matches!(error("0F0,0F1\n1F0"), CheckError::NoSuchMicrobatch { rank: 0, step: 1, microbatches: 1, .. }));
    let sparse = Plan::from_csv("test", "0F4000000000\n").unwrap();
    assert!(fault(sparse.with_transfers().unwrap_err()).to_string().starts_with("rank 0 never runs 0F0"));
    let padded = with("0F0,,7W0\n1F0").with_idle().unwrap_err();
    assert!(matches!(fault(padded), CheckError::NoSuchStage { rank: 0, step: 2, .. }));

    let unshard = |rows: &str, active| with(rows).with_unshard(active).unwrap_err();
    assert!(matches!(
        unshard("0F0\n1F0", 0),
        PassError::TooFewActive { rank: 0, step: 0, needs: 1, max_active: 0, .. }
    ));
    assert!(matches!(fault(unshard("7F0\n1F0", 1)), CheckError::NoSuchStage { rank: 0, step: 0, .. }));
    let fused = Plan::from_csv("test", "0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n").unwrap();
    let refused = fused.with_unshard(1).unwrap_err();
    assert!(matches!(refused, PassError::TooFewActive { step: 2, needs: 2, max_active: 1, .. }));
    assert!(fused.with_unshard(2).is_ok());
}

#[test]
fn a_stage_may_be_unsharded_again_after_it_was_resharded() {
    // Four stages on a rank with room for two: each is gathered for its forward, and again for its backward.
    let plan = Plan::from_csv("test", "0F0,1F0,2F0,3F0,3B0,2B0,1B0,0B0\n").unwrap();
    let sharded = plan.with_unshard(2).unwrap();
    let times = |text: &str| sharded.row(0).iter().filter(|a| a.to_string() == text).count();
    assert_eq!((times("0UNSHARD"), times("0RESHARD"), times("3UNSHARD")), (2, 1, 1));
    assert!(sharded.check(&CheckOptions::default()).is_ok());
}

#[test]
fn reductions_in_a_lowered_plan_follow_the_sends_that_a_peer_waits_for() {
    let plan = Plan::from_csv("test", "0F0,0B0\n1F0,1B0\n").unwrap();
    let reduced = plan.with_transfers().unwrap().with_reduce_grad();
    assert_eq!(reduced.to_csv(), "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n");
    assert!(reduced.check(&CheckOptions::default()).is_ok());
}

fn plans() -> impl Strategy<Value = Plan> {
    any_schedule::plans(16, 4, 24)
}

proptest! {
    #![proptest_config(Config { cases: 150, failure_persistence: None, ..Config::default() })]

    #[test]
    fn every_pass_run_twice_changes_nothing_more(plan in plans(), active in 2..5usize) {
        let merged = plan.merge_backward();
        assert_eq!(merged.merge_backward(), merged);
        let reduced = merged.with_reduce_grad();
        assert_eq!(reduced.with_reduce_grad(), reduced);
        let sharded = reduced.with_unshard(active).unwrap();
        assert_eq!(sharded.with_unshard(active).unwrap(), sharded);
        let lowered = sharded.with_transfers().unwrap();
        assert_eq!(lowered.with_transfers().unwrap(), lowered);
        lowered.check(&CheckOptions::default()).unwrap();
    }

    #[test]
    fn never_more_stages_are_gathered_than_allowed(plan in plans(), active in 2..5usize) {
        let sharded = plan.with_unshard(active).unwrap();
        for row in sharded.rows() {
            let mut gathered = BTreeSet::new();
            for task in row.iter().flat_map(|action| action.tasks()) {
                match task.op() {
                    Op::Unshard => assert!(gathered.insert(task.stage())),
                    Op::Reshard => assert!(gathered.remove(&task.stage())),
                    _ => assert!(gathered.contains(&task.stage())),
                }
                assert!(gathered.len() <= active);
            }
        }
        // Every stage of a rank that fits is gathered once and kept.
        let stages = |rank| plan.placement().stages_of(rank).len();
        for rank in (0..plan.ranks()).filter(|&rank| stages(rank) <= active) {
            let gathers = sharded.tasks(rank).filter(|task| task.op() == Op::Unshard).count();
            assert!(gathers <= stages(rank));
        }
    }

    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in "\\PC{0,80}") {
        read(&text);
    }

    #[test]
    fn texts_of_the_right_letters_are_read_or_refused_without_a_panic(
        cells in prop::collection::vec("('?[0-3](F|I|W|B|SEND_F|RECV_F|SEND_B|RECV_B)[0-3]|[0-2](UNSHARD|RESHARD|REDUCE_GRAD)|\\([01]F[01];[01]B[01]\\)OVERLAP_F_B|[0-9]{0,6}[A-Z]{0,2}[0-9]{0,12}|\n|)", 0..24)
    ) {
        read(&cells.join(","));
        read(&cells.join(",").replace(",\n,", "\n"));
    }

    #[test]
    fn plans_survive_text_and_json(plan in plans(), lower in any::<bool>()) {
        let plan = if lower { plan.with_transfers().unwrap() } else { plan };
        let json = serde_json::to_string(&plan).unwrap();
        let stored: Plan = serde_json::from_str(&json).unwrap();
        // A map that several kinds of placement share (any map on one rank) is read back as the first of them.
        let map = |plan: &Plan| plan.placement().all_stages().map(|s| plan.placement().rank_of(s)).collect::<Vec<_>>();
        assert_eq!((stored.rows(), map(&stored)), (plan.rows(), map(&plan)));
        assert_eq!((stored.name(), stored.microbatches()), (plan.name(), plan.microbatches()));
        let again = Plan::from_csv(plan.name(), &plan.to_csv());
        // A route without microbatches names none of its stages, and an idle last rank has no line.
        if plan.microbatches().iter().all(|&m| m > 0) {
            assert_eq!(again.unwrap().rows(), plan.rows());
        }
    }
}

/// The same as the fuzz target does with a text.
fn read(text: &str) {
    if let Ok(action) = text.parse::<Action>() {
        assert_eq!(action.to_string().parse(), Ok(action));
    }
    let Ok(plan) = Plan::from_csv("test", text) else { return };
    assert_eq!(Plan::from_csv("test", &plan.to_csv()).unwrap().rows(), plan.rows());
    let _ = plan.grid();
    let reduced = plan.merge_backward().with_reduce_grad();
    let lowered = reduced.with_unshard(2).and_then(|plan| plan.with_transfers());
    for plan in [Some(plan), lowered.ok()].into_iter().flatten() {
        let name = plan.name().to_owned();
        match plan.check(&CheckOptions { activation_cap: Some(2.0), ..CheckOptions::default() }).map_err(|e| *e) {
            Ok(checked) => assert_eq!(checked.plan().name(), name),
            Err(CheckError::Deadlock { cycle, .. }) => assert!(!cycle.is_empty()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
