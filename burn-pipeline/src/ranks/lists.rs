//! What a set exchanges as lists of tensors.
//!
//! Guarantees: lists come in the order of places, and sums are added in that order, so a sum has the same bits on all
//! members; half precision is added in f32 and rounded once; no cycle of waits.
//!
//! 1. A start sends each other member its list, and does not wait: the same for all ([`RankSet::send_list`], an
//!    all-gather), or another for each ([`RankSet::send_lists`], a reduce-scatter or an all-to-all).
//! 2. An end receives the others' lists ([`RankSet::receive_lists`]) or adds them as they come
//!    ([`RankSet::sum_lists`]).
//! 3. A list is one message: one buffer for each element type ([`list`](super::list)).
//! 4. All return a [`LinkError`] if another rank failed, the deadline passed, or a list is refused.

use super::list::{ListSum, TensorList, pack, unpack};
use super::set::RankSet;
use crate::link::{Header, LinkError};
use crate::payload::Payload;

impl RankSet {
    /// Starts a collective: sends each other member the list for its place, and posts the list that comes back.
    pub(crate) fn send_lists(
        &self,
        header: Header,
        mut list: impl FnMut(usize) -> TensorList,
    ) -> Result<(), LinkError> {
        self.others().try_for_each(|to| self.send_and_post(to, header, pack(list(to.0))))
    }

    /// Starts an all-gather: as [`RankSet::send_lists`], with one list for all, which is packed once.
    pub(crate) fn send_list(&self, header: Header, list: TensorList) -> Result<(), LinkError> {
        let packed = pack(list);
        self.others().try_for_each(|to| self.send_and_post(to, header, packed.clone()))
    }

    fn send_and_post(&self, (place, peer): (usize, usize), header: Header, list: Payload) -> Result<(), LinkError> {
        self.send(place, header, list)?;
        self.with_messages(|messages| messages.post(peer, header));
        Ok(())
    }

    /// Ends a collective: waits for the lists of all members, each of which must pass `check`, and returns them in the
    /// order of places, with this rank's own.
    pub(crate) fn receive_lists(
        &self,
        header: Header,
        own: TensorList,
        check: impl Fn(&TensorList) -> Result<(), String>,
    ) -> Result<Vec<TensorList>, LinkError> {
        self.each_list(header, own, check).collect()
    }

    /// Ends a collective: as [`RankSet::receive_lists`], and adds the lists. A tensor that one member lacks counts as
    /// zero there; one that all members lack stays `None`.
    pub(crate) fn sum_lists(
        &self,
        header: Header,
        own: TensorList,
        check: impl Fn(&TensorList) -> Result<(), String>,
    ) -> Result<TensorList, LinkError> {
        let mut total = ListSum::default();
        for (place, list) in self.each_list(header, own, check).enumerate() {
            // The list that does not match is this rank's own, or the other's.
            let peer = if place == self.place() { self.ranks()[0] } else { self.ranks()[place] };
            total.add(list?).map_err(|reason| self.refused(peer, reason))?;
        }
        Ok(total.rounded())
    }

    /// Receives the posted messages that have arrived, without waiting. Returns the ranks from which nothing has come.
    pub(crate) fn receive_arrived(&self) -> Result<Vec<usize>, LinkError> {
        if self.size() == 1 {
            return Ok(Vec::new());
        }
        let others = self.others().map(|(_, rank)| rank);
        self.over_link(|link, _| self.with_messages(|messages| messages.receive_arrived(link, others, self.deadline())))
    }

    /// Returns true if a sum may be sent before its turn: members see what has arrived.
    pub(crate) fn may_overtake(&self) -> bool {
        self.with_messages(|messages| messages.can_look())
    }

    /// Returns true if this message of each other member was received and not yet used.
    pub(crate) fn has_all(&self, header: Header) -> bool {
        self.with_messages(|messages| self.others().all(|(_, rank)| messages.has(rank, header)))
    }

    /// Sums lists over the set: a start and its end.
    pub(crate) fn all_reduce_lists(&self, header: Header, own: TensorList) -> Result<TensorList, LinkError> {
        self.send_list(header, own.clone())?;
        self.sum_lists(header, own, |_| Ok(()))
    }

    /// The lists of all members in the order of places, each received when it is asked for.
    fn each_list(
        &self,
        header: Header,
        own: TensorList,
        check: impl Fn(&TensorList) -> Result<(), String>,
    ) -> impl Iterator<Item = Result<TensorList, LinkError>> {
        let mut own = Some(own);
        (0..self.size()).map(move |place| {
            if let Some(own) = own.take_if(|_| place == self.place()) {
                return Ok(own);
            }
            let list = unpack(self.receive(place, header)?);
            let list = list.and_then(|list| check(&list).map(|()| list));
            list.map_err(|reason| self.refused(self.ranks()[place], reason))
        })
    }

    fn refused(&self, peer: usize, reason: String) -> LinkError {
        LinkError::Lists { rank: self.rank(), peer, reason }
    }
}

