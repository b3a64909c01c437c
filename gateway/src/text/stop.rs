//! Stop strings across the borders of events.

/// Finds the stop string that is complete first, whatever events the text comes in.
///
/// Holds back only text that may be the beginning of a stop string: at most the longest less one
/// byte.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Box<[String]>,
    /// The text last released, and behind it the text held back.
    buffer: String,
    released_len: usize,
    has_ended: bool,
}

/// Text that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released<'a> {
    /// The text.
    pub text: &'a str,
    /// Whether a stop string follows; it is not part of the text, and nothing comes after it.
    pub has_ended: bool,
}

impl StopStrings {
    /// Looks for `stops`; empty ones are left out.
    pub fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self {
            stops,
            buffer: String::new(),
            released_len: 0,
            has_ended: false,
        }
    }

    /// Takes the next piece of the text.
    pub fn push<'a>(&'a mut self, text: &'a str) -> Released<'a> {
        if self.stops.is_empty() {
            return Released {
                text,
                has_ended: false,
            };
        }
        if self.has_ended {
            return Released {
                text: "",
                has_ended: true,
            };
        }
        self.buffer.drain(..self.released_len);
        self.buffer.push_str(text);
        let buffer = &self.buffer;
        let found = self.stops.iter().filter_map(|stop| {
            let begin = buffer.find(&**stop)?;
            Some((begin + stop.len(), begin))
        });
        if let Some((_, begin)) = found.min() {
            self.has_ended = true;
            self.released_len = begin;
        } else {
            // The first position from which the rest is the beginning of a stop string.
            let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
            let earliest = buffer.ceil_char_boundary((buffer.len() + 1).saturating_sub(longest));
            let rest = buffer[earliest..].char_indices().map(|(i, _)| earliest + i);
            let is_beginning =
                |i: &usize| self.stops.iter().any(|it| it.starts_with(&buffer[*i..]));
            self.released_len = rest.into_iter().find(is_beginning).unwrap_or(buffer.len());
        }
        Released {
            text: &self.buffer[..self.released_len],
            has_ended: self.has_ended,
        }
    }

    /// The text that was held back, when the answer ends without a stop string.
    pub fn finish(&mut self) -> &str {
        self.buffer.drain(..self.released_len);
        self.released_len = if self.has_ended { 0 } else { self.buffer.len() };
        self.has_ended = true;
        &self.buffer[..self.released_len]
    }
}
