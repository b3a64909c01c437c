//! Checks that pages and pictures of a tree say something.

use std::path::Path;

/// Fewest letters and digits of a page.
const LETTERS: usize = 20;
/// Beginnings of pictures' files, besides SVG.
const PICTURES: [(&str, &[u8]); 5] = [
    ("png", b"\x89PNG"),
    ("jpg", b"\xff\xd8"),
    ("jpeg", b"\xff\xd8"),
    ("gif", b"GIF8"),
    ("pdf", b"%PDF"),
];

/// Why a page or a picture is none; `None` if it is sound, or cannot be read.
pub(super) fn fault(path: &Path) -> Option<String> {
    let bytes = crate::error::bytes(path).ok()?;
    let end = path.extension().unwrap_or_default().to_string_lossy();
    let end = end.to_ascii_lowercase();
    if let Some((_, begin)) = PICTURES.iter().find(|(known, _)| *known == end) {
        return (!bytes.starts_with(begin)).then(|| format!("it is no picture: no {end}"));
    }
    let text = String::from_utf8_lossy(&bytes);
    let begin = text.trim_start_matches('\u{feff}').trim_start();
    let begin: String = begin.chars().take(4096).collect();
    let is_xml = ["<svg", "<?xml", "<!--", "<!DOCTYPE svg"];
    if end == "svg" && !(is_xml.iter().any(|b| begin.starts_with(b)) && begin.contains("<svg")) {
        return Some("it is no picture: no SVG".to_owned());
    }
    let begin = begin.to_ascii_lowercase();
    if end != "html"
        && ["<!doctype html", "<html"]
            .iter()
            .any(|b| begin.starts_with(b))
    {
        return Some("it is a page of HTML".to_owned());
    }
    if text.contains('\0') {
        return Some("it has a NUL, so it is no text".to_owned());
    }
    let is_conflict = |line: &&str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
    if let Some(line) = text.lines().position(|line| is_conflict(&line)) {
        return Some(format!("line {} is a conflict of a merge", line + 1));
    }
    let mut words = text.split(|c: char| !c.is_alphanumeric());
    if let Some(word) = words.find(|word| ["TODO", "FIXME", "TBD", "XXX"].contains(word)) {
        return Some(format!("it says {word}: it is not finished"));
    }
    let letters = text.chars().filter(|c| c.is_alphanumeric()).count();
    (letters < LETTERS).then(|| format!("it has {letters} letters, which say nothing"))
}
