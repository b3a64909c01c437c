//! From text to a checked configuration.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use garde::Validate;
use serde::de::DeserializeOwned;
use serde_saphyr::Error as YamlError;

use super::{
    AcceleratorConfig, ConfigError, FrontendConfig, Problem,
    accelerator::AcceleratorFile,
    frontend::FrontendFile,
    locate::{Place, locate, value_at},
    rules::{Finding, Findings},
};

/// Longest file read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Deepest nesting of a file.
const MAX_DEPTH: usize = 32;

/// Reads and checks a frontend's file, and that the files it names are there.
///
/// # Errors
/// [`ConfigError`], which names file, line and column.
pub fn load_frontend(path: impl AsRef<Path>) -> Result<FrontendConfig, ConfigError> {
    let file = Source::read(path.as_ref())?;
    let config = parse_frontend(&file.text, &file.origin, &file.base)?;
    file.check_files(&config.files())?;
    Ok(config)
}

/// Reads and checks an accelerator's file, and that the files it names are there.
///
/// # Errors
/// [`ConfigError`], which names file, line and column.
pub fn load_accelerator(path: impl AsRef<Path>) -> Result<AcceleratorConfig, ConfigError> {
    let file = Source::read(path.as_ref())?;
    let config = parse_accelerator(&file.text, &file.origin, &file.base)?;
    file.check_files(&config.files())?;
    Ok(config)
}

/// Checks a frontend's YAML. `origin` names the text in errors, `base` is the folder that its paths are
/// relative to. No file is looked at.
///
/// # Errors
/// [`ConfigError::Invalid`].
pub fn parse_frontend(
    text: &str,
    origin: &str,
    base: &Path,
) -> Result<FrontendConfig, ConfigError> {
    let config = |file: FrontendFile, out: &mut _| file.into_config(base, out);
    check(text, origin, config, FrontendConfig::relations)
}

/// Checks an accelerator's YAML. `origin` names the text in errors, `base` is the folder that its paths are
/// relative to. No file is looked at.
///
/// # Errors
/// [`ConfigError::Invalid`].
pub fn parse_accelerator(
    text: &str,
    origin: &str,
    base: &Path,
) -> Result<AcceleratorConfig, ConfigError> {
    let config = |file: AcceleratorFile, out: &mut _| file.into_config(base, out);
    check(text, origin, config, AcceleratorConfig::relations)
}

/// Decodes, converts and checks one by one and together; everything found is reported at once.
fn check<F: DeserializeOwned, C: Validate<Context = ()>>(
    text: &str,
    origin: &str,
    into_config: impl FnOnce(F, &mut Findings) -> Option<C>,
    relations: fn(&C, &mut Findings),
) -> Result<C, ConfigError> {
    let mut out = Findings::default();
    let config = into_config(decode(text, origin)?, &mut out);
    if let Some(config) = &config {
        garde(config, &mut out);
        relations(config, &mut out);
    }
    finish(config, out, text, origin)
}

impl ConfigError {
    /// A problem that shows only later, at a key of a file that was loaded, as in
    /// `loadgen.settings.server_target_qps`: points at its value.
    pub fn at_key(
        file: impl AsRef<Path>,
        key: &str,
        what: impl Into<String>,
        help: Option<String>,
    ) -> Self {
        let source = match Source::read(file.as_ref()) {
            Ok(source) => source,
            Err(error) => return error,
        };
        let place = locate(&source.text, key);
        ConfigError::Invalid {
            problems: vec![Problem::new(
                &source.origin,
                &source.text,
                place,
                what.into(),
                help,
            )],
        }
    }
}

/// A path of a file in the folder `base`.
pub(super) fn resolve(base: &Path, path: PathBuf) -> PathBuf {
    if path.is_absolute() || base.as_os_str().is_empty() {
        path
    } else {
        base.join(path)
    }
}

/// How YAML is read: no snippets (they are our own), `yes` is no boolean, little nesting.
pub(super) fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
    }
}

struct Source {
    text: String,
    origin: String,
    base: PathBuf,
}

