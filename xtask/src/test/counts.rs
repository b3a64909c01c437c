//! Reads the number of tests from the runners' output: exit codes do not contain numbers of tests.

use std::collections::BTreeMap;

/// What a test prints, with a reason, before it returns because the machine or the fabric lacks
/// something.
const SKIPPED: &str = "skipped: ";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    /// Number of skipped tests by their reason. Tests that the step did not select are not counted.
    pub skipped: BTreeMap<String, u64>,
}

impl Counts {
    pub fn and(mut self, other: &Self) -> Self {
        self.passed += other.passed;
        self.failed += other.failed;
        for (why, number) in &other.skipped {
            *self.skipped.entry(why.clone()).or_default() += number;
        }
        self
    }

    /// The sum over all closing lines of cargo-nextest in `output`; without one, of cargo's own
    /// harness. cargo-nextest prints the output of failed tests, which contains such lines too, and
    /// leaves the output of passed tests to `report`.
    pub fn read(output: &str, report: &str) -> Self {
        let closing = |begin: &str| {
            let lines = output.lines().map(without_colour);
            let lines = lines.filter(|line| line.trim_start().starts_with(begin));
            lines.map(|line| of(&line)).reduce(|a, b| a.and(&b))
        };
        let found = closing("Summary [").or_else(|| closing("test result:"));
        let mut counts = found.unwrap_or_default();
        for why in [output, report].into_iter().flat_map(reasons) {
            *counts.skipped.entry(why).or_default() += 1;
        }
        counts.passed = counts.passed.saturating_sub(counts.all_skipped());
        counts
    }

    pub fn all_skipped(&self) -> u64 {
        self.skipped.values().sum()
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        match self.all_skipped() {
            0 => Ok(()),
            skipped => write!(f, ", {skipped} skipped"),
        }
    }
}

/// The reasons in the output of tests, of which a report in XML escapes some characters. Cargo's
/// harness may print the test's name before the first line.
fn reasons(output: &str) -> impl Iterator<Item = String> {
    let lines = output.lines().filter_map(|line| {
        let (before, why) = line.split_once(SKIPPED)?;
        (before.is_empty() || before.ends_with(" ... ")).then_some(why)
    });
    lines.map(|why| {
        let escapes = [
            ("&quot;", "\""),
            ("&apos;", "'"),
            ("&lt;", "<"),
            ("&gt;", ">"),
        ];
        let why = escapes
            .iter()
            .fold(why.to_owned(), |why, (escape, c)| why.replace(escape, c));
        why.replace("&amp;", "&")
    })
}

/// The counts of a closing line: each number counts the word behind it.
///
/// ```text
/// Summary [   0.048s] 14 tests run: 13 passed (1 slow), 1 failed, 2 skipped
/// test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
/// ```
fn of(line: &str) -> Counts {
    let words = line.split(|c: char| !c.is_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let mut counts = Counts::default();
    for pair in words.windows(2) {
        let Ok(number) = pair[0].parse::<u64>() else {
            continue;
        };
        match pair[1] {
            "passed" => counts.passed += number,
            "failed" | "timed" | "exec" => counts.failed += number,
            _ => {}
        }
    }
    counts
}

/// Removes colour escape sequences from a line: each ends with its first letter.
fn without_colour(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic());
        plain += end.map_or("", |end| &part[end + 1..]);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_closing_line_counts_and_nothing_else_does() {
        let colour = "\u{1b}[32;1m     Summary\u{1b}[0m [   0.048s] \u{1b}[1m14\u{1b}[0m tests run: \u{1b}[1m13\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, \u{1b}[1m1\u{1b}[0m \u{1b}[31;1mfailed\u{1b}[0m, \u{1b}[1m0\u{1b}[0m \u{1b}[33;1mskipped\u{1b}[0m";
        // cargo-nextest repeats the output of failed tests.
        let repeated = "        FAIL [   0.1s] one\n\
                        test result: FAILED. 0 passed; 1 failed; 0 ignored; finished in 0.1s\n\
                        Summary [   0.2s] 3 tests run: 2 passed, 1 failed, 4 skipped\n";
        let harness = "running 2 tests\ntest a ... ok\n9 passed, 9 failed\n\
                       test result: ok. 2 passed; 0 failed; 0 ignored; finished in 0.00s\n\
                       error: 1 target failed\n\
                       test result: \u{1b}[31mFAILED\u{1b}[0m. 0 passed; 1 failed; 3 ignored; \
                       0 measured; 4 filtered out; finished in 0.00s\n";
        for (output, passed, failed) in [
            ("Summary [0.1s] 14 tests run: 14 passed, 2 skipped", 14, 0),
            ("Summary [0.1s] 1 test run: 1 passed, 0 skipped", 1, 0),
            (
                "Summary [61.2s] 8/9 tests run: 4 passed (1 slow, 1 leaky), 2 failed, 1 timed out, 1 exec failed, 3 skipped",
                4,
                4,
            ),
            (colour, 13, 1),
            (repeated, 2, 1),
            (harness, 2, 1),
            ("", 0, 0),
        ] {
            let skipped = BTreeMap::new();
            let counts = Counts {
                passed,
                failed,
                skipped,
            };
            assert_eq!(Counts::read(output, ""), counts, "{output}");
        }
    }

    #[test]
    fn a_test_that_prints_a_reason_is_skipped_and_has_not_passed() {
        let closing = "Summary [0.1s] 4 tests run: 4 passed, 0 skipped\n";
        let report = "<system-out>\nrunning 1 test\nskipped: no &apos;lib&apos; &amp; no NIC\n\
                      test a ... skipped: no compiler\ntest a ... ok\n\
                      2 skipped: of another suite\nskipped: no compiler\n</system-out>";
        let counts = Counts::read(closing, report);
        assert_eq!(counts.to_string(), "1 passed, 0 failed, 3 skipped");
        let skipped = [("no 'lib' & no NIC", 1), ("no compiler", 2)];
        let skipped = skipped.map(|(why, number)| (why.to_owned(), number));
        assert_eq!(counts.skipped, BTreeMap::from(skipped));
        let twice = counts.clone().and(&counts);
        assert_eq!((twice.passed, twice.all_skipped()), (2, 6));
    }
}
