//! Records calls for tests that count them: one line per call in the file `calls-RANK` of the rooms' folder.

use std::fs::OpenOptions;
use std::io::Write;

/// Records a call, if there is a folder.
pub fn note(name: &str) {
    if let (Ok(folder), Ok(rank)) = (std::env::var("STAND_IN_ROOMS"), std::env::var("RANK")) {
        let file = OpenOptions::new().create(true).append(true).open(format!("{folder}/calls-{rank}"));
        writeln!(file.unwrap(), "{name}").unwrap();
    }
}
