//! Estimates the memory of a run before the start: LoadGen keeps records of every query until the
//! end.

use loadgen_bridge::{Plan, Scenario};
use view::memory;

/// Bytes that LoadGen keeps per query in Server, measured.
const PER_SERVER_QUERY: u64 = 380;
/// Bytes that LoadGen keeps per sample in the other scenarios, measured.
const PER_SAMPLE: u64 = 125;

/// Largest accepted ratio of LoadGen's part to the available memory.
const BEYOND: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Number of samples that LoadGen makes before the run.
    pub samples: u64,
    /// Bytes that LoadGen needs for these samples.
    pub loadgen: u64,
    /// Bytes of loaded samples.
    pub loaded: u64,
}

impl Estimate {
    /// Estimates a plan over a QSL of `loaded` bytes.
    pub fn of(plan: &Plan, scenario: Scenario, loaded: u64) -> Self {
        let each = match scenario {
            Scenario::Server if plan.performance.is_some() => PER_SERVER_QUERY,
            _ => PER_SAMPLE,
        };
        let samples = plan.samples();
        Estimate {
            samples,
            loadgen: samples.saturating_mul(each),
            loaded,
        }
    }

    /// Refuses a run in which LoadGen needs over 4 times `available` bytes: swap rarely adds that.
    pub fn check(&self, available: Option<u64>) -> Result<(), String> {
        match available {
            Some(free) if self.loadgen / BEYOND > free => Err(format!(
                "LoadGen's {} samples take about {} of memory, and {} are available: lower \
                 --target-qps, --duration-s or --samples",
                self.samples,
                memory(self.loadgen),
                memory(free)
            )),
            _ => Ok(()),
        }
    }

    /// Returns one line, with `slots` bytes of slots and a warning if the need exceeds `available`
    /// bytes.
    pub fn line(&self, slots: u64, available: Option<u64>) -> String {
        let need = self.loadgen.saturating_add(self.loaded);
        let need = need.saturating_add(slots);
        let mut line = format!(
            "{}: {} for LoadGen's {} samples, {} for loaded samples",
            memory(need),
            memory(self.loadgen),
            self.samples,
            memory(self.loaded)
        );
        if slots > 0 {
            line += &format!(", {} for slots", memory(slots));
        }
        match available.map(|free| (memory(free), need > free)) {
            Some((free, true)) => format!(
                "{line}; WARNING: {free} are available: shorten the run or lower \
                 performance_sample_count"
            ),
            Some((free, false)) => format!("{line}; {free} are available"),
            None => line,
        }
    }
}

#[cfg(test)]
mod tests {
    use loadgen_bridge::{TestMode, TestSettings};

    use qdl::testkit::assert_has;

    use super::*;

    /// Ten minutes at a million samples/s, over 10 samples.
    fn estimate(scenario: Scenario, change: impl FnOnce(&mut TestSettings)) -> Estimate {
        let mut settings = TestSettings {
            scenario,
            min_duration_ms: 600_000,
            server_target_qps: 1e6,
            offline_expected_qps: 1e6,
            multi_stream_expected_latency_ns: 1e6,
            single_stream_expected_latency_ns: 1e6,
            ..TestSettings::default()
        };
        change(&mut settings);
        let plan = Plan::of(&settings, 10, 7).expect("sound");
        Estimate::of(&plan, scenario, 1 << 20)
    }

    #[test]
    fn it_is_of_what_loadgen_makes() {
        let server = estimate(Scenario::Server, |_| ());
        assert_eq!(server.samples, 600_000_000);
        assert_eq!(server.loadgen, 228_000_000_000);
        let samples = |scenario| estimate(scenario, |_| ()).samples;
        assert_eq!(samples(Scenario::Offline), 660_000_000);
        assert_eq!(samples(Scenario::SingleStream), 1_200_001);
        assert_eq!(samples(Scenario::MultiStream), 9_600_008);
        let padded = estimate(Scenario::Offline, |s| {
            s.sample_concatenate_permutation = true
        });
        assert_eq!(padded.samples, 660_000_005, "whole passes over 7 samples");
        let accuracy = estimate(Scenario::Server, |s| s.mode = TestMode::AccuracyOnly);
        assert_eq!((accuracy.samples, accuracy.loadgen), (10, 1250));
    }

    #[test]
    fn too_much_is_said() {
        let e = estimate(Scenario::Server, |_| ());
        let line = e.line(0, Some(1 << 30));
        assert_has(&line, &["212.3 GiB", "WARNING: 1.0 GiB are"]);
        assert!(!e.line(0, None).contains("WARNING"));
        let why = e.check(Some(1 << 30)).expect_err("too much");
        assert_has(&why, &["lower --target-qps"]);
        assert_eq!([e.check(Some(1 << 36)), e.check(None)], [Ok(()), Ok(())]);
        assert!(!e.line(0, Some(1 << 50)).contains("WARNING"));
    }
}
