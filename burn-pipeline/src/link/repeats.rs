//! What repeats among the messages of one rank to another, so that a repeated message needs no header of its own and its
//! receiver can have memory waiting for it.
//!
//! Guarantees: sender and receiver keep this table each for itself, and both come to the same one, since both see the
//! same messages in the same order; so nothing is agreed on over the wire. Shapes may change with any message.
//!
//! 1. Messages of one direction to one stage are a stream. The forms of its last message are known.
//! 2. When a message has the forms of the one before it in its stream, the stream gets a number: from then on messages
//!    with these forms go as a [`Repeat`](super::Repeat) with that number, and the receiver may expect the next one.
//!    A message whose forms are known before it comes ([`Link::expect`](super::Link::expect)) gets its number then.
//! 3. A message with other forms goes with its whole frame and ends the number, which is never given again. So streams
//!    whose shapes change with every message are never numbered; after [`MOST`] numbers none is given any more.

use super::Direction;
use super::wire::CHECKSUM;
use super::wire::codes::direction_code;
use std::collections::HashMap;

/// Numbers that are given between two ranks, one way: MPI promises 32,767 tags.
const MOST: u16 = 30_000;

/// What a frame says, up to its microbatch: whom it is for, and the forms of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outline<'a> {
    /// Direction, replica, stage, and the stage at the other end.
    pub(super) stream: [u8; 14],
    /// Parts.
    pub(super) forms: &'a [u8],
    /// The microbatch.
    pub(super) microbatch: usize,
}

impl<'a> Outline<'a> {
    /// May the like of it come again? Not so of tensors that are read or handed out for once.
    pub(super) fn recurs(&self) -> bool {
        let once = [Direction::Spread, Direction::Output].map(|direction| direction_code(direction).0);
        !once.contains(&self.stream[0])
    }

    /// Of a frame that [`Packed::new`] has written or [`Frame::read`] has taken; `None` for anything shorter.
    pub(super) fn of(frame: &'a [u8]) -> Option<Self> {
        let content = &frame[..frame.len().checked_sub(CHECKSUM)?];
        let (head, forms) = content.split_first_chunk::<32>()?;
        let mut stream = [0; 14];
        stream[..6].copy_from_slice(&head[6..12]);
        stream[6..].copy_from_slice(&head[24..]);
        let (microbatch, _) = head[16..].split_first_chunk()?;
        Some(Self { stream, forms, microbatch: usize::try_from(u64::from_le_bytes(*microbatch)).ok()? })
    }
}

/// The table of one rank's messages to another.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    streams: HashMap<[u8; 14], Stream>,
    given: u16,
}

#[derive(Debug)]
struct Stream {
    forms: Vec<u8>,
    number: Option<u16>,
}

/// How a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Noted {
    /// As what this number stands for.
    Repeat(u16),
    /// With its whole frame; the next one may be a repetition with this number.
    Opens(u16),
    /// With its whole frame; this number ends.
    Ends(u16),
    /// With its whole frame.
    Whole,
}

/// What an expected message changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Primed {
    /// This number ends.
    pub(super) ends: Option<u16>,
    /// The next message may be a repetition with this number.
    pub(super) opens: Option<u16>,
}

impl Repeats {
    /// Notes a message.
    pub(super) fn note(&mut self, message: &Outline<'_>) -> Noted {
        if !message.recurs() {
            return Noted::Whole;
        }
        let Some(stream) = self.streams.get_mut(&message.stream) else {
            self.streams.insert(message.stream, Stream { forms: message.forms.to_vec(), number: None });
            return Noted::Whole;
        };
        if stream.forms != message.forms {
            stream.forms = message.forms.to_vec();
            return stream.number.take().map_or(Noted::Whole, Noted::Ends);
        }
        if let Some(number) = stream.number {
            return Noted::Repeat(number);
        }
        if self.given == MOST {
            return Noted::Whole;
        }
        self.given += 1;
        stream.number = Some(self.given);
        Noted::Opens(self.given)
    }

