//! Ends a process that has broken a rule.

use std::fmt::Display;
use std::io::Write;

/// The exit status of the process.
const STATUS: i32 = 70;

unsafe extern "C" {
    fn _exit(status: i32) -> !;
}

/// Names the rule and ends the process at once: continuing could succeed by luck.
pub fn broken(rule: &str, details: impl Display) -> ! {
    let _ = writeln!(std::io::stderr(), "stand-in, broken rule: {rule}: {details}");
    // SAFETY: `_exit` takes any status, and nothing runs after it.
    unsafe { _exit(STATUS) }
}
