//! The text form of stages, tasks and actions: `2F0`, `1UNSHARD`, `'3SEND_F1`, `(0F7;7B3)OVERLAP_F_B`.
//!
//! Guarantees: the output of [`Display`](std::fmt::Display) parses back to the same value. The parser also accepts
//! surrounding spaces, leading zeros of numbers, and an empty text for an idle slot. It refuses everything else
//! with the reason; PyTorch's parser reads `0F0junk` as `0F0`.

use super::action::Action;
use super::error::PlanError;
use super::op::Op;
use super::stage_id::StageId;
use super::task::Task;
use std::str::FromStr;

impl FromStr for Action {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        action(text).map_err(|reason| PlanError::Action { cell: None, text: text.to_owned(), reason })
    }
}

impl FromStr for Task {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        task(text.trim()).map_err(|reason| PlanError::Action { cell: None, text: text.to_owned(), reason })
    }
}

/// Parses an action, or returns what is wrong with the text.
pub(super) fn action(text: &str) -> Result<Action, &'static str> {
    let trimmed = text.trim();
    match trimmed.strip_prefix('(') {
        _ if trimmed.is_empty() => Ok(Action::Idle),
        Some(rest) => overlap(rest),
        None => task(trimmed).map(Action::Single),
    }
}

fn overlap(rest: &str) -> Result<Action, &'static str> {
    let inside = rest.strip_suffix(")OVERLAP_F_B").ok_or("a fused action ends in `)OVERLAP_F_B`")?;
    let (first, second) = inside.split_once(';').ok_or("a fused action holds two tasks with `;` between them")?;
    let (first, second) = (task(first.trim())?, task(second.trim())?);
    match first.of_microbatch().zip(second.of_microbatch()) {
        Some((forward, backward)) if forward.op() == Op::Forward && backward.op().is_backward() => {
            Ok(Action::Overlap(forward, backward))
        }
        _ => Err("a fused action holds a forward, then a backward (B, I or W)"),
    }
}

fn task(text: &str) -> Result<Task, &'static str> {
    let (route, text) = match text.strip_prefix('\'') {
        Some(rest) => (1, rest),
        None => (0, text),
    };
    let (stage, rest) = text.split_at(digits(text));
    let (symbol, microbatch) = rest.split_at(rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len()));
    if stage.is_empty() {
        return Err("it does not start with a stage number");
    }
    let stage: u16 = stage.parse().map_err(|_| "its stage number is above 65535")?;
    let stage = StageId::in_route(route, stage.into());
    let op = Op::from_symbol(symbol).ok_or("its operation is unknown")?;
    match (op.has_microbatch(), microbatch) {
        (true, "") => Err("its operation needs a microbatch"),
        (true, text) => {
            let moved = op.awaits().unwrap_or(op);
            let sign = if moved.is_send() { '>' } else { '<' };
            let (number, peer) = match text.split_once(sign) {
                Some((number, peer)) if moved.is_transfer() => (number, Some(peer)),
                _ => (text, None),
            };
            if digits(number) < number.len() {
                return Err("there is something after the microbatch");
            }
            let microbatch = number.parse().ok().filter(|&m| m <= Task::MAX_MICROBATCHES);
            let microbatch = microbatch.ok_or("its microbatch number is too large")?;
            peer.map_or(Ok(Task::new(stage, op, microbatch)), |peer| skip(stage, op, microbatch, peer))
        }
        (false, "") => Ok(Task::whole_stage(stage, op)),
        (false, _) => Err("its operation takes no microbatch"),
    }
}

/// Parses the peer of a skip transfer.
fn skip(stage: StageId, op: Op, microbatch: usize, peer: &str) -> Result<Task, &'static str> {
    let bad = "the stage at its other end must be a number, 2 to 127 stages on in the transfer's direction";
    let peer = if digits(peer) == peer.len() { peer.parse::<usize>().map_err(|_| bad)? } else { return Err(bad) };
    let (before, after) = if op.is_towards_next() { (stage.index(), peer) } else { (peer, stage.index()) };
    let span = after.checked_sub(before).filter(|span| (2..=Task::MAX_SKIP).contains(span));
    span.map(|_| Task::skip(stage, op, microbatch, peer)).ok_or(bad)
}

/// The length of the leading run of digits.
fn digits(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_parses_and_prints_the_same() {
        let texts = "2F0 0I3 1W12 7B3 3SEND_F1 3RECV_F1 0SEND_B4 0RECV_B4 '3F0 \
                     1UNSHARD 1RESHARD '2REDUCE_GRAD (0F7;7B3)OVERLAP_F_B ('2F2;1B0)OVERLAP_F_B \
                     0SEND_F2>3 3RECV_F2<0 '3SEND_B2>0 '0RECV_B2<127 \
                     0WAIT_SEND_F2>3 3WAIT_RECV_F2<0 '3WAIT_SEND_B2>0 '0WAIT_RECV_B2<127 \
                     2WAIT_SEND_F3 2WAIT_RECV_F3 '2WAIT_SEND_B3 2WAIT_RECV_B3 1WAIT_UNSHARD 1WAIT_REDUCE_GRAD \
                     7S3 7T3 0IF2 0IB2 7BCAST_S3 7REDUCE_S3 0REDUCE_IF2 0BCAST_IB2";
        for text in texts.split(' ').chain([""]) {
            assert_eq!(text.parse::<Action>().unwrap().to_string(), text);
        }
        assert_eq!(" 2F0 ".parse::<Action>(), Ok(Action::forward(2, 0)));
    }

    #[test]
    fn anything_else_is_refused_with_its_reason() {
        let reason = |text: &str| action(text).unwrap_err();
        assert_eq!(reason("0F0junk"), "there is something after the microbatch");
        assert_eq!(reason("F0"), "it does not start with a stage number");
        assert_eq!(reason("0X0"), "its operation is unknown");
        assert_eq!(reason("0F"), "its operation needs a microbatch");
        assert_eq!(reason("0UNSHARD3"), "its operation takes no microbatch");
        assert_eq!(reason("0WAIT_SEND_F"), "its operation needs a microbatch");
        assert_eq!(reason("0WAIT_UNSHARD3"), "its operation takes no microbatch");
        assert_eq!(reason("0WAIT_RESHARD"), "its operation is unknown");
        assert_eq!(reason("70000F0"), "its stage number is above 65535");
        for text in
            ["0SEND_F2>1", "0SEND_F2>128", "3RECV_F2<4", "0SEND_B0>2", "0SEND_F2>", "0SEND_F2>x", "0SEND_F2>3>4"]
        {
            assert!(reason(text).starts_with("the stage at its other end"), "{text}");
        }
        for text in ["0F2>3", "0SEND_F2<3", "3RECV_F2>0", "0WAIT_SEND_F2<3", "3WAIT_RECV_F2>0"] {
            assert_eq!(reason(text), "there is something after the microbatch", "{text}");
        }
        assert_eq!(reason("0F99999999999"), "its microbatch number is too large");
        assert_eq!(reason("(0F1;1F0)OVERLAP_F_B"), "a fused action holds a forward, then a backward (B, I or W)");
        assert_eq!(reason("(0F1)OVERLAP_F_B"), "a fused action holds two tasks with `;` between them");
        assert_eq!(reason("(0F1;1B0)"), "a fused action ends in `)OVERLAP_F_B`");
        assert_eq!(reason("0é0"), "its operation is unknown");
    }
}
