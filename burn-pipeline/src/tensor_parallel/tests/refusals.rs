//! Members in different collectives, a member that does not come, and orders in a cycle are refused by name.

use super::{caught, members, values};
use crate::link::{LinkError, on_threads};
use crate::tensor_parallel::{Holders, TensorGroup};
use burn::tensor::Tensor;
use burn_pipeline_plan::plan::{Among, CheckOptions, Collective, CollectiveError, Collectives, Plan, StageId};
use proptest::prelude::{ProptestConfig, prop, prop_assert, prop_assert_eq, proptest};
use std::time::Duration;

#[test]
fn members_in_different_collectives_are_named_with_both() {
    let x = || values([2, 2, 2], 0);
    type Other = fn(&TensorGroup, Tensor<3>) -> Tensor<3>;
    let different: [(&str, Other); 3] = [
        ("all-gather along axis 0 of [2, 2, 2]", |group, x| group.all_gather(x, 0)),
        ("all-reduce of [4, 2, 1]", |group, x| group.reduce_from(x.reshape([4, 2, 1]))),
        ("all-reduce of [2, 2, 2] F64", |group, x| group.reduce_from(x.cast(burn::tensor::DType::F64))),
    ];
    for (words, other) in different {
        let got = members(2, |group| {
            drop(if group.member() == 1 { other(group, x()) } else { group.reduce_from(x()) });
        });
        let said = got[0].as_ref().unwrap_err().to_string();
        let own = "rank 0 is at all-reduce of [2, 2, 2] F32, and rank 1";
        assert!(said.starts_with(own) && said.contains(words), "{said}");
        assert!(got[1].is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn lists_of_collectives_that_differ_are_refused_by_their_first_difference(
        lists in prop::collection::vec(prop::option::weighted(0.9, prop::collection::vec("[ab]", 0..3)), 2..4)
    ) {
        let size = lists.len();
        let plan = Plan::from_csv("one", "0F0,0B0\n").unwrap().check(&CheckOptions::default()).unwrap();
        let recorded = |list: &Vec<String>| {
            let forward = list.iter().map(|what| Collective { among: Among::Members, what: what.clone() });
            Collectives { forward: forward.collect(), ..Collectives::default() }
        };
        let got = members(size, |group| {
            let (own, alone) = (lists[group.member()].as_ref().map(recorded), TensorGroup::alone());
            Holders::new(group, &alone).compare(&plan, StageId::new(0), own);
        });
        let different = |one: usize, two: usize| {
            let (one, two) = (lists[one].as_ref()?, lists[two].as_ref()?);
            (0..3).find(|&at| one.get(at) != two.get(at)).map(|at| at + 1)
        };
        let pairs = || (0..size).flat_map(|one| (0..size).map(move |two| (one, two)));
        prop_assert_eq!(got.iter().any(Result::is_err), pairs().any(|(one, two)| different(one, two).is_some()));
        for (rank, got) in got.into_iter().enumerate() {
            match got {
                Err(LinkError::Collectives { rank: own, ranks, source }) => {
                    let CollectiveError::Differ { first, second, .. } = *source else { panic!("{source}") };
                    prop_assert_eq!((own, ranks), (rank, vec![first.member, second.member]));
                    prop_assert_eq!(different(first.member, second.member), Some(first.number));
                    prop_assert_eq!(first.number, second.number);
                }
                // Another rank found the difference first.
                Err(other) => prop_assert!(matches!(other, LinkError::Peer(_) | LinkError::Left { .. }), "{}", other),
                Ok(()) => {}
            }
        }
    }
}

#[test]
fn a_member_that_does_not_come_is_named_at_the_timeout_and_one_that_leaves_at_once() {
    let x = || values([2, 2, 2], 0);
    let got = members(2, |group| {
        if group.member() == 1 {
            std::thread::sleep(Duration::from_secs(3));
        } else {
            drop(group.reduce_from(x()));
        }
    });
    let error = got[0].as_ref().unwrap_err();
    assert!(matches!(error, LinkError::Deadline { rank: 0, peer: 1, .. }), "{error}");
    let got = members(2, |group| {
        if group.member() == 0 {
            drop(group.reduce_from(x()))
        }
    });
    let error = got[0].as_ref().unwrap_err();
    assert!(matches!(error, LinkError::Left { rank: 0, peer: 1, .. }), "{error}");
}

#[test]
fn a_circle_of_members_and_replicas_is_refused_on_all_of_them() {
    use crate::tensor_parallel::group::CutAlong;
    use burn::module::ParamId;
    let plan = Plan::from_csv("one", "0F0,0B0\n").unwrap().check(&CheckOptions::default()).unwrap();
    let (sum, tokens) = ((Among::Members, "sum"), (Among::Replicas, "tokens"));
    let (one, other) = ([sum, tokens], [tokens, sum]);
    // Ranks 0 and 1 are one group, and ranks 2 and 3 another. The collectives of any two ranks match; only their
    // orders differ.
    for (order, cycle) in [([one, other, other, one], true), ([one, one, other, other], false)] {
        let got: Vec<Result<(), LinkError>> = on_threads(4, |rank, mut link| {
            let (replica, member, timeout) = (rank / 2, rank % 2, Duration::from_secs(2));
            let members = TensorGroup::new(member, [2 * replica, 2 * replica + 1], link.stage_end(), timeout);
            let replicas = TensorGroup::new(replica, [member, member + 2], link.stage_end(), timeout);
            let replicas = replicas.of_replicas();
            replicas.cuts.lock().insert(ParamId::new(), CutAlong { axis: 0, whole: 2 });
            let forward = order[rank].map(|(among, what)| Collective { among, what: what.to_owned() });
            let own = Collectives { forward: forward.to_vec(), ..Collectives::default() };
            caught(&mut link, || Holders::new(&members, &replicas).compare(&plan, StageId::new(0), Some(own)))
        });
        assert_eq!(got.iter().all(Result::is_err), cycle, "{got:?}");
        assert_eq!(got.iter().any(Result::is_err), cycle, "{got:?}");
        for error in got.into_iter().filter_map(Result::err) {
            match error {
                LinkError::Collectives { ranks, source, .. } => {
                    assert!(matches!(*source, CollectiveError::Cycle { .. }), "{source}");
                    assert_eq!(ranks, [0, 1, 3, 2]);
                }
                other => assert!(matches!(other, LinkError::Peer(_)), "{other}"),
            }
        }
    }
}
