//! LoadGen's accuracy log: what was answered, sample by sample.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// LoadGen's name for the log, in the folder of a run.
pub const FILE: &str = "mlperf_log_accuracy.json";

/// One entry, as far as it is looked at.
#[derive(Deserialize)]
struct Entry {
    qsl_idx: u64,
    /// The response's bytes in hexadecimal.
    data: String,
}

/// The response to each sample, by its index in the data set.
pub type Answers = BTreeMap<u64, String>;

/// Reads the log of the run whose folder this is.
pub fn read(folder: &Path) -> Result<Answers> {
    let path = folder.join(FILE);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("{}", path.display()))
}

fn parse(text: &str) -> Result<Answers> {
    let entries: Vec<Entry> = serde_json::from_str(text).context("not LoadGen's accuracy log")?;
    let mut answers = Answers::new();
    for Entry { qsl_idx, data } in entries {
        if answers.insert(qsl_idx, data.to_ascii_lowercase()).is_some() {
            bail!("sample {qsl_idx} was answered twice");
        }
    }
    if answers.is_empty() {
        bail!("no sample was answered");
    }
    Ok(answers)
}

/// Nothing when both hold the same bytes for the same
/// samples; else the first sample where they part.
pub fn difference(wire: &Answers, local: &Answers) -> Option<String> {
    for (index, bytes) in wire {
        match local.get(index) {
            None => {
                return Some(format!(
                    "sample {index} was answered over the wire and not with --local"
                ));
            }
            Some(other) if other != bytes => {
                return Some(format!(
                    "sample {index}: {bytes} over the wire, {other} with --local"
                ));
            }
            Some(_) => {}
        }
    }
    let lost = local.keys().find(|index| !wire.contains_key(index))?;
    Some(format!(
        "sample {lost} was answered with --local and not over the wire"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"[
{ "seq_id" : 0, "qsl_idx" : 3, "data" : "0700000000000000" },
{ "seq_id" : 1, "qsl_idx" : 1, "data" : "0A00000000000000" }
]"#;

    #[test]
    fn order_and_case_do_not_matter() {
        let other = r#"[{"seq_id":0,"qsl_idx":1,"data":"0a00000000000000"},{"seq_id":1,"qsl_idx":3,"data":"0700000000000000"}]"#;
        assert_eq!(
            difference(&parse(LOG).unwrap(), &parse(other).unwrap()),
            None
        );
    }

    #[test]
    fn another_byte_is_a_difference() {
        let other = LOG.replace("07", "08");
        let found = difference(&parse(LOG).unwrap(), &parse(&other).unwrap()).unwrap();
        assert!(found.contains("sample 3"), "{found}");
    }

    #[test]
    fn a_sample_missing_on_either_side_is_a_difference() {
        let all = parse(LOG).unwrap();
        let mut fewer = all.clone();
        fewer.remove(&1);
        assert!(difference(&all, &fewer).unwrap().contains("sample 1"));
        assert!(difference(&fewer, &all).unwrap().contains("sample 1"));
    }

    #[test]
    fn an_empty_log_or_a_sample_twice_is_an_error() {
        assert!(parse("[]").is_err());
        let twice = LOG.replace("\"qsl_idx\" : 1", "\"qsl_idx\" : 3");
        assert!(parse(&twice).unwrap_err().to_string().contains("twice"));
        assert!(parse("{").is_err());
    }
}
