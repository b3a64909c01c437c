//! The progress line of a run: samples done, rate, p99 so far. A terminal redraws the line in
//! place; a file or pipe gets a plain line every few seconds.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use record::Figures;
use view::{short, time_us};

const PLAIN_EVERY_NS: u64 = 5_000_000_000;

/// Destination of the progress line and of permanent lines.
#[derive(Clone)]
pub enum Screen {
    Bar(ProgressBar),
    Plain,
    Quiet,
}

impl Screen {
    /// Prints a permanent line.
    pub fn note(&self, text: &str) {
        match self {
            Screen::Bar(bar) => bar.println(text),
            Screen::Plain => say(text),
            Screen::Quiet => {}
        }
    }
}

pub struct Progress {
    pub screen: Screen,
    what: String,
    /// Time of the next plain line; 0 before the first.
    next_ns: u64,
}

impl Progress {
    pub fn new(what: String, quiet: bool) -> Self {
        let screen = if quiet {
            Screen::Quiet
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>4} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            Screen::Bar(bar)
        } else {
            Screen::Plain
        };
        Progress {
            screen,
            what,
            next_ns: 0,
        }
    }

    /// Updates the line with the current figures; `rates` are samples and tokens per second.
    pub fn show(&mut self, now_ns: u64, figures: &Figures, rates: [f64; 2], outstanding: u64) {
        let text = || line(&self.what, figures, rates, outstanding);
        match &self.screen {
            Screen::Bar(bar) => bar.set_message(text()),
            Screen::Plain if now_ns >= self.next_ns => {
                if self.next_ns > 0 {
                    say(&text());
                }
                self.next_ns = now_ns.saturating_add(PLAIN_EVERY_NS);
            }
            Screen::Plain | Screen::Quiet => {}
        }
    }

    /// Prints a permanent line.
    pub fn note(&self, text: &str) {
        self.screen.note(text);
    }

    /// Removes the line at the end of the run.
    pub fn clear(&self) {
        if let Screen::Bar(bar) = &self.screen {
            bar.finish_and_clear();
        }
    }
}

pub fn say(text: &str) {
    // Ignore the error: a closed standard error does not end a run.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn line(what: &str, figures: &Figures, [rate, token_rate]: [f64; 2], outstanding: u64) -> String {
    let mut line = format!(
        "{what}: {} samples done, {}/s, {} outstanding",
        short(figures.completed),
        short(rate.round() as u64),
        short(outstanding)
    );
    if figures.p99_round_trip_ns > 0 {
        let us = figures.p99_round_trip_ns as f64 / 1000.0;
        line += &format!(", round trip p99 {}", time_us(us));
    }
    if figures.tokens > 0 {
        line += &format!(", {} tokens/s", short(token_rate.round() as u64));
        // Offline has no time limit for first tokens.
        if figures.p99_ttft_ns > 0 {
            line += &format!(
                ", TTFT p99 {}",
                time_us(figures.p99_ttft_ns as f64 / 1000.0)
            );
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_it_goes() {
        let figures = Figures {
            completed: 1_234_567,
            p99_round_trip_ns: 41_700,
            ..Figures::default()
        };
        assert_eq!(
            line("Server", &figures, [99_999.6, 0.0], 12),
            "Server: 1.23 M samples done, 100,000/s, 12 outstanding, round trip p99 41.7 us"
        );
        assert_eq!(
            line("Offline", &Figures::default(), [0.0; 2], 0),
            "Offline: 0 samples done, 0/s, 0 outstanding"
        );
        let figures = Figures {
            tokens: 5_000_000,
            p99_ttft_ns: 41_700_000,
            ..figures
        };
        assert_eq!(
            line("Server", &figures, [50.0, 12_345.4], 3),
            "Server: 1.23 M samples done, 50/s, 3 outstanding, round trip p99 41.7 us, \
             12,345 tokens/s, TTFT p99 41.7 ms"
        );
    }
}
