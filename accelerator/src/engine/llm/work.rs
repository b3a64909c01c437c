//! Runs the engine's thread: takes sequences from the queue, runs steps, passes tokens on.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::Sender,
    },
    thread::{self, Thread},
    time::Duration,
};

use crossbeam_queue::SegQueue;
use ort::{memory::MemoryInfo, session::Session};

use super::{
    super::streaming::OnFatal,
    decoder::{Best, Decoder, Fed},
    graph::Graph,
    schedule::{Schedule, Step},
};
use crate::engine::{EngineError, Sequence};

/// Longest sleep of an idle thread.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Longest prompt of the warm-up.
const WARM_PROMPT: usize = 128;

/// Limits of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Least number of tokens in an answer.
    pub min: usize,
    /// Largest number of tokens in an answer.
    pub max: usize,
    /// The end-of-sequence token.
    pub eos: i32,
}

impl Limits {
    /// The next token after `made` tokens, and whether it ends the answer.
    fn choose(&self, best: Best, made: usize) -> (i32, bool) {
        let of = |id: i64| i32::try_from(id).unwrap_or(i32::MAX);
        let first = of(best[0]);
        let token = match first == self.eos && made + 1 < self.min {
            // An end before the minimum is replaced by the second most likely token.
            true => of(best[1]),
            false => first,
        };
        (token, token == self.eos || made + 1 >= self.max)
    }
}

/// The queue of sequences to the engine's thread.
#[derive(Default)]
pub(super) struct Shared {
    queue: SegQueue<Sequence>,
    closed: AtomicBool,
    /// The thread to wake.
    worker: Mutex<Option<Thread>>,
}

impl Shared {
    pub fn open(&self) {
        self.closed.store(false, SeqCst);
    }

    /// Queues a sequence; drops it once the queue is closed.
    pub fn submit(&self, sequence: Sequence) {
        self.queue.push(sequence);
        match self.closed.load(SeqCst) {
            // `close` may have cleared the queue before this push.
            true => self.clear(),
            false => self.wake(),
        }
    }

    pub fn close(&self) {
        self.closed.store(true, SeqCst);
        self.wake();
        self.clear();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    fn clear(&self) {
        while let Some(sequence) = self.queue.pop() {
            drop(sequence);
        }
    }

    /// Wakes the thread. One short lock per sample.
    fn wake(&self) {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = &*worker {
            worker.unpark();
        }
    }
}

/// Parameters of the thread.
pub(super) struct Work {
    pub session: Session,
    pub graph: Graph,
    pub slots: usize,
    pub context: usize,
    pub limits: Limits,
    pub memory: Option<MemoryInfo<'static>>,
    pub longest_prompt: usize,
    pub shared: Arc<Shared>,
}

impl Work {
    /// The thread's body: warms up, reports readiness, serves until the queue is closed.
    pub fn run(self, ready: &Sender<Result<(), EngineError>>, fatal: &OnFatal) {
        let (slots, shared) = (self.slots, self.shared.clone());
        *shared.worker.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        let serve = AssertUnwindSafe(|| {
            let prompt = self.longest_prompt.min(WARM_PROMPT);
            let loaded = Loop::new(self).and_then(|mut l| {
                l.warm_up(prompt)?;
                Ok(l)
            });
            match loaded {
                Ok(serving) => {
                    // The send fails only after the start has timed out.
                    let _ = ready.send(Ok(()));
                    serving.serve()
                }
                Err(reason) => {
                    let _ = ready.send(Err(failed(slots, reason)));
                    Ok(())
                }
            }
        });
        let why = match catch_unwind(serve) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(panic) => Some(EngineError::Panicked {
                engine: "llm",
                worker: 0,
                message: words(&*panic),
            }),
        };
        if let Some(why) = why {
            shared.close();
            fatal(why);
        }
    }
}

fn failed(batch: usize, reason: String) -> EngineError {
    EngineError::Run {
        engine: "llm",
        batch,
        reason,
    }
}

/// The message of a panic.
fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

struct Loop {
    decoder: Decoder,
    schedule: Schedule<Sequence>,
    limits: Limits,
    shared: Arc<Shared>,
    /// The prompt of the joining sequence.
    prompt: Vec<i64>,
    /// The newest token of each row of a step, and the positions in use after the step.
    newest: Vec<(i64, usize)>,
    /// The results of a step.
    best: Vec<Best>,
}

