//! Writes the results of a measurement as JSON.

use std::{fs::File, io::Write, path::Path};

use anyhow::{Context, Result};
use serde::Serialize;

/// Writes the results, usually rows, to `path`, if given.
pub fn write(path: Option<&Path>, results: &(impl Serialize + ?Sized)) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut file = File::create(path).with_context(|| path.display().to_string())?;
    serde_json::to_writer_pretty(&mut file, results)?;
    writeln!(file)?;
    Ok(())
}
