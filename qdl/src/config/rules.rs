//! Rules that several types share: ranges as garde rules, and the list of problems.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use fabric::keys::HELP;
pub(super) use fabric::keys::{auto_within, within, within_some};

use super::{
    document::{Document, TextPosition},
    error::{ConfigError, Problem},
};
use crate::model::TensorSpec;

/// Kind of node that a file configures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ConfigSide {
    Frontend,
    Accelerator,
}

/// Makes a relative path relative to the folder `base`.
pub fn resolve(base: &Path, path: &mut PathBuf) {
    if path.is_relative() && !base.as_os_str().is_empty() {
        *path = base.join(&*path);
    }
}

/// The problems of a file or of a configuration made in code, with their places.
pub struct Findings<'a> {
    pub(super) document: &'a Document,
    /// `None` for a configuration made in code.
    text: Option<&'a str>,
    origin: &'a str,
    problems: Vec<Problem>,
}

impl<'a> Findings<'a> {
    pub(super) fn new(document: &'a Document, text: Option<&'a str>, origin: &'a str) -> Self {
        Findings {
            document,
            text,
            origin,
            problems: Vec::new(),
        }
    }

    /// Returns `value` if there are no problems, otherwise the problems in the order of the text.
    pub(super) fn finish<T>(mut self, value: Option<T>) -> Result<T, ConfigError> {
        self.problems.sort_by_key(|p| (p.line, p.column));
        self.problems.dedup();
        match value {
            Some(value) if self.problems.is_empty() => Ok(value),
            _ => Err(ConfigError::Invalid {
                problems: self.problems,
            }),
        }
    }

    pub(super) fn at(&mut self, place: Option<TextPosition>, what: String, help: Option<String>) {
        let text = self.text.unwrap_or_default();
        let problem = Problem::new(self.origin, text, place, what, help);
        self.problems.push(problem);
    }

    /// Adds a problem of the key at `path`, which the text has at `place`.
    fn of_key(
        &mut self,
        path: &str,
        place: Option<TextPosition>,
        what: String,
        help: Option<String>,
    ) {
        match self.text {
            Some(_) => self.at(place, what, help),
            None => self.problems.push(Problem::of_field(path, what, help)),
        }
    }

    /// Returns whether the file sets this key.
    pub fn has(&self, path: &str) -> bool {
        self.document.has(path)
    }

    /// Returns the keys that the file sets in the mapping at `path`.
    pub fn keys(&self, path: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.document.keys(path)
    }

    /// Adds a problem of the value at `path`, as in `nics[0].slots`.
    pub fn add(&mut self, path: impl AsRef<str>, what: impl Into<String>, help: impl Into<String>) {
        let place = self.document.locate(path.as_ref());
        self.of_key(path.as_ref(), place, what.into(), Some(help.into()));
    }

    /// Adds a problem of a key that does not belong here, whatever its value.
    pub fn add_key(
        &mut self,
        path: impl AsRef<str>,
        what: impl Into<String>,
        help: impl Into<String>,
    ) {
        let place = self.document.locate_key(path.as_ref());
        self.of_key(path.as_ref(), place, what.into(), Some(help.into()));
    }

    /// Adds the error of a rule if `value` violates the rule.
    pub(super) fn rule<T: ?Sized>(
        &mut self,
        path: &str,
        value: &T,
        rule: impl FnOnce(&T, &()) -> garde::Result,
    ) {
        if let Err(error) = rule(value, &()) {
            self.garde(path, &error);
        }
    }

    /// Adds garde's errors for the values at paths that begin with `prefix`.
    pub(super) fn ranges(&mut self, prefix: &str, found: Result<(), garde::Report>) {
        if let Err(report) = found {
            for (path, error) in report.iter() {
                self.garde(&format!("{prefix}{path}"), error);
            }
        }
    }

    fn garde(&mut self, path: &str, error: &garde::Error) {
        let (what, help) = match error.message().split_once(HELP) {
            Some((what, help)) => (what, Some(help.to_owned())),
            None => (error.message(), None),
        };
        let key = path.rsplit('.').next().unwrap_or(path);
        let place = self.document.locate(path);
        self.of_key(path, place, format!("{key} {what}"), help);
    }
}

const MAX_NAME: usize = 64;

/// Rule: a name that is safe in file names, logs and LoadGen's reports.
pub(super) fn name<S: AsRef<str> + ?Sized>(value: &S, (): &()) -> garde::Result {
    let value = value.as_ref();
    let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !value.is_empty() && value.len() <= MAX_NAME && value.chars().all(ok) {
        Ok(())
    } else {
        Err(garde::Error::new(format!(
            "is no usable name{HELP}use 1 to {MAX_NAME} of the characters A-Z a-z 0-9 . _ -"
        )))
    }
}

/// Maximum number of cores that a thread can be bound to: the size of the kernel's `cpu_set_t`.
const MAX_CPUS: usize = 1024;

