//! What two processes tell each other on a link: messages, rows of a gather, questions, failures.
//!
//! One byte says which; a [`Frame`](crate::link::Frame) follows as it is, other fields little-endian.

use crate::link::Failure;

/// What one process tells another.
#[derive(Debug, Clone, PartialEq)]
pub enum Letter {
    /// The frame of a message; its tensors follow.
    Message(Vec<u8>),
    /// This rank's row of a gather.
    Row {
        /// Which gather.
        round: u64,
        /// The row.
        bytes: Vec<u8>,
    },
    /// A rank failed.
    Failed(Failure),
    /// What are you doing?
    Ask {
        /// The question's number.
        question: u64,
    },
    /// The answer to a question.
    Answer {
        /// The question's number.
        question: u64,
        /// The rank that the answering one waits for, if it does.
        waits_for: Option<usize>,
        /// What it is doing.
        activity: String,
    },
    /// Nothing more comes on this link.
    Bye,
}

impl Letter {
    /// As bytes.
    pub fn write(&self) -> Vec<u8> {
        let (code, rest) = match self {
            Letter::Message(frame) => (0, frame.clone()),
            Letter::Row { round, bytes } => (1, [&round.to_le_bytes(), bytes.as_slice()].concat()),
            Letter::Failed(failure) => (2, numbered(failure.rank as u64, &failure.message)),
            Letter::Ask { question } => (3, question.to_le_bytes().to_vec()),
            Letter::Answer { question, waits_for, activity } => {
                let waits_for = waits_for.map_or(u64::MAX, |rank| rank as u64);
                (4, question.to_le_bytes().into_iter().chain(numbered(waits_for, activity)).collect())
            }
            Letter::Bye => (5, Vec::new()),
        };
        let mut bytes = Vec::with_capacity(rest.len() + 1);
        bytes.push(code);
        bytes.extend(rest);
        bytes
    }

    /// From bytes; `None` if they are no letter.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (&code, rest) = bytes.split_first()?;
        match code {
            0 => Some(Letter::Message(rest.to_vec())),
            1 => {
                let (&round, rest) = rest.split_first_chunk()?;
                Some(Letter::Row { round: u64::from_le_bytes(round), bytes: rest.to_vec() })
            }
            2 => read_numbered(rest).map(|(rank, message)| Letter::Failed(Failure { rank: rank as usize, message })),
            3 => rest.try_into().ok().map(|question| Letter::Ask { question: u64::from_le_bytes(question) }),
            4 => {
                let (&question, rest) = rest.split_first_chunk()?;
                let (waits_for, activity) = read_numbered(rest)?;
                let waits_for = Some(waits_for as usize).filter(|_| waits_for != u64::MAX);
                Some(Letter::Answer { question: u64::from_le_bytes(question), waits_for, activity })
            }
            5 => rest.is_empty().then_some(Letter::Bye),
            _ => None,
        }
    }
}

fn numbered(number: u64, text: &str) -> Vec<u8> {
    number.to_le_bytes().into_iter().chain(text.bytes()).collect()
}

fn read_numbered(bytes: &[u8]) -> Option<(u64, String)> {
    let (&number, text) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(number), String::from_utf8(text.to_vec()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_letter_reads_back() {
        let failure = Failure { rank: 3, message: "rank 3, stage 1: ä".to_owned() };
        let letters = [
            Letter::Message(vec![1, 2, 3]),
            Letter::Row { round: u64::MAX, bytes: vec![0, 255, 7] },
            Letter::Row { round: 0, bytes: Vec::new() },
            Letter::Failed(failure),
            Letter::Ask { question: 7 },
            Letter::Answer { question: 7, waits_for: None, activity: "is running 1F2".to_owned() },
            Letter::Answer { question: 8, waits_for: Some(0), activity: "is itself waiting".to_owned() },
            Letter::Bye,
        ];
        for letter in letters {
            assert_eq!(Letter::read(&letter.write()), Some(letter));
        }
    }

    #[test]
    fn other_bytes_are_no_letter() {
        for bytes in [&[][..], &[6], &[5, 0], &[1, 0, 0], &[3, 1], &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0xff], &[4; 12]] {
            assert_eq!(Letter::read(bytes), None, "{bytes:?}");
        }
    }
}
