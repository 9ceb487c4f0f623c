//! Burn's operations panic on what does not fit, and `burn-pipeline` catches that and makes an error of it.

use std::panic::{set_hook, take_hook};

/// Lets panics in Burn pass, if they are caught; those in this repository still end the target.
pub fn allow_in_burn() {
    let end = take_hook();
    set_hook(Box::new(move |panic| {
        if panic.location().is_none_or(|at| at.file().starts_with("burn-pipeline") || at.file().starts_with("fuzz")) {
            end(panic);
        }
    }));
}
