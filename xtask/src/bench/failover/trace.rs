//! LoadGen's trace of every sample: when it was due and when it completed, by LoadGen's clock.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// One sample's times, in seconds since the first was due.
#[derive(Clone, Copy)]
pub struct Sample {
    pub due: f64,
    pub done: f64,
}

/// The samples of a run, in the order in which they were due.
pub struct Trace(pub Vec<Sample>);

impl Trace {
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let mut open = std::collections::HashMap::new();
        let mut samples = Vec::new();
        for line in text.lines() {
            let line = line.trim().trim_end_matches(',');
            if !line.contains("\"Sample\"") {
                continue;
            }
            let Ok(event) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            let (Some(id), Some(us)) = (event["id"].as_u64(), event["ts"].as_f64()) else {
                continue;
            };
            match event["ph"].as_str() {
                Some("b") => {
                    open.insert(id, us);
                }
                Some("e") => {
                    if let Some(due) = open.remove(&id) {
                        samples.push((due, us));
                    }
                }
                _ => {}
            }
        }
        ensure!(!samples.is_empty(), "{}: no samples", path.display());
        samples.sort_by(|a, b| a.0.total_cmp(&b.0));
        let first = samples[0].0;
        let seconds = |us: f64| (us - first) / 1e6;
        let sample = |(due, done): &(f64, f64)| Sample {
            due: seconds(*due),
            done: seconds(*done),
        };
        Ok(Trace(samples.iter().map(sample).collect()))
    }

    /// Quantile `share` of the latencies of samples due between `from` and `to`, in milliseconds.
    pub fn quantile_ms(&self, from: f64, to: f64, share: f64) -> f64 {
        let due = self.0.iter().filter(|s| (from..to).contains(&s.due));
        let mut all: Vec<_> = due.map(|s| (s.done - s.due) * 1e3).collect();
        all.sort_by(f64::total_cmp);
        let at = ((all.len() as f64 * share).ceil() as usize).clamp(1, all.len().max(1));
        all.get(at - 1).copied().unwrap_or(f64::NAN)
    }

    /// The longest time between two completions in the run, in milliseconds.
    pub fn longest_stall_ms(&self) -> f64 {
        let mut done: Vec<_> = self.0.iter().map(|s| s.done).collect();
        done.sort_by(f64::total_cmp);
        let gaps = done.windows(2).map(|w| (w[1] - w[0]) * 1e3);
        gaps.fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_stalls_are_those_of_the_samples() {
        let sample = |i: u32| {
            let due = f64::from(i) / 100.0;
            let late = if i == 50 { 0.2 } else { 0.01 };
            Sample {
                due,
                done: due + late,
            }
        };
        let trace = Trace((0..100).map(sample).collect());
        assert!((trace.quantile_ms(0.0, 1.0, 0.99) - 10.0).abs() < 1e-6);
        assert!((trace.quantile_ms(0.0, 1.0, 1.0) - 200.0).abs() < 1e-6);
        assert!((trace.longest_stall_ms() - 20.0).abs() < 1e-6);
    }

    #[test]
    fn a_trace_is_read_as_loadgen_writes_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.json");
        let text = "{\"traceEvents\":[\n\
            {\"name\":\"Sample\",\"cat\":\"default\",\"ph\":\"b\",\"pid\":1,\"id\":7,\"ts\":1000.5,\"args\":{}},\n\
            {\"name\":\"Sample\",\"cat\":\"default\",\"ph\":\"e\",\"pid\":1,\"id\":7,\"ts\":3000.5},\n\
            {\"name\":\"Other\",\"ph\":\"X\"},\n";
        std::fs::write(&path, text).expect("written");
        let trace = Trace::read(&path).expect("read");
        assert_eq!(trace.0.len(), 1);
        assert!((trace.quantile_ms(0.0, 1.0, 0.5) - 2.0).abs() < 1e-9);
    }
}
