//! What the programs share, besides runs: their command line, their HTTP server, their figures for
//! monitoring.
//!
//! * [`cli`] has screen options, `topology`, completions and manual pages.
//! * [`web`] is the HTTP server for pages and figures; [`metrics`] has the figures.
//! * [`check`] has facts of `--check`; [`signals`] has SIGINT and SIGTERM.
//! * [`Allocator`] is the allocator.

mod allocator;
pub mod check;
pub mod cli;
pub mod metrics;
pub mod signals;
pub mod web;

pub use allocator::Allocator;

/// First call of each program: sets the allocator up, makes a file above `ulimit -f` an error of
/// the write, and keeps signals from a library below libfabric (`docs/ofi.md`).
pub fn begin() {
    allocator::keep_freed_memory();
    if std::env::var_os("IPATH_NO_BACKTRACE").is_none() {
        // SAFETY: the program has one thread so far.
        unsafe { std::env::set_var("IPATH_NO_BACKTRACE", "1") };
    }
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
