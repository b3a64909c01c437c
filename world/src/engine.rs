//! The engines of all accelerators: service times, parts, refusals, samples given back, and samples
//! that are never answered. A real batcher would stand between [`Engine::take`] and the jobs.

use std::collections::BTreeMap;

use fabric::{testkit::dice::Dice, wire::Stream};
use qdl::{
    request::MAX_HANDLE,
    serve::{Arrival, Finished, OutputPart, Sent, respond_all},
    wire::Standing,
};
use record::{BatchSizes, NodeRole};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    book::{Fate, Shared, answer},
    plan::Shape,
};

/// Longest reason of a refusal in bytes: more than a response carries.
const LONGEST_REASON: u64 = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobEnd {
    Answer,
    Refusal,
    GivenBack,
}

struct Job {
    arrival: Arrival,
    id: u64,
    server: usize,
    connection: usize,
    digest: u64,
    dice: Dice,
    /// Ends of the parts before the last one.
    parts: Vec<u32>,
    next: usize,
    end: JobEnd,
    answer: Vec<u8>,
}

impl Job {
    /// Bytes of the answer that have left.
    fn sent(&self) -> usize {
        self.next
            .checked_sub(1)
            .map_or(0, |i| self.parts[i] as usize)
    }

    /// Whether the connection can still carry the answer.
    fn is_of(&self, connection: usize) -> bool {
        self.connection == connection && !self.arrival.origin().is_gone()
    }

    /// Writes the answer up to `to` into the output.
    fn write(&mut self, to: usize) {
        let from = self.sent();
        let bytes = &self.answer[from..to];
        self.arrival.output_from(from)[..bytes.len()].copy_from_slice(bytes);
    }
}

/// The engines of all accelerators.
pub struct Engine {
    shape: Shape,
    book: Shared,
    /// Jobs by the time of their next step, and a number.
    jobs: BTreeMap<(u64, u64), Job>,
    number: u64,
    hung: Vec<Job>,
    /// Per accelerator: the end of its stop, and of the time for which its engine is away.
    pub stopped: Vec<u64>,
    pub away: Vec<u64>,
    /// Per accelerator: the end of the time for which its server is busy.
    pub busy: Vec<u64>,
    /// Per accelerator: steps of work, for heartbeats.
    pub steps: Vec<u64>,
    /// Per accelerator: batches, each of one sample.
    pub batches: Vec<BatchSizes>,
    /// The KV caches of prefill nodes: their accelerator by number, until a decode node has
    /// fetched them.
    caches: BTreeMap<u64, usize>,
    next_cache: u64,
}

impl Engine {
    /// Engines without work.
    pub fn new(shape: &Shape, book: Shared) -> Self {
        Engine {
            shape: *shape,
            book,
            jobs: BTreeMap::new(),
            number: 0,
            hung: Vec::new(),
            stopped: vec![0; shape.servers as usize],
            away: vec![0; shape.servers as usize],
            busy: vec![0; shape.servers as usize],
            steps: vec![0; shape.servers as usize],
            batches: vec![BatchSizes::new(1); shape.servers as usize],
            caches: BTreeMap::new(),
            next_cache: 0,
        }
    }

