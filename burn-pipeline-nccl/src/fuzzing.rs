//! The entry point of fuzz targets (`--cfg fuzzing`): rank 1 of 3 agrees on the order of transfers with ranks that
//! send arbitrary notes.

use crate::host::pairing::{Action, Note, Pairing};
use crate::host::sums;

/// Interprets a script of events, each one byte with its arguments: an offer of this rank, an offer to it, a
/// collective, a note.
///
/// # Panics
/// Panics if it launches a transfer that was not offered.
pub fn agree(mut script: &[u8]) {
    let (mut pairing, mut round) = (Pairing::new(1, 3, sums::join), 0);
    let (mut offered, mut got) = ([0; 3], [0; 3]);
    while let Some((&[what, peer], rest)) = script.split_first_chunk() {
        script = rest;
        let peer = usize::from(peer) % 3;
        let actions = match what % 4 {
            0 => {
                offered[peer] += 1;
                got[peer] += usize::from(peer == 1);
                pairing.offer(peer)
            }
            1 if peer != 1 => {
                got[peer] += 1;
                pairing.offered(peer)
            }
            2 => {
                round += 1;
                let members: &[usize] = if peer == 0 { &[0, 1, 2] } else { &[1, 2] };
                pairing.ready(members.len() as u32, round, members, sums::write("", &[None]))
            }
            3 if peer != 1 => {
                let Some((&length, rest)) = script.split_first() else { return };
                let Some((note, rest)) = rest.split_at_checked(length.into()) else { return };
                script = rest;
                let Some(note) = Note::read(note) else { return };
                assert_eq!(Note::read(&note.write()).as_ref(), Some(&note));
                // The link ends with the refusal.
                let Ok(actions) = pairing.receive(peer, note) else { return };
                actions
            }
            _ => continue,
        };
        for action in actions {
            match action {
                Action::Send(to, _) => assert!(to != 1),
                Action::Exchange { peer, sends, receives } => {
                    offered[peer] = left(offered[peer], sends);
                    got[peer] = left(got[peer], receives);
                }
                Action::Collective { parts, .. } => drop(sums::joined(&parts)),
            }
        }
    }
}

fn left(open: usize, launched: usize) -> usize {
    open.checked_sub(launched).expect("it was offered")
}
