//! Reads the histograms of a log that [`super::write_log`] wrote: one for each tag.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use hdrhistogram::{
    Histogram,
    serialization::{
        Deserializer,
        interval_log::{IntervalLogIterator, LogEntry},
    },
};

/// Returns all histograms of a log by tag, in nanoseconds. The error names the malformed entry.
pub fn read(log: &str) -> Result<BTreeMap<String, Histogram<u64>>, String> {
    let mut all = BTreeMap::new();
    let mut deserializer = Deserializer::new();
    for entry in IntervalLogIterator::new(log.as_bytes()) {
        let entry = entry.map_err(|e| format!("not a log of histograms: {e:?}"))?;
        let LogEntry::Interval(interval) = entry else {
            continue;
        };
        let Some(tag) = interval.tag() else { continue };
        let bytes = BASE64_STANDARD
            .decode(interval.encoded_histogram())
            .map_err(|e| format!("the histogram `{}` is not base 64: {e}", tag.as_str()))?;
        let histogram = deserializer
            .deserialize(&mut &bytes[..])
            .map_err(|e| format!("the histogram `{}`: {e}", tag.as_str()))?;
        all.insert(tag.as_str().to_owned(), histogram);
    }
    Ok(all)
}

/// Returns the log's start time, in seconds since 1970.
pub fn began(log: &str) -> Option<f64> {
    let line = log.lines().find_map(|l| l.strip_prefix("#[StartTime: "))?;
    line.split(' ').next()?.parse().ok()
}
