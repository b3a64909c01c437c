//! The thread of the cores: requests out, one message in for each step of a core.
//!
//! ```text
//! source --> begin: checked, to the core with the fewest outstanding tokens --> one write per core
//! one read per step --> each output: slot, account --> push or finish
//! ```
//!
//! The id of a request is its slot and the slot's generation. So an output of an aborted request
//! belongs to no request that runs.

use std::{
    io::{self, Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
    },
    time::{Duration, Instant},
};

use super::{
    handshake::Connected,
    messages::{
        ABORT, ADD, DEAD, Output, PromptCounts, Sampling, finish, put_abort, put_request,
        read_step, read_transfers,
    },
    versions::CoreVersion,
    zmtp::Connection,
};
use crate::{
    Sequence,
    error::shorten,
    llm_server::{
        account::{Account, AnswerEvent, Finish, Limits, TRIAL_TOKENS, Tokens},
        roles::{Fetched, handle_of},
    },
    streaming::{EngineThread, SequenceSource},
};

/// Interval of checks for unwanted sequences, deadlines and the exit of the program.
const LOOK: Duration = Duration::from_millis(200);
/// Bits of a request's id for the slot: 65,536 sequences on each of 64 cores.
const SLOT_BITS: u32 = 22;

/// Wakes the thread of the cores, with a system call only if the thread sleeps.
pub(super) struct Wake {
    asleep: AtomicBool,
    near: UnixStream,
    far: UnixStream,
}

impl Wake {
    pub fn new() -> io::Result<Self> {
        let (near, far) = UnixStream::pair()?;
        near.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        Ok(Wake {
            asleep: AtomicBool::new(false),
            near,
            far,
        })
    }

    /// Call after the work is published.
    pub fn notify(&self) {
        // Pairs with the fence of `sleep`: the thread sees the work, or this call sees it asleep.
        fence(SeqCst);
        if self.asleep.swap(false, SeqCst) {
            // A full socket is readable already.
            let _ = (&self.near).write(&[0]);
        }
    }

    /// Sleeps until a descriptor is ready, for at most `timeout` unless `has_work` returns true.
    /// The first descriptor is this one's.
    fn sleep(&self, fds: &mut [libc::pollfd], timeout: Duration, has_work: impl Fn() -> bool) {
        self.asleep.store(true, SeqCst);
        fence(SeqCst);
        let timeout = if has_work() { Duration::ZERO } else { timeout };
        let ms = timeout.as_millis() as libc::c_int;
        // SAFETY: the slice is valid during the call. An interrupted call only ends early.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) };
        self.asleep.store(false, SeqCst);
        // The byte of a call may come after the sleep that it was to end.
        if fds[0].revents != 0 {
            let _ = (&self.far).read(&mut [0; 64]);
        }
    }
}

struct Core {
    input: Connection,
    running: usize,
    /// Tokens that its sequences still need: prompts without a first token, and rests of answers.
    outstanding: u64,
    /// The last token, or the begin of the first sequence of an idle core.
    progress: Instant,
}

impl Core {
    fn new(input: Connection) -> Self {
        Core {
            input,
            running: 0,
            outstanding: 0,
            progress: Instant::now(),
        }
    }
}

struct Active {
    /// `None` for a trial.
    sequence: Option<Sequence>,
    account: Account,
    core: usize,
    begun: Instant,
}

impl Active {
    fn outstanding(&self) -> u64 {
        let prompt = if self.account.received == 0 {
            self.account.prompt
        } else {
            0
        };
        (prompt + self.account.max.saturating_sub(self.account.received)) as u64
    }
}

#[derive(Default)]
struct Slot {
    generation: u32,
    active: Option<Active>,
}

pub(super) struct Driver {
    version: &'static CoreVersion,
    limits: Limits,
    sampling: Sampling,
    /// Time limit between two tokens of a core that has sequences.
    step: Duration,
    cores: Vec<Core>,
    outputs: Vec<Connection>,
    source: Arc<dyn SequenceSource>,
    thread: Arc<EngineThread>,
    wake: Arc<Wake>,
    nans: Arc<AtomicU64>,
    fetched: Arc<Fetched>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    polled: Vec<libc::pollfd>,
    looked: Instant,
    /// Buffers of a request: its prompt and its message.
    prompt: Vec<u32>,
    message: Vec<u8>,
}

