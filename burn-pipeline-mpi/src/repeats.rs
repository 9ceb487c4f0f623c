//! Finds repeating messages from one rank to another: a repeated message needs no frame of its own, and its
//! receiver can post the memory for it before it arrives.
//!
//! Guarantees: sender and receiver keep one table each, and the tables are equal, because both see the same
//! messages in the same order. So nothing is agreed on over the wire. Shapes may change with any message.
//!
//! 1. Messages of one kind to one stage are a stream. The table has the frame of each stream's last message.
//! 2. When a message has the same frame as the previous one of its stream, except for the microbatch, the stream
//!    gets a number. From then on messages with this frame are sent as a
//!    [`Repeat`](burn_pipeline::link::kit::Repeat) with that number, and the receiver posts receives for the next
//!    one.
//! 3. A message with another frame is sent with its whole frame and ends the number, which is not used again. So a
//!    stream whose shapes change with every message never gets a number. After [`MOST`] numbers no more are given.

use burn_pipeline::link::kit::Frame;
use burn_pipeline::link::{Header, MessageKind};
use std::collections::HashMap;

/// The most numbers from one rank to another: MPI guarantees 32,767 tags.
const MOST: u16 = 30_000;

/// Returns true if a message may be repeated. Outputs and tensors outside of a plan are sent once, and messages of
/// a group's collectives contain a text that differs each time.
fn recurs(frame: &Frame) -> bool {
    !matches!(frame.header().kind, MessageKind::Tensors { .. } | MessageKind::Output | MessageKind::Member)
}

/// The table of the messages from one rank to another.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// By header, with microbatch 0.
    streams: HashMap<Header, Stream>,
    given: u16,
}

#[derive(Debug)]
struct Stream {
    /// The last message's frame, for microbatch 0.
    last: Frame,
    number: Option<u16>,
}

/// How a message is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Noted {
    /// As a repeat with this number.
    Repeat(u16),
    /// With its whole frame; the next message may be a repeat with this number.
    Opens(u16),
    /// With its whole frame; this number ends.
    Ends(u16),
    /// With its whole frame.
    Whole,
}

impl Repeats {
    /// Records a message.
    pub(crate) fn note(&mut self, frame: &Frame) -> Noted {
        if !recurs(frame) {
            return Noted::Whole;
        }
        let frame = frame.for_microbatch(0);
        let Some(stream) = self.streams.get_mut(&frame.header()) else {
            self.streams.insert(frame.header(), Stream { last: frame, number: None });
            return Noted::Whole;
        };
        if stream.last != frame {
            stream.last = frame;
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

    /// Ends all numbers.
    pub(crate) fn end(&mut self) -> Vec<u16> {
        self.streams.values_mut().filter_map(|stream| stream.number.take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor};
    use burn_pipeline::link::Message;
    use burn_pipeline::payload::Boundary;
    use burn_pipeline::plan::StageId;

    /// A message of a stream, with one tensor of `elements` elements.
    fn frame(stream: u16, elements: usize, microbatch: usize) -> Frame {
        let header = Header { stage: StageId::new(usize::from(stream)), microbatch, kind: MessageKind::Activation };
        let tensor = Tensor::<1>::zeros([elements], &Device::flex());
        Frame::of(&Message { header, payload: tensor.into_payload() }).unwrap()
    }

    fn note(repeats: &mut Repeats, stream: u16, elements: usize) -> Noted {
        repeats.note(&frame(stream, elements, elements))
    }

    #[test]
    fn the_third_of_equal_messages_is_a_repetition_until_another_form_comes() {
        let mut repeats = Repeats::default();
        let noted: Vec<Noted> = [1, 1, 1, 1, 2, 1, 1, 1].map(|elements| note(&mut repeats, 0, elements)).into();
        use Noted::{Ends, Opens, Repeat, Whole};
        assert_eq!(noted, [Whole, Opens(1), Repeat(1), Repeat(1), Ends(1), Whole, Opens(2), Repeat(2)]);
        assert_eq!(repeats.end(), [2]);
        assert_eq!(note(&mut repeats, 0, 1), Opens(3));
    }

    #[test]
    fn streams_are_apart_and_changing_ones_are_never_numbered() {
        let mut repeats = Repeats::default();
        for turn in 0..10 {
            assert_eq!(note(&mut repeats, 1, [1, 2][turn % 2]), Noted::Whole);
            let expected = [Noted::Whole, Noted::Opens(1)].get(turn).copied().unwrap_or(Noted::Repeat(1));
            assert_eq!(note(&mut repeats, 2, 1), expected);
        }
    }

    #[test]
    fn numbers_run_out_and_messages_go_on() {
        let mut repeats = Repeats::default();
        for number in 1..=MOST {
            let frame = frame(0, usize::from(number), 0);
            repeats.note(&frame);
            assert_eq!(repeats.note(&frame), Noted::Opens(number));
        }
        for elements in [1, 1, 1] {
            assert!(!matches!(note(&mut repeats, 0, elements), Noted::Opens(_) | Noted::Repeat(_)));
        }
    }
}
