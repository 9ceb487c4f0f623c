//! Megatron's tables for interleaving, compared with the placement and the orders that this library builds.

use burn_pipeline_plan::plan::{Op, Placement, StageId, Task};
use burn_pipeline_plan::schedule::{
    Interleaved1F1B, Schedule, ScheduleError, Size, schedule_table, virtual_stage_ids, warm_up,
};

/// Sizes that Megatron accepts.
fn sizes() -> impl Iterator<Item = Size> {
    let rounds = (1..=6usize).flat_map(|p| (1..=4usize).flat_map(move |v| (1..=4usize).map(move |n| (p, v, n))));
    rounds.map(|(p, v, n)| Size::new(p, p * n).with_chunks(v))
}

#[test]
fn virtual_stages_are_those_of_the_loop_placement() {
    for size in sizes() {
        let placement = Placement::looped(size.ranks, size.chunks).unwrap();
        for rank in 0..size.ranks {
            let placed: Vec<usize> = placement.stages_of(rank).into_iter().map(StageId::index).collect();
            assert_eq!(virtual_stage_ids(rank, size.ranks, size.chunks).unwrap(), placed);
        }
    }
}

#[test]
fn the_table_lists_the_forwards_and_the_backwards_of_interleaved_1f1b() {
    for size in sizes() {
        let plan = Interleaved1F1B::default().build(size).unwrap();
        let table = schedule_table(size, None).unwrap();
        for rank in 0..size.ranks {
            let of = |op| plan.tasks(rank).filter(move |t| t.op() == op);
            let chunk = |stage: StageId| stage.index() / size.ranks;
            let forwards: Vec<_> = of(Op::Forward).map(|t| (t.microbatch().unwrap(), chunk(t.stage()))).collect();
            assert_eq!(forwards, table, "{size:?}");
            let reversed = |t: Task| (t.microbatch().unwrap(), size.chunks - 1 - chunk(t.stage()));
            assert_eq!(of(Op::Backward).map(reversed).collect::<Vec<_>>(), table, "{size:?}");
        }
    }
}

#[test]
fn warm_up_counts_the_forwards_before_the_first_pair() {
    for size in sizes() {
        let plan = Interleaved1F1B::default().build(size).unwrap();
        for rank in 0..size.ranks {
            let counts = warm_up(rank, size, None).unwrap();
            let before = plan.tasks(rank).take_while(|t| t.op() == Op::Forward).count();
            assert_eq!(before, counts.forwards + usize::from(!counts.all), "{size:?} rank {rank}");
            assert_eq!(counts.forwards + counts.remaining, size.microbatches * size.chunks);
        }
    }
}

#[test]
fn groups_of_another_size_and_a_short_last_one() {
    let size = Size::new(2, 5).with_chunks(2);
    let table = schedule_table(size, Some(3)).unwrap();
    assert_eq!(table, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (4, 0), (3, 1), (4, 1)]);
    assert_eq!(warm_up(0, size, Some(3)).unwrap().forwards, 5);
    let all = warm_up(0, Size::new(8, 2).with_chunks(2), None).unwrap();
    assert_eq!((all.forwards, all.remaining, all.all), (4, 0, true));
}

#[test]
fn what_is_no_size_is_refused() {
    let message = |result: Result<Vec<usize>, ScheduleError>| result.unwrap_err().to_string();
    assert!(message(virtual_stage_ids(4, 4, 2)).contains("rank 4 is not one of them"));
    assert!(message(virtual_stage_ids(0, 4, 0)).contains("one chunk a rank"));
    assert!(schedule_table(Size::new(2, 0), None).unwrap_err().to_string().contains("one microbatch"));
    assert!(schedule_table(Size::new(2, 2), Some(0)).unwrap_err().to_string().contains("a group holds"));
    assert!(schedule_table(Size::new(2, usize::MAX), None).unwrap_err().to_string().contains("at most"));
    assert!(warm_up(2, Size::new(2, 2), None).is_err());
}
