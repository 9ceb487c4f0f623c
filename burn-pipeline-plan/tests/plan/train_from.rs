//! Plans whose first stages do not train, of every schedule: nothing without a use is left, and nothing else changes.

use crate::any_schedule::{self, with_skips};
use crate::check::{TRANSPORTS, under};
use crate::simulate_properties::longest_paths;
use burn_pipeline_plan::cost::{LinkCosts, Profile, StageCost, UniformCosts, VocabularyCost};
use burn_pipeline_plan::pass::overlap::{OverlapOptions, OverlapPass};
use burn_pipeline_plan::pass::{PassError, Placing, WaitOptions};
use burn_pipeline_plan::plan::{Action, CheckError, CheckOptions, Op, Plan, PlanError, Task, Transport};
use burn_pipeline_plan::schedule::{OneFOneB, Schedule, Size, by_name};
use burn_pipeline_plan::simulate::{SimulateOptions, simulate, unit_steps};
use proptest::prelude::{Strategy, any, prop, proptest};
use proptest::test_runner::Config;

/// A plan of any schedule, without idle cells, and a stage to train from.
fn plans() -> impl Strategy<Value = (Plan, usize)> {
    let plan = any_schedule::plans(4, 3, 6).prop_filter("it trains", Plan::has_backward);
    (plan, any::<prop::sample::Index>()).prop_map(|(plan, first)| {
        let first = first.index(plan.stages());
        (plan.without_idle(), first)
    })
}

/// The cells that are left, by the words of the definition.
fn expected(plan: &Plan, first: usize) -> Vec<Vec<Vec<Task>>> {
    let left = |task: Task| match (task.op(), task.stage().index()) {
        (Op::Forward, _) => Some(task),
        (_, stage) if stage < first => None,
        (Op::Backward, stage) if stage == first => {
            Some(Task::new(task.stage(), Op::BackwardWeight, task.microbatch()?))
        }
        (Op::BackwardInput, stage) if stage == first => None,
        _ => Some(task),
    };
    let cell = |action: &Action| action.tasks().filter_map(left).collect::<Vec<_>>();
    let row = |row: &Vec<Action>| row.iter().map(cell).filter(|tasks| !tasks.is_empty()).collect();
    plan.rows().iter().map(row).collect()
}

fn tasks(plan: &Plan) -> Vec<Vec<Vec<Task>>> {
    plan.rows().iter().map(|row| row.iter().map(|action| action.tasks().collect()).collect()).collect()
}

fn check(plan: &Plan) {
    for transport in TRANSPORTS {
        let checked = plan.clone().check(&under(transport));
        assert!(checked.is_ok(), "{transport}: {}\n{}", checked.unwrap_err(), plan.to_csv());
    }
}

fn stage() -> impl Strategy<Value = StageCost> {
    let amount = || 0.0..4.0f64;
    (amount(), amount(), amount(), amount(), any::<bool>()).prop_map(|(forward, input, weight, bytes, again)| {
        let (input, weight) = (Some(input), Some(weight));
        let stage = StageCost { forward, input, weight, activation_bytes: bytes + 1.0, ..StageCost::default() };
        let stage = StageCost { freed_at_input_bytes: bytes / 2.0, gradient_bytes: bytes, ..stage };
        if again { StageCost { recomputed_bytes: 0.5, ..stage } } else { stage }
    })
}

