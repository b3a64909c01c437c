//! From a value to a place on an axis, and what is written there.

use crate::text;

/// A mark on an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// The value.
    pub value: f64,
    /// What is written; nothing at a mark between others.
    pub label: String,
}

/// From a value to a share of an axis' length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Even.
    Linear(f64, f64),
    /// The same length for each factor of ten.
    Log(f64, f64),
    /// HdrHistogram's: quantiles from 0 to this one, the same length for each nine.
    Percentile(f64),
}

fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).max(1e-12).log10()
}

impl Scale {
    /// From 0 to at least `top`; never nothing.
    pub fn up_to(top: f64) -> Scale {
        Scale::Linear(
            0.0,
            if top > 0.0 && top.is_finite() {
                top
            } else {
                1.0
            },
        )
    }

    /// Logarithmic, over all of these that are above 0.
    pub fn over(values: impl IntoIterator<Item = f64>) -> Scale {
        let mut ends = (f64::INFINITY, 0.0_f64);
        for v in values.into_iter().filter(|v| *v > 0.0 && v.is_finite()) {
            ends = (ends.0.min(v), ends.1.max(v));
        }
        match ends {
            (low, high) if low < high => Scale::Log(low, high),
            (low, _) if low.is_finite() => Scale::Log(low / 2.0, low * 2.0),
            _ => Scale::Log(1.0, 10.0),
        }
    }

    /// Percentiles of so many samples: to the last that some of them are beyond.
    pub fn of_samples(count: u64) -> Scale {
        Scale::Percentile(1.0 - 1.0 / (count.max(20) as f64))
    }

    /// The place, from 0 to 1 for what lies within.
    pub fn at(self, value: f64) -> f64 {
        match self {
            Scale::Linear(low, high) => (value - low) / (high - low),
            Scale::Log(low, high) => (value.max(1e-300) / low).log10() / (high / low).log10(),
            Scale::Percentile(last) => nines(value) / nines(last),
        }
    }

    /// Marks, about `wanted` of them with a label.
    pub fn ticks(self, wanted: usize, label: fn(f64) -> String) -> Vec<Tick> {
        match self {
            Scale::Linear(low, high) => linear(low, high, wanted, label),
            Scale::Log(low, high) => log(low, high, wanted, label),
            Scale::Percentile(last) => percentiles(last),
        }
    }
}

/// Steps of 1, 2 or 5 times a power of ten.
fn linear(low: f64, high: f64, wanted: usize, label: fn(f64) -> String) -> Vec<Tick> {
    let rough = (high - low) / wanted.max(1) as f64;
    if rough <= 0.0 || !rough.is_finite() {
        return Vec::new();
    }
    let ten = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|s| s * ten)
        .find(|s| *s >= rough * 0.999)
        .unwrap_or(10.0 * ten);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last)
        .map(|i| i as f64 * step)
        .map(|value| Tick {
            label: label(value),
            value,
        })
        .collect()
}

/// Powers of ten; 2 and 5 of each where there are few of them.
fn log(low: f64, high: f64, wanted: usize, label: fn(f64) -> String) -> Vec<Tick> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let decades = (high / low).log10();
    let within = |v: f64| v >= low * 0.999 && v <= high * 1.001;
    let named: &[f64] = match () {
        () if decades * 3.0 <= wanted as f64 * 1.5 => &[1.0, 2.0, 5.0],
        () => &[1.0],
    };
    let every = (decades / wanted.max(1) as f64).ceil().max(1.0) as i32;
    let mut ticks = Vec::new();
    for power in first..=last {
        for step in [1.0, 2.0, 5.0] {
            let value = step * 10f64.powi(power);
            if !within(value) {
                continue;
            }
            let said = named.contains(&step) && power.rem_euclid(every) == 0;
            let label = if said { label(value) } else { String::new() };
            if said || decades < 4.0 {
                ticks.push(Tick { value, label });
            }
        }
    }
    ticks
}