    /// Notes the forms that the next message of a stream is expected to have: they get a number, if they have none.
    pub(super) fn prime(&mut self, message: &Outline<'_>) -> Primed {
        let forms = message.forms.to_vec();
        let stream = self.streams.entry(message.stream).or_insert(Stream { forms: Vec::new(), number: None });
        let same = stream.forms == forms;
        let ends = stream.number.take_if(|_| !same);
        stream.forms = forms;
        if stream.number.is_some() || self.given == MOST {
            return Primed { ends, opens: None };
        }
        self.given += 1;
        stream.number = Some(self.given);
        Primed { ends, opens: stream.number }
    }

    /// Ends all numbers.
    pub(super) fn end(&mut self) -> Vec<u16> {
        self.streams.values_mut().filter_map(|stream| stream.number.take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(repeats: &mut Repeats, stream: u8, forms: &str) -> Noted {
        repeats.note(&Outline { stream: [stream; 14], forms: forms.as_bytes(), microbatch: 0 })
    }

    #[test]
    fn the_third_of_equal_messages_is_a_repetition_until_another_form_comes() {
        let mut repeats = Repeats::default();
        let noted: Vec<Noted> =
            ["a", "a", "a", "a", "b", "a", "a", "a"].map(|forms| note(&mut repeats, 0, forms)).into();
        use Noted::{Ends, Opens, Repeat, Whole};
        assert_eq!(noted, [Whole, Opens(1), Repeat(1), Repeat(1), Ends(1), Whole, Opens(2), Repeat(2)]);
        assert_eq!(repeats.end(), [2]);
        assert_eq!(note(&mut repeats, 0, "a"), Opens(3));
    }

    fn prime(repeats: &mut Repeats, stream: u8, forms: &str) -> (Option<u16>, Option<u16>) {
        let Primed { ends, opens } =
            repeats.prime(&Outline { stream: [stream; 14], forms: forms.as_bytes(), microbatch: 0 });
        (ends, opens)
    }

    #[test]
    fn an_expected_message_is_a_repetition_from_the_first_and_another_one_is_not() {
        let mut repeats = Repeats::default();
        assert_eq!(prime(&mut repeats, 0, "a"), (None, Some(1)));
        assert_eq!(prime(&mut repeats, 0, "a"), (None, None), "it waits already");
        assert_eq!(note(&mut repeats, 0, "a"), Noted::Repeat(1));
        assert_eq!(prime(&mut repeats, 0, "b"), (Some(1), Some(2)), "other forms are expected from now on");
        assert_eq!(note(&mut repeats, 0, "c"), Noted::Ends(2));
        assert_eq!(note(&mut repeats, 0, "b"), Noted::Whole);
        // What has come twice has a number: nothing new.
        assert_eq!(note(&mut repeats, 0, "b"), Noted::Opens(3));
        assert_eq!(prime(&mut repeats, 0, "b"), (None, None));
        assert_eq!(prime(&mut repeats, 1, "b"), (None, Some(4)));
        assert_eq!(repeats.given, 4);
    }

    #[test]
    fn streams_are_apart_and_changing_ones_are_never_numbered() {
        let mut repeats = Repeats::default();
        for turn in 0..10 {
            assert_eq!(note(&mut repeats, 1, ["a", "b"][turn % 2]), Noted::Whole);
            let expected = [Noted::Whole, Noted::Opens(1)].get(turn).copied().unwrap_or(Noted::Repeat(1));
            assert_eq!(note(&mut repeats, 2, "a"), expected);
        }
    }

    #[test]
    fn numbers_run_out_and_messages_go_on() {
        let mut repeats = Repeats::default();
        for number in 1..=MOST {
            let form = number.to_string();
            note(&mut repeats, 0, &form);
            assert_eq!(note(&mut repeats, 0, &form), Noted::Opens(number));
        }
        assert_eq!(prime(&mut repeats, 1, "a"), (None, None));
        for forms in ["a", "a", "a"] {
            assert!(!matches!(note(&mut repeats, 0, forms), Noted::Opens(_) | Noted::Repeat(_)));
        }
    }
}
