//! Both ends of the data plane in one thread. A seed decides the order of all steps, and a clock
//! moves only between two steps.
//!
//! ```text
//!   seed --> plan --> queue of (time, task) --> one step of: a NIC thread, a companion,
//!                     the fabric, an engine, LoadGen, a control session, a fault
//!   real:       the dispatcher and the servers, with the loops of their NIC threads, and rails
//!   simulated:  the clock, the fabric (by its contract alone), the engines, LoadGen;
//!               of the control sessions: what `control` says
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | [`plan`] | the shape of a world and its timed events, drawn or read |
//! | `queue` | tasks by time |
//! | `nodes`, `threads` | the real nodes, and the steps of their NIC threads |
//! | `load`, `engine`, `control`, `epoch` | what stands around the data plane |
//! | `book` | the fate of each sample, and the history |
//! | `world` | the steps and their effects |
//! | `checks` | what holds when no step is due, at rest, and after the stop |
//! | [`shrink`] | from a failing plan to a small one |
//! | [`search`] | many seeds |
//! | [`picture`] | an SVG of one plan |
//!
//! Steps are atomic, but for bursts and answers within the calls of a link (`meanwhile` and
//! `answers` of a plan). Memory orders are not tried: all runs on one thread.

mod book;
mod checks;
mod control;
mod engine;
mod epoch;
mod load;
mod nodes;
pub mod picture;
pub mod plan;
mod queue;
pub mod search;
pub mod shrink;
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
