//! `schedules`: list the families, one line each.

use crate::failure::Failure;
use burn_pipeline_plan::schedule::all;
use std::io::Write;

/// The flags of `schedules`: none.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {}

/// Prints the list in columns.
pub(crate) fn run(_: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    let head = ["name", "placement", "chunks", "microbatches", "source"].map(String::from);
    let families = all().into_iter().map(|schedule| {
        let family = schedule.family();
        let (placement, chunks) = (family.placement.to_string(), family.chunks.to_string());
        [family.name.into(), placement, chunks, family.microbatches.into(), family.source.into()]
    });
    let lines: Vec<[String; 5]> = std::iter::once(head).chain(families).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    for line in &lines {
        for (cell, width) in line.iter().zip(widths) {
            write!(out, "{cell:<width$}  ")?;
        }
        writeln!(out, "{}", line[4])?;
    }
    Ok(())
}
