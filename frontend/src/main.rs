//! The program `frontend`: see the library.

use clap::Parser;

use frontend::{cli, describe, exit::ExitCode, init, run, tune};

/// LoadGen allocates for every sample, on the thread that completes it, and gives back on that of
/// its log. Its C++ goes by this allocator, too: a feature of the crate puts it in the place of the
/// C library's (`override_allocator_on_supported_platforms`).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What was used once is used again in the next burst: it is not given back to the system, which
/// would clear it page by page.
// SAFETY: jemalloc reads this name as a pointer to text that ends with a zero, as this does; where
// jemalloc has another prefix nobody reads it.
#[unsafe(export_name = "malloc_conf")]
pub static MALLOC_CONF: Option<&'static std::ffi::c_char> = {
    const TEXT: &std::ffi::CStr = c"dirty_decay_ms:-1,muzzy_decay_ms:-1";
    // SAFETY: the first byte of a text that lives for ever.
    Some(unsafe { &*TEXT.as_ptr() })
};

/// `frontend topology`.
fn topology() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != "topology" {
        return None;
    }
    Some(
        match qdl::topology::command(qdl::topology::Node::Frontend, words) {
            Ok(text) => {
                // Nobody may be reading any more.
                let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
                ExitCode::Good
            }
            Err(e) => {
                eprintln!("error: {e}");
                ExitCode::Setup
            }
        },
    )
}

/// `frontend submit` and `frontend describe`.
fn submission() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    let outcome = match words.next()?.to_str()? {
        "submit" => submission::command::submit(words),
        "describe" => describe::command(words),
        _ => return None,
    };
    Some(match outcome {
        submission::command::Outcome::Good => ExitCode::Good,
        submission::command::Outcome::Findings => ExitCode::Invalid,
        submission::command::Outcome::Setup => ExitCode::Setup,
    })
}

/// `frontend report`.
fn report() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != "report" {
        return None;
    }
    Some(match report::command(words) {
        report::Outcome::Good => ExitCode::Good,
        report::Outcome::Setup => ExitCode::Setup,
    })
}

fn main() {
    accelerator::engine::tensorrt::build_if_asked();
    if let Some(code) = topology()
        .or_else(init::command)
        .or_else(tune::command)
        .or_else(submission)
        .or_else(report)
    {
        std::process::exit(i32::from(code.code()));
    }
    if let Some(gone) = qdl::config::moved_flag(std::env::args_os().skip(1)) {
        eprintln!("error: {gone}");
        std::process::exit(i32::from(ExitCode::Setup.code()));
    }
    let args = cli::Args::parse();
    let level = match (args.quiet, args.verbose) {
        (true, _) => tracing::Level::ERROR,
        (false, 0) => tracing::Level::WARN,
        (false, 1) => tracing::Level::DEBUG,
        (false, _) => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    let code = run::run(&args).unwrap_or_else(|error| {
        frontend::progress::say(&format!("error: {error}"));
        ExitCode::Setup
    });
    // An aborted test leaves threads in LoadGen; its destructors would pull their memory away.
    loadgen_bridge::exit(i32::from(code.code()))
}
