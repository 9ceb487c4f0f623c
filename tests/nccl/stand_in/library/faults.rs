//! Faults set by environment variables: `RANK:NUMBER` for the process whose variable `RANK` has this value, or
//! `NUMBER` for all. Groups of at most 16 bytes do not count: they connect ranks.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The faults of this process.
#[derive(Default)]
pub struct Faults {
    /// `STAND_IN_SILENT_AFTER`: after this many groups its transfers stop running, without an error.
    pub silent_after: Option<usize>,
    /// `STAND_IN_FAILS_AFTER`: after this many groups its communicators report `ncclSystemError`.
    pub fails_after: Option<usize>,
    /// `STAND_IN_MEMORY`: the bytes of device memory.
    pub memory: Option<usize>,
    /// `STAND_IN_STUCK_AFTER`: like `silent_after`, and aborting does not end the transfers.
    pub stuck_after: Option<usize>,
    /// `STAND_IN_PAUSE_MS`: the minimum duration of every group that counts.
    pub pause: Duration,
    /// `STAND_IN_HIGHEST_FIRST=1`: what two ranks launch, the higher one launches first. No rule of NCCL, but one of
    /// the link under test.
    pub highest_first: bool,
}

/// This process's faults.
pub fn faults() -> &'static Faults {
    static FAULTS: OnceLock<Faults> = OnceLock::new();
    FAULTS.get_or_init(|| {
        let number = |name: &str| {
            let text = std::env::var(name).ok()?;
            let (rank, number) =
                text.split_once(':').map_or((None, text.as_str()), |(rank, number)| (Some(rank), number));
            let mine = rank.is_none_or(|rank| std::env::var("RANK").is_ok_and(|own| own == rank));
            mine.then(|| number.parse::<usize>().unwrap())
        };
        Faults {
            silent_after: number("STAND_IN_SILENT_AFTER"),
            fails_after: number("STAND_IN_FAILS_AFTER"),
            stuck_after: number("STAND_IN_STUCK_AFTER"),
            memory: number("STAND_IN_MEMORY"),
            highest_first: number("STAND_IN_HIGHEST_FIRST") == Some(1),
            pause: Duration::from_millis(number("STAND_IN_PAUSE_MS").unwrap_or_default() as u64),
        }
    })
}

/// The number of groups that count and that this process has started to run.
static GROUPS: AtomicUsize = AtomicUsize::new(0);

/// Counts a group that starts to run.
pub fn count_group() {
    GROUPS.fetch_add(1, Ordering::Relaxed);
}

/// Returns true if more groups have started than a fault lets run.
pub fn is_over(after: Option<usize>) -> bool {
    after.is_some_and(|after| GROUPS.load(Ordering::Relaxed) > after)
}
