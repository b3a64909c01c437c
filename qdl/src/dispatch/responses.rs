//! Answers: from a write's arrival to the sample's completion and record, or to its retry.
//!
//! ```text
//!   a write arrives --> arrived: decoded, checked --> Inbound --> complete --> record
//!                                                       |
//!                                  refused or invalid --+--> the sample goes again
//! ```
//!
//! If a connection is lost between the parts of an answer, the sample is sent again. Its first
//! token is not reported twice, and the new answer must begin with the same token. A refused sample
//! is tried again, first at a different accelerator.

use std::{
    iter,
    sync::{Arc, atomic::Ordering},
};

use super::{
    Attempt, Completer, Connection, Contradiction, DispatchEvent, DispatchState, FirstToken,
    KeptResponse, NEW, RefusedSample, Response, ResponsePart, WARM_UP_ID,
    link::FrontendLink,
    posting::Burst,
    prefill::Prefilled,
    progress::{Decoded, FirstPart, ResponseProgress},
};
use crate::{
    connection::{ArrivedWrite, tracker::InFlight},
    counters::SampleTimes,
    request::MAX_HANDLE,
    response::{MAX_REASON, Refusal, ResponseHeader},
    wire::Standing,
};
use fabric::os::lock;
use fabric::{Broken, Imm, clock::now_ns};
use record::NodeRole;

/// Losses of a sample's connections after which [`DispatchEvent::TooManyLosses`] names the sample.
/// A sample that crashes its accelerator loses every connection that carries it. Other losses are
/// not the sample's fault. If half of the attempts fail by chance, 64 losses in a row occur once in
/// 10^19; if nine of ten fail, once in 850.
const LOSSES: u16 = 64;

/// A part of an answer before the last part, read in this turn.
pub(super) struct ArrivedPart {
    /// Index of its link in `Share::links`.
    pub link: usize,
    pub connection: usize,
    pub slot: u16,
    pub in_flight: InFlight,
    /// Payload bytes of the answer before this part, and of this part.
    pub offset: u32,
    pub len: u32,
    /// The part holds the sample's first token, which has not been reported yet.
    pub has_first_token: bool,
}

/// A complete response, read in this turn.
pub(super) struct ArrivedResponse {
    /// Index of its link in `Share::links`.
    pub link: usize,
    pub connection: usize,
    pub slot: u16,
    pub in_flight: InFlight,
    /// Header; of a response in parts, with the total length and the final times.
    pub header: ResponseHeader,
    pub parts: u32,
    /// Mean microseconds at the accelerator from the sample's arrival to the post of a part.
    pub mean_us: u32,
    /// It is a decode node's.
    pub is_prefilled: bool,
}

impl ArrivedResponse {
    /// Whether two answers in one piece have equal times and lengths, and so equal records.
    pub(crate) fn is_alike(&self, other: &ArrivedResponse) -> bool {
        let (mine, theirs) = (&self.in_flight, &other.in_flight);
        self.link == other.link
            && mine.posted_ns == theirs.posted_ns
            && mine.sample.issued_ns == theirs.sample.issued_ns
            && mine.sample.len == theirs.sample.len
            && mine.history == theirs.history
            && self.header.len == other.header.len
            && self.header.queue_us == other.header.queue_us
            && self.header.compute_us == other.header.compute_us
            && self.parts == 1
            && other.parts == 1
    }

    /// Microseconds that the sample spent at the accelerator.
    pub(crate) fn residence_us(&self) -> u32 {
        self.header.queue_us.saturating_add(self.header.compute_us)
    }
}

#[derive(Default)]
pub(super) struct Inbound {
    pub parts: Vec<ArrivedPart>,
    pub responses: Vec<ArrivedResponse>,
    pub contradictions: Vec<Contradiction>,
    /// Invalid answers, whose samples are sent again.
    pub invalid: Vec<InvalidResponse>,
    pub refusals: Vec<RefusedResponse>,
    /// First tokens with handles, whose samples go to a decode node.
    pub prefilled: Vec<Prefilled>,
    /// Clock times at which the answers were read, and at which [`Completer::complete`] returned.
    seen_ns: u64,
    completed_ns: u64,
}

