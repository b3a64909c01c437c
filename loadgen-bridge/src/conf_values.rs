//! The lines of a `user.conf` or `audit.config` that concern one model in one scenario: the field
//! that each line sets, and the line that overrides it.

use std::path::Path;

use crate::conf::{KEYS, parse};
use crate::conf_text::ConfText;
use crate::error::LoadgenError;
use loadgen_log::Scenario;

/// A line that concerns a model in a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfValue {
    /// Number of the line, from 1.
    pub line: usize,
    /// The full name as written: `resnet50.Server.target_qps`.
    pub name: String,
    /// The last part of the name: `target_qps`.
    pub key: String,
    /// The value as written.
    pub value: String,
    /// The field of `TestSettings` that the line sets; `None` if ignored in this scenario.
    pub field: Option<&'static str>,
    /// Number of the line that overrides this one.
    pub beaten_by: Option<usize>,
}

/// The lines of a file that concern `model` in `scenario`, in their order. Skips malformed lines,
/// which [`TestSettings::apply_user_conf`](crate::TestSettings::apply_user_conf) rejects.
///
/// # Errors
///
/// The file cannot be read.
pub fn conf_values(
    path: &Path,
    model: &str,
    scenario: Scenario,
) -> Result<Vec<ConfValue>, LoadgenError> {
    Ok(values(ConfText::read(path)?.lines(), model, scenario))
}

fn values<'a>(
    lines: impl Iterator<Item = (usize, &'a str)>,
    model: &str,
    scenario: Scenario,
) -> Vec<ConfValue> {
    let mut all: Vec<(u8, ConfValue)> = Vec::new();
    for (number, line) in lines {
        let Ok(Some(entry)) = parse(line) else {
            continue;
        };
        // The precedence of LoadGen's look-up.
        let rank = match (entry.model, entry.scenario) {
            (m, s) if m == model && s == scenario.name() => 3,
            ("*", s) if s == scenario.name() => 2,
            (m, "*") if m == model => 1,
            ("*", "*") => 0,
            _ => continue,
        };
        let value = ConfValue {
            line: number,
            name: format!("{}.{}.{}", entry.model, entry.scenario, entry.key),
            key: entry.key.to_owned(),
            value: entry.value.to_owned(),
            field: conf_field(entry.key, scenario),
            beaten_by: None,
        };
        all.push((rank, value));
    }
    for i in 0..all.len() {
        // Of lines with the same name the last one wins.
        let winner = all
            .iter()
            .enumerate()
            .filter(|(_, (_, v))| v.key == all[i].1.key)
            .max_by_key(|(at, (rank, _))| (*rank, *at))
            .map(|(at, (_, v))| (at, v.line));
        if let Some((at, line)) = winner
            && at != i
        {
            all[i].1.beaten_by = Some(line);
        }
    }
    all.into_iter().map(|(_, value)| value).collect()
}

/// The field of `TestSettings` that LoadGen sets for a key in a scenario.
pub fn conf_field(key: &str, scenario: Scenario) -> Option<&'static str> {
    use Scenario::{MultiStream, Offline, Server, SingleStream};
    Some(match (key, scenario) {
        ("ttft_latency", Server) => "server_ttft_latency",
        ("tpot_latency", Server) => "server_tpot_latency",
        ("target_latency_percentile", SingleStream) => "single_stream_target_latency_percentile",
        ("target_latency_percentile", MultiStream) => "multi_stream_target_latency_percentile",
        ("target_latency_percentile", Server) => "server_target_latency_percentile",
        ("target_latency", SingleStream) => "single_stream_expected_latency_ns",
        ("target_latency", MultiStream) => "multi_stream_expected_latency_ns",
        ("target_latency", Server) => "server_target_latency_ns",
        ("samples_per_query", MultiStream) => "multi_stream_samples_per_query",
        ("coalesce_queries", Server) => "server_coalesce_queries",
        ("max_async_queries", Server) => "server_max_async_queries",
        ("target_qps", Server) => "server_target_qps",
        ("target_qps", Offline) => "offline_expected_qps",
        ("min_duration", _) => "min_duration_ms",
        ("max_duration", _) => "max_duration_ms",
        (
            "ttft_latency"
            | "tpot_latency"
            | "target_latency_percentile"
            | "target_latency"
            | "samples_per_query"
            | "coalesce_queries"
            | "max_async_queries"
            | "target_qps",
            _,
        ) => return None,
        // Every other key has the name of its field.
        _ => KEYS.iter().find(|(name, _)| *name == key)?.0,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::settings::TestSettings;

    fn values(text: &str, model: &str, scenario: Scenario) -> Vec<ConfValue> {
        let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
        super::values(lines, model, scenario)
    }

    #[test]
    fn the_line_that_loadgen_takes_is_the_one_that_is_not_beaten() {
        let text = "*.*.min_duration = 1000\n# a comment\ndigits.Server.min_duration = 2000\n\
                    digits.*.min_duration = 3000\ndigits.Offline.min_duration = 4000\n\
                    digits.Server.target_qps = 5\ndigits.Server.target_qps = 6\n";
        let values = values(text, "digits", Scenario::Server);
        let short: Vec<_> = values
            .iter()
            .map(|v| (v.line, v.field, v.beaten_by))
            .collect();
        let (duration, qps) = (Some("min_duration_ms"), Some("server_target_qps"));
        let expected = [
            (1, duration, Some(3)),
            (3, duration, None),
            (4, duration, Some(3)),
            (6, qps, Some(7)),
            (7, qps, None),
        ];
        assert_eq!(short, expected);
        // LoadGen agrees.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("user.conf");
        fs::write(&path, text).unwrap();
        let mut settings = TestSettings {
            scenario: Scenario::Server,
            ..TestSettings::default()
        };
        settings.apply_user_conf(&path, "digits", &[]).unwrap();
        assert_eq!(settings.min_duration_ms, 2000);
        assert_eq!(settings.server_target_qps, 6.0);
        assert_eq!(
            conf_values(&path, "digits", Scenario::Server).unwrap(),
            values
        );
    }

    #[test]
    fn a_key_that_the_scenario_has_no_use_for_sets_nothing() {
        let text = "digits.SingleStream.target_qps = 5\n*.*.target_duration = 0\n";
        let fields = values(text, "digits", Scenario::SingleStream);
        assert_eq!(
            fields.iter().map(|v| v.field).collect::<Vec<_>>(),
            [None; 2]
        );
        let others = values(text, "bert", Scenario::Offline);
        assert_eq!(others[0].name, "*.*.target_duration");
        assert!(conf_values(Path::new("nowhere"), "m", Scenario::Server).is_err());
    }
}
