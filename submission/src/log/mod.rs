//! LoadGen's logs, read back: `mlperf_log_detail.txt` and the accuracy log.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use serde_json::Value;

use crate::error::Error;

/// LoadGen's files in a run's folder.
pub const SUMMARY: &str = "mlperf_log_summary.txt";
/// The detailed log.
pub const DETAIL: &str = "mlperf_log_detail.txt";
/// The accuracy log.
pub const ACCURACY: &str = "mlperf_log_accuracy.json";

const MARKER: &str = ":::MLLOG";
/// Longer values (lists of loaded samples) are not kept: nothing here asks for them.
const KEPT_VALUE: usize = 16 << 10;

/// The detailed log: each key's first value, as the official checker takes it, and all errors.
#[derive(Clone, Debug, Default)]
pub struct Detail {
    values: BTreeMap<String, Value>,
    /// What LoadGen's errors say.
    pub errors: Vec<String>,
    /// Lines that begin as LoadGen's do and cannot be read; the checker ends at the first.
    pub unreadable: Vec<usize>,
}

impl Detail {
    /// Reads a log.
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::Content`] where the first line is not LoadGen's.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Read {
            path: path.to_owned(),
            source,
        };
        let mut reader = BufReader::new(File::open(path).map_err(failed)?);
        let mut detail = Detail::default();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            if reader.read_until(b'\n', &mut line).map_err(failed)? == 0 {
                if number == 1 {
                    return Err(not_a_log(path, "it is empty"));
                }
                break;
            }
            let text = String::from_utf8_lossy(&line);
            if number == 1 && !text.starts_with(MARKER) {
                return Err(not_a_log(
                    path,
                    "its first line does not begin with :::MLLOG",
                ));
            }
            if let Some(json) = text.strip_prefix(MARKER) {
                detail.take(number, json.trim());
            }
        }
        Ok(detail)
    }

    fn take(&mut self, number: usize, json: &str) {
        let parsed: Option<Value> = serde_json::from_str(json).ok();
        let Some(Value::Object(mut line)) = parsed else {
            // LoadGen escapes nothing, so an error's own words may break the line.
            if json.contains("\"is_error\": true") {
                self.errors.push(json.to_owned());
            }
            self.unreadable.push(number);
            return;
        };
        let value = line.remove("value").unwrap_or_default();
        let metadata = line.get("metadata");
        if metadata.and_then(|m| m.get("is_error")) == Some(&Value::Bool(true)) {
            self.errors.push(text_of(&value));
        }
        if let Some(Value::String(key)) = line.remove("key")
            && json.len() <= KEPT_VALUE
        {
            self.values.entry(key).or_insert(value);
        }
    }

    /// The first value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// A text; empty where there is none.
    pub fn text(&self, key: &str) -> String {
        self.get(key).map(text_of).unwrap_or_default()
    }

    /// A count or a seed.
    pub fn whole(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    /// Any number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_f64()
    }

    /// `true` or `false`; LoadGen writes numbers for some.
    pub fn flag(&self, key: &str) -> Option<bool> {
        let value = self.get(key)?;
        value.as_bool().or_else(|| value.as_f64().map(|n| n != 0.0))
    }

    /// The names of the nodes behind "Network SUT: a + b", each without what stands in brackets.
    pub fn nodes(&self) -> Vec<String> {
        let name = self.text("sut_name");
        let nodes = name.split_once(':').map_or("", |(_, nodes)| nodes);
        let nodes = nodes.split(" + ").map(str::trim);
        nodes
            .filter(|n| !n.is_empty())
            .map(|n| n.split(" (").next().unwrap_or(n).to_owned())
            .collect()
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn not_a_log(path: &Path, what: &str) -> Error {
    Error::Content {
        path: path.to_owned(),
        what: format!("{what}: it is no detailed log of LoadGen"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Detail, Error> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(DETAIL);
        std::fs::write(&path, text).expect("written");
        Detail::read(&path)
    }

    #[test]
    fn the_first_value_of_a_key_counts_and_errors_are_kept() {
        let text = ":::MLLOG {\"key\": \"effective_qsl_rng_seed\", \"value\": 2085463073848966840, \"metadata\": \
                    {\"is_error\": false}}\n\
                    :::MLLOG {\"key\": \"effective_qsl_rng_seed\", \"value\": 7}\n\
                    :::MLLOG {\"key\": \"error_runtime\", \"value\": \"it broke\", \"metadata\": {\"is_error\": true}}\n\
                    :::MLLOG {\"key\": \"error_runtime\", \"value\": \"it \"broke\"\", \"metadata\": {\"is_error\": true}}\n\
                    :::MLLOG {\"key\": \"result_validity\", \"value\": \"VALID\"}\n\
                    :::MLLOG {\"key\": \"use\", \"value\": 1}\n";
        let detail = read(text).expect("a log");
        let seed = detail.whole("effective_qsl_rng_seed");
        assert_eq!(seed, Some(2_085_463_073_848_966_840));
        assert_eq!(detail.errors.len(), 2);
        assert_eq!(detail.unreadable, [4]);
        assert_eq!(detail.text("result_validity"), "VALID");
        assert_eq!(detail.flag("use"), Some(true));
        assert_eq!(detail.whole("not_there"), None);
    }

    #[test]
    fn what_is_no_log_is_said_to_be_none() {
        for text in ["", "hello\n"] {
            let error = read(text).expect_err("no log").to_string();
            assert!(error.contains("no detailed log of LoadGen"), "{error}");
        }
    }

    #[test]
    fn nodes_are_the_names_behind_the_colon() {
        let name = "Network SUT: acc-a (llm on tokens) + acc-b (no answer)";
        let text = format!(":::MLLOG {{\"key\": \"sut_name\", \"value\": \"{name}\"}}\n");
        assert_eq!(read(&text).expect("a log").nodes(), ["acc-a", "acc-b"]);
    }
}