/// A door for fuzzing: the sum over these ranks, of which this is the first.
///
/// # Errors
/// Returns [`LinkError`] for lists that cannot be read or added.
#[cfg(fuzzing)]
pub fn sum_over_ranks(
    link: Box<dyn crate::link::Link>,
    ranks: &[usize],
    tensors: Vec<Option<crate::payload::AnyTensor>>,
    timeout: std::time::Duration,
) -> Result<Vec<Option<crate::payload::AnyTensor>>, LinkError> {
    let link = crate::link::SharedLink::new(link);
    let set = RankSet::new(0, ranks.iter().copied(), link.stage_end(), timeout);
    set.all_reduce_lists(Header::of(crate::link::MessageKind::Collective { group: 0 }), tensors)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::link::{Link, MessageKind, SharedLink, on_threads};
    use crate::payload::AnyTensor;
    use burn::tensor::{DType, Device, Int, Tensor};
    use proptest::prelude::{ProptestConfig, Strategy};
    use proptest::{prop_assert_eq, proptest};
    use std::time::Duration;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn header(set: usize) -> Header {
        Header::of(MessageKind::Collective { group: set })
    }

    /// Two numbers, and the same in another element type and shape.
    fn list(number: f32) -> TensorList {
        let floats = Tensor::<1>::from_floats([number, number / 3.0], &Device::flex());
        let doubles = floats.clone().cast(DType::F64).reshape([2, 1, 1]);
        vec![Some(AnyTensor::new(floats)), None, Some(AnyTensor::new(doubles))]
    }

    /// A set, and for each rank whether it has values to add.
    type Set = (Vec<usize>, Vec<bool>);

    fn sets() -> impl Strategy<Value = Vec<Set>> {
        let ranks = proptest::collection::btree_set(0usize..5, 1..=5).prop_map(|ranks| ranks.into_iter().collect());
        proptest::collection::vec((ranks, proptest::collection::vec(proptest::bool::ANY, 5)), 1..6)
    }

    /// What a rank adds: whole numbers and a third of them, which show the order of additions.
    fn own(rank: usize, gives: bool) -> TensorList {
        if gives { list(0.1 * (rank + 1) as f32) } else { vec![None; 3] }
    }

    /// The results of one rank after the sums over all of its sets.
    fn run(rank: usize, link: &SharedLink, sets: &[Set]) -> Vec<TensorList> {
        let mine = sets.iter().enumerate().filter(|(_, (ranks, _))| ranks.contains(&rank));
        let sum = |(number, (ranks, gives)): (usize, &Set)| {
            let place = ranks.iter().position(|&other| other == rank).unwrap();
            let set = RankSet::new(place, ranks.iter().copied(), link.stage_end(), TIMEOUT);
            set.all_reduce_lists(header(number), own(rank, gives[rank])).unwrap()
        };
        mine.map(sum).collect()
    }

    fn bits(lists: Vec<TensorList>) -> Vec<Option<Vec<f64>>> {
        let numbers = |tensor: AnyTensor| tensor.to_data().unwrap().iter::<f64>().collect();
        lists.into_iter().flatten().map(|tensor| tensor.map(numbers)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn overlapping_sets_are_summed_in_rank_order(sets in sets()) {
            let sums = on_threads(5, |rank, link| run(rank, &link, &sets));
            for (rank, sums) in sums.into_iter().enumerate() {
                let mine = sets.iter().filter(|(ranks, _)| ranks.contains(&rank));
                let add = |ours: TensorList, theirs: TensorList| {
                    let plus = |(a, b): (Option<AnyTensor>, Option<AnyTensor>)| match (a, b) {
                        (Some(a), Some(b)) => Some(a.plus(b)),
                        (a, b) => a.or(b),
                    };
                    ours.into_iter().zip(theirs).map(plus).collect()
                };
                let expected = mine.map(|(ranks, gives)| ranks.iter().map(|&r| own(r, gives[r])).reduce(add).unwrap());
                prop_assert_eq!(bits(sums), bits(expected.collect()));
            }
        }
    }

    /// The error of rank 0 where two ranks sum these lists.
    fn refused(lists: &[TensorList; 2]) -> LinkError {
        let sums = on_threads(2, |rank, mut link| {
            let set = RankSet::new(rank, [0, 1], link.stage_end(), TIMEOUT);
            set.all_reduce_lists(header(0), lists[rank].clone()).inspect_err(|error| link.abort(error.to_string()))
        });
        sums.into_iter().next().unwrap().unwrap_err()
    }

    #[test]
    fn lists_that_do_not_match_are_refused_with_both_ranks() {
        let ints = || vec![Some(AnyTensor::new(Tensor::<1, Int>::zeros([4], &Device::flex())))];
        let square = vec![Some(AnyTensor::new(Tensor::<2>::zeros([1, 2], &Device::flex()))), None, None];
        for (lists, reason) in [
            ([list(1.0), vec![None]], "1 tensors came, 3 are held"),
            ([list(1.0), square], "a tensor"),
            ([ints(), ints()], "only floats are added"),
        ] {
            let error = refused(&lists);
            assert!(matches!(&error, LinkError::Lists { rank: 0, peer: 1, .. }), "{error}");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
}
