//! A message that cannot be made is an error of its task, and the link still works: the call is undone.

use super::processes::each_over;
use super::{Extras, RATE, assert_undone, batch, builder, stages, weights};
use crate::watchdog::within;
use burn::tensor::Device;
use burn_pipeline::link::{Link, LinkError, Message, MessageKind, WireError};
use std::time::Instant;

const MICROBATCHES: usize = 4;

/// A link that cannot read its third activation from the device.
struct Unreadable {
    link: Box<dyn Link>,
    why: WireError,
    left: usize,
}

impl Link for Unreadable {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, set_activity, receive, probe);
    burn_pipeline::forward_link!(link: all_gather, barrier, abort, interrupt, recover);

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        if message.header.kind == MessageKind::Activation {
            self.left = self.left.wrapping_sub(1);
            if self.left == 0 {
                return Err(LinkError::Unsent { rank: self.rank(), peer: to, source: self.why.clone() });
            }
        }
        self.link.send(to, message, deadline)
    }
}

#[test]
fn a_tensor_that_the_device_does_not_give_is_its_tasks_error_and_leaves_no_trace() {
    within(180, "tensors that cannot be read", || {
        let make = || builder(("1F1B", 1), 2, MICROBATCHES).stages(stages(1, Extras::default()));
        let mut twin = make().build().unwrap();
        twin.step(batch(0, MICROBATCHES, None), RATE).unwrap();
        let message = || "no room".to_owned();
        let memory = format!("out of memory on {:?}: no room", Device::flex());
        for (why, says) in [
            (WireError::DeviceMemory { message: message() }, memory.as_str()),
            (WireError::Device { message: message() }, "the device reported: no room"),
        ] {
            for tcp in [false, true] {
                let unreadable =
                    |link: Box<dyn Link>| -> Box<dyn Link> { Box::new(Unreadable { link, why: why.clone(), left: 3 }) };
                let all = each_over((tcp, &unreadable), 2, make, |_, pipeline| {
                    let place = "rank 0, stage 0, microbatch 2, SEND_F: ";
                    assert_undone(pipeline.step(batch(9, MICROBATCHES, None), RATE), true, &format!("{place}{says}"));
                    pipeline.step(batch(0, MICROBATCHES, None), RATE).unwrap();
                    weights(pipeline)
                });
                assert!(all.iter().all(|got| *got == weights(&mut twin)), "{why:?}, over TCP: {tcp}");
            }
        }
    });
}
