//! What ranks tell each other to agree on an order, and its bytes: a code, a group, a number (little-endian), and the rest.

/// What ranks tell each other, beside the offers themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::link) enum Note {
    /// From the lower rank of a pair: let us launch what was offered so far; I have offered so many.
    Propose { offered: u64 },
    /// From the higher rank: so be it; I have offered so many.
    Agree { offered: u64 },
    /// To the lowest member: I am ready for this collective; these bytes describe my part of it.
    Ready { group: u32, round: u64, part: Vec<u8> },
    /// Upwards: all are ready, and I am bound; these bytes describe all parts.
    Call { group: u32, round: u64, parts: Vec<u8> },
    /// From the highest member: launch it.
    Go { group: u32, round: u64 },
}

impl Note {
    /// As bytes.
    pub(in crate::link) fn write(&self) -> Vec<u8> {
        let pieces: (u8, u32, u64, &[u8]) = match self {
            Note::Propose { offered } => (0, 0, *offered, &[]),
            Note::Agree { offered } => (1, 0, *offered, &[]),
            Note::Ready { group, round, part } => (2, *group, *round, part),
            Note::Call { group, round, parts } => (3, *group, *round, parts),
            Note::Go { group, round } => (4, *group, *round, &[]),
        };
        let (code, group, number, rest) = pieces;
        let mut bytes = vec![code];
        bytes.extend(group.to_le_bytes());
        bytes.extend(number.to_le_bytes());
        bytes.extend(rest);
        bytes
    }

    /// From bytes; `None` if they are no note.
    pub(in crate::link) fn read(bytes: &[u8]) -> Option<Self> {
        let (&code, rest) = bytes.split_first()?;
        let (&group, rest) = rest.split_first_chunk()?;
        let (&number, rest) = rest.split_first_chunk()?;
        let (group, round) = (u32::from_le_bytes(group), u64::from_le_bytes(number));
        match code {
            0 if rest.is_empty() => Some(Note::Propose { offered: round }),
            1 if rest.is_empty() => Some(Note::Agree { offered: round }),
            2 => Some(Note::Ready { group, round, part: rest.to_vec() }),
            3 => Some(Note::Call { group, round, parts: rest.to_vec() }),
            4 if rest.is_empty() => Some(Note::Go { group, round }),
            _ => None,
        }
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
            Note::Ready { group: 7, round: 3, part: vec![1, 2, 3] },
            Note::Call { group: u32::MAX, round: 1, parts: Vec::new() },
            Note::Go { group: 2, round: 9 },
        ];
        for note in notes {
            let bytes = note.write();
            assert_eq!(Note::read(&bytes), Some(note));
            assert_eq!(Note::read(&bytes[..12]), None);
        }
        assert_eq!(Note::read(&[5; 13]), None);
        assert_eq!(Note::read(&[4; 14]), None);
    }
}