pub(super) struct InvalidResponse {
    connection: usize,
    slot: u16,
    attempt: Attempt,
}

pub(super) struct RefusedResponse {
    /// Index of its link in `Share::links`.
    pub link: usize,
    pub connection: usize,
    pub imm: Imm,
    pub attempt: Attempt,
    /// Offset of the reason within the payload.
    pub offset: u32,
    pub len: u32,
    pub refusal: Refusal,
}

impl Inbound {
    pub(crate) fn with_capacity(n: usize) -> Self {
        Inbound {
            parts: Vec::with_capacity(n),
            responses: Vec::with_capacity(n),
            ..Inbound::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
            && self.responses.is_empty()
            && self.invalid.is_empty()
            && self.refusals.is_empty()
            && self.prefilled.is_empty()
    }
}

impl DispatchState {
    /// Handles a write that arrived on a connection; `link` is its index among the links that are
    /// up. Answers to warm-up samples end here.
    pub(super) fn arrived(
        &self,
        link: usize,
        connection: &Connection,
        progress: &mut ResponseProgress,
        ArrivedWrite {
            imm,
            slot_offset,
            len,
        }: ArrivedWrite,
        inbound: &mut Inbound,
    ) -> Result<(), Broken> {
        let slot = imm.slot();
        let window = &connection.window;
        let offset = window.slot_offset(slot) + slot_offset as usize;
        // SAFETY: the receiving half has reported these bytes, so the peer does not write them
        // until the slot is granted again. Only `release` permits that grant.
        let bytes = unsafe { window.region().bytes(offset, len as usize) };
        let write = bytes.ok().and_then(|b| progress.read(b, imm, slot_offset));
        // Either the grant is closed, or it is open and only this thread can sweep it. In both
        // cases this thread may read the record.
        let in_flight = connection.tracker.arrived(slot);
        let (write, in_flight) = match (write, in_flight) {
            (Some(write), Some(in_flight))
                if self.is_of_the_model(connection, &write, slot_offset) =>
            {
                (write, in_flight)
            }
            (_, in_flight) => {
                progress.spoil(slot);
                // Where the grant is still open, the sweep of the connection finds the sample.
                if let Some(in_flight) = in_flight.filter(|_| !imm.more()) {
                    inbound.invalid.push(InvalidResponse {
                        connection: connection.index,
                        slot,
                        attempt: in_flight.attempt(),
                    });
                }
                return Err(match (write, &self.receiving.lengths) {
                    (Some(Decoded::End { header, .. }), Some(lengths)) => Broken::GivenUp(format!(
                        "an answer of {} bytes, where the model's have {lengths}",
                        header.len
                    )),
                    _ => Broken::BadFrame {
                        what: match slot_offset {
                            0 => "response header",
                            _ => "response trailer",
                        },
                        value: u64::from(len),
                    },
                });
            }
        };
        let sample = in_flight.sample;
        let warms_up = sample.id == WARM_UP_ID;
        // SAFETY: as above.
        let first = |len| self.token(unsafe { connection.payload(slot, 0, len) });
        match write {
            Decoded::Part { .. } if warms_up => {
                _ = self.receiving.steps.fetch_add(1, Ordering::Relaxed)
            }
            Decoded::Part { offset, len } => {
                let token = (offset == 0).then(|| first(len)).flatten();
                if let Some(token) = token {
                    match in_flight.history.first_token {
                        None => {
                            let first = FirstToken::new(token, now_ns());
                            connection.tracker.set_first_token(slot, first);
                        }
                        Some(_) => inbound.contradictions.extend(Contradiction::of(
                            &in_flight,
                            Some(token),
                            connection.index,
                        )),
                    }
                }
                inbound.parts.push(ArrivedPart {
                    link,
                    connection: connection.index,
                    slot,
                    in_flight,
                    offset,
                    len,
                    has_first_token: token.is_some() && in_flight.history.first_token.is_none(),
                });
            }
            Decoded::Refused {
                refusal,
                offset,
                len,
            } => inbound.refusals.push(RefusedResponse {
                link,
                connection: connection.index,
                imm,
                attempt: in_flight.attempt(),
                offset,
                len,
                refusal,
            }),
            Decoded::End { header, .. } if warms_up => {
                if !self.keep_warm_up(connection, slot, header.len) {
                    connection.tracker.release(slot);
                }
                self.warmed(connection, &in_flight, &header);
            }
            Decoded::End { header, .. } if self.hands_over(connection, header.len) => {
                let of_token = self.receiving.token_bytes;
                let mut in_flight = in_flight;
                let reported = in_flight.history.first_token;
                let token = first(of_token);
                if reported.is_some() {
                    let other = Contradiction::of(&in_flight, token, connection.index);
                    inbound.contradictions.extend(other);
                } else if self.receiving.in_parts {
                    in_flight.history.first_token = token.map(|t| FirstToken::new(t, now_ns()));
                }
                if self.receiving.in_parts {
                    inbound.parts.push(ArrivedPart {
                        link,
                        connection: connection.index,
                        slot,
                        in_flight,
                        offset: 0,
                        len: of_token,
                        has_first_token: reported.is_none(),
                    });
                }
                inbound.prefilled.push(Prefilled {
                    connection: connection.index,
                    slot,
                    in_flight,
                    len: header.len,
                });
            }
            Decoded::End {
                header,
                parts,
                mean_us,
            } => {
                connection.end_prompt(&sample);
                if parts == 1 && in_flight.history.first_token.is_some() {
                    let repeated = first(header.len);
                    inbound.contradictions.extend(Contradiction::of(
                        &in_flight,
                        repeated,
                        connection.index,
                    ));
                }
                inbound.responses.push(ArrivedResponse {
                    link,
                    connection: connection.index,
                    slot,
                    in_flight,
                    header,
                    parts,
                    mean_us,
                    is_prefilled: connection.cfgs.role == NodeRole::Decode,
                });
            }
        }
        Ok(())
    }

