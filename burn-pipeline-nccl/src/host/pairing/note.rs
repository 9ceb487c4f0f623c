//! Notes by which ranks agree on the order of transfers.

use serde::{Deserialize, Serialize};

/// A note between ranks that agree on an order, besides the offers themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Note {
    /// From the lower rank of a pair: proposes to launch everything offered so far, including this many offers of
    /// its own.
    Propose { offered: u64 },
    /// From the higher rank: agrees, and waits; it has made this many offers.
    Agree { offered: u64 },
    /// From the lower rank, which launches now: launch it too.
    Go,
    /// To the lowest member: the sender is ready for this collective; the bytes describe its part.
    Ready { group: u32, round: u64, part: Vec<u8> },
    /// Upwards: all are ready, and the sender is bound; the bytes describe all parts.
    Call { group: u32, round: u64, parts: Vec<u8> },
    /// From the highest member: launch it.
    Start { group: u32, round: u64 },
    /// The sender leaves, and launches nothing more. It has launched this many collectives of each group.
    Leave { launched: Vec<(u32, u64)> },
}

impl Note {
    /// The note as bytes.
    pub(crate) fn write(&self) -> Vec<u8> {
        // A note can always be encoded.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Reads a note; `None` if the bytes are not one.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (note, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_note_reads_back_and_nothing_else_is_one() {
        let notes = [
            Note::Propose { offered: u64::MAX },
            Note::Agree { offered: 0 },
            Note::Go,
            Note::Ready { group: 7, round: 3, part: vec![1, 2, 3] },
            Note::Call { group: u32::MAX, round: 1, parts: Vec::new() },
            Note::Start { group: 2, round: 9 },
            Note::Leave { launched: Vec::new() },
            Note::Leave { launched: vec![(0, 1), (u32::MAX, u64::MAX)] },
        ];
        for note in notes {
            let bytes = note.write();
            assert_eq!(Note::read(&bytes[..bytes.len() - 1]), None);
            assert_eq!(Note::read(&[bytes.as_slice(), &[0]].concat()), None);
            assert_eq!(Note::read(&bytes), Some(note));
        }
        assert_eq!(Note::read(&[7; 13]), None);
    }
}