impl Driver {
    pub fn new(
        (limits, sampling, step): (Limits, Sampling, Duration),
        connected: Connected,
        source: Arc<dyn SequenceSource>,
        (thread, wake): (Arc<EngineThread>, Arc<Wake>),
        (nans, fetched): (Arc<AtomicU64>, Arc<Fetched>),
    ) -> Self {
        Driver {
            version: connected.version,
            limits,
            sampling,
            step,
            cores: connected.inputs.into_iter().map(Core::new).collect(),
            outputs: connected.outputs,
            source,
            thread,
            wake,
            nans,
            fetched,
            slots: Vec::new(),
            free: Vec::new(),
            polled: Vec::new(),
            looked: Instant::now(),
            prompt: Vec::new(),
            message: Vec::new(),
        }
    }

    /// Requests one short answer from each core, with the parameters of all requests.
    /// Error text: a core breaks a rule, or does not answer within `within`.
    pub fn try_cores(&mut self, within: Duration) -> Result<(), String> {
        let room = TRIAL_TOKENS.max(self.limits.min_tokens);
        for core in 0..self.cores.len() {
            let most = self.limits.context.saturating_sub(2);
            let account = self.limits.admit_trial(most, room, &mut self.prompt)?;
            self.request(core, None, account);
        }
        let began = Instant::now();
        while self.cores.iter().any(|core| core.running > 0) {
            if began.elapsed() > within {
                let s = within.as_secs();
                return Err(format!("no answer to a short prompt in {s} s"));
            }
            self.turn()?;
        }
        Ok(())
    }

    /// Runs until the thread is closed. Calls `exited` now and then; its words are an error.
    pub fn run(&mut self, exited: impl Fn() -> Option<String>) -> Result<(), String> {
        while !self.thread.is_closed() {
            while let Some(sequence) = self.source.next() {
                self.begin(sequence);
            }
            self.turn()?;
            if self.looked.elapsed() >= LOOK {
                self.looked = Instant::now();
                drop(self.abort(|_, sequence| !sequence.is_wanted()));
                self.refuse_unfetched();
                if let Some(exit) = exited() {
                    return Err(exit);
                }
                self.check_progress()?;
            }
        }
        // A core that was started by hand goes on: it must not compute what no frontend waits for.
        drop(self.abort(|_, _| true));
        self.cores
            .iter_mut()
            .for_each(|core| drop(core.input.flush()));
        Ok(())
    }

    /// Gives a new sequence to the core with the fewest outstanding tokens, or refuses it.
    fn begin(&mut self, sequence: Sequence) {
        let room = sequence.room();
        let (prompt, options) = (sequence.prompt(), sequence.options());
        match self.limits.admit(prompt, room, options, &mut self.prompt) {
            Ok(account) => {
                let all = self.cores.iter().enumerate();
                let least = all.min_by_key(|(_, core)| core.outstanding);
                let core = least.map_or(0, |(index, _)| index);
                self.request(core, Some(sequence), account);
            }
            Err(why) => {
                sequence.refuse(&why);
            }
        }
    }