    /// Whether a first part holds at least one token, or an answer's length fits the model. A
    /// prefill node answers with one token, and mostly a handle.
    fn is_of_the_model(&self, of: &Connection, write: &Decoded, slot_offset: u32) -> bool {
        match write {
            Decoded::End { header, .. } if of.cfgs.role == NodeRole::Prefill => {
                let token = self.receiving.token_bytes;
                (token..=token + MAX_HANDLE as u32).contains(&header.len)
            }
            Decoded::Part { len, .. } => slot_offset > 0 || *len >= self.receiving.token_bytes,
            Decoded::End { header, .. } => {
                let lengths = self.receiving.lengths.as_ref();
                lengths.is_none_or(|l| l.rows(header.len as usize).is_some())
            }
            Decoded::Refused { len, .. } => *len as usize <= MAX_REASON,
        }
    }

    /// The first token of an answer, little-endian; `None` where the payload is shorter.
    fn token(&self, payload: &[u8]) -> Option<u64> {
        let n = self.receiving.token_bytes as usize;
        let mut b = [0; 8];
        b.get_mut(..n)?.copy_from_slice(payload.get(..n)?);
        Some(u64::from_le_bytes(b))
    }
}

impl Inbound {
    /// Passes this turn's parts and then its answers to the completer, in one call each. Then frees
    /// the slots. [`Self::record`] records the times later in the same turn.
    pub(crate) fn complete(
        &mut self,
        shared: &Arc<DispatchState>,
        share: usize,
        links: &mut [FrontendLink],
        completer: &mut dyn Completer,
    ) {
        let now = now_ns();
        for what in self.contradictions.drain(..) {
            completer.contradicted(what);
        }
        if !self.parts.is_empty() {
            self.complete_parts(shared, links, completer, now);
            self.parts.clear();
        }
        if !self.responses.is_empty() {
            self.complete_responses(shared, share, completer, now);
        }
        // After the call for parts, since a different thread may complete these samples.
        for prefilled in self.prefilled.drain(..) {
            shared.hand_over(&prefilled);
        }
        for invalid in self.invalid.drain(..) {
            let mut none = None;
            let mut links = links.iter_mut();
            let link = links.find(|l| l.connection.connection == invalid.connection);
            let too_often_lost = link.map_or(&mut none, |l| &mut l.state.too_often_lost);
            let connection = &shared.connections[invalid.connection];
            connection.tracker.release(invalid.slot);
            shared.retry_lost(connection, invalid.attempt, too_often_lost);
        }
        for refused in self.refusals.drain(..) {
            let epoch = links.get(refused.link).map_or(0, |l| l.connection.epoch);
            shared.retry_refused(epoch, &refused, completer);
        }
    }