    /// Takes an arrival of connection `connection`.
    pub fn take(&mut self, server: usize, connection: usize, arrival: Arrival, now: u64) {
        self.batches[server].record(1);
        let digest = xxh3_64(arrival.input());
        let role = self.shape.role(server);
        let (stream, longest) = match role {
            NodeRole::Prefill => (Stream::None, 4 + MAX_HANDLE),
            _ => (self.shape.stream(), self.shape.answer as usize),
        };
        let is_sound = arrival.input_len() == arrival.input().len()
            && arrival.output_len() >= longest
            && arrival.arrived_ns() <= now
            && arrival.address() == arrival.input().as_ptr() as usize
            && arrival.origin().stream() == stream
            && arrival.origin().gpu().is_none()
            && arrival.origin().has_elsewhere()
            && !arrival.is_on_device();
        let book = self.book.clone();
        let mut book = book.lock();
        let Some(id) = book.of_digest.get(&digest).copied() else {
            let text = format!("arrival: server {server} got the bytes of no sample");
            return book.wrong(text);
        };
        if !is_sound {
            return book.wrong(format!("arrival: {arrival:?} of sample {id}"));
        }
        let fate = &mut book.fates[id as usize];
        let (mut end, hangs) = self.end(server, fate, now);
        let handle = arrival.options().map(|o| o.handle).unwrap_or_default();
        let is_due = role == NodeRole::Decode && !fate.warms_up;
        if is_due && handle.is_empty() {
            book.wrong(format!(
                "handle: sample {id} came to a decode node without one"
            ));
            return;
        }
        if let Some(handle) = handle.first_chunk() {
            let (of, number) = (
                u64::from_le_bytes(*handle) >> 32,
                u64::from_le_bytes(*handle),
            );
            match self.caches.remove(&(number & 0xffff_ffff)) {
                _ if of != id && !book.fates[id as usize].warms_up => {
                    book.wrong(format!("handle: sample {id} came with that of {of}"));
                }
                Some(_) => {}
                // Its node has ended, and its cache with it.
                None => end = JobEnd::Refusal,
            }
        }
        let fate = &mut book.fates[id as usize];
        fate.server = server;
        fate.attempts += 1;
        // A write of a lost connection may arrive behind the end of its sample.
        let is_again = fate.ends == 0 && fate.cancelled.is_some_and(|most| fate.attempts > most);
        fate.refusals += u32::from(end == JobEnd::Refusal);
        let mut dice = Dice::of(fate.seed, &[2, u64::from(fate.attempts)]);
        let mut answer = answer(digest, self.shape.answer as usize);
        let mut parts = self.parts(answer.len() as u32, &mut dice);
        if role == NodeRole::Prefill {
            parts.clear();
            if answer.len() > 4 && end == JobEnd::Answer {
                answer.truncate(4);
                self.next_cache += 1;
                self.caches.insert(self.next_cache, server);
                answer.extend((id << 32 | self.next_cache).to_le_bytes());
                // Handles have many lengths.
                answer.resize(answer.len() + dice.below(MAX_HANDLE as u64 - 8) as usize, 7);
            }
        }
        if end != JobEnd::Answer {
            parts.truncate(dice.below(parts.len() as u64 + 1) as usize);
        }
        if is_again {
            book.wrong(format!("cancel: sample {id} was sent again"));
        }
        book.mix(4, id);
        let n = fate_words(end, hangs);
        book.say(|| format!("sample {id} at accelerator {server} by connection {connection}{n}"));
        drop(book);
        let job = Job {
            arrival,
            id,
            server,
            connection,
            digest,
            dice,
            parts,
            next: 0,
            end,
            answer,
        };
        match hangs {
            true => self.hung.push(job),
            false => self.plan(job, now),
        }
    }

    /// Whether the engine takes samples.
    pub fn standing(&self, server: usize, now: u64) -> Standing {
        if self.away[server] > now {
            Standing::Away("the engine is away".to_owned())
        } else if self.busy[server] > now {
            Standing::Busy
        } else {
            Standing::Takes
        }
    }

    /// How an attempt ends, and whether it never does.
    fn end(&self, server: usize, fate: &Fate, now: u64) -> (JobEnd, bool) {
        let mut dice = Dice::of(fate.seed, &[1]);
        let refusals = match dice.percent(self.shape.refused) {
            true => dice.from_to(1, self.shape.refusals),
            false => 0,
        };
        let hangs = !fate.warms_up && dice.percent(self.shape.never) && fate.attempts == 0;
        let end = if self.away[server] > now {
            JobEnd::GivenBack
        } else if u64::from(fate.refusals) < refusals {
            JobEnd::Refusal
        } else {
            JobEnd::Answer
        };
        (end, hangs)
    }

    fn parts(&self, len: u32, dice: &mut Dice) -> Vec<u32> {
        let mut parts = Vec::new();
        if self.shape.stream == 0 || dice.percent(20) {
            return parts;
        }
        let most = match self.shape.stream {
            1 => 1,
            _ => dice.from_to(1, 6),
        };
        let mut to = 0;
        for _ in 0..most {
            to += 4 * dice.from_to(1, 6) as u32;
            if to > len || (to == len && dice.percent(70)) {
                break;
            }
            parts.push(to);
        }
        parts
    }

    fn plan(&mut self, mut job: Job, now: u64) {
        let mut at = now + 1 + job.dice.below(self.shape.service_ns);
        if self.shape.batch_us > 0 {
            at = at.next_multiple_of(self.shape.batch_us * 1_000);
        }
        self.number += 1;
        let at = at.max(self.stopped[job.server]);
        self.jobs.insert((at, self.number), job);
    }

