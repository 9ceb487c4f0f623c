//! `schedules`: lists the schedules, one line each.

use crate::failure::Failure;
use burn_pipeline_plan::schedule::all;
use std::io::Write;

pub(crate) fn run(out: &mut impl Write) -> Result<(), Failure> {
    let head = ["name", "placement", "chunks", "microbatches", "source"].map(String::from);
    let schedules = all().into_iter().map(|schedule| {
        let schedule = schedule.info();
        let (placement, chunks) = (schedule.placement.to_string(), schedule.chunks.to_string());
        [schedule.name.into(), placement, chunks, schedule.microbatches.into(), schedule.source.into()]
    });
    let lines: Vec<[String; 5]> = std::iter::once(head).chain(schedules).collect();
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
