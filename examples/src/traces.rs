//! The files of a measured timeline: a page for browsers, a Chrome trace, an SVG drawing, and the profile for the
//! simulator.
//!
//! 1. A path ending in `.html`, `.json` or `.svg` names all files, except for their endings; any other path is a
//!    folder.
//! 2. The page shows the last step below its prediction. The Chrome trace holds measured and predicted tracks, the
//!    drawing the measured one.
//! 3. Steps are placed end to end: the events of each start when the previous step returned.

use burn_pipeline::cost::Profile;
use burn_pipeline::page::Page;
use burn_pipeline::simulate::Simulation;
use burn_pipeline::trace::{SvgOptions, Track, chrome};
use std::io;
use std::path::{Path, PathBuf};

/// The last measured steps, and one step as the simulator predicts it from them.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The plan's name.
    pub plan: String,
    /// The ranks' events, with the steps end to end.
    pub track: Track,
    /// The last step.
    pub last: Track,
    /// One step, simulated from the measured actions.
    pub predicted: Simulation,
    /// The costs of actions, and the links between ranks.
    pub profile: Profile,
}

/// The paths of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracePaths {
    /// Prediction and measurement on one page.
    pub page: PathBuf,
    /// For Perfetto or `chrome://tracing`.
    pub chrome: PathBuf,
    /// The drawing.
    pub svg: PathBuf,
    /// The measured costs, for `burn-pipeline simulate --profile`.
    pub profile: PathBuf,
}

/// A file or its folder cannot be written.
#[derive(thiserror::Error)]
#[error("the timeline cannot be written to {}: {source}", path.display())]
pub struct TraceError {
    /// The path that cannot be written.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

burn_pipeline::debug_as_text!(TraceError);

impl TracePaths {
    /// The files for the user's path.
    pub fn new(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("html" | "json" | "svg") => Self {
                page: path.with_extension("html"),
                chrome: path.with_extension("json"),
                svg: path.with_extension("svg"),
                profile: path.with_extension("profile.json"),
            },
            _ => Self {
                page: path.join("report.html"),
                chrome: path.join("trace.json"),
                svg: path.join("timeline.svg"),
                profile: path.join("profile.json"),
            },
        }
    }

    /// Creates the folder, so that a path that cannot be written is reported before training.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn prepare(&self) -> Result<(), TraceError> {
        let Some(folder) = self.chrome.parent() else { return Ok(()) };
        std::fs::create_dir_all(folder).map_err(|source| TraceError { path: folder.to_owned(), source })
    }

    /// Writes all files.
    ///
    /// # Errors
    /// If one cannot be written.
    pub fn write(&self, measured: &Measured) -> Result<(), TraceError> {
        let Measured { plan, track, last, predicted, profile } = measured;
        let write = |path: &Path, text: String| {
            std::fs::write(path, text).map_err(|source| TraceError { path: path.to_owned(), source })
        };
        let page = Page::new(plan).costs(profile.clone()).simulation("predicted from the measured actions", predicted);
        write(&self.page, page.track(last).html())?;
        let simulated = predicted.track(format!("{plan}, simulated from the measured actions, one step"));
        write(&self.chrome, chrome(&[track.clone(), simulated]))?;
        write(&self.svg, track.svg(&SvgOptions::default()))?;
        write(&self.profile, profile.to_json())
    }
}

/// One track of several steps, each passed with its length in seconds.
pub fn end_to_end<'a>(name: String, steps: impl Iterator<Item = (f64, &'a Track)>) -> Track {
    let mut joined = Track { name, ..Track::default() };
    let mut offset = 0.0;
    for (seconds, step) in steps {
        joined.ranks = joined.ranks.max(step.ranks);
        joined.events.extend(step.events.iter().cloned().map(|mut event| {
            event.start += offset;
            event.end += offset;
            event
        }));
        offset += seconds;
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_pipeline::trace::Event;

    #[test]
    fn a_path_names_a_folder_or_the_files() {
        let folder = TracePaths::new(Path::new("runs/a.b"));
        assert_eq!(folder.chrome, Path::new("runs/a.b/trace.json"));
        assert_eq!(folder.svg, Path::new("runs/a.b/timeline.svg"));
        assert_eq!(folder.profile, Path::new("runs/a.b/profile.json"));
        assert_eq!(folder.page, Path::new("runs/a.b/report.html"));
        for given in ["x/steps.json", "x/steps.svg", "x/steps.html"] {
            let files = TracePaths::new(Path::new(given));
            assert_eq!(
                (files.chrome.as_path(), files.svg.as_path()),
                (Path::new("x/steps.json"), Path::new("x/steps.svg"))
            );
        }
    }

    #[test]
    fn a_folder_below_a_file_is_refused_by_name() {
        let error = TracePaths::new(Path::new("/dev/null/runs")).prepare().unwrap_err().to_string();
        assert!(error.contains("/dev/null/runs"), "{error}");
    }

    #[test]
    fn steps_are_laid_end_to_end() {
        let event = |start, end| Event { rank: 1, action: "0F0".parse().unwrap(), start, end };
        let step = Track { name: "s".into(), ranks: 2, events: vec![event(0.25, 0.5)] };
        let track = end_to_end("both".into(), [(1.0, &step), (2.0, &step), (3.0, &step)].into_iter());
        assert_eq!(track.events, [event(0.25, 0.5), event(1.25, 1.5), event(3.25, 3.5)]);
        assert_eq!((track.ranks, track.name.as_str()), (2, "both"));
    }
}