/// Rule: a list of distinct core numbers.
pub fn core_list(value: &Option<Vec<usize>>, (): &()) -> garde::Result {
    let Some(list) = value else { return Ok(()) };
    let distinct: BTreeSet<_> = list.iter().collect();
    if !list.is_empty() && distinct.len() == list.len() && list.iter().all(|c| *c < MAX_CPUS) {
        Ok(())
    } else {
        Err(garde::Error::new(format!(
            "is no list of cores{HELP}list each core once, by its number from 0 to {}, as in \
             [2, 3]",
            MAX_CPUS - 1
        )))
    }
}

/// Maximum time in milliseconds: one hour.
pub const MAX_MS: u64 = 3_600_000;
/// Highest index of a GPU.
pub const MAX_GPU: usize = 1023;

/// Adds a problem unless the key at `path` lists each of `gpus` once.
pub fn check_gpu_list(path: &str, gpus: &[usize], out: &mut Findings<'_>) {
    let once: BTreeSet<_> = gpus.iter().collect();
    if once.len() < gpus.len() || gpus.iter().any(|gpu| *gpu > MAX_GPU) {
        out.add(
            path,
            format!("{gpus:?} names a GPU twice, or one beyond {MAX_GPU}"),
            "list each GPU once, as CUDA counts them, as in `gpus: [0, 1]`",
        );
    }
}

/// Maximum sample or response, in bytes: 1 GiB.
pub(super) const MAX_SAMPLE_BYTES: usize = 1 << 30;

pub(super) fn check_model(
    path: &str,
    model: &str,
    inputs: &[TensorSpec],
    (output, others): (&TensorSpec, &[TensorSpec]),
    out: &mut Findings<'_>,
) {
    out.rule(&format!("{path}.name"), model, name);
    if inputs.is_empty() {
        out.add(
            format!("{path}.inputs"),
            "the model has no input",
            "list at least one, as in `- {name: image, dtype: u8, shape: [3, 224, 224]}`",
        );
    }
    let inputs = inputs.iter().enumerate();
    let inputs = inputs.map(|(i, tensor)| (format!("{path}.inputs[{i}]"), tensor));
    let total = check_tensors("input", inputs.collect(), out);
    if total > MAX_SAMPLE_BYTES {
        out.add(
            format!("{path}.inputs"),
            format!("a sample has {total} bytes"),
            format!("it must have at most {MAX_SAMPLE_BYTES}"),
        );
    }
    let mut outputs = vec![(format!("{path}.output"), output)];
    for (i, tensor) in others.iter().enumerate() {
        let place = format!("{path}.other_outputs[{i}]");
        if tensor.ragged || output.ragged {
            out.add(
                &place,
                "of several outputs none can be ragged: a response's length would not say where \
                 one ends",
                "remove `ragged`, or `other_outputs`",
            );
        }
        outputs.push((place, tensor));
    }
    let total = check_tensors("output", outputs, out);
    if total > MAX_SAMPLE_BYTES {
        out.add(
            format!("{path}.output"),
            format!("a response has {total} bytes"),
            format!("it must have at most {MAX_SAMPLE_BYTES}"),
        );
    }
}

/// Checks the tensors and that their names differ. Returns the tensors' bytes together.
fn check_tensors(kind: &str, all: Vec<(String, &TensorSpec)>, out: &mut Findings<'_>) -> usize {
    let mut total = 0usize;
    let mut names = BTreeSet::new();
    for (path, tensor) in all {
        total = total.saturating_add(check_tensor(&path, tensor, out).unwrap_or(0));
        if !names.insert(&tensor.name) {
            out.add(
                format!("{path}.name"),
                format!("two {kind}s have the name `{}`", tensor.name),
                format!("name each {kind} once, as the model's graph does"),
            );
        }
    }
    total
}

/// Checks a tensor and returns its bytes, if the tensor is valid.
fn check_tensor(path: &str, tensor: &TensorSpec, out: &mut Findings<'_>) -> Option<usize> {
    if tensor.name.is_empty() {
        out.add(
            format!("{path}.name"),
            "the tensor has no name",
            "use the name it has in the model's graph",
        );
    }
    let bytes = tensor
        .bytes()
        .filter(|bytes| (1..=MAX_SAMPLE_BYTES).contains(bytes));
    if bytes.is_none() {
        out.add(
            format!("{path}.shape"),
            format!("{}{:?} is no shape of a sample", tensor.dtype, tensor.shape),
            format!(
                "give 1 or more elements in each dimension, at most {MAX_SAMPLE_BYTES} bytes in \
                 all; [] is a single element"
            ),
        );
    }
    if tensor.ragged && tensor.shape.is_empty() {
        out.add(
            format!("{path}.shape"),
            "a single element cannot be ragged",
            "remove `ragged`, or give the largest number of rows, as in `shape: [384]`",
        );
    }
    bytes
}
