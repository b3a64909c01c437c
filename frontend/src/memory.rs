//! How much memory a run will take, before it takes it:
//! LoadGen keeps what it knows of every query until the end.

use loadgen_bridge::{Scenario, TestMode, TestSettings};

/// Bytes that LoadGen keeps for each query in Server, measured.
const PER_SERVER_QUERY: u64 = 380;
/// Bytes that LoadGen keeps for each sample elsewhere, measured.
const PER_SAMPLE: u64 = 125;
/// LoadGen plans for this much more than what is expected, in Offline.
pub const SLACK: f64 = 1.1;
/// And for so many times the duration where queries follow one another.
pub const STREAM_SLACK: f64 = 2.0;

/// What a run will take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Samples that LoadGen plans for.
    pub samples: u64,
    /// Bytes LoadGen needs for them.
    pub loadgen: u64,
    /// Bytes of loaded samples.
    pub loaded: u64,
}

impl Estimate {
    /// For these settings over a QSL of `total` samples whose memory has `loaded` bytes.
    pub fn of(settings: &TestSettings, total: usize, loaded: u64) -> Self {
        let seconds = settings.min_duration_ms as f64 / 1000.0;
        let planned = |per_s: f64| {
            let by_time = (per_s * seconds).max(0.0) as u64;
            by_time.max(settings.min_query_count)
        };
        let accuracy = settings.mode == TestMode::AccuracyOnly;
        let (samples, each) = match settings.scenario {
            _ if accuracy => (total as u64, PER_SAMPLE),
            Scenario::Server => (planned(settings.server_target_qps), PER_SERVER_QUERY),
            Scenario::Offline => (planned(settings.offline_expected_qps * SLACK), PER_SAMPLE),
            Scenario::SingleStream => {
                let per_s =
                    STREAM_SLACK * 1e9 / settings.single_stream_expected_latency_ns.max(1.0);
                (planned(per_s), PER_SAMPLE)
            }
            Scenario::MultiStream => {
                let per_s = STREAM_SLACK * 1e9 / settings.multi_stream_expected_latency_ns.max(1.0);
                let queries = planned(per_s);
                let per_query = settings.multi_stream_samples_per_query;
                (queries.saturating_mul(per_query), PER_SAMPLE)
            }
        };
        let samples = match settings.max_query_count {
            0 => samples,
            most if settings.scenario == Scenario::MultiStream => {
                samples.min(most.saturating_mul(settings.multi_stream_samples_per_query))
            }
            most => samples.min(most),
        };
        Estimate {
            samples,
            loadgen: samples.saturating_mul(each),
            loaded,
        }
    }

    /// One line for the screen; a warning where it is more than `available` bytes.
    pub fn line(&self, available: Option<u64>) -> String {
        let need = self.loadgen.saturating_add(self.loaded);
        let line = format!(
            "memory: about {} for LoadGen's {} samples, {} for loaded samples",
            bytes(self.loadgen),
            self.samples,
            bytes(self.loaded)
        );
        match available {
            Some(free) if need > free => format!(
                "{line}; WARNING: {} are available: shorten the run or lower performance_sample_count",
                bytes(free)
            ),
            _ => line,
        }
    }
}

fn bytes(n: u64) -> String {
    let mib = n as f64 / (1 << 20) as f64;
    if mib >= 1024.0 {
        format!("{:.1} GiB", mib / 1024.0)
    } else {
        format!("{mib:.1} MiB")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(scenario: Scenario) -> TestSettings {
        TestSettings {
            scenario,
            min_duration_ms: 600_000,
            min_query_count: 100,
            server_target_qps: 1e6,
            offline_expected_qps: 1e6,
            multi_stream_expected_latency_ns: 1e6,
            multi_stream_samples_per_query: 8,
            single_stream_expected_latency_ns: 1e6,
            ..TestSettings::default()
        }
    }

    #[test]
    fn ten_minutes_at_a_million_a_second() {
        let server = Estimate::of(&settings(Scenario::Server), 10, 7);
        assert_eq!(
            (server.samples, server.loadgen),
            (600_000_000, 228_000_000_000)
        );
        let offline = Estimate::of(&settings(Scenario::Offline), 10, 7);
        assert_eq!(offline.samples, 660_000_000);
        let single = Estimate::of(&settings(Scenario::SingleStream), 10, 7);
        assert_eq!(single.samples, 1_200_000);
        let multi = Estimate::of(&settings(Scenario::MultiStream), 10, 7);
        assert_eq!(multi.samples, 9_600_000);
    }

    #[test]
    fn counts_and_modes_have_their_say() {
        let mut s = settings(Scenario::Server);
        s.max_query_count = 50;
        assert_eq!(Estimate::of(&s, 10, 0).samples, 50);
        s.mode = TestMode::AccuracyOnly;
        s.max_query_count = 0;
        assert_eq!(Estimate::of(&s, 10, 0).samples, 10);
        s.mode = TestMode::PerformanceOnly;
        s.min_duration_ms = 0;
        assert_eq!(Estimate::of(&s, 10, 0).samples, 100);
    }

    #[test]
    fn too_much_is_said() {
        let e = Estimate::of(&settings(Scenario::Server), 10, 1 << 20);
        let line = e.line(Some(1 << 30));
        assert!(
            line.contains("212.3 GiB") && line.contains("WARNING: 1.0 GiB are"),
            "{line}"
        );
        assert!(!e.line(None).contains("WARNING"));
        assert!(!e.line(Some(1 << 50)).contains("WARNING"));
    }
}
