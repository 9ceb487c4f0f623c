//! A macro for links that wrap other links.

/// Writes methods of [`Link`](crate::link::Link) that call the link in a field, or behind a path in parentheses, such
/// as `(0.lock().link)`.
///
/// Forward `rank, ranks, monitor, to_device, set_activity, all_gather, abort` unless you write them yourself. The
/// other methods have defaults that call these. Do not forward a method whose default must call methods that you
/// write. Forward `interrupt, recover` if the pipeline is to go on after a failure that left the weights unchanged,
/// and the wrapped link can do so; a wrapper that stores messages must drop them in its own `recover`.
///
/// ```
/// use burn_pipeline::link::{Header, Link, LinkError, Message};
/// use burn_pipeline::payload::Payload;
/// use std::time::Instant;
///
/// /// Counts what it sends.
/// struct Counting<L> {
///     link: L,
///     sent: usize,
/// }
///
/// impl<L: Link> Link for Counting<L> {
///     burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, set_activity, receive);
///     burn_pipeline::forward_link!(link: probe, all_gather, abort);
///
///     fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
///         self.sent += 1;
///         self.link.send(to, message, deadline)
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_link {
    ($link:tt: $($method:ident),+ $(,)?) => { $($crate::forward_link!(@ $link $method);)+ };
    (@ $link:tt rank) => { $crate::forward_link!(@get $link rank(self) -> usize); };
    (@ $link:tt ranks) => { $crate::forward_link!(@get $link ranks(self) -> usize); };
    (@ $link:tt monitor) => {
        $crate::forward_link!(@get $link monitor(self) -> ::std::sync::Arc<dyn $crate::link::Monitor>);
    };
    (@ $link:tt to_device) => {
        $crate::forward_link!(@get $link to_device(self, payload: $crate::payload::Payload)
            -> $crate::payload::Payload);
    };
    (@ $link:tt set_activity) => {
        $crate::forward_link!(@do $link set_activity(self, activity: $crate::link::Activity));
    };
    (@ $link:tt send) => {
        $crate::forward_link!(@do $link send(self, to: usize, message: $crate::link::Message,
            deadline: ::std::time::Instant) -> Result<(), $crate::link::LinkError>);
    };
    (@ $link:tt receive) => {
        $crate::forward_link!(@do $link receive(self, from: usize, header: $crate::link::Header,
            deadline: ::std::time::Instant) -> Result<$crate::payload::Payload, $crate::link::LinkError>);
    };
    (@ $link:tt probe) => {
        $crate::forward_link!(@do $link probe(self, from: &[usize], deadline: ::std::time::Instant)
            -> Result<Option<(usize, $crate::link::Header)>, $crate::link::LinkError>);
    };
    (@ $link:tt all_gather) => {
        $crate::forward_link!(@do $link all_gather(self, bytes: Vec<u8>, deadline: ::std::time::Instant)
            -> Result<Vec<Vec<u8>>, $crate::link::LinkError>);
    };
    (@ $link:tt barrier) => {
        $crate::forward_link!(@do $link barrier(self, deadline: ::std::time::Instant)
            -> Result<(), $crate::link::LinkError>);
    };
    (@ $link:tt abort) => { $crate::forward_link!(@do $link abort(self, message: String)); };
    (@ $link:tt interrupt) => { $crate::forward_link!(@do $link interrupt(self, message: String)); };
    (@ $link:tt recover) => {
        $crate::forward_link!(@do $link recover(self, deadline: ::std::time::Instant)
            -> Result<(), $crate::link::LinkError>);
    };
    (@of $this:ident ($($path:tt)+)) => { $this.$($path)+ };
    (@of $this:ident $link:tt) => { $this.$link };
    (@get $link:tt $name:ident($this:ident $(, $argument:ident: $type:ty)*) $(-> $out:ty)?) => {
        fn $name(&$this $(, $argument: $type)*) $(-> $out)? {
            $crate::forward_link!(@of $this $link).$name($($argument),*)
        }
    };
    (@do $link:tt $name:ident($this:ident $(, $argument:ident: $type:ty)*) $(-> $out:ty)?) => {
        fn $name(&mut $this $(, $argument: $type)*) $(-> $out)? {
            $crate::forward_link!(@of $this $link).$name($($argument),*)
        }
    };
}
