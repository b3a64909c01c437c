//! The program `frontend`: see the library.

use accelerator::cli::{Screen, arguments, parse, version};
use clap::{Command, CommandFactory};

use frontend::{commands, run, run::exit::ExitCode, settings::cli};

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

fn program() -> Command {
    cli::Args::command()
        .version(version())
        .subcommand_negates_reqs(true)
        .subcommands(commands::all())
}

fn main() {
    accelerator::engine::tensorrt::build_if_asked();
    if let Some(gone) = qdl::config::moved_flag(std::env::args_os().skip(1)) {
        eprintln!("error: {gone}");
        std::process::exit(i32::from(ExitCode::Setup.code()));
    }
    let program = program();
    let matches = parse(&program);
    if let Some((name, matches)) = matches.subcommand() {
        let screen: Screen = arguments(matches);
        screen.log(tracing::Level::WARN);
        if !screen.quiet && !["completions", "man"].contains(&name) {
            eprintln!(
                "note: `frontend {name}` is `qdl {name}` now, and goes with the next version"
            );
        }
        std::process::exit(i32::from(commands::run(&program, name, matches).code()));
    }
    let args: cli::Args = arguments(&matches);
    args.screen.log(tracing::Level::WARN);
    let code = run::run(&args).unwrap_or_else(|error| {
        run::progress::say(&format!("error: {error}"));
        ExitCode::Setup
    });
    // An aborted test leaves threads in LoadGen; its destructors would pull their memory away.
    loadgen_bridge::exit(i32::from(code.code()))
}
