//! The end of a process that has broken a rule.

use std::fmt::Display;
use std::io::Write;

/// The status with which the process ends.
const STATUS: i32 = 70;

unsafe extern "C" {
    fn _exit(status: i32) -> !;
}

/// Names the rule and ends the process at once: whatever ran on would have had luck.
pub fn broken(rule: &str, details: impl Display) -> ! {
    let _ = writeln!(std::io::stderr(), "stand-in, broken rule: {rule}: {details}");
    // SAFETY: it takes any status, and nothing runs after it.
    unsafe { _exit(STATUS) }
}
