//! The program `frontend`: a thin wrapper around the library.

use accelerator::cli::{Screen, arguments, parse, version};
use clap::{Command, CommandFactory};

use frontend::{ExitCode, cli, commands};

/// LoadGen allocates for every sample on the completing thread, and frees on its log thread.
/// LoadGen's C++ uses this allocator too: the crate's feature
/// `override_allocator_on_supported_platforms` replaces the C library's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc's settings: keep freed memory for the next burst, because the kernel clears memory
/// that was returned to it page by page.
// SAFETY: jemalloc reads this name as a pointer to zero-terminated text, which TEXT is. A jemalloc
// with another prefix does not read the name.
#[unsafe(export_name = "malloc_conf")]
pub static MALLOC_CONF: Option<&'static std::ffi::c_char> = {
    const TEXT: &std::ffi::CStr = c"dirty_decay_ms:-1,muzzy_decay_ms:-1";
    // SAFETY: the pointer is to the first byte of a static text.
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
    let code = frontend::run(&args).unwrap_or_else(|error| {
        frontend::say(&format!("error: {error}"));
        ExitCode::Setup
    });
    // Skip LoadGen's destructors: an aborted test leaves threads that still use its memory.
    loadgen_bridge::exit(i32::from(code.code()))
}
