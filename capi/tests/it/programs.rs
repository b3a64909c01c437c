//! The example in C, in a process of its own.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use capi::{face::*, types::*};
use launch::run_quietly;

use super::{
    face::{address, serve},
    header::{MOST, compile, here, with_library},
};

/// A node that answers with the sum of a sample's bytes, until it is dropped.
struct Sums {
    node: u64,
    address: String,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sums {
    fn serve(model: &str) -> Sums {
        let node = serve(model, 0);
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::SeqCst) {
                let mut all = [qdl_arrival::ZERO; 64];
                // SAFETY: the pointer is of an array that lives through the call.
                let n = unsafe { qdl_arrivals(node, all.as_mut_ptr(), all.len(), 100) };
                let mut answers: Vec<_> = all[..n.max(0) as usize].iter().map(answer).collect();
                // SAFETY: as above; the answers are in their output slots.
                unsafe { qdl_respond(node, answers.as_mut_ptr(), answers.len()) };
            }
        });
        Sums {
            node,
            address: address(node),
            ends,
            thread: Some(thread),
        }
    }
}

fn answer(arrival: &qdl_arrival) -> qdl_answer {
    let len = arrival.len as usize;
    // SAFETY: the ticket has not ended.
    let input = unsafe { std::slice::from_raw_parts(arrival.data.cast::<u8>(), len) };
    let sum: u64 = input.iter().map(|byte| u64::from(*byte)).sum();
    // SAFETY: the output slot has 8 bytes.
    unsafe { arrival.out.cast::<[u8; 8]>().write(sum.to_le_bytes()) };
    qdl_answer {
        ticket: arrival.ticket,
        data: std::ptr::null(),
        len: 8,
        kind: QDL_DONE,
        flags: 0,
        status: 0,
        reserved: 0,
    }
}

impl Drop for Sums {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic");
        }
        qdl_close(self.node);
    }
}

#[test]
fn the_example_in_c_gets_every_answer() {
    run(&[]);
}

/// The library is not compiled for it, but each use of the program's memory is checked.
#[test]
fn the_example_in_c_is_clean_under_address_sanitizer() {
    run(&["-fsanitize=address", "-g"]);
}

fn run(words: &[&str]) {
    let Some(folder) = with_library() else { return };
    let source = here().join("examples/poll.c");
    let program = match compile(folder.path(), &source, words) {
        Ok(program) => program,
        Err(why) if why.contains("asan") => return println!("skipped: no library of ASan"),
        Err(why) => panic!("{why}"),
    };
    let model = "name: sums, inputs: [{name: i, dtype: u8, shape: [4096]}], \
                 output: {name: o, dtype: u8, shape: [8]}";
    let node = Sums::serve(model);
    let file = folder.path().join("frontend.yaml");
    let text = format!(
        "node: f\nmodel: {{{model}}}\naccelerators: [{{control: \"{}\"}}]\n\
         nics: [{{address: 127.0.0.1}}]\n",
        node.address
    );
    std::fs::write(&file, text).expect("a file");
    let mut run = Command::new(program);
    run.arg(&file).args(["4096", "2000"]);
    run.env("LD_LIBRARY_PATH", folder.path());
    let said = run_quietly("the example", &mut run, MOST).expect("it ends well");
    assert!(said.contains("2000 of 2000 answered, 0 wrong"), "{said}");
}
