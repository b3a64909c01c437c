//! Writes and reads interval logs of serialized histograms.

use std::{
    collections::BTreeMap,
    io,
    io::Write,
    path::Path,
    time::{Duration, SystemTime},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use hdrhistogram::{
    Histogram,
    serialization::{
        Deserializer, V2DeflateSerializer,
        interval_log::{
            IntervalLogIterator, IntervalLogWriterBuilder, IntervalLogWriterError, LogEntry, Tag,
        },
    },
};

use super::FileError;

/// Name of the log of histograms ([`save`]).
pub const HISTOGRAMS: &str = "latency.hlog";

/// Writes an interval log: one V2 compressed histogram in nanoseconds per key, with the key as tag.
/// The readable maximum in each line is in microseconds.
fn write_log<'a>(
    histograms: impl IntoIterator<Item = &'a (&'static str, Histogram<u64>)>,
    started: SystemTime,
    duration: Duration,
    to: &mut impl Write,
) -> io::Result<()> {
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("[Latency per stage; values in nanoseconds, maxima in microseconds]")
        .with_start_time(started)
        .with_base_time(started)
        .with_max_value_divisor(1000.0)
        .begin_log_with(to, &mut serializer)?;
    for (key, histogram) in histograms {
        log.write_histogram(histogram, Duration::ZERO, duration, Tag::new(key))
            .map_err(|e| match e {
                IntervalLogWriterError::IoError(e) => e,
                IntervalLogWriterError::SerializeError(e) => io::Error::other(e.to_string()),
            })?;
    }
    Ok(())
}

/// Writes the log ([`write_log`]) of a run into `folder`.
///
/// # Errors
/// [`FileError`] names the file.
pub fn save(
    histograms: &[(&'static str, Histogram<u64>)],
    folder: &Path,
    started: SystemTime,
    duration: Duration,
) -> Result<(), FileError> {
    let path = folder.join(HISTOGRAMS);
    let mut log = Vec::new();
    let written = write_log(histograms, started, duration, &mut log);
    let written = written.and_then(|()| disk::write(&path, log));
    written.map_err(FileError::write("histograms to ", &path))
}

/// Returns all histograms of a log by tag, in nanoseconds. The error names the malformed entry.
pub(crate) fn read_log(log: &str) -> Result<BTreeMap<String, Histogram<u64>>, String> {
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
pub(crate) fn began(log: &str) -> Option<f64> {
    let line = log.lines().find_map(|l| l.strip_prefix("#[StartTime: "))?;
    line.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Stage;

    fn of(values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut h = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("an hour");
        values.into_iter().for_each(|ns| h.saturating_record(ns));
        h
    }

    fn histograms(totals_ns: &[u64]) -> Vec<(&'static str, Histogram<u64>)> {
        let each = Stage::ALL.iter().zip(1..);
        let one = |(stage, n): (&Stage, u64)| (stage.key(), of(totals_ns.iter().map(|ns| ns / n)));
        each.map(one).collect()
    }

    fn log(h: &[(&'static str, Histogram<u64>)]) -> String {
        let mut bytes = Vec::new();
        let started = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
        write_log(h, started, Duration::from_millis(2500), &mut bytes).expect("into memory");
        String::from_utf8(bytes).expect("text")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn a_log_reads_back_as_the_same_histograms(
            ns in prop::collection::vec(0u64..1 << 36, 0..300),
        ) {
            let h = histograms(&ns);
            let log = log(&h);
            let back = read_log(&log).expect("histograms");
            prop_assert_eq!(back.len(), h.len());
            for (key, histogram) in &h {
                prop_assert_eq!(&back[*key], histogram);
            }
            prop_assert_eq!(began(&log), Some(1_700_000_000.25));
            let cut = log.replace("HISTFAA", "HISTFA!");
            prop_assert!(read_log(&cut).expect_err("no base 64").contains("base 64"));
        }
    }

    #[test]
    fn a_missing_folder_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let (started, took) = (SystemTime::UNIX_EPOCH, Duration::from_secs(1));
        let error = save(&[], &folder.path().join("none"), started, took).expect_err("no folder");
        let text = error.to_string();
        assert!(
            text.contains("latency.hlog") && text.contains("no such file"),
            "{text}"
        );
    }
}
