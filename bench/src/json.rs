//! Where the rows of a measurement go.

use std::{fs::File, io::Write, path::Path};

use anyhow::{Context, Result};
use serde::Serialize;

/// Writes the rows to `path`, where one was given.
pub fn write(path: Option<&Path>, rows: &[impl Serialize]) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut file = File::create(path).with_context(|| path.display().to_string())?;
    serde_json::to_writer_pretty(&mut file, rows)?;
    writeln!(file)?;
    Ok(())
}
