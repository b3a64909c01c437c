//! Formats numbers with units, and wrapped lines.

use record::Accuracy;

/// Longest line in characters.
pub const WIDTH: usize = 100;
/// Column where a fact's text begins, behind its label.
pub const INDENT: usize = 13;

pub use record::grouped;

/// Formats a time in microseconds with three figures and a unit.
pub fn time_us(us: f64) -> String {
    if us <= 0.0 {
        return "0".to_owned();
    }
    // Times below 1 us are measured in whole nanoseconds.
    if us < 0.9995 {
        return format!("{:.0} ns", us * 1000.0);
    }
    scaled(us, &["us", "ms", "s"])
}

/// Formats a size in bytes with three figures and a decimal unit.
pub fn bytes(n: u64) -> String {
    match n {
        0..1000 => format!("{n} B"),
        _ => scaled(n as f64 / 1e3, &["kB", "MB", "GB", "TB", "PB"]),
    }
}

/// Formats a rate in Gbit/s with three figures and a unit.
pub fn bit_rate(gbit_per_s: f64) -> String {
    scaled(gbit_per_s * 1e6, &["kbit/s", "Mbit/s", "Gbit/s"])
}

/// Formats `value` with three figures, in the first unit that leaves less than 1000. Each unit is
/// 1000 times the unit before.
fn scaled(value: f64, units: &[&str]) -> String {
    let last = units.len().saturating_sub(1);
    let scale = |n: usize| (0..n).fold(value, |value, _| value / 1000.0);
    let n = (0..last).find(|n| scale(*n) < 999.5).unwrap_or(last);
    format!("{} {}", three(scale(n)), units[n])
}

/// Formats a number with two decimals below 10, one below 100, none above.
pub fn three(value: f64) -> String {
    let decimals = match value.abs() {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Formats a count with its noun: `1 sample`, `2,000 samples`.
pub fn counted(n: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// Formats a count in at most seven characters: grouped below a million, three figures above.
pub fn short(n: u64) -> String {
    match n {
        0..1_000_000 => grouped(n),
        _ => scaled(n as f64 / 1e6, &["M", "G", "T", "P", "E"]),
    }
}

/// Formats a rate per second: three figures below 100, whole and grouped above.
pub fn rate(per_s: f64) -> String {
    if per_s < 99.95 {
        three(per_s.max(0.0))
    } else {
        grouped(per_s.round() as u64)
    }
}

/// Wraps at blanks into lines of at most `width` characters; splits a longer word.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for (i, piece) in letters.chunks(width.max(1)).enumerate() {
            let gap = usize::from(used > 0 && i == 0);
            if used > 0 && used + gap + piece.len() > width {
                lines.push(String::new());
                used = 0;
            }
            if let Some(line) = lines.last_mut() {
                if used > 0 && gap == 1 {
                    line.push(' ');
                    used += 1;
                }
                line.extend(piece);
            }
            used += piece.len();
        }
    }
    lines
}

/// Shortens a text to `width` characters; keeps both ends, since connection names end in an index.
pub fn cut(text: &str, width: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= width {
        return text.to_owned();
    }
    let tail = width / 3;
    let (head, end) = (
        &letters[..width - tail - 1],
        &letters[letters.len() - tail..],
    );
    head.iter().chain(&['…']).chain(end).collect()
}

/// Formats a share in percent, or as a multiple from ten times on. Only a whole is `100 %`.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        p if !p.is_finite() => "-".to_owned(),
        p if p >= 999.5 => format!("{} times", three(share)),
        p if p > 0.0 && p < 0.01 => "< 0.01 %".to_owned(),
        p if p > 99.0 && p < 100.0 => format!("{:.2} %", (p * 100.0).floor() / 100.0),
        p => format!("{} %", three(p)),
    }
}

/// Formats an accuracy: `97.778 %: 528 of 540`.
pub fn accuracy(a: &Accuracy) -> String {
    let [right, all] = [a.right, a.answers].map(grouped);
    format!("{:.3} %: {right} of {all}", a.share * 100.0)
}

/// Formats seconds since 1970 as a date with its zone: `2026-11-29 08:05:12 UTC`.
pub fn date(seconds: f64) -> String {
    let (days, s) = (
        (seconds / 86_400.0).floor() as i64,
        seconds.rem_euclid(86_400.0) as u64,
    );
    // Years from March, in eras of 400 years: leap days are at the end of one.
    let day = days + 719_468;
    let (era, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
    let year = era * 400 + year + i64::from(month <= 2);
    let (hours, minutes, s) = (s / 3600, s / 60 % 60, s % 60);
    format!("{year}-{month:02}-{day:02} {hours:02}:{minutes:02}:{s:02} UTC")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
    #[test]
    fn wrapping_loses_no_word(
        words in prop::collection::vec("[a-z]{1,30}", 0..40),
        width in 30usize..60,
    ) {
        let lines = wrap(&words.join(" "), width);
        prop_assert!(lines.iter().all(|l| l.chars().count() <= width));
        let back: Vec<String> = lines.join(" ").split_whitespace().map(str::to_owned).collect();
        prop_assert_eq!(back, words);
    }
    }

    #[test]
    fn times_have_three_figures_and_a_unit() {
        let times = [
            0.0, 0.001, 0.9994, 0.9996, 9.994, 9.996, 12.34, 999.4, 999.6, 3.6e9,
        ];
        assert_eq!(
            times.map(time_us).join(", "),
            "0, 1 ns, 999 ns, 1.00 us, 9.99 us, 10.0 us, 12.3 us, 999 us, 1.00 ms, 3600 s"
        );
    }

    #[test]
    fn names_shares_and_dates() {
        assert_eq!(cut("acc-a/0", 7), "acc-a/0");
        assert_eq!(cut("digest-accelerator-b/1", 17), "digest-acce…r-b/1");
        let shares = [0.0, 0.000_05, 0.005, 0.595, 0.999_999, 1.0, 1.9, 401.79];
        let expected = "0.00 %, < 0.01 %, 0.50 %, 59.5 %, 99.99 %, 100 %, 190 %, 402 times";
        assert_eq!(shares.map(percent).join(", "), expected);
        let dates = [0.0, 951_782_400.0, 1_709_251_199.0, 1_795_969_838.5].map(date);
        let expected = "1970-01-01 00:00:00 UTC, 2000-02-29 00:00:00 UTC, \
                        2024-02-29 23:59:59 UTC, 2026-11-29 16:30:38 UTC";
        assert_eq!(dates.join(", "), expected);
    }

    #[test]
    fn counts_rates_and_bytes() {
        let expected = "0 999 1,000 1,234,567";
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped).join(" "), expected);
        let expected = "0.50 99.0 100 12,346";
        assert_eq!([0.5, 99.0, 99.96, 12_345.6].map(rate).join(" "), expected);
        assert_eq!(
            [0, 999, 1000, 150_528, 15_050_000_000]
                .map(bytes)
                .join(", "),
            "0 B, 999 B, 1.00 kB, 151 kB, 15.1 GB"
        );
    }
}
