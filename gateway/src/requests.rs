//! The requests of one thread, between their issue and their end.
//!
//! A request and its answer belong to one thread, so that a token costs no lock beyond the inbox,
//! which a NIC thread fills once a turn.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use fabric::clock::now_ns;
use qdl::dispatch::Sample;
use slab::Slab;

use crate::{
    gate::Gate,
    inbox::{ArrivedTokens, Batch, Outcome, RequestId},
    openai::ApiError,
    progress::AnswerProgress,
    prompts::PromptRoom,
    totals::{RequestEnd, RequestTimes},
};

/// One thread's requests.
pub struct Requests {
    /// What all threads share.
    pub gate: Arc<Gate>,
    thread: u8,
    places: RefCell<Slab<Request>>,
    used: Cell<u32>,
}

/// A request between its issue and the end of both its sample and its client's interest.
struct Request {
    used: u32,
    /// The tokens are wanted as they come.
    streams: bool,
    /// No client waits any more.
    is_left: bool,
    progress: AnswerProgress,
    /// New tokens that the client has not taken.
    pending: Vec<i32>,
    end: Option<Result<(), ApiError>>,
    waker: Option<Waker>,
    /// The prompt, until the sample has ended.
    room: Option<PromptRoom>,
    times: RequestTimes,
}

/// A client's end of a request. Its drop leaves the request: the sample is cancelled if it has not
/// ended.
pub struct Asked {
    requests: Rc<Requests>,
    id: RequestId,
    /// The client has its whole answer, though the sample may not have ended.
    is_answered: bool,
}

impl Requests {
    /// Makes the requests of thread number `thread`.
    pub fn new(gate: Arc<Gate>, thread: u8) -> Self {
        Requests {
            gate,
            thread,
            places: RefCell::default(),
            used: Cell::new(0),
        }
    }

    /// Takes what NIC threads have read for this thread, without end.
    pub async fn take_answers(&self) {
        let mut batch = Batch::default();
        let mut whole = Vec::new();
        let Some(inbox) = self.gate.inboxes.get(usize::from(self.thread)) else {
            return;
        };
        loop {
            inbox.take(&mut batch).await;
            let mut requests = self.places.borrow_mut();
            let mut ids = &batch.ids[..];
            for part in &batch.parts {
                let (own, later) = ids.split_at(part.len as usize);
                ids = later;
                if let Some(request) = of(&mut requests, part.id)
                    && !request.arrived(part, own)
                {
                    self.gate.diverged.fetch_add(1, Ordering::Relaxed);
                    self.gate.cancel(part.id);
                }
            }
            for (id, at_ns, outcome) in batch.ends.drain(..) {
                self.gate.in_flight.fetch_sub(1, Ordering::Relaxed);
                let Some(request) = of(&mut requests, id) else {
                    continue;
                };
                request.room = None;
                if request.is_left {
                    request.times.node = request.node(&outcome);
                    self.gate.record(&request.times);
                    requests.remove(id.place as usize);
                } else {
                    request.ended(at_ns, outcome, &mut whole, &self.gate);
                }
            }
            batch.clear();
        }
    }

    /// Issues a request. `streams`: its tokens are taken as they come.
    pub fn ask(self: &Rc<Self>, room: PromptRoom, streams: bool, times: RequestTimes) -> Asked {
        let used = self.used.get().wrapping_add(1) & 0xff_ffff;
        self.used.set(used);
        let (offset, len) = (room.offset, room.len);
        let issued_ns = now_ns();
        let mut requests = self.places.borrow_mut();
        let place = requests.insert(Request {
            used,
            streams,
            is_left: false,
            progress: AnswerProgress::default(),
            pending: Vec::new(),
            end: None,
            waker: None,
            room: Some(room),
            times: RequestTimes { issued_ns, ..times },
        });
        drop(requests);
        let id = RequestId {
            thread: self.thread,
            used,
            place: place as u32,
        };
        self.gate.in_flight.fetch_add(1, Ordering::Relaxed);
        let sample = Sample {
            id: id.to_bits(),
            index: id.to_bits(),
            offset,
            len,
            issued_ns,
            has_options: true,
            ..Sample::default()
        };
        self.gate.cluster.dispatcher().issue(&[sample]);
        Asked {
            requests: self.clone(),
            id,
            is_answered: false,
        }
    }
}

fn of(requests: &mut Slab<Request>, id: RequestId) -> Option<&mut Request> {
    let request = requests.get_mut(id.place as usize);
    request.filter(|request| request.used == id.used)
}

