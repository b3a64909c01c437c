//! Entry functions of the fuzz targets, and the generator that feeds them in ordinary tests.
//!
//! | file | content |
//! | --- | --- |
//! | this file | [`control_frames`], [`mutate`] |
//! | `answers` | [`data_frames`] and [`responses`]: bytes of a data connection |
//! | `control::fuzz` | [`handshake`] |
//!
//! Each function takes any bytes; it panics if a property of its parser does not hold.

mod answers;

use std::{fs, path::Path};

use bytes::BytesMut;
use fabric::testkit::dice::Dice;
use tokio_util::codec::{Decoder, Encoder};

use crate::control::frame::Codec;

pub use crate::control::fuzz::handshake;
pub use answers::{data_frames, responses};

/// Bytes of a control connection, in pieces. An accepted message survives encoding and decoding.
///
/// The first byte holds the length of the pieces, and whether the peer has proved its token.
pub fn control_frames(data: &[u8]) {
    let Some((&how, rest)) = data.split_first() else {
        return;
    };
    let mut codec = Codec::before_auth();
    if how & 1 == 1 {
        codec.authenticated();
    }
    let piece = usize::from(how >> 1).max(1);
    let mut buffer = BytesMut::new();
    for part in rest.chunks(piece) {
        buffer.extend_from_slice(part);
        loop {
            match codec.decode(&mut buffer) {
                Ok(Some(message)) => {
                    let mut again = BytesMut::new();
                    let mut other = Codec::before_auth();
                    other.authenticated();
                    other.encode(&message, &mut again).expect("from a frame");
                    let read = other.decode(&mut again).expect("from the codec");
                    assert_eq!(read.as_ref(), Some(&message));
                }
                Ok(None) => break,
                Err(error) => {
                    // A log line has a bounded length, whatever the peer sends.
                    assert!(error.to_string().len() < 65_536);
                    return;
                }
            }
        }
    }
    let _ = codec.decode_eof(&mut buffer);
}

/// Prints the input of an entry function that panics.
struct Input<'a>(&'a [u8]);

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let digits = hex::encode(self.0);
            eprintln!("the input, in hexadecimal digits: {digits}");
        }
    }
}

/// Passes each file of the folder `seeds` to `entry`, then `count` mutations of these files from
/// the generator with this `seed`. Returns the number of files.
pub fn mutate(seeds: &Path, count: u64, seed: u64, entry: fn(&[u8])) -> usize {
    let files = fs::read_dir(seeds).expect("a folder of seeds");
    let mut paths: Vec<_> = files.map(|f| f.expect("readable").path()).collect();
    // The generator chooses files by their order.
    paths.sort();
    let files: Vec<_> = paths.iter().map(|p| fs::read(p).expect("a seed")).collect();
    let call = |data: &[u8]| {
        let _input = Input(data);
        entry(data);
    };
    files.iter().for_each(|data| call(data));
    let mut generator = Generator(Dice::of(seed, &[]));
    for _ in 0..count {
        let mut data = generator.pick(&files).cloned().unwrap_or_default();
        for _ in 0..=generator.below(4) {
            generator.change(&mut data, &files);
        }
        call(&data);
    }
    files.len()
}

/// Draws the changes.
struct Generator(Dice);

impl Generator {
    fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }

    /// Changes `data` once: a bit, a byte, a word, or a range that goes, doubles or comes in.
    fn change(&mut self, data: &mut Vec<u8>, files: &[Vec<u8>]) {
        const WORDS: [u32; 6] = [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX, 0x0001_0000];
        let at = self.below(data.len());
        let end = (at + 1 + self.below(16)).min(data.len());
        let one = at..end.min(at + 1);
        match self.below(7) {
            0 => data[one].iter_mut().for_each(|b| *b ^= 1 << self.below(8)),
            1 => data[one].fill_with(|| self.below(256) as u8),
            2 => {
                let word = WORDS[self.below(WORDS.len())].to_le_bytes();
                data.iter_mut().skip(at).zip(word).for_each(|(b, w)| *b = w);
            }
            3 if !data.is_empty() => drop(data.drain(at..end)),
            4 if !data.is_empty() => data.extend_from_within(at..end),
            5 => data.truncate(at),
            _ => {
                let other = self.pick(files).cloned().unwrap_or_default();
                let from = self.below(other.len());
                let to = (from + 1 + self.below(64)).min(other.len());
                data.splice(at..at, other[from.min(to)..to].iter().copied());
            }
        }
    }
}
