//! A frontend and its accelerators in one thread. A seed decides the order of all steps, and a
//! clock moves only between two steps.
//!
//! ```text
//!   seed --> plan --> queue of (time, task) --> one step of: a NIC thread, a companion,
//!                     the fabric, an engine, LoadGen, a control stream, a fault;
//!                     then all control tasks that are woken or whose timers are due
//!   real:       the cluster and the nodes, with their sessions and their NIC threads' loops
//!   simulated:  the clock, the fabric (by its contract alone), the control streams, the engines,
//!               LoadGen
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | [`plan`] | the shape of a world and its timed events, drawn or read |
//! | `queue` | tasks by time |
//! | `frontend`, `accelerator`, `threads` | the real nodes, and the steps of their NIC threads |
//! | `load`, `engine`, `stream` | what stands around them |
//! | `epoch`, `connection` | what the world sees of a connection |
//! | `faults` | faults of connections, control streams and nodes |
//! | `book` | the fate of each sample, and the history |
//! | `world` | the steps and their effects |
//! | `checks` | what holds when no step is due, at rest, and after the stop |
//! | [`shrink`] | from a failing plan to a small one |
//! | [`search`] | many seeds |
//! | [`picture`] | an SVG of one plan |
//!
//! Steps are atomic, but for bursts and answers within the calls of a link (`meanwhile` and
//! `answers` of a plan). Memory orders are not tried: all runs on one thread.

mod accelerator;
mod book;
mod checks;
mod connection;
mod engine;
mod epoch;
mod faults;
mod frontend;
mod load;
pub mod picture;
pub mod plan;
mod queue;
pub mod search;
pub mod shrink;
mod stream;
pub mod table;
mod threads;
mod world;

pub use book::Moment;
pub use world::Outcome;

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Once,
};

use plan::Plan;
thread_local! {
    /// While a world runs on this thread: its last panic.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs a plan on this thread. A panic is a violation. With `tracing`, the history is kept.
pub fn run(plan: &Plan, tracing: bool) -> Outcome {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            let is_of_a_world = PANIC.with_borrow_mut(|panic| {
                let panic = panic.as_mut();
                panic
                    .map(|p| *p = info.to_string().replace('\n', " "))
                    .is_some()
            });
            if !is_of_a_world {
                before(info);
            }
        }));
    });
    PANIC.set(Some(String::new()));
    let outcome = catch_unwind(AssertUnwindSafe(|| world::run(plan, tracing)));
    let panic = PANIC.take();
    outcome.unwrap_or_else(|_| Outcome {
        violation: Some(format!("panic: {}", panic.unwrap_or_default())),
        ..Outcome::default()
    })
}
