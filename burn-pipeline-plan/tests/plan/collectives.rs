//! Collectives of tensor-parallel groups and replicas, compared with a run of the whole grid of plan ranks, replicas
//! and members, with blocking transfers and collectives.

use crate::any_schedule;
use crate::brute_force::counterpart;
use burn_pipeline_plan::plan::{
    Among, CheckOptions, CheckedPlan, Collective, CollectiveError, Collectives, Op, Plan, StageCollectives, StageId,
    Task, Transport,
};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use std::collections::BTreeSet;

fn collective(among: Among, what: impl Into<String>) -> Collective {
    Collective { among, what: what.into() }
}

/// The lists of collectives that a task runs, by the plan's words.
fn listed(of: &Collectives, op: Op) -> Vec<Collective> {
    match op {
        Op::Forward => of.forward.clone(),
        Op::BackwardInput => of.input.clone(),
        Op::BackwardWeight => of.weight.clone(),
        Op::Backward => [of.input.clone(), of.weight.clone()].concat(),
        _ => Vec::new(),
    }
}

/// A holder of a stage: a plan rank, a replica and a member.
type Holder = (usize, usize, usize);

/// The next action of a holder.
#[derive(Clone, PartialEq, Debug)]
enum Event {
    Transfer(Task),
    Meet(Task, Collective),
}

/// Returns true if all holders reach the ends of their rows. Tries each again and again. A member exchanges messages
/// with the members of another rank that have parts of its tensors.
fn runs(plan: &CheckedPlan, stages: &[StageCollectives], sizes: &[usize], replicas: usize) -> bool {
    let (transport, plan) = (plan.transport(), plan.plan());
    let holders: Vec<Holder> = (0..plan.ranks())
        .flat_map(|rank| (0..replicas).flat_map(move |r| (0..sizes[rank]).map(move |m| (rank, r, m))))
        .collect();
    let events = |&(rank, replica, member): &Holder| -> Vec<Event> {
        let of = |task: Task| {
            let stage = stages.iter().find(|of| of.stage == task.stage());
            let own = stage.and_then(|of| of.holders[replica * sizes[rank] + member].as_ref());
            own.map_or(Vec::new(), |own| listed(own, task.op()))
        };
        let event = |task: Task| match task.op().is_transfer() {
            true => vec![Event::Transfer(task)],
            false => of(task).into_iter().map(|collective| Event::Meet(task, collective)).collect(),
        };
        plan.tasks(rank).flat_map(event).collect()
    };
    let rows: Vec<Vec<Event>> = holders.iter().map(events).collect();
    let (mut at, mut started) = (vec![0; holders.len()], BTreeSet::new());
    loop {
        let mut moved = false;
        for own in 0..holders.len() {
            let Some(event) = rows[own].get(at[own]) else { continue };
            let (rank, replica, member) = holders[own];
            match event {
                Event::Transfer(task) => {
                    started.insert((own, *task));
                    let there = counterpart(plan, *task).unwrap();
                    let peer = plan.placement().rank_of(there.stage());
                    let (mine, theirs) = (sizes[rank], sizes[peer]);
                    let shares = |other: usize| {
                        let (r, q, m) = holders[other];
                        r == peer
                            && q == replica
                            && if theirs >= mine { m * mine / theirs == member } else { m == member * theirs / mine }
                    };
                    let sends = matches!(task.op(), Op::SendForward | Op::SendBackward);
                    let mut others = (0..holders.len()).filter(|&other| shares(other));
                    if (sends && transport == Transport::Unbounded)
                        || others.all(|other| started.contains(&(other, there)))
                    {
                        (at[own], moved) = (at[own] + 1, true);
                    }
                }
                Event::Meet(_, collective) => {
                    let with = |&other: &usize| {
                        let (r, q, m) = holders[other];
                        r == rank && if collective.among == Among::Members { q == replica } else { m == member }
                    };
                    let group: Vec<usize> = (0..holders.len()).filter(with).collect();
                    if group.iter().all(|&other| rows[other].get(at[other]) == Some(event)) {
                        group.iter().for_each(|&other| at[other] += 1);
                        moved = true;
                    }
                }
            }
        }
        if !moved {
            return rows.iter().zip(at).all(|(row, at)| at == row.len());
        }
    }
}

