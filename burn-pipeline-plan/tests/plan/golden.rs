//! Reads the archives under `goldens/` (their README describes them).
//!
//! An archive has one block for each configuration: a header `@ Schedule p=2 v=1 m=4`, then one line a rank, with
//! cells separated by blanks and without idle cells. If PyTorch refused, the header continues with `refused
//! ErrorType: message` and no lines follow.

/// One configuration of an archive.
pub(crate) struct Golden {
    pub(crate) schedule: &'static str,
    pub(crate) ranks: usize,
    pub(crate) chunks: usize,
    pub(crate) microbatches: usize,
    /// One row of cells for each rank, or the message of the refusal.
    pub(crate) rows: Result<Vec<Vec<&'static str>>, &'static str>,
}

impl Golden {
    /// The configuration's name, for messages.
    pub(crate) fn name(&self) -> String {
        format!("{} p={} v={} m={}", self.schedule, self.ranks, self.chunks, self.microbatches)
    }
}

/// All configurations of an archive.
pub(crate) fn read(archive: &'static str) -> Vec<Golden> {
    archive.split("@ ").skip(1).map(block).collect()
}

fn block(text: &'static str) -> Golden {
    let (header, body) = text.split_once('\n').unwrap();
    let mut words = header.splitn(6, ' ');
    let schedule = words.next().unwrap();
    let mut number = |key: &str| words.next().unwrap().strip_prefix(key).unwrap().parse().unwrap();
    let (ranks, chunks, microbatches) = (number("p="), number("v="), number("m="));
    let rows = match words.next() {
        Some("refused") => Err(words.next().unwrap()),
        _ => Ok(body.lines().map(|line| line.split(' ').collect()).collect()),
    };
    Golden { schedule, ranks, chunks, microbatches, rows }
}
