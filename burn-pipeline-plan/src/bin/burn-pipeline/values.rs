//! Parsers of the values of flags, and of the files that they name.

use crate::failure::Failure;
use burn_pipeline_plan::cost::Measure;
use burn_pipeline_plan::plan::{PlacementKind, Transport};
use std::path::Path;

/// Parses zero or a positive number: seconds, bytes or a factor.
pub(crate) fn amount(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("write zero or a positive number".into()),
    }
}

/// Parses a positive number.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("write a positive number".into()),
    }
}

/// Parses `rendezvous`, `buffered=K` or `unbounded`.
pub(crate) fn transport(text: &str) -> Result<Transport, String> {
    match text.split_once('=') {
        None if text == "rendezvous" => Ok(Transport::Rendezvous),
        None if text == "unbounded" => Ok(Transport::Unbounded),
        Some(("buffered", room)) => {
            room.parse().map(Transport::Buffered).map_err(|_| format!("`{room}` is not a number of messages"))
        }
        _ => Err("write rendezvous, buffered=K or unbounded".into()),
    }
}

/// Parses a kind of placement.
pub(crate) fn placement(text: &str) -> Result<PlacementKind, String> {
    let kinds = [PlacementKind::Loop, PlacementKind::V, PlacementKind::Wave, PlacementKind::Bidirectional];
    let found = kinds.into_iter().find(|kind| kind.to_string().eq_ignore_ascii_case(text));
    found.ok_or_else(|| "write loop, v, wave or bidirectional".into())
}

/// Parses the measure that cuts balance.
pub(crate) fn measure(text: &str) -> Result<Measure, String> {
    let measures = [Measure::Seconds, Measure::Flops, Measure::Parameters];
    let found = measures.into_iter().find(|measure| format!("{measure:?}").eq_ignore_ascii_case(text));
    found.ok_or_else(|| "write seconds, flops or parameters".into())
}

/// Reads what a text file stands for. An error names the file.
pub(crate) fn parse<T, E: std::fmt::Display>(path: &Path, of: impl FnOnce(&str) -> Result<T, E>) -> Result<T, Failure> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| Failure::Input(format!("cannot read {}: {error}", path.display())))?;
    of(&text).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
}

/// Writes a text file, if a flag names one.
pub(crate) fn write(path: Option<&Path>, text: impl FnOnce() -> String) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, text()).map_err(|error| Failure::Input(format!("cannot write {}: {error}", path.display())))
}