impl Request {
    /// Takes a part; false if the answer is not the one that the client has begun to receive.
    fn arrived(&mut self, part: &ArrivedTokens, ids: &[i32]) -> bool {
        let times = &mut self.times;
        if times.first_ns == 0 {
            times.first_ns = part.at_ns;
        }
        if !self.streams || self.is_left || self.end.is_some() {
            return true;
        }
        match self.progress.take(part.offset, ids) {
            Ok([]) => true,
            Ok(new) => {
                self.pending.extend_from_slice(new);
                self.wake();
                true
            }
            Err(_) => {
                self.fail(diverged());
                false
            }
        }
    }

    fn node(&self, outcome: &Outcome) -> Option<u32> {
        match outcome {
            Outcome::Answered(kept) => Some(kept.response().connection as u32),
            Outcome::Refused(_) | Outcome::Lost => None,
        }
    }

    fn ended(&mut self, at_ns: u64, outcome: Outcome, whole: &mut Vec<i32>, gate: &Gate) {
        self.times.node = self.node(&outcome);
        self.times.last_ns = at_ns;
        if self.times.first_ns == 0 {
            self.times.first_ns = at_ns;
        }
        if self.end.is_some() {
            return;
        }
        match outcome {
            Outcome::Answered(kept) => {
                let (ids, _) = kept.response().payload.as_chunks();
                whole.clear();
                whole.extend(ids.iter().map(|id| i32::from_le_bytes(*id)));
                match self.progress.finish(whole) {
                    Ok(new) => {
                        self.pending.extend_from_slice(new);
                        self.times.tokens = whole.len() as u32;
                        self.end = Some(Ok(()));
                    }
                    Err(_) => {
                        gate.diverged.fetch_add(1, Ordering::Relaxed);
                        self.end = Some(Err(diverged()));
                    }
                }
            }
            Outcome::Refused(reason) => self.end = Some(Err(refusal(&reason))),
            Outcome::Lost => {
                let text = "no accelerator answers any more; the gateway's log says why";
                self.end = Some(Err(ApiError::server(503, text)));
            }
        }
        self.wake();
    }

    fn fail(&mut self, error: ApiError) {
        self.end = Some(Err(error));
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// An answer that goes on elsewhere has other tokens: its client must not take it for whole.
fn diverged() -> ApiError {
    ApiError::server(
        502,
        "the accelerator of this answer was lost, and its successor answers with other tokens; \
         ask again",
    )
}

fn refusal(reason: &str) -> ApiError {
    let mut error = ApiError::server(400, reason);
    error.kind = "invalid_request_error";
    error
}

impl Asked {
    /// Waits for tokens or the end, which the next call of [`Self::poll`] takes.
    pub fn poll_ready(&self, cx: &Context<'_>) -> Poll<Option<ApiError>> {
        let mut requests = self.requests.places.borrow_mut();
        let Some(request) = of(&mut requests, self.id) else {
            return Poll::Ready(None);
        };
        match &request.end {
            Some(Err(error)) if request.progress.tokens() == 0 => Poll::Ready(Some(error.clone())),
            None if request.pending.is_empty() => {
                request.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(None),
        }
    }

    /// Waits for tokens, which it swaps into the empty `tokens`, or for the end.
    pub fn poll(
        &self,
        cx: &Context<'_>,
        tokens: &mut Vec<i32>,
    ) -> Poll<Option<Result<(), ApiError>>> {
        let mut requests = self.requests.places.borrow_mut();
        let Some(request) = of(&mut requests, self.id) else {
            let text = "the request has no record";
            return Poll::Ready(Some(Err(ApiError::server(500, text))));
        };
        std::mem::swap(&mut request.pending, tokens);
        if request.end.is_none() && tokens.is_empty() {
            request.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(request.end.clone())
    }

    /// The thread's number, and the request's number on the thread.
    pub fn id(&self) -> RequestId {
        self.id
    }
}

impl Asked {
    /// Ends a request whose client has its whole answer.
    pub fn finish(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut requests = self.requests.places.borrow_mut();
        let Some(request) = of(&mut requests, self.id) else {
            return;
        };
        let times = &mut request.times;
        if self.is_answered {
            times.end = RequestEnd::Answered;
            if times.last_ns == 0 {
                // A stop string ended the answer before its sample.
                times.last_ns = now_ns();
                times.tokens = request.progress.tokens();
            }
        } else if !matches!(request.end, Some(Err(_))) {
            times.end = RequestEnd::Left;
            times.tokens = request.progress.tokens();
        }
        if request.room.is_none() {
            self.requests.gate.record(&request.times);
            requests.remove(self.id.place as usize);
        } else {
            request.is_left = true;
            drop(requests);
            self.requests.gate.cancel(self.id);
        }
    }
}
