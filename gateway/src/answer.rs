//! The answer to a request: events of a stream, one a token, or one body.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame};

use crate::{
    openai::{Answer, ApiError, Completion, Finish, Usage, Writer},
    requests::Asked,
    text::{Decoder, StopStrings, Text},
};

/// Turns token ids into text, and finds the answer's end in it.
pub struct TokenReader {
    text: Option<Arc<Text>>,
    decoder: Decoder,
    stops: StopStrings,
    /// Ids with which an answer ends by itself.
    end_ids: Vec<i32>,
    limit: u32,
    tokens: u32,
    /// The last token is one of `end_ids`.
    is_end: bool,
    /// Text of the last call.
    piece: String,
}

impl TokenReader {
    /// Makes the reader of an answer of at most `limit` tokens.
    pub fn new(text: Option<Arc<Text>>, asked: &Completion, limit: u32) -> Self {
        let own = text.iter().flat_map(|text| text.end_ids());
        let own = own.filter(|_| !asked.sampling.ignore_eos);
        TokenReader {
            end_ids: own.chain(&asked.stop_token_ids).copied().collect(),
            decoder: Decoder::new(asked.skip_special_tokens),
            stops: StopStrings::new(asked.stop.clone()),
            text,
            limit,
            tokens: 0,
            is_end: false,
            piece: String::new(),
        }
    }

    /// Reads a token into `piece`; `is_last`: none follows. Returns why the answer ends here.
    pub(crate) fn read(&mut self, id: i32, is_last: bool) -> Option<Finish> {
        self.tokens += 1;
        self.piece.clear();
        if let Some(model) = &self.text {
            let released = self.stops.push(self.decoder.push(model, id));
            self.piece.push_str(released.text);
            if released.has_ended || is_last && self.finish_text() {
                return Some(Finish::Stop);
            }
        }
        self.is_end = self.end_ids.contains(&id);
        is_last.then(|| self.reason())
    }

    /// Why an answer ended without a stop string.
    fn reason(&self) -> Finish {
        match self.tokens < self.limit || self.is_end {
            true => Finish::Stop,
            false => Finish::Length,
        }
    }

    /// Reads the end of an answer whose last token was not known to be the last.
    pub(crate) fn read_end(&mut self) -> Finish {
        self.piece.clear();
        match self.finish_text() {
            true => Finish::Stop,
            false => self.reason(),
        }
    }

    /// Appends the text that was held back. Returns whether a stop string was in it.
    fn finish_text(&mut self) -> bool {
        let Some(model) = &self.text else {
            return false;
        };
        let released = self.stops.push(self.decoder.finish(model));
        self.piece.push_str(released.text);
        if !released.has_ended {
            self.piece.push_str(self.stops.finish());
            return false;
        }
        true
    }
}

/// The events of an answer.
pub struct Events {
    asked: Option<Asked>,
    reader: TokenReader,
    writer: Writer,
    tokens: Vec<i32>,
    prompt: u32,
    length: usize,
}

impl Events {
    /// Makes the events of a request with a prompt of `prompt` tokens.
    pub fn new(asked: Asked, reader: TokenReader, writer: Writer, prompt: u32) -> Self {
        Events {
            asked: Some(asked),
            reader,
            writer,
            tokens: Vec::new(),
            prompt,
            length: 0,
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        self.writer
            .usage_event(out, usage(self.prompt, self.reader.tokens));
        Writer::done(out);
        if let Some(asked) = self.asked.take() {
            asked.finish();
        }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        let Some(asked) = &this.asked else {
            return Poll::Ready(None);
        };
        this.tokens.clear();
        let end = ready!(asked.poll(cx, &mut this.tokens));
        let mut out = Vec::with_capacity(this.length * this.tokens.len().max(1) + 128);
        let is_over = matches!(end, Some(Ok(())));
        let mut is_finished = false;
        let tokens = std::mem::take(&mut this.tokens);
        for (n, id) in tokens.iter().enumerate() {
            let is_last = is_over && n + 1 == tokens.len();
            let finish = this.reader.read(*id, is_last);
            this.writer
                .event(&mut out, &this.reader.piece, &[*id], finish);
            if finish.is_some() {
                is_finished = true;
                break;
            }
        }
        this.length = out.len() / tokens.len().max(1);
        this.tokens = tokens;
        match end {
            _ if is_finished => this.end(&mut out),
            None => {}
            Some(Ok(())) => {
                // The last token came before the end, and its event has no reason.
                let finish = this.reader.read_end();
                this.writer
                    .event(&mut out, &this.reader.piece, &[], Some(finish));
                this.end(&mut out);
            }
            Some(Err(error)) => {
                error.event(&mut out);
                this.asked = None;
            }
        }
        Poll::Ready(Some(Ok(Frame::data(out.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.asked.is_none()
    }
}

fn usage(prompt: u32, tokens: u32) -> Usage {
    Usage {
        prompt_tokens: prompt,
        completion_tokens: tokens,
    }
}

/// Waits for the whole answer, and returns it as one body.
///
/// # Errors
/// The accelerators refused the request, or were lost.
pub async fn whole(
    asked: Asked,
    reader: &mut TokenReader,
    writer: &Writer,
    prompt: u32,
) -> Result<Vec<u8>, ApiError> {
    let (mut tokens, mut ids) = (Vec::new(), Vec::new());
    let (mut text, mut finish) = (String::new(), None);
    while finish.is_none() {
        tokens.clear();
        let end = poll_fn(|cx| asked.poll(cx, &mut tokens)).await;
        let is_over = match end {
            Some(Err(error)) => return Err(error),
            Some(Ok(())) => true,
            None => false,
        };
        for (n, id) in tokens.iter().enumerate() {
            finish = reader.read(*id, is_over && n + 1 == tokens.len());
            ids.push(*id);
            text += &reader.piece;
            if finish.is_some() {
                break;
            }
        }
        if is_over && finish.is_none() {
            finish = Some(reader.read_end());
            text += &reader.piece;
        }
    }
    asked.finish();
    let mut out = Vec::with_capacity(text.len() + 512);
    writer.whole(
        &mut out,
        &Answer {
            text: &text,
            ids: &ids,
            finish: finish.unwrap_or(Finish::Stop),
            usage: usage(prompt, reader.tokens),
        },
    );
    Ok(out)
}
