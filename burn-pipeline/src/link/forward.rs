//! A macro for links around other links.

/// Writes methods of [`Link`](crate::link::Link) that call the link in a field, for a link that wraps another one.
///
/// Forward `rank, ranks, transport, monitor, to_device, set_activity, all_gather, abort` unless you write them yourself.
/// The other methods have defaults that call these. Do not forward one whose default must call methods that you write.
///
/// ```
/// use burn_pipeline::link::{Header, Link, LinkError, Message};
/// use burn_pipeline::stage::Payload;
/// use std::time::Instant;
///
/// /// Counts what it sends.
/// struct Counting<L> {
///     link: L,
///     sent: usize,
/// }
///
/// impl<L: Link> Link for Counting<L> {
///     burn_pipeline::forward_link!(link: rank, ranks, transport, overlaps, monitor, to_device, set_activity, receive);
///     burn_pipeline::forward_link!(link: expect, probe, all_gather, form_groups, receive_in, abort);
///
///     fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
///         self.sent += 1;
///         self.link.send(to, message, deadline)
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_link {
    ($link:ident: $($method:ident),+ $(,)?) => { $($crate::forward_link!(@ $link $method);)+ };
    (@ $link:ident rank) => {
        fn rank(&self) -> usize {
            self.$link.rank()
        }
    };
    (@ $link:ident ranks) => {
        fn ranks(&self) -> usize {
            self.$link.ranks()
        }
    };
    (@ $link:ident transport) => {
        fn transport(&self) -> $crate::plan::Transport {
            self.$link.transport()
        }
    };
    (@ $link:ident overlaps) => {
        fn overlaps(&self) -> bool {
            self.$link.overlaps()
        }
    };
    (@ $link:ident monitor) => {
        fn monitor(&self) -> ::std::sync::Arc<dyn $crate::link::Monitor> {
            self.$link.monitor()
        }
    };
    (@ $link:ident to_device) => {
        fn to_device(&self, payload: $crate::stage::Payload) -> $crate::stage::Payload {
            self.$link.to_device(payload)
        }
    };
    (@ $link:ident set_activity) => {
        fn set_activity(&mut self, activity: $crate::link::Activity) {
            self.$link.set_activity(activity);
        }
    };
    (@ $link:ident send) => {
        fn send(
            &mut self,
            to: usize,
            message: $crate::link::Message,
            deadline: ::std::time::Instant,
        ) -> Result<(), $crate::link::LinkError> {
            self.$link.send(to, message, deadline)
        }
    };
    (@ $link:ident receive) => {
        fn receive(
            &mut self,
            from: usize,
            header: $crate::link::Header,
            deadline: ::std::time::Instant,
        ) -> Result<$crate::stage::Payload, $crate::link::LinkError> {
            self.$link.receive(from, header, deadline)
        }
    };
    (@ $link:ident expect) => {
        fn expect(&mut self, messages: &[$crate::link::ExpectedMessage]) -> Result<(), $crate::link::LinkError> {
            self.$link.expect(messages)
        }
    };
    (@ $link:ident probe) => {
        fn probe(
            &mut self,
            from: &[usize],
            deadline: ::std::time::Instant,
        ) -> Result<Option<(usize, $crate::link::Header)>, $crate::link::LinkError> {
            self.$link.probe(from, deadline)
        }
    };
    (@ $link:ident all_gather) => {
        fn all_gather(
            &mut self,
            bytes: Vec<u8>,
            deadline: ::std::time::Instant,
        ) -> Result<Vec<Vec<u8>>, $crate::link::LinkError> {
            self.$link.all_gather(bytes, deadline)
        }
    };
    (@ $link:ident form_groups) => {
        fn form_groups(
            &mut self,
            groups: &[Vec<usize>],
            deadline: ::std::time::Instant,
        ) -> Result<(), $crate::link::LinkError> {
            self.$link.form_groups(groups, deadline)
        }
    };
    (@ $link:ident send_in) => {
        fn send_in(
            &mut self,
            group: usize,
            to: usize,
            message: $crate::link::Message,
            deadline: ::std::time::Instant,
        ) -> Result<(), $crate::link::LinkError> {
            self.$link.send_in(group, to, message, deadline)
        }
    };
    (@ $link:ident receive_in) => {
        fn receive_in(
            &mut self,
            group: usize,
            from: usize,
            header: $crate::link::Header,
            deadline: ::std::time::Instant,
        ) -> Result<$crate::stage::Payload, $crate::link::LinkError> {
            self.$link.receive_in(group, from, header, deadline)
        }
    };
    (@ $link:ident abort) => {
        fn abort(&mut self, message: String) {
            self.$link.abort(message);
        }
    };
}
