//! Launches whose memory the GPU may still use.
//!
//! Guarantees: a launch is dropped only after it was reported that the GPU is done with it. If anything else
//! happens to the thread that keeps it (an error, a panic, a passed closing deadline), it is leaked, and an event
//! says so: leaked memory is better than memory that the GPU writes to after it was given to somebody else.
//! Notes that all ranks have launched a launch come in the order of launches, and may come after its completion.

use std::collections::VecDeque;

/// Launches in the order of the queue.
#[derive(Debug)]
pub(crate) struct Flights<F> {
    flights: VecDeque<F>,
    /// Launches that are done.
    done: usize,
    /// Launches of which a note has come.
    noted: usize,
}

impl<F> Default for Flights<F> {
    fn default() -> Self {
        Self { flights: VecDeque::new(), done: 0, noted: 0 }
    }
}

impl<F> Flights<F> {
    /// Adds a launch at the end of the queue.
    pub(crate) fn push(&mut self, flight: F) {
        self.flights.push_back(flight);
    }

    /// The oldest launch.
    pub(crate) fn oldest(&self) -> Option<&F> {
        self.flights.front()
    }

    /// The launch that all ranks have launched, as the next note says; `None` if the GPU is done with it.
    pub(crate) fn noted(&mut self) -> Option<&mut F> {
        let place = self.noted.checked_sub(self.done);
        self.noted += 1;
        self.flights.get_mut(place?)
    }

    /// Takes out the oldest launch, which the GPU is done with.
    pub(crate) fn completed(&mut self) -> Option<F> {
        let flight = self.flights.pop_front();
        self.done += usize::from(flight.is_some());
        flight
    }

    /// Returns true if no launch is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Drops all launches: the queue is empty, so the GPU is done with them.
    pub(crate) fn release(&mut self) {
        self.done += self.flights.len();
        self.flights.clear();
    }
}

impl<F> Drop for Flights<F> {
    fn drop(&mut self) {
        if !self.flights.is_empty() {
            tracing::error!(
                launches = self.flights.len(),
                "the GPU has not ended these transfers: their memory is never freed, since it may still be written to"
            );
            std::mem::forget(std::mem::take(&mut self.flights));
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
    fn a_note_is_of_the_launch_of_its_number_also_if_that_is_done() {
        let mut flights = Flights::default();
        (0..4).for_each(|number| flights.push(number));
        assert_eq!(flights.noted(), Some(&mut 0));
        assert_eq!(flights.oldest(), Some(&0));
        assert_eq!([flights.completed(), flights.completed()], [Some(0), Some(1)]);
        // The GPU was done with launch 1 before its note came.
        assert_eq!([flights.noted().copied(), flights.noted().copied()], [None, Some(2)]);
        flights.release();
        flights.push(4);
        assert_eq!([flights.noted().copied(), flights.noted().copied()], [None, Some(4)]);
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