    /// Queues the request for the prompt in `self.prompt`.
    fn request(&mut self, core: usize, sequence: Option<Sequence>, account: Account) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let options = sequence.as_ref().map(Sequence::options);
        let sampling = self.sampling.of_request(&account, options);
        let slot = &mut self.slots[at];
        let active = Active {
            sequence,
            account,
            core,
            begun: Instant::now(),
        };
        let to = &mut self.cores[core];
        self.message.clear();
        let id = id(at, slot.generation);
        put_request(&mut self.message, &id, &self.prompt, &sampling);
        to.input.queue(&[ADD, &self.message]);
        if to.running == 0 {
            to.progress = Instant::now();
        }
        to.running += 1;
        to.outstanding += active.outstanding();
        slot.active = Some(active);
    }

    /// Sends what waits, sleeps until something arrives, and handles it.
    fn turn(&mut self) -> Result<(), String> {
        for (i, core) in self.cores.iter_mut().enumerate() {
            core.input
                .flush()
                .map_err(|e| format!("core {i} takes no request: {e}"))?;
        }
        for output in &mut self.outputs {
            // PONGs. An end of the stream shows when it is read.
            let _ = output.flush();
        }
        let fd = |of: &dyn AsRawFd, events| libc::pollfd {
            fd: of.as_raw_fd(),
            events,
            revents: 0,
        };
        self.polled.clear();
        self.polled.push(fd(&self.wake.far, libc::POLLIN));
        let inputs = self.cores.iter().map(|core| &core.input);
        let polled = self.outputs.iter().chain(inputs).map(|c| {
            let out = if c.is_unsent() { libc::POLLOUT } else { 0 };
            fd(&c.stream, libc::POLLIN | out)
        });
        self.polled.extend(polled);
        let (source, thread) = (&self.source, &self.thread);
        let has_work = || source.has_next() || thread.is_closed();
        self.wake.sleep(&mut self.polled, LOOK, has_work);
        let came = |fds: &[libc::pollfd], i: usize| fds[1 + i].revents & !libc::POLLOUT != 0;
        for i in 0..self.outputs.len() {
            if came(&self.polled, i) {
                self.read(i)?;
            }
        }
        for i in 0..self.cores.len() {
            if came(&self.polled, self.outputs.len() + i) {
                // A core sends nothing here. The end of the stream is the only sign of a core that
                // computes but takes no request.
                let input = &mut self.cores[i].input;
                let end = input.fill().and_then(|_| {
                    while input.next()?.is_some() {}
                    Ok(())
                });
                end.map_err(|e| format!("core {i} takes no more requests: its input: {e}"))?;
            }
        }
        Ok(())
    }

    /// Reads the output of a core once and handles each whole message.
    fn read(&mut self, i: usize) -> Result<(), String> {
        let mut output = self.outputs.swap_remove(i);
        let ended = self.handle(&mut output);
        self.outputs.push(output);
        let last = self.outputs.len() - 1;
        self.outputs.swap(i, last);
        ended
    }

    fn handle(&mut self, output: &mut Connection) -> Result<(), String> {
        let wrong = |e: io::Error| format!("its output: {e}");
        output.fill().map_err(wrong)?;
        while let Some(message) = output.next().map_err(wrong)? {
            if message == DEAD {
                return Err("it reports ENGINE_CORE_DEAD".to_owned());
            }
            let step = read_step(message, self.version)?;
            if !self.limits.role.is_both()
                && let Some(transfers) = read_transfers(message)
            {
                self.fetched.add_transfers(transfers);
            }
            let core = step.core;
            let tokens = step.outputs.iter().any(|output| !output.tokens.is_empty());
            for output in step.outputs {
                self.take(output)?;
            }
            let Some(core) = self.cores.get_mut(core) else {
                return Err(format!(
                    "it is core {core}, and there are {}",
                    self.cores.len()
                ));
            };
            if tokens {
                core.progress = Instant::now();
            }
        }
        Ok(())
    }

    fn take(&mut self, mut output: Output<'_>) -> Result<(), String> {
        let Some((at, generation)) = parse_id(output.id) else {
            return Err(format!("it answers the unknown request `{}`", output.id));
        };
        let slot = self
            .slots
            .get_mut(at)
            .filter(|s| s.generation == generation);
        let Some((slot, active)) = slot.and_then(|s| s.active.take().map(|a| (s, a))) else {
            // An answer under way when its request was aborted.
            return Ok(());
        };
        if output.nans > 0 && self.nans.fetch_add(output.nans, Relaxed) == 0 {
            tracing::warn!("vLLM's engine core: NaNs in the logits of an answer");
        }
        let mut active = active;
        let before = active.outstanding();
        if active.account.fetches()
            && let Some(counts) = &output.prompt
        {
            self.fetched.add(counts.num_external_cached_tokens);
        }
        let params = output.handle.take();
        let progress = check(&mut active.account, &self.limits, output)?;
        let core = &mut self.cores[active.core];
        core.outstanding = core.outstanding.saturating_sub(before);
        match progress {
            Progress::More(tokens) => {
                let pushed = active.sequence.as_mut().map(|s| s.push(&tokens));
                // The account keeps answers within the room of their slots.
                pushed.transpose().map_err(|e| e.to_string())?;
                core.outstanding += active.outstanding();
                slot.active = Some(active);
                return Ok(());
            }
            Progress::End(tokens) => {
                let goes_on = active.account.goes_on();
                let handle = goes_on.then(|| handle_of(params.as_ref())).transpose()?;
                match (active.sequence.take(), handle, tokens.first()) {
                    (None, ..) => {}
                    (Some(sequence), Some(handle), Some(token)) => {
                        sequence.hand_over(*token, &handle);
                    }
                    (Some(sequence), ..) => sequence.finish(&tokens),
                }
            }
            Progress::Refuse(why) => match active.sequence.take() {
                Some(sequence) => {
                    sequence.refuse(&why);
                }
                None => return Err(why),
            },
        }
        core.running -= 1;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(at);
        Ok(())
    }

    /// Refuses the sequences whose KV cache does not come: a core waits for a prefill node that has
    /// stopped without an end.
    fn refuse_unfetched(&mut self) {
        let step = self.step;
        let is_late =
            |a: &Active| a.account.fetches() && a.account.received == 0 && a.begun.elapsed() > step;
        for sequence in self.abort(|active, _| is_late(active)) {
            let s = step.as_secs();
            sequence.refuse(&format_args!(
                "no token in {s} s: the KV cache did not come from its prefill node (see \
                 engine.vllm.step_s)"
            ));
        }
    }

    /// Aborts the sequences for which `is_over` returns true, at their cores, and returns them.
    fn abort(&mut self, is_over: impl Fn(&Active, &Sequence) -> bool) -> Vec<Sequence> {
        let mut aborted = Vec::new();
        let mut ids: Vec<Vec<String>> = vec![Vec::new(); self.cores.len()];
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let over = |a: &mut Active| a.sequence.as_ref().is_some_and(|s| is_over(a, s));
            if let Some(active) = slot.active.take_if(over) {
                ids[active.core].push(id(at, slot.generation));
                let core = &mut self.cores[active.core];
                core.running -= 1;
                core.outstanding = core.outstanding.saturating_sub(active.outstanding());
                slot.generation = slot.generation.wrapping_add(1);
                self.free.push(at);
                aborted.extend(active.sequence);
            }
        }
        for (core, ids) in self.cores.iter_mut().zip(&ids) {
            if !ids.is_empty() {
                self.message.clear();
                put_abort(&mut self.message, ids);
                core.input.queue(&[ABORT, &self.message]);
            }
        }
        aborted
    }

    fn check_progress(&self) -> Result<(), String> {
        for (i, core) in self.cores.iter().enumerate() {
            if core.running > 0 && core.progress.elapsed() > self.step {
                return Err(format!(
                    "no token from core {i} for {} s while it has {} sequences: see \
                     engine.vllm.step_s",
                    self.step.as_secs(),
                    core.running
                ));
            }
        }
        Ok(())
    }
}