    fn complete_parts(
        &self,
        shared: &DispatchState,
        links: &mut [FrontendLink],
        completer: &mut dyn Completer,
        now: u64,
    ) {
        let parts = &self.parts;
        for p in parts {
            let progress = &mut links[p.link].state.progress;
            let after_ns = now.saturating_sub(p.in_flight.posted_ns);
            progress.add(p.slot, p.offset == 0, now, after_ns);
        }
        let part = |p: &ArrivedPart| {
            let connection = &shared.connections[p.connection];
            ResponsePart {
                id: p.in_flight.sample.id,
                index: p.in_flight.sample.index,
                offset: p.offset,
                // SAFETY: these bytes have arrived (`DispatchState::arrived`). The slot is granted
                // again only after its release, which follows the last part or the loss of the
                // connection.
                payload: unsafe { connection.payload(p.slot, p.offset, p.len) },
                has_first_token: p.has_first_token,
                losses: p.in_flight.history.tries.losses,
            }
        };
        completer.parts(&mut parts.iter().map(part));
    }

    fn complete_responses(
        &mut self,
        shared: &Arc<DispatchState>,
        share: usize,
        completer: &mut dyn Completer,
        now: u64,
    ) {
        let response = |s: &ArrivedResponse| {
            let connection = &shared.connections[s.connection];
            Response {
                id: s.in_flight.sample.id,
                index: s.in_flight.sample.index,
                connection: s.connection,
                // SAFETY: the receiving half has closed the grant (`DispatchState::arrived`). The
                // peer may write the slot only after a new grant, which follows the release below.
                payload: unsafe { connection.payload(s.slot, 0, s.header.len) },
                whole: s.in_flight.history.first_token.is_none(),
            }
        };
        // An answer that has arrived wins over the cancel.
        let ids = self.responses.iter().map(|s| s.in_flight.sample.id);
        shared.cancels.take_all(ids);
        let keeps = completer.keeps();
        if keeps {
            let keep = |s: &ArrivedResponse| KeptResponse::new(shared, s.slot, &response(s));
            let mut kept = self.responses.iter().map(keep);
            completer.complete_kept(&mut kept);
            kept.for_each(drop);
        } else {
            completer.complete(&mut self.responses.iter().map(response));
        }
        let done = now_ns();
        let completed = &shared.receiving.completed[share];
        completed.fetch_add(self.responses.len() as u64, Ordering::Release);
        shared.choice.done(self.responses.iter().map(|s| {
            let round_trip = now.saturating_sub(s.in_flight.posted_ns);
            let residence = u64::from(s.residence_us()) * 1000;
            let network = round_trip.saturating_sub(residence);
            (s.connection, s.in_flight.sample.len, network)
        }));
        // The guards of kept answers free their slots.
        let unkept = if keeps { &[] } else { &self.responses[..] };
        for of_one in unkept.chunk_by(|a, b| a.connection == b.connection) {
            if let Some(first) = of_one.first() {
                let tracker = &shared.connections[first.connection].tracker;
                tracker.release_all(of_one.iter().map(|s| s.slot));
            }
        }
        (self.seen_ns, self.completed_ns) = (now, done);
    }

