//! The engine against a scripted server.

mod answers;
mod command;
mod errors;
mod load;
mod rig;
mod server;
mod splits;
mod starts;