/// The id of a request: hexadecimal, slot and generation.
fn id(slot: usize, generation: u32) -> String {
    format!("{:x}", u64::from(generation) << SLOT_BITS | slot as u64)
}

fn parse_id(id: &str) -> Option<(usize, u32)> {
    let id = u64::from_str_radix(id, 16).ok()?;
    let slot = id & ((1 << SLOT_BITS) - 1);
    Some((slot as usize, u32::try_from(id >> SLOT_BITS).ok()?))
}

/// Progress of an answer, with the tokens to pass on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Progress {
    More(Tokens),
    End(Tokens),
    /// The core could not run this sample; others go on.
    Refuse(String),
}

/// Checks an output and counts its tokens.
/// Error text: how the core breaks the protocol. The engine must then stop.
fn check(account: &mut Account, limits: &Limits, output: Output<'_>) -> Result<Progress, String> {
    let finish = match output.finish {
        None => None,
        Some(finish::STOP) => Some(Finish::Stop),
        Some(finish::LENGTH) => Some(Finish::Length),
        Some(finish::ERROR) => {
            let words = output.error.map(|words| format!(": {}", shorten(words)));
            let words = words.unwrap_or_default();
            let why = format!("the core could not run this prompt{words}");
            return Ok(Progress::Refuse(why));
        }
        Some(finish::ABORT) => return Err("it gave up an answer that is wanted".to_owned()),
        Some(n) => return Err(format!("it ended an answer for the unknown reason {n}")),
    };
    let count = |of: fn(&PromptCounts) -> u64| {
        let said = output.prompt.as_ref().map(of);
        said.map(|n| usize::try_from(n).unwrap_or(usize::MAX))
    };
    let own_cached = |c: &PromptCounts| {
        c.num_cached_tokens
            .saturating_sub(c.num_external_cached_tokens)
    };
    let event = AnswerEvent {
        prompt: count(|counts| counts.num_prompt_tokens),
        // What a prefill node has computed is no prefix cache.
        cached: count(own_cached),
        done: finish.is_some(),
        finish,
        tokens: output.tokens,
        ..AnswerEvent::default()
    };
    let (tokens, is_end) = account.take(limits, event).map_err(|e| e.to_string())?;
    match account.cached {
        0 if is_end => Ok(Progress::End(tokens)),
        0 => Ok(Progress::More(tokens)),
        n => Err(format!(
            "it took {n} prompt tokens from its prefix cache, which is forbidden"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that comes between the end of a sleep and the next one leaves a byte behind.
    #[test]
    fn a_late_byte_ends_one_sleep_alone() {
        let wake = Wake::new().expect("a pair");
        let sleep = || {
            let mut fds = [libc::pollfd {
                fd: wake.far.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            }];
            wake.sleep(&mut fds, Duration::from_millis(1), || false);
            fds[0].revents != 0
        };
        (&wake.near).write_all(&[0]).expect("sent");
        assert!(sleep());
        assert!(!sleep());
        wake.notify();
        assert!(!sleep(), "an awake thread needs no byte");
    }

    /// The account's tests have the rules of an answer, scripted cores an error of a prompt.
    #[test]
    fn an_output_ends_its_answer_or_breaks_a_rule() {
        let limits = Limits {
            engine: "vllm",
            vocab: 100,
            context: 20,
            min_tokens: 0,
            max_tokens: 8,
            ends: vec![2],
            stops: Vec::new(),
            are_all_ends: true,
            counts_answers: false,
            role: record::NodeRole::Both,
        };
        for (token, reason, cached, words) in [
            (1, None, 0, "More([1])"),
            (2, Some(finish::STOP), 0, "End([2])"),
            (1, None, 1, "it took 1 prompt tokens from its prefix cache"),
            (1, Some(finish::ABORT), 0, "an answer that is wanted"),
            (1, Some(4), 0, "unknown reason 4"),
            (1, Some(finish::ERROR), 0, "this prompt: no room"),
        ] {
            let output = Output {
                tokens: [token].into_iter().collect(),
                finish: reason,
                prompt: Some(PromptCounts {
                    num_prompt_tokens: 3,
                    num_cached_tokens: cached,
                    num_external_cached_tokens: 0,
                }),
                error: Some("no room"),
                ..Output::default()
            };
            let verdict = match check(&mut limits.account(3, 8), &limits, output) {
                Ok(Progress::Refuse(words)) | Err(words) => words,
                Ok(other) => format!("{other:?}"),
            };
            assert!(verdict.contains(words), "{words}: {verdict}");
        }
    }
}
