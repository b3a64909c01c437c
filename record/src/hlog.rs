//! Histograms from a log that [`super::write_log`] wrote: one for each tag.

use std::collections::BTreeMap;

use hdrhistogram::{
    Histogram,
    serialization::{
        Deserializer,
        interval_log::{IntervalLogIterator, LogEntry},
    },
};

/// All histograms of a log, by their tags, in nanoseconds.
pub fn read(log: &str) -> Result<BTreeMap<String, Histogram<u64>>, String> {
    let mut all = BTreeMap::new();
    let mut deserializer = Deserializer::new();
    for entry in IntervalLogIterator::new(log.as_bytes()) {
        let entry = entry.map_err(|e| format!("not a log of histograms: {e:?}"))?;
        let LogEntry::Interval(interval) = entry else {
            continue;
        };
        let Some(tag) = interval.tag() else { continue };
        let bytes = base64(interval.encoded_histogram())
            .ok_or_else(|| format!("the histogram `{}` is not base 64", tag.as_str()))?;
        let histogram = deserializer
            .deserialize(&mut &bytes[..])
            .map_err(|e| format!("the histogram `{}`: {e}", tag.as_str()))?;
        all.insert(tag.as_str().to_owned(), histogram);
    }
    Ok(all)
}

/// When its interval began, in seconds since 1970.
pub fn began(log: &str) -> Option<f64> {
    let line = log.lines().find_map(|l| l.strip_prefix("#[StartTime: "))?;
    line.split(' ').next()?.parse().ok()
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let text = text.trim_end_matches('=').as_bytes();
    let mut out = Vec::with_capacity(text.len() * 3 / 4);
    for four in text.chunks(4) {
        let mut bits = 0u32;
        for c in four {
            bits = bits << 6 | u32::from(digit(*c)?);
        }
        bits <<= 6 * (4 - four.len());
        out.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    Some(out)
}
