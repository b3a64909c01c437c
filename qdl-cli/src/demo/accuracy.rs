//! Reads the answer to each sample from LoadGen's accuracy log.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

use anyhow::{Result, bail};
use loadgen_log::{ACCURACY, AccuracyLog};

/// The response to each sample, by its index in the data set.
pub type Answers = BTreeMap<u64, Vec<u8>>;

pub fn read(folder: &Path) -> Result<Answers> {
    answers(AccuracyLog::open(&folder.join(ACCURACY))?)
}

fn answers(log: AccuracyLog<impl BufRead>) -> Result<Answers> {
    let mut answers = Answers::new();
    for record in log {
        let record = record?;
        if answers.insert(record.qsl_idx, record.data).is_some() {
            bail!("sample {} was answered twice", record.qsl_idx);
        }
    }
    if answers.is_empty() {
        bail!("no sample was answered");
    }
    Ok(answers)
}

/// `None` if both contain the same bytes for the same samples; else the first difference.
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
                    "sample {index}: {bytes:02x?} over the wire, {other:02x?} with --local"
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

    fn parse(text: &str) -> Result<Answers> {
        answers(AccuracyLog::new(text.as_bytes(), Path::new(ACCURACY)))
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
        assert!(parse("[\n]").is_err());
        let twice = LOG.replace("\"qsl_idx\" : 1", "\"qsl_idx\" : 3");
        assert!(parse(&twice).unwrap_err().to_string().contains("twice"));
    }
}