fn checked() -> impl Strategy<Value = CheckedPlan> {
    let transport = prop_oneof![Just(Transport::Unbounded), Just(Transport::Rendezvous)];
    (any_schedule::plans(4, 2, 4), any::<bool>(), transport).prop_map(|(plan, merge, transport)| {
        let plan = if merge { plan.merge_backward() } else { plan };
        plan.with_transfers().unwrap().check(&CheckOptions { transport, ..CheckOptions::default() }).unwrap()
    })
}

fn lists(among: impl Strategy<Value = Among> + Clone) -> impl Strategy<Value = Collectives> {
    let one = || (among.clone(), "[ab]").prop_map(|(among, what)| collective(among, what));
    let list = || prop::collection::vec(one(), 0..4);
    (list(), list(), list()).prop_map(|(forward, input, weight)| Collectives { forward, input, weight })
}

/// All stages of a plan with lists of their own, the same on all holders.
fn stages(plan: &Plan, lists: &[Collectives], sizes: &[usize], replicas: usize) -> Vec<StageCollectives> {
    let held =
        (0..plan.ranks()).flat_map(|rank| plan.placement().stages_of(rank).into_iter().map(move |stage| (rank, stage)));
    let of = |(place, (rank, stage)): (usize, (usize, StageId))| {
        let holders = vec![Some(lists[place % lists.len()].clone()); replicas * sizes[rank]];
        StageCollectives { stage, members: sizes[rank], holders }
    };
    held.enumerate().map(of).collect()
}

