//! Text of one answer, token by token.

use serde_json::Value;
use tokenizers::Tokenizer;

use super::Text;

/// Tokens that the slow way keeps back while their text ends in the middle of a character.
const WINDOW_MAX: usize = 16;

/// The bytes of each token, for decoders that treat tokens one by one.
pub(super) struct Table {
    pieces: Vec<Piece>,
    /// Of tokens that are text of their own.
    text: String,
    /// Of tokens that are parts of a character.
    bytes: Vec<u8>,
    /// Whether an answer's first character is left out if it is a space.
    strips_space: bool,
    /// Whether each byte that is no text is a character of its own: `ByteFallback`.
    counts_bytes: bool,
}

#[derive(Clone, Copy)]
struct Piece {
    begin: u32,
    len: u32,
    /// `None`: no such token. Whether it is text of its own.
    is_text: Option<bool>,
    is_special: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No decoder: tokens with a space between them.
    Join,
    ByteLevel,
    /// `▁` is a space, `<0x41>` a byte.
    Metaspace,
}

impl Table {
    /// `None` if `decoder`, as `tokenizer.json` has it, is of another kind.
    pub(super) fn new(tokenizer: &Tokenizer, decoder: &Value, len: usize) -> Option<Self> {
        let (kind, strips_space) = kind(decoder)?;
        let letters = byte_letters();
        let added = tokenizer.get_added_vocabulary();
        let mut table = Self {
            pieces: Vec::with_capacity(len),
            text: String::new(),
            bytes: Vec::new(),
            strips_space,
            counts_bytes: kind == Kind::Metaspace,
        };
        for id in 0..u32::try_from(len).ok()? {
            let Some(token) = Text::token(tokenizer, id) else {
                table.pieces.push(Piece {
                    begin: 0,
                    len: 0,
                    is_text: None,
                    is_special: false,
                });
                continue;
            };
            let is_special = added.is_special_token(&token);
            let bytes = match kind {
                Kind::Join => format!(" {token}").into_bytes(),
                Kind::ByteLevel => token
                    .chars()
                    .map(|letter| letters.get(letter as usize).copied().flatten())
                    .collect::<Option<Vec<u8>>>()
                    .unwrap_or_else(|| token.into_bytes()),
                Kind::Metaspace => {
                    let token = token.replace('▁', " ");
                    byte_token(&token).map_or_else(|| token.into_bytes(), |byte| vec![byte])
                }
            };
            let piece_len = u32::try_from(bytes.len()).ok()?;
            let (begin, is_text) = match String::from_utf8(bytes) {
                Ok(text) => {
                    table.text.push_str(&text);
                    (table.text.len() - text.len(), true)
                }
                Err(error) => {
                    table.bytes.extend_from_slice(error.as_bytes());
                    (table.bytes.len() - error.as_bytes().len(), false)
                }
            };
            let begin = u32::try_from(begin).ok()?;
            table.pieces.push(Piece {
                begin,
                len: piece_len,
                is_text: Some(is_text),
                is_special,
            });
        }
        Some(table)
    }
}

fn kind(decoder: &Value) -> Option<(Kind, bool)> {
    if decoder.is_null() {
        return Some((Kind::Join, true));
    }
    if decoder["type"] == "ByteLevel" {
        return Some((Kind::ByteLevel, false));
    }
    let [replace, fallback, fuse, strip @ ..] = decoder["decoders"].as_array()?.as_slice() else {
        return None;
    };
    let is_metaspace = decoder["type"] == "Sequence"
        && replace["type"] == "Replace"
        && replace["pattern"]["String"] == "▁"
        && replace["content"] == " "
        && fallback["type"] == "ByteFallback"
        && fuse["type"] == "Fuse";
    match strip {
        [] if is_metaspace => Some((Kind::Metaspace, false)),
        [strip]
            if is_metaspace
                && strip["type"] == "Strip"
                && strip["content"] == " "
                && strip["start"] == 1
                && strip["stop"] == 0 =>
        {
            Some((Kind::Metaspace, true))
        }
        _ => None,
    }
}

/// The byte for each of GPT-2's letters: printable ones stand for themselves, the others follow
/// from U+0100.
pub(super) fn byte_letters() -> Vec<Option<u8>> {
    let mut letters = vec![None; 0x144];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        let is_plain = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..);
        letters[if is_plain { usize::from(byte) } else { next }] = Some(byte);
        next += usize::from(!is_plain);
    }
    letters
}

/// The byte of a token such as `<0x0A>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

