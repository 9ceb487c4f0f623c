//! The TCP connections that this process has open, read from Linux's `/proc`.

use std::collections::BTreeSet;

/// The socket numbers of this process's established connections.
pub fn established() -> BTreeSet<String> {
    let descriptors = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let targets = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
    let number =
        |target: std::path::PathBuf| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    let own: BTreeSet<String> = targets.filter_map(number).collect();
    let tables =
        ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let rows = tables.iter().flat_map(|table| table.lines().skip(1));
    // The fourth column is the state, 01 if established. The tenth is the socket's number.
    let columns = rows.map(|row| row.split_whitespace().collect::<Vec<_>>());
    let established = columns.filter(|columns| columns.get(3) == Some(&"01"));
    established.filter_map(|columns| own.get(*columns.get(9)?).cloned()).collect()
}
