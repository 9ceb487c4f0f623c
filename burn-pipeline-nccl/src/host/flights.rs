//! Launches whose memory the GPU may still use.
//!
//! Guarantees: a launch is dropped only after it was reported that the GPU is done with it. If anything else
//! happens to the thread that keeps it (an error, a panic, a passed closing deadline), it is leaked, and an event
//! says so: leaked memory is better than memory that the GPU writes to after it was given to somebody else.

use std::collections::VecDeque;

/// Launches in the order of the queue.
#[derive(Debug)]
pub(crate) struct Flights<F>(VecDeque<F>);

impl<F> Default for Flights<F> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<F> Flights<F> {
    /// Adds a launch at the end of the queue.
    pub(crate) fn push(&mut self, flight: F) {
        self.0.push_back(flight);
    }

    /// The oldest launch.
    pub(crate) fn oldest(&self) -> Option<&F> {
        self.0.front()
    }

    /// All launches, oldest first.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut F> {
        self.0.iter_mut()
    }

    /// Takes out the oldest launch, which the GPU is done with.
    pub(crate) fn completed(&mut self) -> Option<F> {
        self.0.pop_front()
    }

    /// Returns true if no launch is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops all launches: the queue is empty, so the GPU is done with them.
    pub(crate) fn release(&mut self) {
        self.0.clear();
    }
}

impl<F> Drop for Flights<F> {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            tracing::error!(
                launches = self.0.len(),
                "the GPU has not ended these transfers: their memory is never freed, since it may still be written to"
            );
            std::mem::forget(std::mem::take(&mut self.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Memory that counts when it is freed.
    struct Memory(Arc<AtomicUsize>);

    impl Drop for Memory {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn three() -> (Flights<Memory>, Arc<AtomicUsize>) {
        let (mut flights, freed) = (Flights::default(), Arc::new(AtomicUsize::new(0)));
        (0..3).for_each(|_| flights.push(Memory(freed.clone())));
        (flights, freed)
    }

    #[test]
    fn what_the_gpu_may_still_use_is_leaked_and_what_it_is_done_with_is_freed() {
        let (mut flights, freed) = three();
        drop(flights.completed());
        assert!(!flights.is_empty() && flights.oldest().is_some());
        drop(flights);
        assert_eq!(freed.load(Ordering::Relaxed), 1, "only the launch that had completed");
        let (mut flights, freed) = three();
        flights.release();
        drop(flights);
        assert_eq!(freed.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn launches_are_found_oldest_first() {
        let mut flights = Flights::default();
        (0..4).for_each(|number| flights.push(number));
        assert_eq!(flights.iter_mut().find(|number| **number % 2 > 0), Some(&mut 1));
        assert_eq!(flights.oldest(), Some(&0));
        assert_eq!([flights.completed(), flights.completed()], [Some(0), Some(1)]);
        flights.release();
    }

    #[test]
    fn a_panic_of_the_thread_frees_nothing() {
        let (flights, freed) = three();
        let body = move || {
            let _held = flights;
            std::panic::resume_unwind(Box::new("an error elsewhere"));
        };
        assert!(std::thread::spawn(body).join().is_err());
        assert_eq!(freed.load(Ordering::Relaxed), 0);
    }
}
