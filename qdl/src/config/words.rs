//! The parser's errors in this project's words: what is wrong, and the remedy.

use serde_saphyr::Error as YamlError;

use fabric::keys::HELP;

pub(super) fn describe(error: &YamlError) -> (String, Option<String>) {
    match error {
        YamlError::SerdeUnknownField {
            field, expected, ..
        } => (
            format!("unknown key `{field}`"),
            Some(keys_here(field, expected)),
        ),
        YamlError::SerdeUnknownVariant {
            variant, expected, ..
        } => (
            format!("`{variant}` is not a value of this key"),
            Some(one_of("it must be", variant, expected)),
        ),
        YamlError::SerdeMissingField { field, .. } => (
            format!("the key `{field}` is missing"),
            Some(format!("add `{field}: ...` here")),
        ),
        YamlError::SerdeInvalidType {
            unexpected,
            expected,
            ..
        }
        | YamlError::SerdeInvalidValue {
            unexpected,
            expected,
            ..
        } => (
            match unexpected.as_str() {
                "unit value" => "a key without a value".to_owned(),
                _ => format!("found {unexpected}"),
            },
            Some(format!("it must be {expected}")),
        ),
        YamlError::DuplicateMappingKey { key, .. } => (
            match key {
                Some(key) => format!("the key `{key}` is here twice"),
                None => "a key is here twice".to_owned(),
            },
            Some("remove one of the two".to_owned()),
        ),
        YamlError::InvalidScalar { ty, .. } => {
            ("a value of the wrong type".to_owned(), Some(must_be(ty)))
        }
        YamlError::Unexpected { expected, .. } => (
            "a value of the wrong type".to_owned(),
            Some(must_be(expected)),
        ),
        YamlError::InvalidBooleanStrict { .. } => (
            "a value of the wrong type".to_owned(),
            Some("it must be true or false".to_owned()),
        ),
        YamlError::MultipleDocuments { .. } => (
            "a second document begins here".to_owned(),
            Some("a configuration is one document: remove what is below `---`".to_owned()),
        ),
        YamlError::Eof { .. } => (
            "the file ends too early".to_owned(),
            Some("working examples are in configs/".to_owned()),
        ),
        other => {
            // Use the parser's text without the place, which the message begins with already.
            let text = other.to_string();
            let line = text.lines().next().unwrap_or_default();
            let what = line.split_once(" at line ").map_or(line, |(what, _)| what);
            match what.split_once(HELP) {
                Some((what, help)) => (what.to_owned(), Some(help.to_owned())),
                None => (what.to_owned(), None),
            }
        }
    }
}

/// Returns whether the parser reports a key's place for an error in the key's value.
pub(super) fn is_about_value(error: &YamlError) -> bool {
    matches!(
        error,
        YamlError::SerdeInvalidType { .. }
            | YamlError::SerdeInvalidValue { .. }
            | YamlError::SerdeUnknownVariant { .. }
    )
}

/// Returns the description of the parser's type name.
fn must_be(ty: &str) -> String {
    let words = match ty {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number, not negative",
        "string scalar" => "a text",
        "mapping start" => "a block of keys, as in `{key: value}`",
        "sequence start" => "a list, as in `[a, b]`",
        other => other,
    };
    format!("it must be {words}")
}

pub(super) fn keys_here(key: &str, known: &[&str]) -> String {
    one_of("keys here are", key, known)
}

/// Returns "it must be a, b or c", with the most similar word.
fn one_of(lead: &str, found: &str, allowed: &[&str]) -> String {
    let list = allowed.join(", ");
    match nearest(found, allowed) {
        Some(word) => format!("did you mean `{word}`? {lead}: {list}"),
        None => format!("{lead}: {list}"),
    }
}

/// Returns the most similar word, if at most a third of the letters differ.
pub fn nearest<'a>(found: &str, allowed: &[&'a str]) -> Option<&'a str> {
    // Compare at most 64 characters: key lengths are unlimited, and the comparison is quadratic.
    let found: String = found.chars().take(64).collect();
    let limit = found.chars().count().max(3) / 3;
    let near = allowed
        .iter()
        .map(|word| (strsim::levenshtein(&found, word), *word));
    let (wrong, word) = near.min()?;
    (wrong <= limit).then_some(word)
}
