//! The flags of a benchmark. Unlisted flags are refused; `--help` lists the others.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, Error};
use std::str::FromStr;

/// The flags that a bench was given.
#[derive(Debug)]
pub struct Flags(ArgMatches);

impl Flags {
    /// Reads the process's arguments. `known` lists each flag with its help: `("--rounds N", "rounds; 7 if absent")`.
    /// A flag without a value is listed as `("--merge", "..")`. Ends the process on `--help` and on an unlisted flag.
    pub fn read(known: &[(&'static str, &'static str)]) -> Self {
        // `cargo bench` adds `--bench`.
        let flags = known.iter().map(|&(flag, help)| argument(flag).help(help));
        Self(Command::new("bench").args(flags).arg(argument("--bench").hide(true)).get_matches())
    }

    /// True if a flag without a value was given.
    pub fn has(&self, name: &str) -> bool {
        self.0.get_flag(name)
    }

    /// The value of a flag.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get_one::<String>(name).map(String::as_str)
    }

    /// The number given for a flag, or `default`. Ends the process if the value is not a number.
    pub fn number<T: FromStr>(&self, name: &str, default: T) -> T {
        let Some(text) = self.text(name) else { return default };
        let refused = || Error::raw(ErrorKind::InvalidValue, format!("`{name}` takes a number, not `{text}`\n"));
        text.parse().unwrap_or_else(|_| refused().exit())
    }
}

fn argument(flag: &'static str) -> Arg {
    let (name, value) = flag.split_once(' ').map_or((flag, None), |(name, value)| (name, Some(value)));
    let argument = Arg::new(name).long(&name[2..]);
    match value {
        Some(value) => argument.value_name(value),
        None => argument.action(ArgAction::SetTrue),
    }
}
