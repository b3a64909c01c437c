//! The flight recorder's files: when they are written, and `frontend flight`, which reads them.

mod page;

use std::{
    ffi::OsString,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use clap::Parser;
use qdl::flight::{self as recorder, Flight};

use crate::{exit::ExitCode, interrupt};

/// So many faults have a file of their own: the rings go on, and may overwrite what led to one.
const MOST_FAULTS: u32 = 4;

/// Reads what --record wrote: a summary of each connection, or what happened around a fault.
#[derive(Debug, Parser)]
#[command(name = "frontend flight", max_term_width = 100)]
struct Arguments {
    /// A folder with flight-*.bin in it, or such files: several nodes' are laid beside each other
    /// by their machines' clocks.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Show what happened around the Nth loss of a connection, from 1, in order.
    #[arg(long, value_name = "N")]
    fault: Option<usize>,
    /// How much before and after it, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 20, requires = "fault")]
    around_ms: u64,
}

/// `frontend flight`; `None` where something else is wanted.
pub fn command() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != "flight" {
        return None;
    }
    let words = std::iter::once(OsString::from("frontend flight")).chain(words);
    Some(match told(&Arguments::parse_from(words)) {
        Ok(text) => {
            // Nobody may be reading any more.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::Good
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::Setup
        }
    })
}

fn told(arguments: &Arguments) -> anyhow::Result<String> {
    let mut flights = Vec::new();
    for path in &arguments.paths {
        let files = match path.is_dir() {
            // Those of faults are to be named: they tell of the same as the last one.
            true => files(path)
                .into_iter()
                .filter(|f| !is_of_fault(f))
                .collect(),
            false => vec![path.clone()],
        };
        anyhow::ensure!(
            !files.is_empty(),
            "{}: no flight-*.bin in it; runs with --record leave one",
            path.display()
        );
        for file in files {
            flights.push(Flight::read(&file)?);
        }
    }
    match arguments.fault {
        Some(n) => page::fault(&flights, n, arguments.around_ms),
        None => Ok(page::summary(&flights)),
    }
}

fn is_of_fault(path: &Path) -> bool {
    let name = path.file_stem().and_then(|n| n.to_str()).unwrap_or("");
    name.rsplit_once("-fault-")
        .is_some_and(|(_, n)| n.parse::<u32>().is_ok())
}

/// The recorder's files in a folder, by name.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let ours = |name: &str| name.starts_with("flight-") && name.ends_with(".bin");
    let mut files: Vec<_> = entries
        .flatten()
        .filter(|e| e.file_name().to_str().is_some_and(ours))
        .map(|e| e.path())
        .collect();
    files.sort();
    files
}

/// Writes a run's files.
pub struct Dumps {
    folder: PathBuf,
    node: String,
    on: bool,
    /// Losses that were seen at the last look, and at the last file of one.
    seen: u32,
    told: u32,
    files: u32,
}

impl Dumps {
    /// Begins to record, where somebody wants it.
    pub fn new(mib: Option<u16>, folder: &Path, node: &str) -> Self {
        if let Some(mib) = mib {
            recorder::start(usize::from(mib));
            interrupt::listen_for_dumps();
        }
        Dumps {
            folder: folder.to_owned(),
            node: node.to_owned(),
            on: mib.is_some(),
            seen: 0,
            told: 0,
            files: 0,
        }
    }

    /// Some times a second: writes a file where a connection was lost, or where somebody asks.
    pub fn look(&mut self, first_ns: u64, connections: &[String]) -> Option<String> {
        if !self.on {
            return None;
        }
        if interrupt::dump_asked() {
            return self.write(format!("flight-{}.bin", self.node), first_ns, connections);
        }
        let seen = std::mem::replace(&mut self.seen, recorder::faults());
        // What is lost at about one time is one fault.
        if seen == self.seen && seen > self.told && self.files < MOST_FAULTS {
            self.told = seen;
            self.files += 1;
            let name = format!("flight-{}-fault-{}.bin", self.node, self.files);
            return self.write(name, first_ns, connections);
        }
        None
    }

    /// The last file.
    pub fn end(&mut self, first_ns: u64, connections: &[String]) -> Option<String> {
        self.on
            .then(|| self.write(format!("flight-{}.bin", self.node), first_ns, connections))?
    }

    fn write(&self, name: String, first_ns: u64, connections: &[String]) -> Option<String> {
        let path = self.folder.join(name);
        let written = fs::create_dir_all(&self.folder)
            .and_then(|()| recorder::dump(&path, &self.node, first_ns, connections));
        Some(match written {
            Ok(()) => format!("what was recorded is in {}", path.display()),
            Err(e) => format!("cannot write {}: {e}", path.display()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_faults_are_told_from_the_last_one() {
        assert!(is_of_fault(Path::new("a/flight-fe-fault-2.bin")));
        assert!(!is_of_fault(Path::new("a/flight-fe.bin")));
        assert!(!is_of_fault(Path::new("a/flight-my-fault-x.bin")));
        let folder = tempfile::tempdir().expect("a folder");
        for name in [
            "flight-b.bin",
            "flight-a.bin",
            "flight-a.bin.part",
            "other.bin",
        ] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        let found: Vec<_> = files(folder.path())
            .iter()
            .filter_map(|f| Some(f.file_name()?.to_str()?.to_owned()))
            .collect();
        assert_eq!(found, ["flight-a.bin", "flight-b.bin"]);
    }

    #[test]
    fn a_folder_without_files_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let words = ["frontend flight".as_ref(), folder.path().as_os_str()];
        let error = told(&Arguments::parse_from(words)).expect_err("nothing there");
        assert!(error.to_string().contains("--record"), "{error}");
    }
}