/// Turns the tokens of one answer into text, as soon as the text is whole.
///
/// The pieces and [`Decoder::finish`] together are what [`Text::decode`] makes of all ids, except
/// that a run of byte tokens (`<0x41>`) loses only those that are no text.
#[derive(Debug)]
pub struct Decoder {
    skip_special_tokens: bool,
    has_begun: bool,
    /// The beginning of a character, at most 3 bytes between calls.
    pending: Vec<u8>,
    /// The last piece, if the table does not hold it in one.
    piece: String,
    window: Window,
}

/// The last tokens of an answer, for decoders that need context.
#[derive(Debug, Default)]
struct Window {
    ids: Vec<i32>,
    /// Of how many the text has been returned.
    sent_len: usize,
}

impl Decoder {
    /// A decoder at the beginning of an answer.
    pub fn new(skip_special_tokens: bool) -> Self {
        Self {
            skip_special_tokens,
            has_begun: false,
            pending: Vec::new(),
            piece: String::new(),
            window: Window::default(),
        }
    }

    /// The text that is whole with this token; empty inside of a character.
    ///
    /// `text` is the same at every call.
    pub fn push<'a>(&'a mut self, text: &'a Text, id: i32) -> &'a str {
        let Some(table) = &text.table else {
            return self.push_in_context(text, id);
        };
        let piece = usize::try_from(id).ok().and_then(|id| table.pieces.get(id));
        let Some(&Piece {
            begin,
            len,
            is_text: Some(is_text),
            is_special,
        }) = piece
        else {
            return "";
        };
        if is_special && self.skip_special_tokens {
            return "";
        }
        let range = begin as usize..begin as usize + len as usize;
        if is_text && self.pending.is_empty() {
            let whole = &table.text[range];
            let is_first = !self.has_begun;
            self.has_begun |= !whole.is_empty();
            return if is_first && table.strips_space {
                whole.strip_prefix(' ').unwrap_or(whole)
            } else {
                whole
            };
        }
        let bytes = if is_text {
            &table.text.as_bytes()[range]
        } else {
            &table.bytes[range]
        };
        self.pending.extend_from_slice(bytes);
        self.assemble(table, false);
        &self.piece
    }

    /// The rest at the end of an answer: U+FFFD for a character that is not whole.
    pub fn finish<'a>(&'a mut self, text: &'a Text) -> &'a str {
        self.piece.clear();
        match &text.table {
            Some(table) => self.assemble(table, true),
            None => self.piece = self.window.rest(text, self.skip_special_tokens),
        }
        &self.piece
    }

    /// Moves whole characters from `pending` to `piece`.
    fn assemble(&mut self, table: &Table, is_end: bool) {
        self.piece.clear();
        let mut rest = self.pending.len();
        let mut position = 0;
        for chunk in self.pending.utf8_chunks() {
            self.piece.push_str(chunk.valid());
            position += chunk.valid().len();
            let invalid = chunk.invalid();
            let is_cut = || std::str::from_utf8(invalid).is_err_and(|it| it.error_len().is_none());
            if position + invalid.len() == self.pending.len() && !is_end && is_cut() {
                rest = position;
            } else if !invalid.is_empty() {
                let count = if table.counts_bytes { invalid.len() } else { 1 };
                self.piece.extend(std::iter::repeat_n('\u{FFFD}', count));
            }
            position += invalid.len();
        }
        self.pending.drain(..rest);
        if !self.has_begun && table.strips_space && self.piece.starts_with(' ') {
            self.piece.remove(0);
            self.has_begun = true;
        }
        self.has_begun |= !self.piece.is_empty();
    }

    /// As Hugging Face's and vLLM's detokenizers: the text of the last tokens with and without the
    /// new one.
    fn push_in_context(&mut self, text: &Text, id: i32) -> &str {
        self.piece.clear();
        if self.skip_special_tokens && text.is_special(id) {
            return "";
        }
        self.window.ids.push(id);
        let piece = self.window.rest(text, self.skip_special_tokens);
        let is_whole = !piece.is_empty() && !piece.ends_with('\u{FFFD}');
        if is_whole || self.window.ids.len() - self.window.sent_len >= WINDOW_MAX {
            self.window.ids.drain(..self.window.sent_len);
            self.window.sent_len = self.window.ids.len();
            self.piece = piece;
        }
        &self.piece
    }
}

impl Window {
    /// The text that has not been returned.
    fn rest(&self, text: &Text, skip_special_tokens: bool) -> String {
        let before = text.decode(&self.ids[..self.sent_len], skip_special_tokens);
        let mut all = text.decode(&self.ids, skip_special_tokens);
        if !all.is_char_boundary(before.len()) {
            return String::new();
        }
        all.split_off(before.len())
    }
}
