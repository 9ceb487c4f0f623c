//! Notes by which ranks take turns.

use serde::{Deserialize, Serialize};

/// A note between ranks, besides the frames of messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Note {
    /// From the higher of two ranks: join the communicator with this id, for messages that the higher rank sends, or
    /// that it receives.
    Connect { sends: bool, id: Vec<u8> },
    /// From the higher of two ranks: it has launched its end of the oldest message that was offered to it. It may ask
    /// for an answer.
    Launched { answer: bool },
    /// From the lowest rank: all have launched the oldest message, or collective of a group, of which that was not
    /// known.
    Whole { group: Option<u32> },
    /// To the highest member: the sender is ready for this collective; the bytes describe its part.
    Part { group: u32, round: u64, part: Vec<u8> },
    /// Down to the next member: all higher members have launched this collective; the bytes describe all parts. The
    /// lowest member may be asked to tell all when it has launched it.
    Launch { group: u32, round: u64, parts: Vec<u8>, answer: bool },
    /// From the highest member: this collective ends without a launch.
    End { group: u32, round: u64, parts: Vec<u8> },
    /// The sender leaves when all have answered. It has launched or ended this many collectives of each group.
    Leave { ended: Vec<(u32, u64)> },
    /// The answer to a rank that leaves: the sender launches nothing more with it.
    Answer,
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
            Note::Connect { sends: true, id: vec![7; 128] },
            Note::Launched { answer: false },
            Note::Whole { group: None },
            Note::Whole { group: Some(u32::MAX) },
            Note::Part { group: 7, round: 3, part: vec![1, 2, 3] },
            Note::Launch { group: u32::MAX, round: 1, parts: Vec::new(), answer: true },
            Note::End { group: 2, round: 9, parts: vec![4] },
            Note::Leave { ended: Vec::new() },
            Note::Leave { ended: vec![(0, 1), (u32::MAX, u64::MAX)] },
            Note::Answer,
        ];
        for note in notes {
            let bytes = note.write();
            assert_eq!(Note::read(&bytes[..bytes.len() - 1]), None);
            assert_eq!(Note::read(&[bytes.as_slice(), &[0]].concat()), None);
            assert_eq!(Note::read(&bytes), Some(note));
        }
        assert_eq!(Note::read(&[11; 13]), None);
    }
}
