//! A gateway: OpenAI's HTTP API in front of the accelerators.
//!
//! ```text
//!  client --HTTP--> service --> ids, options --> prompt memory --> dispatcher ==> accelerator
//!     ^                                                                               |
//!     +--events-- answer <-- worker (one thread's requests) <-- inbox <-- NIC thread <+
//! ```
//!
//! * [`openai`] and [`text`] are the API's bodies and the model's text. Neither does I/O.
//! * `worker` is a thread with its connections, `service` is HTTP, `requests` a thread's requests,
//!   `answer` the events of one.
//! * `progress` gives each token once, also if an answer begins again elsewhere.
//! * `prompts`, `inbox`: the memory and the way between this crate and the dispatcher.
//! * `gate` is what threads share; `record` the log of requests with `totals`, [`nodes`] the file
//!   at the start, `run_file` that at the end; [`entry`] the program, [`endpoints`] what a client's
//!   result is compared with.

#[macro_use(with_defaults)]
extern crate fabric;

mod answer;
mod config;
pub mod endpoints;
pub mod entry;
mod gate;
mod inbox;
pub mod nodes;
pub mod openai;
mod options;
mod progress;
mod prompts;
mod record;
mod requests;
mod run_file;
mod service;
pub mod text;
mod totals;
mod worker;