fn percentiles(last: f64) -> Vec<Tick> {
    let mut ticks = vec![(0.0, "0".to_owned()), (0.5, "50".to_owned())];
    let mut rest = 0.1;
    let mut digits = 0;
    while 1.0 - rest <= last + 1e-12 && digits < 8 {
        let decimals = usize::saturating_sub(digits, 1);
        ticks.push((1.0 - rest, format!("{:.decimals$}", 100.0 * (1.0 - rest))));
        rest /= 10.0;
        digits += 1;
    }
    let all = ticks.into_iter();
    all.map(|(value, label)| Tick { value, label }).collect()
}

/// A label of microseconds.
pub fn times(us: f64) -> String {
    let whole = |v: f64, unit: &str| {
        let text = format!("{v:.3}");
        format!(
            "{} {unit}",
            text.trim_end_matches('0').trim_end_matches('.')
        )
    };
    match us {
        u if u <= 0.0 => "0".to_owned(),
        u if u < 0.9995 => whole(u * 1e3, "ns"),
        u if u < 999.5 => whole(u, "us"),
        u if u < 999_500.0 => whole(u / 1e3, "ms"),
        u => whole(u / 1e6, "s"),
    }
}

/// A label of seconds of a run.
pub fn seconds(s: f64) -> String {
    let text = format!("{s:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} s")
}

/// A label of a count or a rate.
pub fn rates(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", trimmed(v / 1e6)),
        v if v >= 1e4 => format!("{} k", trimmed(v / 1e3)),
        v if v >= 100.0 => text::grouped(v.round() as u64),
        v => trimmed(v),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "" | "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: &[Tick]) -> Vec<&str> {
        let said = ticks.iter().map(|t| t.label.as_str());
        said.filter(|l| !l.is_empty()).collect()
    }

    #[test]
    fn each_nine_is_as_long_as_the_one_before() {
        let scale = Scale::of_samples(10_000);
        let at: Vec<f64> = [0.0, 0.9, 0.99, 0.999, 0.9999]
            .map(|q| scale.at(q))
            .to_vec();
        for (i, place) in at.iter().enumerate() {
            assert!((place - i as f64 / 4.0).abs() < 1e-9, "{at:?}");
        }
        let ticks = scale.ticks(9, times);
        assert_eq!(labels(&ticks), ["0", "50", "90", "99", "99.9", "99.99"]);
        assert!((scale.at(0.5) - 2f64.log10() / 4.0).abs() < 1e-5);
        // Two samples say nothing of the 99.9th.
        assert_eq!(
            labels(&Scale::of_samples(2).ticks(9, times)),
            ["0", "50", "90"]
        );
    }

    #[test]
    fn marks_are_round_numbers_within_the_ends() {
        let ticks = Scale::Linear(0.0, 1_234.0).ticks(5, rates);
        assert_eq!(labels(&ticks), ["0", "500", "1,000"]);
        let ticks = Scale::Linear(0.0, 0.7).ticks(4, rates);
        assert_eq!(labels(&ticks), ["0", "0.2", "0.4", "0.6"]);
        let ticks = Scale::Log(30.0, 40_000.0).ticks(5, times);
        assert_eq!(labels(&ticks), ["100 us", "1 ms", "10 ms"]);
        let ticks = Scale::Log(150.0, 900.0).ticks(5, times);
        assert_eq!(labels(&ticks), ["200 us", "500 us"]);
        for odd in [Scale::over([]), Scale::up_to(f64::NAN), Scale::over([3.0])] {
            assert!(!odd.ticks(4, rates).is_empty(), "{odd:?}");
        }
    }

    #[test]
    fn a_time_has_its_unit() {
        let said: Vec<String> = [0.5, 1.0, 20.0, 1e3, 2.5e3, 1e6].map(times).to_vec();
        assert_eq!(said, ["500 ns", "1 us", "20 us", "1 ms", "2.5 ms", "1 s"]);
    }
}
