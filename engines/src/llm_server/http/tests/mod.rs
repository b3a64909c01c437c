//! Tests of the engine against a scripted server.

mod answers;
mod away;
mod bounds;
mod command;
mod errors;
mod load;
mod queue;
mod rig;
mod server;
mod splits;
mod starts;
