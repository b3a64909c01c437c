//! Lists of what a folder has.

use std::{fs, path::Path};

/// Names of the folders in `of`, sorted; empty if `of` does not exist.
pub fn folders(of: &Path) -> Vec<String> {
    names(of, |path| path.is_dir())
}

/// Names of the files in `of`, sorted; empty if `of` does not exist.
pub fn files(of: &Path) -> Vec<String> {
    names(of, |path| path.is_file())
}

fn names(of: &Path, keep: impl Fn(&Path) -> bool) -> Vec<String> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    let kept = entries.filter(|e| keep(&e.path()));
    let names = kept.filter_map(|e| e.file_name().into_string().ok());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}
