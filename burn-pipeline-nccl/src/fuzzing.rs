//! The entry point of fuzz targets (`--cfg fuzzing`): rank 1 of 3 takes turns with ranks that send arbitrary notes.

use crate::host::sums;
use crate::host::turns::{Action, Lane, Note, Turns};
use std::collections::BTreeMap;

/// Interprets a script of events, each one byte with its arguments: a message of this rank, a message to it, a
/// collective, a note.
///
/// # Panics
/// Panics if it launches a message that was not sent, or a collective that it was not ready for.
pub fn take_turns(mut script: &[u8]) {
    let (mut turns, mut rounds) = (Turns::new(1, 3, true, sums::join), BTreeMap::<u32, u64>::new());
    let mut open = BTreeMap::<Lane, usize>::new();
    while let Some((&[what, peer], rest)) = script.split_first_chunk() {
        script = rest;
        let peer = usize::from(peer) % 3;
        let actions = match what % 4 {
            0 if peer != 1 && !turns.has_left(peer) => {
                *open.entry(Lane::To(peer)).or_default() += 1;
                let launch = turns.send(peer).then_some(Action::Launch(Lane::To(peer), None));
                launch.into_iter().collect()
            }
            1 if peer != 1 && turns.accepts(peer) => {
                *open.entry(Lane::From(peer)).or_default() += 1;
                turns.arrived(peer)
            }
            2 => {
                let members: &[usize] = if peer == 0 { &[0, 1, 2] } else { &[0, 1] };
                let round = rounds.entry(members.len() as u32).or_default();
                *round += 1;
                turns.ready(members.len() as u32, *round - 1, members, sums::write("", &[None]))
            }
            3 if peer != 1 => {
                let Some((&length, rest)) = script.split_first() else { return };
                let Some((note, rest)) = rest.split_at_checked(length.into()) else { return };
                script = rest;
                let Some(note) = Note::read(note) else { return };
                assert_eq!(Note::read(&note.write()).as_ref(), Some(&note));
                // The link ends with the refusal.
                let Ok(actions) = turns.receive(peer, note) else { return };
                actions
            }
            _ => continue,
        };
        for action in actions {
            match action {
                Action::Send(to, _) => assert!(to != 1),
                Action::Launch(lane, _) => {
                    let left = open.get(&lane).and_then(|open| open.checked_sub(1));
                    open.insert(lane, left.expect("it was sent"));
                }
                Action::Collective { group, round, parts, .. } | Action::End { group, round, parts } => {
                    assert!(round < rounds[&group]);
                    drop(sums::joined(&parts));
                }
                Action::Whole(_) => {}
            }
        }
    }
}
