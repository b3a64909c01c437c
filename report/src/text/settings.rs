//! The settings of a run as a table.

use record::SettingRecord;

use super::numbers::{Table, WIDTH, head, tail};

/// Longest name in the table, in characters: that of LoadGen's longest name.
const NAME: usize = 42;
/// Longest value in the table, in characters; `summary.json` has the full value.
const VALUE: usize = 22;
/// Longest source of a value in the table, in characters; keeps the end, with file and line.
const FROM: usize = 26;

/// Formats the settings that take effect and are not defaults; `None` if there are none.
pub(super) fn settings(settings: &[SettingRecord]) -> Option<String> {
    let set: Vec<&SettingRecord> = settings.iter().filter(|s| s.is_set()).collect();
    if set.is_empty() {
        return None;
    }
    let mut table = Table::new(&["setting", "value", "from"]).left();
    for s in &set {
        table.row(vec![
            head(&s.name, NAME),
            head(&s.given.value, VALUE),
            tail(&s.given.from, FROM),
        ]);
    }
    let rows = table.text();
    let mut out = String::new();
    // The heading overrides no value.
    let overrode = set.iter().map(|s| s.overrode.first());
    for (line, overrode) in rows.lines().zip([None].into_iter().chain(overrode)) {
        out.push_str(line);
        if let Some(o) = overrode {
            let (value, from) = (head(&o.value, VALUE), tail(&o.from, FROM));
            let instead = format!("instead of {value} ({from})");
            let fits = line.chars().count() + 2 + instead.chars().count() <= WIDTH;
            out.push_str(if fits { "  " } else { "\n    " });
            out.push_str(&instead);
        }
        out.push('\n');
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use record::{DEFAULT, GivenValue, SettingOf};

    use super::*;

    fn given(value: &str, from: &str) -> GivenValue {
        GivenValue {
            value: value.to_owned(),
            from: from.to_owned(),
        }
    }

    fn setting(name: &str, value: GivenValue, overrode: &[GivenValue]) -> SettingRecord {
        SettingRecord {
            name: name.to_owned(),
            of: SettingOf::Loadgen,
            idle: false,
            given: value,
            overrode: overrode.to_vec(),
        }
    }

    #[test]
    fn the_table_has_changed_settings_and_the_values_they_override() {
        let all = [
            setting("max_query_count", given("0", DEFAULT), &[]),
            setting(
                "server_target_qps",
                given("300", "--target-qps"),
                &[given("100", "user.conf:1"), given("50", "mlperf.conf")],
            ),
            setting("nics[0].slots", given("64", "front.yaml:12"), &[]),
            SettingRecord {
                idle: true,
                ..setting("offline_expected_qps", given("7", "user.conf:2"), &[])
            },
        ];
        let expected = "\
setting            value  from
server_target_qps  300    --target-qps  instead of 100 (user.conf:1)
nics[0].slots      64     front.yaml:12
";
        assert_eq!(settings(&all).as_deref(), Some(expected));
        assert_eq!(settings(&all[..1]), None);
    }

    #[test]
    fn no_line_is_too_long() {
        let long = "x".repeat(80);
        let value = given(&long, &long);
        let text = settings(&[setting(&long, value.clone(), &[value])]).expect("a table");
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
    }
}
