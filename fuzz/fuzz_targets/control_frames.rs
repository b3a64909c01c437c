//! Bytes of a control connection, in pieces. Whatever is
//! taken for a message must survive being written again.
//!
//! The first byte says how long the pieces are, and whether the peer has proved who it is.

#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use qdl::control::frame::Codec;
use tokio_util::codec::{Decoder, Encoder};

fuzz_target!(|data: &[u8]| {
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
                    other
                        .encode(&message, &mut again)
                        .expect("it came in a frame");
                    let read = other
                        .decode(&mut again)
                        .expect("it was written by the codec");
                    assert_eq!(read.as_ref(), Some(&message));
                }
                Ok(None) => break,
                Err(error) => {
                    // What goes to a log is bounded, whoever wrote it.
                    assert!(error.to_string().len() < 65_536);
                    return;
                }
            }
        }
    }
    let _ = codec.decode_eof(&mut buffer);
});