proptest! {
    #![proptest_config(Config { cases: 192, failure_persistence: None, ..Config::default() })]

    #[test]
    fn every_schedule_keeps_what_has_a_use_and_is_proved(
        (plan, first) in plans(),
        ends in prop::collection::vec((any::<usize>(), any::<usize>()), 0..4),
    ) {
        let plan = with_skips(plan, &ends);
        let trained = plan.train_from(first).unwrap();
        assert_eq!(trained.first_trained(), first);
        assert_eq!(tasks(&trained), if first == 0 { tasks(&plan) } else { expected(&plan, first) });
        assert_eq!(trained.train_from(first).unwrap(), trained);
        check(&trained);
        check(&trained.with_reduce_grad().with_transfers().unwrap());
        let sharded = trained.with_unshard(2).unwrap().with_reduce_grad().with_transfers().unwrap();
        check(&sharded.with_waits(&WaitOptions::all(Placing::Late)));
        if first > 0 {
            let reduced = |stage: usize| {
                trained.with_reduce_grad().any_task(|t| t.op() == Op::ReduceGrad && t.stage().index() == stage)
            };
            assert!((0..first).all(|stage| !reduced(stage)) && reduced(first));
        }
    }

    #[test]
    fn passes_before_it_leave_a_plan_that_is_proved_too(
        (plan, first) in plans(),
        ends in prop::collection::vec((any::<usize>(), any::<usize>()), 0..4),
    ) {
        let lowered = with_skips(plan, &ends).with_unshard(2).unwrap().with_reduce_grad().with_transfers().unwrap();
        for plan in [lowered.with_waits(&WaitOptions::all(Placing::Late)), lowered] {
            let trained = plan.train_from(first).unwrap();
            check(&trained);
            let is_gone = |op: Op| op.is_backward() || matches!(op, Op::ReduceGrad | Op::ReceiveBackward);
            assert!(!trained.any_task(|task| task.stage().index() < first && is_gone(task.op())));
        }
    }

    #[test]
    fn its_text_forms_read_back((plan, first) in plans()) {
        let trained = plan.train_from(first).unwrap();
        let read = Plan::from_csv(trained.name(), &trained.to_csv()).unwrap();
        assert_eq!((read.rows(), read.first_trained()), (trained.rows(), first));
        let json = serde_json::to_string(&trained).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), trained);
    }

    #[test]
    fn a_cell_left_out_or_added_back_is_refused((plan, first) in plans(), place in any::<prop::sample::Index>()) {
        let trained = plan.train_from(first).unwrap();
        let cells: Vec<(usize, usize)> =
            (0..plan.ranks()).flat_map(|rank| (0..trained.row(rank).len()).map(move |step| (rank, step))).collect();
        let (rank, step) = cells[place.index(cells.len())];
        let mut rows = trained.rows().to_vec();
        rows[rank].remove(step);
        // Without its only backward, a plan of one microbatch is one for evaluation.
        let left_out = trained.with_rows(rows);
        assert!(left_out.clone().check(&CheckOptions::default()).is_err() || !left_out.has_backward());
        if first > 0 {
            for (stage, op) in [(first - 1, Op::BackwardWeight), (first, Op::BackwardInput), (first, Op::Backward)] {
                let mut rows = trained.rows().to_vec();
                rows[plan.placement().rank_of(stage.into())].push(Task::new(stage, op, 0).into());
                let error = *trained.with_rows(rows).check(&CheckOptions::default()).unwrap_err();
                assert!(matches!(error, CheckError::UnusedGradient { first: at, .. } if at == first), "{error}");
            }
        }
    }

    #[test]
    fn a_simulated_step_ends_when_the_longest_chain_does_and_no_later_than_the_full_one(
        (plan, first) in plans(),
        costs in prop::collection::vec(stage(), 12),
    ) {
        let costs = costs.into_iter().cycle().take(plan.stages()).collect();
        let profile = Profile::new(costs, LinkCosts::default()).unwrap();
        let trained = plan.train_from(first).unwrap();
        let options = SimulateOptions::default();
        let run = |plan: &Plan| simulate(plan, &profile, &options).unwrap();
        let (full, step) = (run(&plan), run(&trained));
        let ended = longest_paths(&trained, &profile).into_values().fold(0.0, f64::max);
        assert!((step.makespan - ended).abs() < 1e-9, "{} is not {ended}", step.makespan);
        assert!(step.makespan <= full.makespan + 1e-9);
        for (rank, (before, after)) in full.ranks.iter().zip(&step.ranks).enumerate() {
            assert!(after.peak_activations <= before.peak_activations);
            let last = after.memory.last().map_or(0.0, |point| point.activations + point.receive_buffers);
            assert!(last.abs() < 1e-6, "rank {rank} keeps {last} bytes");
            let stages = plan.placement().stages_of(rank);
            if stages.iter().all(|stage| stage.index() < first) {
                let single = plan.ranks() as f64 / plan.stages() as f64;
                assert!(after.peak_activations <= single + 1e-9, "rank {rank} holds more than runs");
                assert!(after.memory.iter().all(|point| point.gradients == 0.0));
            }
        }
        // Transfers that do not block keep that.
        let lowered = |plan: &Plan| plan.with_transfers().unwrap();
        let unblocked = SimulateOptions { transport: Transport::Unbounded, overlap: true };
        let run = |plan: &Plan| simulate(&lowered(plan), &profile, &unblocked).unwrap().makespan;
        assert!(run(&trained) <= run(&plan) + 1e-9);
        // A profile that knows what trains prices the same cells alike, but for what a stage recomputes.
        let knows = profile.clone().train_from(first).unwrap();
        assert!(simulate(&trained, &knows, &options).unwrap().makespan >= step.makespan - 1e-9);
    }

    #[test]
    fn overlap_passes_keep_it_legal((plan, first) in plans(), costs in prop::collection::vec(stage(), 12)) {
        let costs = costs.into_iter().cycle().take(plan.stages()).collect();
        let profile = Profile::new(costs, LinkCosts::default()).unwrap();
        let lowered = plan.train_from(first).unwrap().with_transfers().unwrap();
        if lowered.is_lowered() {
            let moved = lowered.overlap(&profile, &OverlapPass::USUAL, &OverlapOptions::default()).unwrap();
            check(&moved.plan);
        }
    }
}