    /// Time of the next step of a job.
    pub fn due(&self) -> Option<u64> {
        self.jobs.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the steps that are due by `until`. Answers that are ready together go together.
    pub fn run(&mut self, now: u64, until: u64) {
        let mut finished = Vec::new();
        let mut later = Vec::new();
        while let Some(entry) = self.jobs.first_entry() {
            if entry.key().0 > until {
                break;
            }
            let mut job = entry.remove();
            if self.stopped[job.server] > now {
                later.push(job);
                continue;
            }
            self.steps[job.server] += 1;
            if xxh3_64(job.arrival.input()) != job.digest {
                let text = "slot: a sample's bytes changed while the engine held it";
                self.book.lock().wrong(text.to_owned());
            }
            let origin = job.arrival.origin();
            if origin.is_cancelled(job.arrival.ticket()) {
                let mut book = self.book.lock();
                if book.fates[job.id as usize].cancelled.is_none() {
                    book.wrong(format!("cancel: sample {} was not cancelled", job.id));
                }
                drop(book);
                // Other engines do not heed a cancel.
                if Dice::of(job.digest, &[3]).percent(70) {
                    drop(job);
                    continue;
                }
            }
            if let Some(to) = job.parts.get(job.next).copied() {
                let part = OutputPart {
                    ticket: job.arrival.ticket(),
                    from: job.sent() as u32,
                    to,
                    queue_us: 1,
                    compute_us: 2,
                };
                job.write(to as usize);
                job.next += 1;
                job.arrival.origin().parts(&[part]);
                later.push(job);
                continue;
            }
            let words = "the engine minds, and says so at length\u{7} ".repeat(10);
            let reason = &words[..job.dice.below(LONGEST_REASON) as usize];
            match job.end {
                JobEnd::Refusal => job.arrival.refuse(&reason),
                JobEnd::GivenBack => job.arrival.give_back(reason),
                JobEnd::Answer => {
                    job.write(job.answer.len());
                    let done = Finished {
                        ticket: job.arrival.ticket(),
                        len: job.answer.len() as u32,
                        queue_us: 1,
                        compute_us: 2,
                        sent: Sent {
                            bytes: job.sent() as u32,
                            parts: job.parts.len() as u32,
                            sum_us: 0,
                        },
                    };
                    finished.push((job.arrival, done));
                }
            }
        }
        match finished.len() {
            1 => finished.drain(..).for_each(|(a, done)| a.respond(&done)),
            _ => respond_all(finished, &mut Vec::new()),
        }
        later.into_iter().for_each(|job| self.plan(job, now));
    }

    /// Whether a sample is in an engine.
    pub fn has(&self, id: u64) -> bool {
        let mut jobs = self.jobs.values().chain(&self.hung);
        jobs.any(|job| job.id == id && job.is_of(job.connection))
    }

    /// Samples of a connection that the engines owe an answer.
    pub fn owed(&self, connection: usize) -> usize {
        let jobs = self.jobs.values().chain(&self.hung);
        jobs.filter(|job| job.is_of(connection)).count()
    }

    /// The first sample of a connection whose last part has not reached the frontend.
    pub fn held_back(&self, connection: usize) -> Option<u64> {
        let book = self.book.lock();
        let is_held = |job: &&Job| {
            let (sent, fate) = (job.sent(), &book.fates[job.id as usize]);
            let is_seen = !fate.warms_up && job.is_of(connection);
            is_seen && sent > 0 && fate.bytes != sent as u32
        };
        self.jobs.values().find(is_held).map(|job| job.id)
    }

    /// Connections with samples that are never answered.
    pub fn hung_connections(&self) -> Vec<usize> {
        let mut all: Vec<_> = self.hung.iter().map(|job| job.connection).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Drops the hung samples that can no longer be answered.
    pub fn purge(&mut self) {
        self.hung.retain(|job| !job.arrival.origin().is_gone());
    }

    /// Drops the samples of an accelerator, whose process ends.
    pub fn drop_server(&mut self, server: usize) {
        self.jobs.retain(|_, job| job.server != server);
        self.hung.retain(|job| job.server != server);
        self.caches.retain(|_, of| *of != server);
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.jobs.clear();
        self.hung.clear();
    }
}

fn fate_words(end: JobEnd, hangs: bool) -> &'static str {
    match (end, hangs) {
        (_, true) => ", never answered",
        (JobEnd::Answer, _) => "",
        (JobEnd::Refusal, _) => ", to be refused",
        (JobEnd::GivenBack, _) => ", to be given back",
    }
}