impl Source {
    fn read(path: &Path) -> Result<Self, ConfigError> {
        let read = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
            .map_err(read)?;
        let not_text = |what: String| ConfigError::NotText {
            path: path.to_owned(),
            what,
        };
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(not_text(format!("longer than {MAX_FILE_BYTES} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            not_text(format!(
                "no UTF-8 at byte {}",
                error.utf8_error().valid_up_to()
            ))
        })?;
        Ok(Source {
            text,
            origin: path.display().to_string(),
            base: path.parent().unwrap_or(Path::new("")).to_owned(),
        })
    }

    fn check_files(&self, files: &[(&'static str, &Path)]) -> Result<(), ConfigError> {
        let mut out = Findings::default();
        for (key, file) in files {
            let problem = match std::fs::metadata(file) {
                Ok(found) if found.is_dir() => Some("it is a folder, not a file".to_owned()),
                Ok(_) => None,
                Err(error) => Some(error.to_string()),
            };
            if let Some(problem) = problem {
                let help = if file.components().any(|part| part.as_os_str() == ".deps") {
                    "`cargo xtask setup` makes what lies in .deps"
                } else {
                    "paths are relative to the folder of this configuration"
                };
                out.add(*key, format!("{}: {problem}", file.display()), help);
            }
        }
        finish(Some(()), out, &self.text, &self.origin)
    }
}

fn garde<T: Validate<Context = ()>>(config: &T, out: &mut Findings) {
    if let Err(report) = config.validate() {
        for (path, error) in report.iter() {
            out.garde(path.to_string(), error);
        }
    }
}

fn finish<T>(value: Option<T>, out: Findings, text: &str, origin: &str) -> Result<T, ConfigError> {
    match value {
        Some(value) if out.list.is_empty() => Ok(value),
        _ => {
            let mut problems: Vec<Problem> = out
                .list
                .into_iter()
                .map(|Finding { path, what, help }| {
                    Problem::new(origin, text, locate(text, &path), what, help)
                })
                .collect();
            problems.sort_by_key(|p| (p.line, p.column));
            problems.dedup();
            Err(ConfigError::Invalid { problems })
        }
    }
}

fn decode<T: DeserializeOwned>(text: &str, origin: &str) -> Result<T, ConfigError> {
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
        let error = error.without_snippet();
        let mut place = error.location().and_then(Place::of);
        if is_about_value(error) {
            place = place.map(|place| value_at(text, place));
        }
        let (what, help) = describe(error);
        ConfigError::Invalid {
            problems: vec![Problem::new(origin, text, place, what, help)],
        }
    })
}

/// What is wrong, and what would be right, in this project's words where it is an everyday mistake.
fn describe(error: &YamlError) -> (String, Option<String>) {
    match error {
        YamlError::SerdeUnknownField {
            field, expected, ..
        } => (
            format!("unknown key `{field}`"),
            Some(nearest("keys here are", field, expected)),
        ),
        YamlError::SerdeUnknownVariant {
            variant, expected, ..
        } => (
            format!("`{variant}` is not a value of this key"),
            Some(nearest("it must be", variant, expected)),
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
            format!("found {unexpected}"),
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
        YamlError::Eof { .. } => (
            "the file ends too early".to_owned(),
            Some("working examples are in configs/".to_owned()),
        ),
        other => {
            // The parser's own words, without the place, which stands in front already.
            let text = other.to_string();
            let line = text.lines().next().unwrap_or_default();
            let what = line.split_once(" at line ").map_or(line, |(what, _)| what);
            (what.to_owned(), None)
        }
    }
}

/// True where the parser names the place of a key and means its value.
fn is_about_value(error: &YamlError) -> bool {
    matches!(
        error,
        YamlError::SerdeInvalidType { .. }
            | YamlError::SerdeInvalidValue { .. }
            | YamlError::SerdeUnknownVariant { .. }
    )
}

/// The parser's names of types in words.
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

/// "it must be a, b or c", and which of them was probably meant.
fn nearest(lead: &str, found: &str, allowed: &[&str]) -> String {
    let list = allowed.join(", ");
    // A third of the letters may be wrong.
    let limit = found.chars().count().max(3) / 3;
    match allowed
        .iter()
        .map(|word| (distance(found, word), word))
        .min()
    {
        Some((d, word)) if d <= limit => format!("did you mean `{word}`? {lead}: {list}"),
        _ => format!("{lead}: {list}"),
    }
}

/// Letters to insert, remove or replace to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    const LONGEST: usize = 64;
    let a: Vec<char> = a.chars().take(LONGEST).collect();
    let b: Vec<char> = b.chars().take(LONGEST).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
