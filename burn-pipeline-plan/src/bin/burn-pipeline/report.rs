//! `report`: writes a measured trace as one HTML page.

use crate::failure::Failure;
use crate::values::{parse, write};
use burn_pipeline_plan::cost::Profile;
use burn_pipeline_plan::page::Page;
use burn_pipeline_plan::trace::{Track, read_chrome};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The flags of `report`.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The trace, written by `train_gpt` or `simulate --trace`.
    #[arg(value_name = "TRACE.json")]
    trace: PathBuf,
    /// The page.
    #[arg(value_name = "OUT.html")]
    html: PathBuf,
    /// The profile of the stages, for the bytes of transfers.
    #[arg(long, value_name = "FILE.json")]
    profile: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), Failure> {
    let title = arguments.trace.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut page = tracks(&arguments.trace)?.iter().fold(Page::new(title), Page::track);
    if let Some(path) = &arguments.profile {
        page = page.costs(parse(path, Profile::from_json)?);
    }
    write(Some(&arguments.html), || page.html())?;
    writeln!(out, "{}", arguments.html.display())?;
    Ok(())
}

/// Reads the tracks of a trace file.
pub(crate) fn tracks(path: &Path) -> Result<Vec<Track>, Failure> {
    parse(path, read_chrome)
}
