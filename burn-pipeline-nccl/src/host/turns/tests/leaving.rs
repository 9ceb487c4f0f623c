//! Ranks that leave.

use super::super::{Action, Note, Turns};
use super::{Draw, World};

impl World {
    fn leave(&mut self, rank: usize) {
        let actions = self.turns[rank].leave();
        self.act(rank, actions);
    }

    fn has_left(&self, rank: usize) -> bool {
        self.turns[rank].unanswered().is_some_and(|ranks| ranks.is_empty())
    }
}

/// What higher ranks have launched to a leaver is launched by it; what lower ranks have offered is dropped.
#[test]
fn a_rank_that_leaves_launches_what_others_have_launched_to_it() {
    for seed in 0..100 {
        let draw = &mut Draw(seed);
        let mut world = World::new(4, Vec::new());
        let leaver = draw.below(4);
        world.leave(leaver);
        for _ in 0..40 {
            let (from, to) = (draw.below(4), draw.below(4));
            if draw.below(2) == 0 {
                world.deliver(draw);
            } else if from != to && from != leaver && !world.turns[from].has_left(to) {
                world.send(from, to);
            }
            world.run();
        }
        world.finish(draw);
        assert!(world.has_left(leaver), "seed {seed}");
    }
}

#[test]
fn ranks_that_leave_at_the_same_time_answer_each_other() {
    for seed in 0..50 {
        let draw = &mut Draw(seed);
        let mut world = World::new(3, Vec::new());
        for rank in 0..3 {
            while draw.below(3) > 0 && world.deliver(draw) {}
            world.leave(rank);
        }
        world.finish(draw);
        assert!((0..3).all(|rank| world.has_left(rank)), "seed {seed}");
    }
}

/// The leaver has ended the collective, since the highest member has refused it. Another member learns of the leaving
/// first.
#[test]
fn a_collective_that_a_leaver_has_ended_is_still_awaited() {
    let mut turns = Turns::new(1, 3, true, |parts| (parts.concat(), true));
    turns.ready(7, 0, &[0, 1, 2], vec![1]);
    turns.ready(7, 1, &[0, 1, 2], vec![1]);
    turns.receive(0, Note::Leave { ended: vec![(7, 1)] }).unwrap();
    assert!(turns.awaits(7, 0) && !turns.awaits(7, 1) && turns.has_left(0));
    let ended = turns.receive(2, Note::End { group: 7, round: 0, parts: vec![3] }).unwrap();
    assert_eq!(ended, [Action::End { group: 7, round: 0, parts: vec![3] }]);
}
