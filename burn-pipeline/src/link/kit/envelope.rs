//! What two processes send each other on a link: messages and the link's own control envelopes.
//!
//! The encoding is postcard's. Bytes that are not exactly one envelope are refused.

use crate::link::error::Failure;
use crate::link::moving_deadline::Pace;
use serde::{Deserialize, Serialize};

/// What one process sends another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Envelope {
    /// A message, as the bytes of its [`Frame`](super::Frame); its tensors follow.
    Message(Vec<u8>),
    /// The sender's bytes for a gather.
    Gather {
        /// Which gather, counted from 0.
        round: u64,
        /// The sender's bytes.
        bytes: Vec<u8>,
    },
    /// A rank failed, or left.
    Failed {
        /// What failed.
        failure: Failure,
        /// How many recoveries the sender has ended.
        recoveries: u64,
        /// How many gathers it has ended since: a rank that has ended fewer recoveries, or gathers, does so first.
        gathers: u64,
    },
    /// Asks the receiver what it is doing.
    Ask {
        /// The question's number.
        question: u64,
    },
    /// The answer to a question.
    Answer {
        /// The question's number.
        question: u64,
        /// What the sender is doing.
        answer: Answer,
    },
    /// The sender closes the link: nothing more comes from it.
    Close,
    /// A rank's call failed, but the link still works.
    Interrupted {
        /// What failed.
        failure: Failure,
        /// How many gathers the sender has ended since its last recovery: a rank that is still in one of them ends it
        /// first.
        gathers: u64,
    },
    /// The sender has recovered from an interruption: its earlier messages are dropped.
    Recovered,
}

/// What a rank is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The rank that it waits for, if it waits.
    pub waits_for: Option<usize>,
    /// What it is doing, as text.
    pub activity: String,
    /// How long that may take.
    pub pace: Pace,
}

impl Envelope {
    /// The envelope as bytes.
    pub fn write(&self) -> Vec<u8> {
        // Numbers and text always have an encoding. The receiver refuses an empty envelope.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Reads an envelope; `None` if the bytes are not exactly one. Control characters in the other end's text are
    /// escaped.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (mut envelope, left) = postcard::take_from_bytes(bytes).ok()?;
        match &mut envelope {
            Envelope::Failed { failure: Failure { message: text, .. }, .. }
            | Envelope::Interrupted { failure: Failure { message: text, .. }, .. }
            | Envelope::Answer { answer: Answer { activity: text, .. }, .. } => *text = printable(text),
            Envelope::Message(_)
            | Envelope::Gather { .. }
            | Envelope::Ask { .. }
            | Envelope::Close
            | Envelope::Recovered => {}
        }
        left.is_empty().then_some(envelope)
    }
}

/// Escapes the control characters of another process's text, except newlines: they would act on a terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() && letter != '\n' {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(question: u64, waits_for: Option<usize>, activity: &str, pace: Pace) -> Envelope {
        Envelope::Answer { question, answer: Answer { waits_for, activity: activity.to_owned(), pace } }
    }

    fn envelopes() -> Vec<Envelope> {
        vec![
            Envelope::Message(vec![1, 2, 3]),
            Envelope::Gather { round: u64::MAX, bytes: vec![0, 255, 7] },
            Envelope::Gather { round: 0, bytes: Vec::new() },
            Envelope::Failed {
                failure: Failure { rank: 3, message: "rank 3, stage 1: ä".to_owned() },
                recoveries: 2,
                gathers: 300,
            },
            Envelope::Ask { question: 7 },
            answer(7, None, "is running 1F2", Pace::Long),
            answer(8, Some(0), "is itself waiting", Pace::Idle),
            Envelope::Close,
            Envelope::Interrupted { failure: Failure { rank: 1, message: "microbatch 2".to_owned() }, gathers: 3 },
            Envelope::Recovered,
        ]
    }

    #[test]
    fn every_envelope_reads_back() {
        for envelope in envelopes() {
            assert_eq!(Envelope::read(&envelope.write()), Some(envelope));
        }
    }

    #[test]
    fn texts_of_others_give_terminals_no_orders() {
        let told = |message: &str| {
            let failure = Failure { rank: 1, message: message.to_owned() };
            let bytes = Envelope::Failed { failure, recoveries: 0, gathers: 0 }.write();
            let Some(Envelope::Failed { failure, .. }) = Envelope::read(&bytes) else { panic!("it is a failure") };
            failure.message
        };
        assert_eq!(told("a\n\u{1b}[2Jb\r\u{7}\u{9b}ä"), "a\n\\u{1b}[2Jb\\r\\u{7}\\u{9b}ä");
    }

    #[test]
    fn other_bytes_are_no_envelope() {
        for envelope in envelopes() {
            let bytes = envelope.write();
            for length in 0..bytes.len() {
                assert_eq!(Envelope::read(&bytes[..length]), None, "{length} bytes of {envelope:?}");
            }
            assert_eq!(Envelope::read(&[&bytes[..], &[0]].concat()), None, "{envelope:?} and a byte");
        }
        // An unknown kind, and text that is not UTF-8.
        for bytes in [&[8][..], &[2, 0, 1, 0xff]] {
            assert_eq!(Envelope::read(bytes), None, "{bytes:?}");
        }
    }
}
