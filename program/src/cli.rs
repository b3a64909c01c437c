//! Command-line parts that the programs share: screen options, `topology`, completions, manual.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    sync::OnceLock,
};

use clap::{
    Arg, ArgAction, ArgMatches, Args, ColorChoice, Command, CommandFactory, FromArgMatches,
};
use qdl::topology::{self, Fabric, NodeProgram, TopologyError, TopologyForm};
use tracing::Level;

/// Options of the screen: what the program shows, and how.
#[derive(Clone, Debug, Default, Args)]
pub struct Screen {
    /// Show errors only, without progress and summary
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Show more: -v for debugging and all tables of the summary, -vv for every log line
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub verbose: u8,

    /// Use colours; auto: on a terminal only, unless NO_COLOR is set or TERM is dumb
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = ColorChoice::Auto,
          global = true)]
    pub color: ColorChoice,
}

impl Screen {
    /// True if the program colours its output to `stream`.
    pub fn colors(&self, stream: &impl io::IsTerminal) -> bool {
        let set = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty());
        match self.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                let dumb = set("TERM").is_some_and(|term| term == "dumb");
                stream.is_terminal() && set("NO_COLOR").is_none() && !dumb
            }
        }
    }

    /// Starts the log on standard error; without a flag, it shows `plain` and more severe levels.
    pub fn log(&self, plain: Level) {
        let level = match (self.quiet, self.verbose) {
            (true, _) => Level::ERROR,
            (false, 0) => plain,
            (false, 1) => Level::DEBUG,
            (false, _) => Level::TRACE,
        };
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(io::stderr)
            .with_target(false)
            .with_ansi(self.colors(&io::stderr()))
            .init();
    }
}

/// The version of the programs, with the commit of the build.
pub fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| qdl::run::version(option_env!("QDL_HEAD")))
}

/// Makes a command called `name` with the arguments of `A`.
pub fn command<A: CommandFactory>(name: &'static str) -> Command {
    A::command().name(name)
}

/// The parsed arguments of a command that [`command`] made; ends the process if invalid.
pub fn arguments<A: FromArgMatches>(matches: &ArgMatches) -> A {
    A::from_arg_matches(matches).unwrap_or_else(|error| error.exit())
}

/// Parses `given`, the command line of `program`; ends the process with exit code 2 if it is
/// invalid. Flags of `program` that are not global may not precede a subcommand.
pub fn parse(program: &Command, given: impl Iterator<Item = OsString>) -> ArgMatches {
    let mut program = program.clone();
    let matches = program.clone().get_matches_from(given);
    if let Some(name) = matches.subcommand_name() {
        let given =
            |id: &str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
        let of_run = |a: &&Arg| !a.is_global_set() && given(a.get_id().as_str());
        let arg = program
            .get_arguments()
            .find(of_run)
            .map(|a| a.get_id().clone());
        if let Some(arg) = arg {
            let flag = arg.as_str().replace('_', "-");
            let text = format!("--{flag} is of a run, and stands in front of the command `{name}`");
            let kind = clap::error::ErrorKind::ArgumentConflict;
            program.error(kind, text).exit();
        }
    }
    matches
}

/// Shows this machine's NICs and GPUs, their distances, and which NICs serve which GPU. With
/// --yaml, prints a configuration for this machine.
#[derive(Clone, Debug, clap::Parser)]
pub struct TopologyArgs {
    /// Print a configuration that starts a node on this machine, with every usable NIC
    #[arg(long, conflicts_with = "json")]
    yaml: bool,

    /// With --yaml: use TCP sockets on every interface with an address, even beside RDMA devices
    #[arg(long, requires = "yaml")]
    tcp: bool,

    /// With --yaml: node that the configuration is for [default: accelerator in the program
    /// `accelerator`, else frontend]
    #[arg(long, value_name = "NODE", value_parser = ["frontend", "accelerator"])]
    of: Option<String>,

    /// Print the topology as JSON
    #[arg(long)]
    json: bool,

    /// Read DIR/sys instead of /sys, and addresses from DIR/addresses (lines of `INTERFACE
    /// ADDRESS,ADDRESS`)
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// Prints the output of the `topology` command; `own` is the role of this program.
///
/// # Errors
/// [`TopologyError`]: the topology cannot be read or used.
pub fn topology(args: &TopologyArgs, own: NodeProgram) -> Result<(), TopologyError> {
    let node = match args.of.as_deref() {
        Some("frontend") => NodeProgram::Frontend,
        Some(_) => NodeProgram::Accelerator,
        None => own,
    };
    let form = match (args.yaml, args.json) {
        (true, _) if args.tcp => TopologyForm::Yaml(Fabric::Tcp),
        (true, _) => TopologyForm::Yaml(Fabric::Auto),
        (false, true) => TopologyForm::Json,
        (false, false) => TopologyForm::Matrix,
    };
    let text = topology::command(node, form, args.root.as_ref())?;
    // The reader of a pipe may be gone.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// Prints a completion script for a shell: `bash`, `zsh`, `fish`, `elvish` or `powershell`.
#[derive(Clone, Debug, clap::Parser)]
struct CompletionsArgs {
    /// Shell for which to print the script
    #[arg(value_enum, value_name = "SHELL")]
    shell: clap_complete::Shell,
}

/// Prints the manual page, or writes a page for each command to a folder.
#[derive(Clone, Debug, clap::Parser)]
struct ManArgs {
    /// Write a page for each command to this folder
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// The commands that every program has: `completions` and `man`.
pub fn common() -> [Command; 2] {
    [
        command::<CompletionsArgs>("completions"),
        command::<ManArgs>("man"),
    ]
}

/// Runs `name` if it is one of [`common`]; otherwise returns `None`.
pub fn run_common(program: &Command, name: &str, matches: &ArgMatches) -> Option<io::Result<()>> {
    let mut program = program.clone();
    let mut text = Vec::new();
    match name {
        "completions" => {
            let of = program.get_name().to_owned();
            let args: CompletionsArgs = arguments(matches);
            clap_complete::generate(args.shell, &mut program, of, &mut text);
        }
        "man" => match arguments::<ManArgs>(matches).output {
            Some(folder) => {
                let made = std::fs::create_dir_all(&folder);
                return Some(made.and_then(|()| clap_mangen::generate_to(program, folder)));
            }
            None => {
                let page = clap_mangen::Man::new(program).render(&mut text);
                if page.is_err() {
                    return Some(page);
                }
            }
        },
        _ => return None,
    }
    // The reader of a pipe may be gone.
    let _ = io::stdout().write_all(&text);
    Some(Ok(()))
}
