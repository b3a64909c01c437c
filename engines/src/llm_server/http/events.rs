//! Splits a response body into server-sent events of bounded size.

use std::mem;

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use hyper::body::Body;

use crate::error::shorten;

use super::{
    client::chain,
    trouble::{self, Trouble},
};

/// Iterates over the events of a body. Of each event, the reader keeps `data`, and whether the
/// event is an error: `event: error`, or a field `error` for `data` (older versions of llama.cpp).
#[derive(Debug)]
pub(super) struct EventReader<B> {
    body: B,
    /// Received bytes that are not parsed yet.
    rest: Bytes,
    line: Vec<u8>,
    /// True from the end of the first line on: a byte order mark may stand before it.
    has_begun: bool,
    /// True if the last line ended with CR: an LF behind it belongs to that end.
    after_cr: bool,
    data: Vec<u8>,
    has_data: bool,
    is_error: bool,
    /// True if `next` has returned this event: the following call clears the event.
    is_given: bool,
    /// Size limit of an event and its lines, in bytes.
    most: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerSentEvent<'a> {
    pub data: &'a str,
    pub is_error: bool,
}

impl<B> EventReader<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    /// Reads events of at most `most` bytes.
    pub fn new(body: B, most: usize) -> Self {
        EventReader {
            body,
            rest: Bytes::new(),
            line: Vec::new(),
            has_begun: false,
            after_cr: false,
            data: Vec::new(),
            has_data: false,
            is_error: false,
            is_given: false,
            most,
        }
    }

    /// Waits for the next event with data. Cancellation loses no data. `tokens`: tokens so far.
    /// Error: [`Trouble::Cut`] if the body ends or breaks; [`Trouble::Said`] or
    /// [`Trouble::NoStream`] if the body is no stream; [`Trouble::Garbled`] if an event is too long
    /// or not UTF-8.
    pub async fn next(&mut self, tokens: usize) -> Result<ServerSentEvent<'_>, Trouble> {
        if mem::take(&mut self.is_given) {
            self.clear();
        }
        let cut = |why: String| Trouble::Cut { tokens, why };
        while !self.read_lines()? {
            match self.body.frame().await {
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                Some(Err(e)) => return Err(cut(chain(&e))),
                None => {
                    if !self.has_begun {
                        self.begin()?;
                    }
                    return Err(cut("it ended before the answer did".to_owned()));
                }
            }
        }
        self.is_given = true;
        let data = std::str::from_utf8(&self.data).map_err(|e| Trouble::Garbled(e.to_string()))?;
        let is_error = self.is_error;
        Ok(ServerSentEvent { data, is_error })
    }

    /// Parses the received lines; returns true at the end of an event with data.
    fn read_lines(&mut self) -> Result<bool, Trouble> {
        loop {
            if mem::take(&mut self.after_cr) && self.rest.first() == Some(&b'\n') {
                self.rest.advance(1);
            }
            let end = self.rest.iter().position(|b| matches!(b, b'\n' | b'\r'));
            let part = end.unwrap_or(self.rest.len());
            if self.line.len() + self.data.len() + part > self.most {
                return Err(Trouble::Garbled(format!(
                    "an event of more than {} bytes",
                    self.most
                )));
            }
            self.line.extend_from_slice(&self.rest[..part]);
            let Some(end) = end else {
                self.rest.clear();
                return Ok(false);
            };
            self.after_cr = self.rest[end] == b'\r';
            self.rest.advance(end + 1);
            if !self.has_begun {
                self.begin()?;
            }
            if !self.line.is_empty() {
                self.take_line();
            } else if self.has_data {
                return Ok(true);
            } else {
                self.clear();
            }
        }
    }

    /// Removes a byte order mark from the first line.
    /// Error: the line begins a body that is no event stream.
    fn begin(&mut self) -> Result<(), Trouble> {
        self.has_begun = true;
        if self.line.starts_with(b"\xef\xbb\xbf") {
            self.line.drain(..3);
        }
        let text = String::from_utf8_lossy(&self.line);
        Err(match self.line[..] {
            [0x1f, 0x8b, ..] => Trouble::NoStream("it is compressed (gzip)".to_owned()),
            [b'<', ..] => Trouble::NoStream(format!("a web page: {}", shorten(&text))),
            [b'{', ..] if trouble::is_error(&text) => trouble::parse_error_event(&text),
            [b'{', ..] => Trouble::NoStream(format!("it is JSON: {}", shorten(&text))),
            _ => return Ok(()),
        })
    }

    fn take_line(&mut self) {
        let line = mem::take(&mut self.line);
        let colon = line.iter().position(|b| *b == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"event" => self.is_error |= value == b"error",
            field @ (b"data" | b"error") => {
                self.is_error |= field == b"error";
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            // Ignore comments, ids and unknown fields.
            _ => {}
        }
        self.line = line;
        self.line.clear();
    }

    fn clear(&mut self) {
        self.data.clear();
        (self.has_data, self.is_error) = (false, false);
    }
}
