//! `qdl endpoints`: around a result of MLPerf Endpoints' client.

mod client;
mod compare;

use clap::{Parser, Subcommand};

/// Compares a result of MLPerf Endpoints' client with the gateway's own figures
#[derive(Clone, Debug, Parser)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct EndpointsArgs {
    #[command(subcommand)]
    task: Task,
}

#[derive(Clone, Debug, Subcommand)]
enum Task {
    /// Show a client's result and the gateway's figures side by side, and whose time it is
    ///
    /// Exit code 1: a stream was cut, samples failed, or the counts differ.
    Compare(compare::CompareArgs),
}

/// Runs the command. Returns whether all is well.
///
/// # Errors
/// A file cannot be read; the text names it.
pub fn command(args: &EndpointsArgs) -> Result<bool, String> {
    match &args.task {
        Task::Compare(args) => compare::command(args),
    }
}
