//! Source of a connection's writes: the responses that the owner of its send token posts.

use std::{slice, sync::atomic::Ordering};

use super::{ServeConnection, answers::Ready, arrival::Finished};
use crate::{
    connection::{SendCounts, WriteSource, not_posted},
    response::RESPONSE_TRAILER_BYTES,
};
use fabric::{Broken, Post, PostError, SourceId, Tx};

/// Responses of one connection: first the queued ones, then the caller's own.
pub(super) struct Responses<'a> {
    connection: &'a ServeConnection,
    pub direct: slice::Iter<'a, Finished>,
    /// Whole answers and last parts, posted in this burst.
    answered: u64,
    /// Refusals posted in this burst.
    refused: u64,
    /// Parts with parts to follow, posted in this burst.
    parts: u64,
}

impl<'a> Responses<'a> {
    pub fn of(connection: &'a ServeConnection) -> Self {
        Self::with(connection, &[])
    }

    pub fn with(connection: &'a ServeConnection, finished: &'a [Finished]) -> Self {
        Responses {
            connection,
            direct: finished.iter(),
            answered: 0,
            refused: 0,
            parts: 0,
        }
    }

    /// Posts the next write of `ready`; `None` where its bytes were posted already.
    fn post(&mut self, ready: Ready, tx: &mut dyn Tx) -> Option<Result<bool, Box<Broken>>> {
        let c = self.connection;
        let (slot, posted, ends, refused) = match ready {
            Ready::Whole {
                imm,
                bytes,
                refused,
            } => {
                let posted = tx.post(&Post {
                    source: SourceId(0),
                    offset: c.output_offset(imm.slot()),
                    len: bytes,
                    at: 0,
                    imm,
                });
                (imm.slot(), posted, true, refused)
            }
            Ready::Part(slot) => {
                let (piece, residence) = c.answers.piece(slot)?;
                let (mut imm, mut len) = (piece.imm, piece.to - piece.from);
                let offset = c.output_offset(slot);
                if let Some(trailer) = &piece.trailer {
                    let behind = offset + piece.to as usize;
                    // SAFETY: the arrival has been given back (`respond`), and the posted parts end
                    // before `behind`, so no other thread accesses these bytes.
                    let to = unsafe { c.output.bytes_mut(behind, RESPONSE_TRAILER_BYTES) };
                    if let Ok(to) = to {
                        to.copy_from_slice(&trailer.encode());
                    }
                    len += RESPONSE_TRAILER_BYTES as u32;
                } else {
                    imm = imm.with_more();
                }
                let posted = tx.post(&Post {
                    source: SourceId(0),
                    offset: offset + piece.from as usize,
                    len,
                    at: piece.from,
                    imm,
                });
                if posted.is_ok() {
                    c.answers.posted(slot, &piece, residence);
                }
                let refused = piece.trailer.is_some_and(|t| t.refusal.is_some());
                (slot, posted, piece.trailer.is_some(), refused)
            }
        };
        Some(match posted {
            Ok(()) => {
                if ends {
                    // Not earlier: the frontend may use the slot again as soon as it has the
                    // response.
                    c.window.grants().open(slot);
                    self.answered += u64::from(!refused);
                    self.refused += u64::from(refused);
                } else {
                    self.parts += 1;
                }
                Ok(true)
            }
            Err(PostError::Full) if c.answers.push(ready) => Ok(false),
            Err(e) => {
                c.give_up(ready);
                not_posted(e)
            }
        })
    }
}

impl WriteSource for Responses<'_> {
    fn begin(&mut self) -> usize {
        // One doorbell for all ready responses.
        usize::MAX
    }

    fn post_next(&mut self, tx: &mut dyn Tx, _: &mut SendCounts) -> Result<bool, Box<Broken>> {
        let c = self.connection;
        while let Some(ready) = c.answers.pop() {
            if let Some(next) = self.post(ready, tx) {
                return next;
            }
        }
        while let Some(finished) = self.direct.next() {
            let ready = c.ready(finished);
            let next = match ready {
                Ready::Whole { .. } => self.post(ready, tx),
                Ready::Part(_) => {
                    c.queue(ready);
                    c.answers.pop().and_then(|ready| self.post(ready, tx))
                }
            };
            if let Some(next) = next {
                return next;
            }
        }
        Ok(false)
    }

    fn end(&mut self, _: usize, _: &mut SendCounts) -> bool {
        let answered = std::mem::take(&mut self.answered);
        self.connection
            .responded
            .fetch_add(answered, Ordering::Relaxed);
        for (n, to) in [
            (&mut self.parts, &self.connection.parts),
            (&mut self.refused, &self.connection.refused),
        ] {
            match std::mem::take(n) {
                0 => {}
                n => _ = to.fetch_add(n, Ordering::Relaxed),
            }
        }
        false
    }

    /// Discards the queue, since the link is gone.
    fn down(&mut self) {
        let c = self.connection;
        while let Some(ready) = c.answers.pop() {
            c.give_up(ready);
        }
    }
}
