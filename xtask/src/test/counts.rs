//! Reads the number of tests from the runners' output: exit codes do not contain numbers of tests.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Counts {
    pub fn and(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }

    /// The sum over all closing lines of cargo-nextest in `output`; without one, of cargo's own
    /// harness. cargo-nextest prints the output of failed tests, which contains such lines too.
    pub fn read(output: &str) -> Self {
        let closing = |begin: &str| {
            let lines = output.lines().map(without_colour);
            let lines = lines.filter(|line| line.trim_start().starts_with(begin));
            lines.map(|line| of(&line)).reduce(Self::and)
        };
        let found = closing("Summary [").or_else(|| closing("test result:"));
        found.unwrap_or_default()
    }
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
            "skipped" | "ignored" => counts.skipped += number,
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
        for (output, passed, failed, skipped) in [
            (
                "Summary [0.1s] 14 tests run: 14 passed, 2 skipped",
                14,
                0,
                2,
            ),
            ("Summary [0.1s] 1 test run: 1 passed, 0 skipped", 1, 0, 0),
            (
                "Summary [61.2s] 8/9 tests run: 4 passed (1 slow, 1 leaky), 2 failed, 1 timed out, 1 exec failed, 3 skipped",
                4,
                4,
                3,
            ),
            (colour, 13, 1, 0),
            (repeated, 2, 1, 4),
            (harness, 2, 1, 3),
            ("", 0, 0, 0),
        ] {
            let counts = Counts {
                passed,
                failed,
                skipped,
            };
            assert_eq!(Counts::read(output), counts, "{output}");
        }
    }
}