#[test]
fn a_whole_backward_becomes_one_for_the_weights_and_a_split_one_its_second_part() {
    let plan = OneFOneB.build(Size::new(3, 2)).unwrap().without_idle();
    let text = |plan: &Plan, first| plan.train_from(first).unwrap().to_csv();
    assert_eq!(text(&plan, 1), "0F0,0F1\n1F0,1F1,1W0,1W1\n2F0,2B0,2F1,2B1\n");
    assert_eq!(text(&plan, 2), "0F0,0F1\n1F0,1F1\n2F0,2W0,2F1,2W1\n");
    let split = by_name("ZBH1").unwrap().build(Size::new(2, 1)).unwrap().without_idle();
    assert_eq!(text(&split, 1), "0F0\n1F0,1W0\n");
    let lowered = plan.train_from(1).unwrap().with_transfers().unwrap();
    assert_eq!(lowered.row(1).iter().filter(|action| action.to_string().contains("SEND_B")).count(), 0);
    assert_eq!(lowered.row(2).iter().filter(|action| action.to_string().contains("SEND_B")).count(), 2);
}

#[test]
fn both_routes_train_from_the_same_stage() {
    let plan = by_name("DualPipe").unwrap().build(Size::new(4, 8)).unwrap().train_from(2).unwrap();
    for route in [0, 1] {
        let of = |stage: usize| {
            plan.any_task(|t| t.stage().route() == route && t.stage().index() == stage && t.op().is_backward())
        };
        assert_eq!([0, 1, 2, 3].map(of), [false, false, true, true]);
    }
    assert!(plan.any_task(|task| task.op() == Op::BackwardWeight && task.stage().index() == 2));
}

#[test]
fn a_stage_that_is_not_there_or_has_no_backward_any_more_is_refused() {
    let plan = OneFOneB.build(Size::new(3, 2)).unwrap();
    assert!(matches!(plan.train_from(3), Err(PassError::TrainsFrom { first: 3, from: 0, stages: 3 })));
    let later = plan.train_from(2).unwrap();
    assert!(matches!(later.train_from(1), Err(PassError::TrainsFrom { first: 1, from: 2, stages: 3 })));
    assert_eq!(plan.train_from(1).unwrap().train_from(2).unwrap(), later);
    let json = serde_json::to_string(&later).unwrap().replace("\"first_trained\":2", "\"first_trained\":3");
    assert!(serde_json::from_str::<Plan>(&json).unwrap_err().to_string().contains("trains from stage 3 on"));
    assert!(matches!(Plan::from_csv("one", "0F0\n1F0,1B0\n").unwrap().first_trained(), 0));
    let error: Result<Plan, PlanError> = Plan::from_csv("mine", "0F0\n1F0,1W0\n");
    assert_eq!(error.unwrap().first_trained(), 1);
}

#[test]
fn a_vocabulary_parallel_head_goes_with_it_and_an_embedding_does_not() {
    let pieces = VocabularyCost { head_forward: 0.5, head_input: 0.5, head_weight: 0.5, ..VocabularyCost::default() };
    for name in ["1F1B", "ZBH1", "Interleaved1F1B"] {
        let plan = by_name(name).unwrap().build(Size::new(3, 6)).unwrap().without_idle();
        let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0)).unwrap();
        let profile = profile.with_vocabulary(pieces).unwrap();
        let both = plan.with_vocabulary(&profile).unwrap();
        assert!(matches!(both.train_from(1), Err(PassError::EmbeddingGradient { first: 1 })));
        let early = plan.train_from(1).unwrap().with_vocabulary(&profile).unwrap_err();
        assert!(early.to_string().contains("its first stages have no backward"), "{early}");
        let of_embedding = |task: Task| {
            let ops = [Op::EmbeddingForward, Op::EmbeddingBackward, Op::ReduceEmbedding, Op::BroadcastGradient];
            ops.contains(&task.op())
        };
        let stays = |action: &&Action| !action.tasks().any(of_embedding);
        let rows = both.rows().iter().map(|row| row.iter().filter(stays).copied().collect()).collect();
        let head = both.with_rows(rows);
        let full = simulate(&head, &profile, &SimulateOptions::default()).unwrap().makespan;
        for first in 1..plan.stages() {
            let trained = head.train_from(first).unwrap();
            check(&trained);
            check(&trained.with_transfers().unwrap());
            assert!(simulate(&trained, &profile, &SimulateOptions::default()).unwrap().makespan <= full);
        }
    }
}

#[test]
fn in_unit_steps_the_first_backward_waits_for_its_gradient() {
    let plan = OneFOneB.build(Size::new(3, 1)).unwrap().train_from(1).unwrap().with_transfers().unwrap();
    let steps = unit_steps(&plan).unwrap();
    assert_eq!(steps[1].last().map(ToString::to_string).as_deref(), Some("1W0"));
    // F of three stages with two sends and receives, then B, its send and receive, and W.
    assert!(steps[1].len() > steps[0].len());
}
