//! How many tests ran, read from what the runners
//! print: their exit code says whether, never how many.

/// Tests that ran, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ended as they should.
    pub passed: u64,
    /// Failed, or ran past their time.
    pub failed: u64,
    /// Marked to be left out.
    pub skipped: u64,
    /// Among those that passed: failed first, and passed when they were tried again.
    pub flaky: u64,
}

impl Counts {
    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
            flaky: self.flaky + other.flaky,
        }
    }

    /// The sum over every closing line of cargo-nextest in `output`; where there is none, of
    /// cargo's own harness. cargo-nextest shows what a failed test wrote, which has such a line of
    /// its own.
    pub fn read(output: &str) -> Self {
        let closing = |of: fn(&str) -> Option<Counts>| {
            let lines = output.lines().map(without_colour);
            lines.filter_map(|line| of(line.trim())).reduce(Self::and)
        };
        closing(nextest)
            .or_else(|| closing(harness))
            .unwrap_or_default()
    }
}

/// The counts of a closing line of cargo-nextest, without colour; nothing for any other line.
fn nextest(line: &str) -> Option<Counts> {
    // Summary [   0.048s] 14 tests run: 13 passed (1 slow, 1 flaky), 1 failed, 2 skipped
    let (_, counts) = line.strip_prefix("Summary [")?.split_once("run:")?;
    let bracket = counts
        .split_once('(')
        .and_then(|(_, of)| of.split_once(')'));
    Some(Counts {
        flaky: bracket.map_or(0, |(of, _)| counted(of, ',').flaky),
        ..counted(&without_brackets(counts), ',')
    })
}

/// The same of cargo's own harness.
fn harness(line: &str) -> Option<Counts> {
    // test result: FAILED. 3 passed; 1 failed; 0 ignored;
    // 0 measured; 0 filtered out; finished in 0.00s
    let (_, counts) = line.strip_prefix("test result:")?.split_once('.')?;
    Some(counted(counts, ';'))
}

fn counted(text: &str, separator: char) -> Counts {
    let mut counts = Counts::default();
    for part in text.split(separator) {
        let mut words = part.split_whitespace();
        let (Some(Ok(number)), Some(what)) = (words.next().map(str::parse::<u64>), words.next())
        else {
            continue;
        };
        match what {
            "passed" => counts.passed += number,
            "failed" | "timed" | "exec" => counts.failed += number,
            "skipped" | "ignored" => counts.skipped += number,
            "flaky" => counts.flaky += number,
            _ => {}
        }
    }
    counts
}

/// The line without the escape sequences that colour it.
fn without_colour(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            // A sequence ends with its first letter.
            characters.find(char::is_ascii_alphabetic);
        } else {
            plain.push(character);
        }
    }
    plain
}

/// The text without what stands in round brackets: `13 passed (1 slow, 1 leaky)` has a comma there.
fn without_brackets(text: &str) -> String {
    let mut depth = 0_u32;
    text.chars()
        .filter(|character| match character {
            '(' => {
                depth += 1;
                false
            }
            ')' => {
                depth = depth.saturating_sub(1);
                false
            }
            _ => depth == 0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts {
            passed,
            failed,
            skipped,
            flaky: 0,
        }
    }

    #[test]
    fn nextest_closing_lines() {
        let all = "     Summary [   0.048s] 14 tests run: 14 passed, 2 skipped";
        assert_eq!(Counts::read(all), counts(14, 0, 2));
        let one = "     Summary [   0.004s] 1 test run: 1 passed, 0 skipped";
        assert_eq!(Counts::read(one), counts(1, 0, 0));
        let bad = "     Summary [  61.2s] 8/9 tests run: 4 passed (1 slow, 1 leaky), 2 failed, 1 timed out, 1 exec failed, 3 skipped";
        assert_eq!(Counts::read(bad), counts(4, 4, 3));
        let again = "     Summary [  61.2s] 9 tests run: 9 passed (2 slow, 1 flaky), 3 skipped";
        let flaky = Counts {
            flaky: 1,
            ..counts(9, 0, 3)
        };
        assert_eq!(Counts::read(again), flaky);
        assert_eq!(Counts::read(again).and(flaky).flaky, 2);
    }

    #[test]
    fn what_a_failed_test_wrote_is_not_counted_again() {
        let output = "        FAIL [   0.1s] one\n\
                      test result: FAILED. 0 passed; 1 failed; 0 ignored; finished in 0.1s\n\
                           Summary [   0.2s] 3 tests run: 2 passed, 1 failed, 4 skipped\n";
        assert_eq!(Counts::read(output), counts(2, 1, 4));
    }

    #[test]
    fn coloured_closing_lines() {
        let line = "\u{1b}[32;1m     Summary\u{1b}[0m [   0.048s] \u{1b}[1m14\u{1b}[0m tests run: \u{1b}[1m13\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, \u{1b}[1m1\u{1b}[0m \u{1b}[31;1mfailed\u{1b}[0m, \u{1b}[1m0\u{1b}[0m \u{1b}[33;1mskipped\u{1b}[0m";
        assert_eq!(Counts::read(line), counts(13, 1, 0));
        assert_eq!(
            Counts::read(
                "test result: \u{1b}[31mFAILED\u{1b}[0m. 3 passed; 1 failed; 2 ignored; 0 measured; 4 filtered out; finished in 0.00s"
            ),
            counts(3, 1, 2)
        );
    }

    #[test]
    fn every_closing_line_counts_and_nothing_else_does() {
        let output = "running 2 tests\ntest a ... ok\n9 passed, 9 failed\n\
                      test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
                      error: 1 target failed\n\
                      test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        assert_eq!(Counts::read(output), counts(2, 1, 0));
        assert_eq!(Counts::read(""), Counts::default());
    }
}
