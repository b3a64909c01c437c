//! Both sides in this process: what each call says, and what comes of a sample.

use std::{
    ffi::{CStr, CString, c_void},
    ptr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use capi::{face::*, types::*};

const WAIT_MS: u32 = 20_000;

const SUMS: &str = "name: sums, inputs: [{name: i, dtype: u8, shape: [16]}], \
                    output: {name: o, dtype: u8, shape: [8]}";
const TOKENS: &str = "name: tokens, inputs: [{name: p, dtype: i32, shape: [16], ragged: true}], \
                      output: {name: t, dtype: i32, shape: [8], ragged: true}";

fn said() -> String {
    // SAFETY: the text of this thread's last error ends with a zero.
    let text = unsafe { CStr::from_ptr(qdl_error()) };
    text.to_string_lossy().into_owned()
}

#[track_caller]
fn good<N: Into<i64>>(result: N) -> i64 {
    let result = result.into();
    assert!(result >= 0, "{result}: {}", said());
    result
}

fn yaml(text: &str) -> CString {
    CString::new(text).expect("no zero")
}

/// A node of this model, which has these options.
pub fn serve(model: &str, options: u32) -> u64 {
    let text = yaml(&format!(
        "{{node: n, control: {{listen: 127.0.0.1:0}}, model: {{{model}}}, \
         nics: [{{listen: 127.0.0.1:0}}], memory_mib: 64}}"
    ));
    let (mut node, engine) = (0, c"test".as_ptr());
    // SAFETY: the pointers are of values that live through the call.
    good(unsafe { qdl_serve(ptr::null(), text.as_ptr(), engine, options, &raw mut node) });
    node
}

/// Address of a node's control port.
pub fn address(node: u64) -> String {
    let mut text = [0u8; 64];
    // SAFETY: the pointer is of an array that lives through the call.
    good(unsafe { qdl_text(node, QDL_TEXT_ADDRESS, text.as_mut_ptr().cast(), text.len()) });
    let text = CStr::from_bytes_until_nul(&text).expect("a text");
    text.to_str().expect("a text").to_owned()
}

/// A node and a cluster, and the memory of its samples.
struct Pair {
    node: u64,
    cluster: u64,
    memory: Vec<u8>,
}

impl Pair {
    /// Connects a cluster to a node of this model, which has these options.
    fn new(model: &str, options: u32, connects: bool) -> Pair {
        let (node, mut cluster) = (serve(model, options), 0);
        let text = yaml(&format!(
            "{{node: f, model: {{{model}}}, accelerators: [{{control: \"{}\"}}], \
             nics: [{{address: 127.0.0.1}}]}}",
            address(node)
        ));
        // SAFETY: the pointers are of values that live through the call.
        good(unsafe { qdl_open(ptr::null(), text.as_ptr(), &raw mut cluster) });
        let mut memory: Vec<u8> = (0..=255).collect();
        // SAFETY: `drop` closes the cluster before the memory goes.
        good(unsafe { qdl_register(cluster, memory.as_mut_ptr().cast(), memory.len()) });
        if connects {
            // SAFETY: no sample is read.
            good(unsafe { qdl_connect(cluster, ptr::null(), 0) });
        }
        Pair {
            node,
            cluster,
            memory,
        }
    }

    fn sample(&self, id: u64, offset: usize, len: u32) -> qdl_sample {
        qdl_sample {
            id,
            data: self.memory[offset..].as_ptr().cast(),
            len,
            flags: 0,
        }
    }

    fn issue(&self, samples: &[qdl_sample]) -> i32 {
        // SAFETY: the pointer is of a slice that lives through the call.
        unsafe { qdl_issue(self.cluster, samples.as_ptr(), samples.len()) }
    }

    fn arrival(&self) -> qdl_arrival {
        let mut all = [qdl_arrival::ZERO];
        // SAFETY: as above.
        let n = unsafe { qdl_arrivals(self.node, all.as_mut_ptr(), 1, WAIT_MS) };
        assert_eq!(good(n), 1);
        all[0]
    }

    /// Answers one ticket and returns the status.
    fn respond(&self, ticket: u64, kind: u16, bytes: &[u8]) -> i32 {
        let mut answers = [qdl_answer {
            ticket,
            data: bytes.as_ptr().cast(),
            len: bytes.len() as u32,
            kind,
            flags: 0,
            status: 7,
            reserved: 0,
        }];
        // SAFETY: as above.
        let wrong = good(unsafe { qdl_respond(self.node, answers.as_mut_ptr(), 1) });
        assert_eq!(wrong, i64::from(answers[0].status != 0));
        answers[0].status
    }

    /// The next event and its bytes.
    fn event(&self) -> (qdl_event, Vec<u8>) {
        let (mut events, mut lease) = ([qdl_event::ZERO], 0);
        let to = events.as_mut_ptr();
        // SAFETY: as above.
        let n = unsafe { qdl_poll(self.cluster, to, 1, WAIT_MS, &raw mut lease) };
        assert_eq!(good(n), 1, "an event");
        let [event] = events;
        // SAFETY: the lease keeps these bytes.
        let bytes = unsafe { std::slice::from_raw_parts(event.data.cast(), event.len as usize) };
        let bytes = bytes.to_vec();
        good(qdl_release(lease));
        assert_eq!(qdl_release(lease), QDL_E_STATE, "released twice");
        (event, bytes)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        good(qdl_close(self.cluster));
        good(qdl_close(self.node));
        assert_eq!(qdl_close(self.node), QDL_E_STATE, "closed twice");
    }
}

#[test]
fn an_answer_comes_back_in_the_memory_of_its_lease() {
    let pair = Pair::new(SUMS, 0, true);
    assert_eq!(pair.issue(&[pair.sample(5, 32, 16)]), 0, "{}", said());
    let arrival = pair.arrival();
    // SAFETY: the ticket has not ended.
    let input = unsafe { std::slice::from_raw_parts(arrival.data.cast::<u8>(), 16) };
    assert_eq!((input, arrival.room), (&pair.memory[32..48], 8));
    // SAFETY: as above; the output slot has `room` bytes.
    unsafe { arrival.out.cast::<u8>().write_bytes(3, 8) };
    let mut own = qdl_answer {
        ticket: arrival.ticket,
        data: ptr::null(),
        len: 8,
        kind: QDL_DONE,
        flags: 0,
        status: 7,
        reserved: 0,
    };
    // SAFETY: the pointer is of a value that lives through the call.
    assert_eq!(unsafe { qdl_respond(pair.node, &raw mut own, 1) }, 0);
    let (event, bytes) = pair.event();
    assert_eq!(
        (event.id, event.kind, event.flags),
        (5, QDL_DONE, QDL_FIRST)
    );
    assert_eq!(bytes, [3; 8]);
    assert_eq!(pair.respond(arrival.ticket, QDL_DONE, &[0; 8]), QDL_E_USAGE);
}

#[test]
fn wrong_samples_are_refused_by_name_and_none_is_issued() {
    let pair = Pair::new(SUMS, 0, true);
    let good = pair.sample(1, 0, 16);
    let outside = qdl_sample {
        len: 17,
        ..pair.sample(2, 240, 16)
    };
    let short = pair.sample(3, 0, 15);
    let optioned = qdl_sample {
        flags: QDL_HAS_OPTIONS,
        ..good
    };
    let reserved = qdl_sample {
        id: u64::MAX,
        ..good
    };
    for (wrong, words) in [
        (outside, "samples[1] (id 2): 17 bytes at"),
        (
            short,
            "samples[1] (id 3): 15 bytes, and the model takes 16 bytes",
        ),
        (optioned, "no block of qdl_options_write is there"),
        (reserved, "2^64 - 1 is no id"),
    ] {
        assert_eq!(pair.issue(&[good, wrong]), QDL_E_USAGE);
        assert!(said().contains(words), "{}", said());
    }
    // SAFETY: a null pointer is an error.
    let refused = unsafe { qdl_issue(pair.cluster, ptr::null(), 1) };
    assert_eq!(refused, QDL_E_USAGE);
    // SAFETY: no event is written.
    let n = unsafe { qdl_poll(pair.cluster, [qdl_event::ZERO].as_mut_ptr(), 1, 0, &mut 0) };
    assert_eq!(n, 0);
}

#[test]
fn calls_at_a_wrong_time_say_which_call_is_missing() {
    let pair = Pair::new(SUMS, 0, false);
    assert_eq!(pair.issue(&[pair.sample(1, 0, 16)]), QDL_E_STATE);
    assert!(said().contains("qdl_connect"), "{}", said());
    // SAFETY: no sample is read.
    good(unsafe { qdl_connect(pair.cluster, ptr::null(), 0) });
    let mut more = [0u8; 16];
    let more: *mut c_void = more.as_mut_ptr().cast();
    // SAFETY: the memory is refused.
    assert_eq!(unsafe { qdl_register(pair.cluster, more, 16) }, QDL_E_STATE);
    assert!(said().contains("before qdl_connect"), "{}", said());
    // SAFETY: no arrival is written.
    let n = unsafe { qdl_arrivals(pair.cluster, [qdl_arrival::ZERO].as_mut_ptr(), 1, 0) };
    assert_eq!(n, i64::from(QDL_E_USAGE));
    assert!(said().contains("a handle of qdl_serve"), "{}", said());
    // SAFETY: no text is written.
    let n = unsafe { qdl_text(pair.cluster, QDL_TEXT_RECORD, ptr::null_mut(), 0) };
    assert_eq!(n, i64::from(QDL_E_STATE));
    good(qdl_finish(pair.cluster));
    // SAFETY: as above.
    let n = unsafe { qdl_text(pair.cluster, QDL_TEXT_RECORD, ptr::null_mut(), 0) };
    assert!(good(n) > 100, "a record");
}

#[test]
fn tokens_come_in_parts_and_a_cancel_ends_their_sample() {
    let pair = Pair::new(TOKENS, QDL_TOKEN_LIMIT, true);
    let tokens: Vec<u8> = (1..4i32).flat_map(i32::to_le_bytes).collect();
    assert_eq!(pair.issue(&[pair.sample(9, 0, 8)]), 0, "{}", said());
    let ticket = pair.arrival().ticket;
    assert_eq!(pair.respond(ticket, QDL_PART, &tokens[..4]), 0);
    let (first, bytes) = pair.event();
    assert_eq!(
        (first.kind, first.flags, first.offset),
        (QDL_PART, QDL_FIRST, 0)
    );
    assert_eq!(bytes, tokens[..4]);
    assert_eq!(pair.respond(ticket, QDL_PART, &tokens[4..8]), 0);
    let (second, _) = pair.event();
    assert_eq!((second.kind, second.flags, second.offset), (QDL_PART, 0, 4));
    assert_eq!(pair.respond(ticket, QDL_DONE, &tokens[8..]), 0);
    let (whole, bytes) = pair.event();
    assert_eq!((whole.kind, whole.flags), (QDL_DONE, 0));
    assert_eq!(bytes, tokens);

    // Too many tokens, and a reason of the engine's.
    for (kind, bytes, reason) in [
        (
            QDL_DONE,
            &[0; 36][..],
            "36 bytes behind 0, and the answer has room for 32",
        ),
        (
            QDL_DONE,
            &[0; 3][..],
            "an answer of 3 bytes, and the model has 1 to 8 times 4 bytes",
        ),
        (QDL_REFUSED, b"too hot", "too hot"),
    ] {
        assert_eq!(pair.issue(&[pair.sample(10, 0, 8)]), 0, "{}", said());
        // The frontend asks three times.
        for _ in 0..3 {
            let status = pair.respond(pair.arrival().ticket, kind, bytes);
            assert_eq!(status, if kind == QDL_DONE { QDL_E_USAGE } else { 0 });
        }
        let (event, said) = pair.event();
        assert_eq!(event.kind, QDL_FAILED);
        let said = String::from_utf8(said).expect("a text");
        // The slot has room for 32 bytes of it.
        assert!(
            said.len() > 5 && reason.starts_with(said.trim_end()),
            "{said}"
        );
    }

    assert_eq!(pair.issue(&[pair.sample(11, 0, 8)]), 0, "{}", said());
    let ticket = pair.arrival().ticket;
    // SAFETY: the pointer is of a value that lives through the call.
    good(unsafe { qdl_cancel(pair.cluster, [11].as_ptr(), 1) });
    // The cancel travels over the session.
    while pair.respond(ticket, QDL_PART, &tokens[..4]) == 0 {
        thread::sleep(Duration::from_millis(5));
    }
    let mut last = pair.event();
    while last.0.kind == QDL_PART {
        last = pair.event();
    }
    assert_eq!((last.0.kind, &last.1[..]), (QDL_FAILED, &b"cancelled"[..]));
}

fn is_readable(fd: i32) -> bool {
    let (events, revents) = (libc::POLLIN, 0);
    let mut fd = libc::pollfd {
        fd,
        events,
        revents,
    };
    // SAFETY: one structure, which lives through the call.
    unsafe { libc::poll(&raw mut fd, 1, 0) == 1 }
}

#[test]
fn options_reach_the_engine_or_are_refused_by_name() {
    let mut pair = Pair::new(TOKENS, QDL_TOKEN_LIMIT | QDL_SEED, true);
    let mut options = qdl_options {
        set: QDL_TOKEN_LIMIT | QDL_SEED,
        token_limit: 2,
        min_tokens: 0,
        top_k: 5,
        temperature: 0.0,
        top_p: 0.0,
        seed: 77,
        stop_count: 0,
        stop_ids: [0; QDL_MAX_STOP_IDS as usize],
        reserved: 0,
    };
    let mut issue = |options: &qdl_options| {
        let room = &mut pair.memory[..64];
        // SAFETY: no sample is in flight there.
        let n = unsafe { qdl_options_write(options, room.as_mut_ptr().cast(), 64) };
        let len = good(n) as u32 + 8;
        let sample = qdl_sample {
            flags: QDL_HAS_OPTIONS,
            ..pair.sample(1, 0, len)
        };
        assert_eq!(pair.issue(&[sample]), 0, "{}", said());
    };
    issue(&options);
    options.set |= QDL_TOP_K;
    issue(&options);
    let arrival = pair.arrival();
    assert_eq!((arrival.token_limit, arrival.room, arrival.len), (2, 8, 8));
    let mut read = qdl_options {
        set: 0,
        seed: 0,
        ..options
    };
    // SAFETY: the pointer is of a value that lives through the call.
    good(unsafe { qdl_options_read(pair.node, arrival.ticket, &raw mut read) });
    assert_eq!((read.set, read.seed), (QDL_TOKEN_LIMIT | QDL_SEED, 77));
    // The frontend asks three times.
    let mut more = [qdl_arrival::ZERO];
    while !is_readable(qdl_fd(pair.cluster)) {
        // SAFETY: as above.
        let n = unsafe { qdl_arrivals(pair.node, more.as_mut_ptr(), 1, 10) };
        assert_eq!(good(n), 0, "refused by the library");
    }
    let (event, why) = pair.event();
    assert_eq!(event.kind, QDL_FAILED);
    assert!(String::from_utf8_lossy(&why).starts_with("no option `top_k`"));
    assert_eq!(pair.respond(arrival.ticket, QDL_DONE, &[1, 0, 0, 0]), 0);
    assert_eq!(pair.event().0.kind, QDL_DONE);
}

#[test]
fn the_end_of_a_run_wakes_a_thread_that_polls() {
    let pair = Pair::new(SUMS, 0, true);
    let polls = AtomicBool::new(false);
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            polls.store(true, Ordering::SeqCst);
            // SAFETY: no other thread uses these arrays.
            unsafe {
                qdl_poll(
                    pair.cluster,
                    [qdl_event::ZERO].as_mut_ptr(),
                    1,
                    WAIT_MS,
                    &mut 0,
                )
            }
        });
        while !polls.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        good(qdl_finish(pair.cluster));
        assert_eq!(waits.join().expect("no panic"), 0);
    });
}

