//! Lines for standard error that would spoil a picture on the terminal: they are held back for as
//! long as it is there, and written when it is gone.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tracing_subscriber::fmt::MakeWriter;

/// The most bytes that are held; what came first goes first.
const MOST: usize = 256 << 10;

/// What is held, while something is.
static HELD: Mutex<Option<VecDeque<u8>>> = Mutex::new(None);

fn held() -> MutexGuard<'static, Option<VecDeque<u8>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on lines are held back.
pub fn hold() {
    held().get_or_insert_default();
}

/// Writes what was held, and holds no more.
pub fn release() {
    let mut held = held();
    if let Some(bytes) = held.take() {
        // A standard error that nobody reads is no reason to end a run.
        let (front, back) = bytes.as_slices();
        let _ = io::stderr().write_all(front);
        let _ = io::stderr().write_all(back);
    }
}

/// Standard error, or what is held instead.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *held() {
            Some(held) => {
                held.extend(bytes);
                let over = held.len().saturating_sub(MOST);
                held.drain(..over);
                Ok(bytes.len())
            }
            None => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Stderr;

    fn make_writer(&'a self) -> Stderr {
        Stderr
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_bounded_and_the_latest() {
        hold();
        let line = [b'x'; 1000];
        for _ in 0..1_000 {
            Stderr.write_all(&line).expect("held");
        }
        Stderr.write_all(b"last").expect("held");
        let bytes = held().take().expect("something");
        assert_eq!(bytes.len(), MOST);
        assert!(bytes.iter().copied().skip(MOST - 4).eq(*b"last"));
    }
}
