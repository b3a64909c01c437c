//! Writes and reads interval logs of serialized histograms, and writes `.hgrm` tables for plotting.

use std::{
    collections::BTreeMap,
    fs, io,
    io::Write,
    path::{Path, PathBuf},
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

use super::{FileError, Stage, TokenTime};

/// Table lines per halving of the distance to 100 %, as in HdrHistogram's tools.
const TICKS: u32 = 5;

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

/// Writes the table that HdrHistogram's plotter reads. Divides values by `unit`: 1000 turns
/// nanoseconds into microseconds.
fn write_hgrm(histogram: &Histogram<u64>, unit: f64, to: &mut impl Write) -> io::Result<()> {
    writeln!(
        to,
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    )?;
    let mut total = 0u64;
    for step in histogram.iter_quantiles(TICKS) {
        total += step.count_since_last_iteration();
        let value = step.value_iterated_to() as f64 / unit;
        let quantile = step.quantile_iterated_to();
        write!(to, "{value:12.3} {quantile:.12} {total:10}")?;
        if quantile < 1.0 {
            write!(to, " {:14.2}", 1.0 / (1.0 - quantile))?;
        }
        writeln!(to)?;
    }
    if histogram.is_empty() {
        writeln!(to, "{:12.3} {:.12} {:10}", 0.0, 1.0, 0)?;
    }
    // As in HdrHistogram, whose crate does not give this number.
    let sub_buckets = (2 * 10u64.pow(u32::from(histogram.sigfig()))).next_power_of_two();
    writeln!(
        to,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]",
        histogram.mean() / unit,
        histogram.stdev() / unit
    )?;
    writeln!(
        to,
        "#[Max     = {:12.3}, Total count    = {:12}]",
        histogram.max() as f64 / unit,
        histogram.len()
    )?;
    writeln!(
        to,
        "#[Buckets = {:12}, SubBuckets     = {:12}]",
        histogram.buckets(),
        sub_buckets
    )
}

/// Returns the names of all files that [`save`] may write with this prefix.
pub fn file_names(prefix: &str) -> Vec<String> {
    let keys = Stage::ALL.iter().map(|s| s.key());
    let keys = keys.chain(TokenTime::ALL.iter().map(|t| t.key()));
    let tables = keys.map(|key| format!("{prefix}-{key}.us.hgrm"));
    tables.chain([format!("{prefix}.hlog")]).collect()
}

/// Writes `PREFIX.hlog` ([`write_log`]) and, for each histogram, `PREFIX-KEY.us.hgrm`
/// ([`write_hgrm`], in microseconds) into `folder`, and returns the files' paths.
///
/// # Errors
/// [`FileError`] names the file.
pub fn save(
    histograms: &[(&'static str, Histogram<u64>)],
    folder: &Path,
    prefix: &str,
    started: SystemTime,
    duration: Duration,
) -> Result<Vec<PathBuf>, FileError> {
    let mut files = Vec::with_capacity(1 + histograms.len());
    let mut write = |name: String, bytes: io::Result<Vec<u8>>| {
        let path = folder.join(name);
        let written = bytes.and_then(|b| fs::write(&path, b));
        let written = written.map_err(FileError::write("histograms to ", &path));
        written.map(|()| files.push(path))
    };
    let mut log = Vec::new();
    let written = write_log(histograms, started, duration, &mut log);
    write(format!("{prefix}.hlog"), written.map(|()| log))?;
    for (key, histogram) in histograms {
        let mut table = Vec::new();
        let written = write_hgrm(histogram, 1000.0, &mut table);
        write(format!("{prefix}-{key}.us.hgrm"), written.map(|()| table))?;
    }
    Ok(files)
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

    fn of(values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut h = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("an hour");
        values.into_iter().for_each(|ns| h.saturating_record(ns));
        h
    }

    /// A histogram for each stage.
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

    fn hgrm(h: &Histogram<u64>) -> String {
        let mut bytes = Vec::new();
        write_hgrm(h, 1000.0, &mut bytes).expect("into memory");
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
    fn a_plot_table_looks_like_this() {
        let expected = "       Value     Percentile TotalCount 1/(1-Percentile)

       1.000 0.000000000000          1           1.00
       1.000 0.100000000000          1           1.11
       1.000 0.200000000000          1           1.25
       2.000 0.300000000000          2           1.43
       2.000 0.400000000000          2           1.67
       2.000 0.500000000000          2           2.00
       3.001 0.550000000000          3           2.22
       3.001 0.600000000000          3           2.50
       3.001 0.650000000000          3           2.86
       3.001 0.700000000000          3           3.33
      40.031 0.750000000000          4           4.00
      40.031 1.000000000000          4
#[Mean    =       11.504, StdDeviation   =       16.476]
#[Max     =       40.031, Total count    =            4]
#[Buckets =           32, SubBuckets     =         2048]
";
        assert_eq!(hgrm(&of([1_000, 2_000, 3_000, 40_000])), expected);
        let empty = hgrm(&of([]));
        assert!(
            empty.contains("       0.000 1.000000000000          0\n#[Mean"),
            "{empty}"
        );
    }

    #[test]
    fn files_are_written_and_a_missing_folder_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut all = histograms(&[5, 6, 7]);
        all.extend(TokenTime::ALL.map(|time| (time.key(), of([9]))));
        let write = |folder: &Path| {
            let (started, took) = (SystemTime::UNIX_EPOCH, Duration::from_secs(1));
            save(&all, folder, "server", started, took)
        };
        let files = write(folder.path()).expect("saved");
        let names = files.iter().filter_map(|f| f.file_name()?.to_str());
        let mut names: Vec<_> = names.collect();
        let mut known = file_names("server");
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(names, known);
        assert!(names.contains(&"server-network.us.hgrm"));
        let log = fs::read_to_string(&files[0]).expect("the log");
        assert!(log.contains("Tag=tpot,"), "{log}");
        let error = write(&folder.path().join("none")).expect_err("no folder");
        let text = error.to_string();
        assert!(
            text.contains("server.hlog") && text.contains("No such file"),
            "{text}"
        );
    }
}