/// One change of a holder's lists.
fn changed(of: &Collectives, kind: usize, at: usize) -> Collectives {
    let mut of = of.clone();
    let other = collective(Among::Members, "c");
    if kind == 4
        && let Some(moved) = of.input.pop()
    {
        of.weight.push(moved);
        return of;
    }
    let list = [&mut of.forward, &mut of.input, &mut of.weight].into_iter().nth(at % 3).unwrap();
    let place = at / 3 % (list.len() + 1);
    match kind {
        0 if place + 1 < list.len() && list[place] != list[place + 1] => list.swap(place, place + 1),
        1 if place < list.len() => drop(list.remove(place)),
        2 if place < list.len() => list[place] = other,
        _ => list.insert(place, other),
    }
    of
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn equal_lists_pass_and_one_change_is_named_where_a_grid_would_stand_still(
        plan in checked(),
        lists in prop::collection::vec(lists(Just(Among::Members)), 1..4),
        sizes in prop::collection::vec(prop_oneof![Just(1), Just(2), Just(4)], 4),
        replicas in 1..3usize,
        (which, holder, kind, at) in (any::<usize>(), any::<usize>(), 0..5usize, any::<usize>()),
    ) {
        let mut of = stages(plan.plan(), &lists, &sizes, replicas);
        prop_assert_eq!(plan.check_collectives(&of), Ok(()));
        prop_assert!(runs(&plan, &of, &sizes, replicas));
        let place = which % of.len();
        let StageCollectives { stage, members, ref mut holders } = of[place];
        let holder = holder % holders.len();
        let before = holders[holder].clone().unwrap();
        let after = changed(&before, kind, at);
        holders[holder] = Some(after.clone());
        let differs = |task: &Task| task.stage() == stage && listed(&before, task.op()) != listed(&after, task.op());
        let rank = plan.plan().placement().rank_of(stage);
        let expected = plan.plan().tasks(rank).find(differs).filter(|_| members > 1);
        let got = plan.check_collectives(&of);
        prop_assert_eq!(got.is_ok(), runs(&plan, &of, &sizes, replicas));
        match got.map_err(|error| *error) {
            Ok(()) => prop_assert_eq!(expected, None),
            Err(CollectiveError::Differ { rank: found, step, action, task, first, second }) => {
                prop_assert_eq!((found, Some(task), action), (rank, expected, plan.plan().row(rank)[step]));
                prop_assert!(action.tasks().any(|of| of == task));
                let (one, two) = (listed(&before, task.op()), listed(&after, task.op()));
                let number = (0..).find(|&number| one.get(number) != two.get(number)).unwrap();
                for standing in [&first, &second] {
                    let list = if standing.replica * members + standing.member == holder { &two } else { &one };
                    prop_assert_eq!((standing.number, standing.collective.as_ref()), (number + 1, list.get(number)));
                }
                let named = |of: &burn_pipeline_plan::plan::Standing| of.replica * members + of.member == holder;
                prop_assert!(named(&first) != named(&second) && first.replica == second.replica);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn collectives_of_members_and_of_replicas_are_refused_exactly_where_a_grid_would_stand_still(
        plan in checked(),
        list in lists(prop_oneof![Just(Among::Members), Just(Among::Replicas)]),
        members in 1..4usize,
        replicas in 1..4usize,
        changes in prop::collection::vec((any::<usize>(), any::<usize>(), 0..3usize, 0..3usize), 0..3),
    ) {
        let sizes = vec![members; 4];
        let mut of = stages(plan.plan(), &[list], &sizes, replicas);
        // Two neighbours change places on some holders, which may leave each group's order unchanged.
        for (which, holder, which_list, place) in changes {
            let place_of = which % of.len();
            let holders = &mut of[place_of].holders;
            let holder = holder % holders.len();
            let own = holders[holder].as_mut().unwrap();
            let list = [&mut own.forward, &mut own.input, &mut own.weight].into_iter().nth(which_list).unwrap();
            if place + 1 < list.len() {
                list.swap(place, place + 1);
            }
        }
        let got = plan.check_collectives(&of);
        prop_assert_eq!(got.is_ok(), runs(&plan, &of, &sizes, replicas), "{:?}", got);
    }
}

/// A plan of one stage, and its holders' forwards, for two replicas of two members.
fn forwards(lists: [&[(Among, &str)]; 4]) -> Result<(), Box<CollectiveError>> {
    let plan = Plan::from_csv("one", "0F0,0B0\n").unwrap().check(&CheckOptions::default()).unwrap();
    let holder = |list: &[(Among, &str)]| {
        let forward = list.iter().map(|&(among, what)| collective(among, what)).collect();
        Some(Collectives { forward, ..Collectives::default() })
    };
    plan.check_collectives(&[StageCollectives { stage: 0.into(), members: 2, holders: lists.map(holder).to_vec() }])
}

#[test]
fn a_circle_of_waits_over_members_and_replicas_is_named() {
    let (sum, tokens) = ((Among::Members, "sum"), (Among::Replicas, "tokens"));
    let (one, other) = ([sum, tokens], [tokens, sum]);
    // Any two holders of a group run the same collectives of that group in the same order.
    let error = *forwards([&one, &other, &other, &one]).unwrap_err();
    let CollectiveError::Cycle { cycle, .. } = &error else { panic!("{error}") };
    let holders: Vec<(usize, usize)> = cycle.iter().map(|standing| (standing.replica, standing.member)).collect();
    assert_eq!(holders, [(0, 0), (0, 1), (1, 1), (1, 0)]);
    assert!(error.to_string().contains("number 1 is `tokens` on member 1 of replica 0"), "{error}");
    // Here the first replica goes on, and then the other one.
    assert_eq!(forwards([&one, &one, &one, &one]), Ok(()));
    assert_eq!(forwards([&one, &one, &other, &other]), Ok(()));
}

#[test]
fn a_holder_whose_list_is_not_known_is_taken_to_follow_and_lists_must_be_of_all_holders() {
    let plan = Plan::from_csv("one", "0F0,0B0\n").unwrap().check(&CheckOptions::default()).unwrap();
    let sum =
        |what: &str| Some(Collectives { forward: vec![collective(Among::Members, what)], ..Collectives::default() });
    let check = |stage: usize, members, holders| {
        plan.check_collectives(&[StageCollectives { stage: stage.into(), members, holders }])
    };
    assert_eq!(check(0, 3, vec![sum("a"), None, sum("a")]), Ok(()));
    let error = *check(0, 3, vec![sum("a"), None, sum("b")]).unwrap_err();
    assert!(matches!(error, CollectiveError::Differ { second, .. } if second.member == 2));
    for (stage, members, lists) in [(1, 1, 1), (0, 2, 3), (0, 0, 0), (0, 1, 0)] {
        let error = check(stage, members, vec![None; lists]).unwrap_err();
        assert_eq!(*error, CollectiveError::Lists { stage: stage.into(), members, lists });
    }
}
