//! Tests of every file in `configs/`, except the rounds of `submission`, which configure no node,
//! and gateways' files, which the crate `gateway` tests.

use std::path::{Path, PathBuf};

use super::*;

pub(crate) fn config_files() -> Vec<PathBuf> {
    let mut folders = vec![configs()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with("rounds") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "yaml") && !begins(&path, "gateway") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Returns whether the file is a frontend's: its name begins with `frontend`.
fn is_frontend(file: &Path) -> bool {
    begins(file, "frontend")
}

fn begins(file: &Path, word: &str) -> bool {
    file.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with(word))
}

#[test]
fn every_file_in_configs_is_right_and_its_sides_agree() {
    let files = config_files();
    assert!(files.len() >= 7, "{files:?}");
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let (origin, base) = (file.display().to_string(), file.parent().unwrap());
        if !is_frontend(file) {
            in_code(good(parse_accelerator(&text, &origin, base)));
            continue;
        }
        let frontend = in_code(good(parse_frontend(&text, &origin, base)));
        // An accelerator's file beside it has the address, the model, and another name.
        for called in &frontend.accelerators {
            let found = files
                .iter()
                .filter(|f| f.parent() == file.parent() && !is_frontend(f))
                .map(|f| {
                    let text = std::fs::read_to_string(f).unwrap();
                    good(parse_accelerator(&text, "", base))
                })
                .find(|a| a.control.listen.to_string() == called.control)
                .unwrap_or_else(|| {
                    panic!("{origin}: no accelerator listens at {}", called.control)
                });
            assert_ne!(found.node, frontend.node);
            assert_eq!(found.model.name, frontend.model.name);
            if let Some(spec) = found.model.spec() {
                frontend.model.check_against(&spec).unwrap();
            }
        }
    }
}
