//! Links around other links: what they hand on as it is.

/// Writes methods of [`Link`](crate::link::Link) that call those of the link in a field, for a link around another one: only
/// what it does otherwise is then to be written out.
///
/// `rank, ranks, transport, watch, bring, announce, all_gather, abort` must be there in any case. The others have a
/// meaning without being handed on; leave out what rests on methods that are written out, so that it comes by them.
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
///     burn_pipeline::forward_link!(link: rank, ranks, transport, capabilities, watch, bring, announce, receive);
///     burn_pipeline::forward_link!(link: expect, arrived, all_gather, form_groups, receive_in, abort);
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
    (@ $link:ident capabilities) => {
        fn capabilities(&self) -> $crate::link::Capabilities {
            self.$link.capabilities()
        }
    };
    (@ $link:ident watch) => {
        fn watch(&self) -> ::std::sync::Arc<dyn $crate::link::Watch> {
            self.$link.watch()
        }
    };
    (@ $link:ident bring) => {
        fn bring(&self, payload: $crate::stage::Payload) -> $crate::stage::Payload {
            self.$link.bring(payload)
        }
    };
    (@ $link:ident announce) => {
        fn announce(&mut self, activity: $crate::link::Activity) {
            self.$link.announce(activity);
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
        fn expect(&mut self, messages: &[$crate::link::Expected]) -> Result<(), $crate::link::LinkError> {
            self.$link.expect(messages)
        }
    };
    (@ $link:ident arrived) => {
        fn arrived(
            &mut self,
            from: &[usize],
            deadline: ::std::time::Instant,
        ) -> Result<Option<(usize, $crate::link::Header)>, $crate::link::LinkError> {
            self.$link.arrived(from, deadline)
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
