//! Reads histograms from a log by `qdl::stats::write_log`: one for each tag.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use hdrhistogram::{
    Histogram,
    serialization::{
        Deserializer,
        interval_log::{IntervalLogIterator, LogEntry},
    },
};

/// All histograms of a log by tag, in nanoseconds. The error says what is malformed.
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

/// The log's start time, in seconds since 1970.
pub fn began(log: &str) -> Option<f64> {
    let line = log.lines().find_map(|l| l.strip_prefix("#[StartTime: "))?;
    line.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use qdl::stats::{Histograms, SampleTimes, Stage, write_log};

    use super::*;

    #[test]
    fn a_log_comes_back_with_its_time_and_every_count() {
        let mut recorded = Histograms::new();
        for ns in 1..2_000u64 {
            recorded.record(&SampleTimes {
                posted_ns: ns,
                seen_ns: 3 * ns,
                completed_ns: 5 * ns,
                ..SampleTimes::default()
            });
        }
        let started = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
        let mut log = Vec::new();
        write_log(&recorded, started, Duration::from_secs(1), &mut log).expect("into memory");
        let log = String::from_utf8(log).expect("text");
        let all = read(&log).expect("histograms");
        for stage in Stage::ALL {
            assert_eq!(all[stage.key()], recorded.stage(stage), "{stage:?}");
        }
        assert_eq!(began(&log), Some(1_700_000_000.25));
        let cut = log.replace("HISTFAA", "HISTFA!");
        assert!(read(&cut).expect_err("no base 64").contains("base 64"));
    }
}