    pub(crate) fn record(&mut self, links: &mut [FrontendLink], completer: &mut dyn Completer) {
        let (now, done) = (self.seen_ns, self.completed_ns);
        for alike in self.responses.chunk_by(ArrivedResponse::is_alike) {
            let (Some(s), n) = (alike.first(), alike.len() as u64) else {
                continue;
            };
            let f = &s.in_flight;
            let round_trip = now.saturating_sub(f.posted_ns);
            let residence = s.residence_us();
            let link = &mut links[s.link].state;
            link.unshown.bytes_out += n * u64::from(f.sample.len);
            link.unshown.bytes_in += n * u64::from(s.header.len);
            let several = (s.parts > 1).then(|| link.progress.times(s.slot)).flatten();
            let whole = || (FirstPart::whole(now, residence, s.header.len), 0);
            let (first, after_ns) = several.unwrap_or_else(whole);
            // The first token of a retried answer may have arrived before the connection was lost.
            let first_ns = match f.history.first_token {
                Some(token) if token.arrived_ns.get() < f.posted_ns => token.arrived_ns.get(),
                _ => first.read_ns,
            };
            let after_us = (after_ns + round_trip) / u64::from(s.parts.max(1)) / 1000;
            let times = SampleTimes {
                issued_ns: f.sample.issued_ns,
                failed_ns: f.history.tries.failed_ns(f.sample.issued_ns),
                posted_ns: f.posted_ns,
                seen_ns: now,
                completed_ns: done,
                queue_us: s.header.queue_us,
                compute_us: s.header.compute_us,
                bytes_out: f.sample.len,
                bytes_in: s.header.len,
                first_ns,
                first_residence_us: first.residence_us,
                first_bytes: first.bytes,
                is_prefilled: s.is_prefilled,
                decoded_ns: match several {
                    Some((first, _)) if s.is_prefilled => first.read_ns,
                    _ => 0,
                },
                parts: s.parts,
                parts_after_us: u32::try_from(after_us).unwrap_or(u32::MAX),
                parts_residence_us: s.mean_us,
                connection: s.connection as u32,
            };
            if let Some(recorder) = completer.recorder(times.issued_ns) {
                recorder.record_alike(&times, n);
            }
        }
        self.responses.clear();
    }
}

impl DispatchState {
    /// Retries a sample after the loss of its connection, from the backlog; false in warm-up or an
    /// aborted run. Stores a sample of at least [`LOSSES`] losses in `too_often_lost` unless that
    /// has more.
    pub(super) fn retry_lost(
        &self,
        connection: &Connection,
        mut attempt: Attempt,
        too_often_lost: &mut Option<Attempt>,
    ) -> bool {
        let sample = &attempt.sample;
        if sample.id == WARM_UP_ID {
            self.warm_up.lost_one();
            // No caller posted it, and no count of warm-ups has it.
            connection.posted.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.choice.undo(connection, sample.len);
        connection.end_prompt(sample);
        if self.end_if_cancelled(&attempt) {
            let lost = &self.ends.lost_cancelled;
            lost.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let tries = &mut attempt.history.tries;
        tries.lost(now_ns().saturating_sub(sample.issued_ns));
        let losses = tries.losses;
        if losses >= LOSSES && too_often_lost.is_none_or(|w| w.history.tries.losses < losses) {
            *too_often_lost = Some(attempt);
        }
        self.backlogs[NEW].push(iter::once(attempt));
        // After an abort, the sample is not sent again.
        let goes = !self.is_aborted();
        let retries = &self.ends.retries;
        retries.fetch_add(u64::from(goes), Ordering::Relaxed);
        self.look_again(attempt.sample.id);
        goes
    }

    /// Retries a refused sample, at a different accelerator where one has room. After the last
    /// refusal, the completer or the owner ends the sample.
    pub(super) fn retry_refused(
        &self,
        epoch: u32,
        refused: &RefusedResponse,
        completer: &mut dyn Completer,
    ) {
        let connection = &self.connections[refused.connection];
        let slot = refused.imm.slot();
        // SAFETY: the receiving half has closed the grant (`DispatchState::arrived`), and the slot
        // is released only below, so the peer does not write these bytes.
        let reason = unsafe { connection.payload(slot, refused.offset, refused.len) };
        let reason = String::from_utf8_lossy(reason);
        let reason = reason.replace(record::is_unprintable, " ");
        connection.tracker.release(slot);
        let mut attempt = refused.attempt;
        let (sample, tries) = (attempt.sample, &mut attempt.history.tries);
        let after_ns = now_ns().saturating_sub(sample.issued_ns);
        let is_away = refused.refusal == Refusal::Away;
        // An accelerator whose server is away may give a sample back any number of times.
        let before = match is_away {
            true => tries.given_back(after_ns),
            false => tries.refused(after_ns),
        };
        let tries = *tries;
        let warms_up = sample.id == WARM_UP_ID;
        let peer = connection.cfgs.peer;
        if is_away {
            // Before the heartbeat says so: else the sample would go there and back meanwhile.
            self.note_standing(peer, &Standing::Away(reason.clone()));
        }
        let is_cancelled = self.cancels.take(sample.id);
        let is_over = tries.are_over() && !warms_up;
        let mut is_completed = false;
        if !is_cancelled {
            let mut event = RefusedSample {
                connection: refused.connection,
                epoch,
                imm: refused.imm,
                index: (!warms_up).then_some(sample.index),
                tries,
                is_cut: refused.refusal == Refusal::Cut,
                is_away,
                reason: reason.clone(),
                is_completed: false,
            };
            is_completed = is_over && completer.refused(sample.id, &event);
            event.is_completed = is_completed;
            self.owner.event(DispatchEvent::Refused(event));
        }
        if warms_up {
            connection.warmed.fetch_add(1, Ordering::Relaxed);
            let words = format!("sample {} was refused: {reason}", sample.index);
            return match is_away {
                true => self.warm_up.not_answered(connection.index),
                false => self.warm_up.refused(connection.index, words),
            };
        }
        connection.refused.fetch_add(1, Ordering::Relaxed);
        self.ends.refusals[before].fetch_add(1, Ordering::Relaxed);
        self.choice.undo(connection, sample.len);
        connection.end_prompt(&sample);
        if is_cancelled {
            self.complete_empty(&[sample]);
        } else if is_completed {
            let emptied = &self.ends.completed_empty;
            emptied.fetch_add(1, Ordering::Release);
        } else if is_over {
            // The sample is not tried again. The owner aborts the run, or cancels the sample, which
            // completes it empty.
            lock(&self.ends.refused_for_good).push(sample);
            self.look_again(sample.id);
        } else if !self.retry_now(&attempt, |c| c.takes_new() && c.cfgs.peer != peer)
            && !self.retry_now(&attempt, Connection::takes_new)
        {
            self.retry_later(attempt);
        }
        if self.is_aborted() {
            self.empty_backlog();
        }
    }

    /// Sends a refused or prefilled sample over a connection that `may` admits; false if none has
    /// room.
    pub(super) fn retry_now(&self, attempt: &Attempt, may: impl Fn(&Connection) -> bool) -> bool {
        let Some((connection, is_idle)) = self.enqueue(attempt, may) else {
            return false;
        };
        let is_free = is_idle || connection.is_crowded();
        self.post_or_leave(connection, Burst::of(&attempt.sample), is_free, &mut 0);
        true
    }
}
