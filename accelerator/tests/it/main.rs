//! The program `accelerator`: processes of servers, libraries of engines.

#[path = "../../../engines/tests/common/processes.rs"]
mod processes;
mod server;
mod tensorrt;
