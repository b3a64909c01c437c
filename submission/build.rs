//! Lists the rounds of `configs/rounds`, oldest first: a new round is a new file.

use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../configs/rounds");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut rounds = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        if path.extension().is_some_and(|end| end == "yaml") && name != "rehearsal" {
            let numbers = name.split(|c: char| !c.is_ascii_digit());
            let version: Vec<u32> = numbers.filter_map(|n| n.parse().ok()).collect();
            rounds.push((version, format!("({name:?}, include_str!({path:?}))")));
        }
    }
    rounds.sort();
    let list: Vec<_> = rounds.into_iter().map(|(_, round)| round).collect();
    let text = format!("&[{}]", list.join(", "));
    fs::write(Path::new(&env::var("OUT_DIR")?).join("rounds.rs"), text)?;
    Ok(())
}