#[test]
fn an_aborted_run_ends_its_samples_with_the_reason() {
    let pair = Pair::new(SUMS, 0, true);
    assert_eq!(pair.issue(&[pair.sample(3, 0, 16)]), 0, "{}", said());
    // SAFETY: the text ends with a zero.
    good(unsafe { qdl_abort(pair.cluster, c"enough".as_ptr()) });
    let (event, why) = pair.event();
    assert_eq!((event.id, event.kind), (3, QDL_FAILED));
    assert_eq!(String::from_utf8_lossy(&why), "aborted: enough");
    let mut notes = [0u8; 4096];
    // SAFETY: the pointer is of an array that lives through the call.
    let n = unsafe {
        qdl_text(
            pair.cluster,
            QDL_TEXT_NOTES,
            notes.as_mut_ptr().cast(),
            4096,
        )
    };
    let notes = String::from_utf8_lossy(&notes[..good(n) as usize]).into_owned();
    assert!(notes.contains("aborted: enough"), "{notes}");
}

#[test]
fn a_fork_is_refused_by_name() {
    let pair = Pair::new(SUMS, 0, true);
    // SAFETY: the child calls functions that take no lock and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = qdl_fd(pair.cluster) == QDL_E_FORK && said().contains("is a fork of");
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child was refused");
}
