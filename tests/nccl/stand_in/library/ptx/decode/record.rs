//! Records which instructions kernels have: one opcode in a line of the file that `PTX_RECORD` names. `.ci/run`
//! compares CubeCL's kernels with those of `tests/ptx`.

use crate::ptx::text::Statement;
use std::fs::File;
use std::io::Write;

/// Appends the opcodes of a kernel, each with the function that it calls. Writes once, so that the lines of several
/// processes do not mix.
pub(super) fn record(statements: &[Statement<'_>]) {
    let Some(path) = std::env::var_os("PTX_RECORD") else { return };
    let mut lines = String::new();
    for statement in statements.iter().filter(|statement| !statement.opcode.starts_with('.')) {
        lines.push_str(statement.opcode);
        if let ("call.uni", Some(function)) = (statement.opcode, statement.operands.get(1)) {
            lines.push(' ');
            lines.push_str(function);
        }
        lines.push('\n');
    }
    let written =
        File::options().append(true).create(true).open(path).and_then(|mut file| file.write_all(lines.as_bytes()));
    assert!(written.is_ok(), "PTX_RECORD names a file that can be written");
}