impl Loop {
    fn new(work: Work) -> Result<Self, String> {
        let Work { slots, context, .. } = work;
        let decoder = Decoder::new(work.session, work.graph, slots, context, work.memory)?;
        Ok(Loop {
            schedule: Schedule::new(slots, decoder.can_move()),
            decoder,
            limits: work.limits,
            shared: work.shared,
            prompt: Vec::with_capacity(context),
            newest: Vec::with_capacity(slots),
            best: Vec::with_capacity(slots),
        })
    }

    /// Runs one prompt, one row and all rows, so that the runtime's first-use work is done before
    /// the first sample.
    fn warm_up(&mut self, prompt: usize) -> Result<(), String> {
        let tokens = vec![0; prompt];
        let fed = Fed {
            tokens: &tokens,
            held: prompt,
        };
        self.decoder.step(0, [fed].into_iter())?;
        for rows in [1, self.schedule.slots()] {
            let one = Fed {
                tokens: &[0],
                held: 1,
            };
            self.decoder.step(0, std::iter::repeat_n(one, rows))?;
        }
        Ok(())
    }

    fn serve(mut self) -> Result<(), EngineError> {
        while !self.shared.is_closed() {
            while let Some(sequence) = self.shared.queue.pop() {
                let prompt = sequence.prompt().len();
                self.schedule.push(sequence, prompt);
            }
            self.schedule.retain(Sequence::is_wanted);
            let decoder = &mut self.decoder;
            match self.schedule.next(|m| decoder.move_slot(m)) {
                Step::Idle => thread::park_timeout(LOOK_AGAIN),
                Step::Join { slot } => self.join(slot).map_err(|e| failed(1, e))?,
                Step::Decode { first, rows } => {
                    self.decode(first, rows).map_err(|e| failed(rows, e))?;
                }
            }
        }
        Ok(())
    }

    /// Computes a prompt and passes the first token on.
    fn join(&mut self, slot: usize) -> Result<(), String> {
        let Some(row) = self.schedule.row(slot) else {
            return Ok(());
        };
        self.prompt.clear();
        self.prompt.extend(row.owner.prompt().map(i64::from));
        let fed = Fed {
            tokens: &self.prompt,
            held: self.prompt.len(),
        };
        let best = self.decoder.step(slot, [fed].into_iter())?[0];
        self.hand_on(slot, best);
        Ok(())
    }

    /// Computes a token of each row and passes them on.
    fn decode(&mut self, first: usize, rows: usize) -> Result<(), String> {
        self.newest.clear();
        for slot in first..first + rows {
            // A hole computes a dummy token in a free slot.
            let newest = match self.schedule.row(slot) {
                Some(row) => (i64::from(row.last), row.held() + 1),
                None => (0, 1),
            };
            self.newest.push(newest);
        }
        let fed = self.newest.iter().map(|(token, held)| Fed {
            tokens: std::slice::from_ref(token),
            held: *held,
        });
        self.best.clear();
        self.best.extend_from_slice(self.decoder.step(first, fed)?);
        for i in 0..self.best.len() {
            self.hand_on(first + i, self.best[i]);
        }
        Ok(())
    }

    fn hand_on(&mut self, slot: usize, best: Best) {
        let Some(row) = self.schedule.row(slot) else {
            return;
        };
        let (token, last) = self.limits.choose(best, row.made);
        row.made += 1;
        row.last = token;
        if !last {
            if let Err(why) = row.owner.push(&[token])
                && let Some(sequence) = self.schedule.take(slot)
            {
                sequence.refuse(&why);
            }
        } else if let Some(sequence) = self.schedule.take(slot)
            && let Err((sequence, why)) = sequence.finish(&[token])
        {
            sequence.refuse(&why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_put_off_kept_and_counted() {
        let limits = Limits {
            min: 3,
            max: 5,
            eos: 2,
        };
        assert_eq!(limits.choose([2, 7], 0), (7, false));
        assert_eq!(limits.choose([2, 7], 1), (7, false));
        assert_eq!(limits.choose([2, 7], 2), (2, true));
        assert_eq!(limits.choose([9, 2], 3), (9, false));
        assert_eq!(limits.choose([9, 2], 4), (9, true), "as long as it may be");
        let one = Limits { min: 1, ..limits };
        assert_eq!(one.choose([2, 7], 0), (2, true));
    }
}
