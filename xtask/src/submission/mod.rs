//! `cargo xtask submission`: rehearses a submission on one machine, in minutes. Runs llama3.1-8b
//! with the engine `tokens`, describes the nodes, fills in the form, and calls `qdl submit`. The
//! result is a tree, and a table of rules that a rehearsal cannot keep
//! (`configs/rounds/rehearsal.yaml`).

mod files;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use disk::FolderLock;
use launch::{Accelerator, command_line, run, run_quietly};

use crate::cargo::target;
use crate::namespaces::{HostSide, Namespaces};
use crate::programs;

const TABLE: &str = "configs/rounds/rehearsal.yaml";
const RUN: Duration = Duration::from_secs(600);
/// Limit for a command that only writes files.
const SOON: Duration = Duration::from_secs(120);

/// Arguments of the command line.
#[derive(clap::Args)]
pub struct Args {
    /// Checkout of mlcommons/inference; with it, its verifier and its checker run too.
    #[arg(long, value_name = "DIR")]
    checker: Option<PathBuf>,
    /// Python with numpy and PyYAML, for the scripts of the checkout.
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Folder of the programs `frontend`, `accelerator` and `qdl`; without it, they are built.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

struct Rehearsal<'a> {
    root: &'a Path,
    folder: PathBuf,
    programs: PathBuf,
    /// The two namespaces; `None` for loopback on this machine.
    machines: Option<Namespaces>,
}

/// Runs the rehearsal. Returns exit code 0 if the tree breaks only the rules of [`TABLE`].
pub fn rehearse(root: &Path, args: &Args) -> Result<i32> {
    let began = Instant::now();
    let programs = match &args.programs {
        Some(folder) => folder
            .canonicalize()
            .with_context(|| folder.display().to_string())?,
        None => programs::build(root, programs::RELEASE)?,
    };
    let folder = target(root).join("submission");
    let lock = FolderLock::take(&folder);
    let _lock = lock.with_context(|| folder.display().to_string())?;
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        }
        .with_context(|| path.display().to_string())?;
    }
    let machines = Namespaces::new("sub", 1);
    match &machines {
        Err(why) => println!("{why:#}\nthe rehearsal goes over loopback instead"),
        Ok(_) => println!("two network namespaces with a cable between them"),
    }
    let rehearsal = Rehearsal {
        root,
        folder,
        programs: programs.clone(),
        machines: machines.ok(),
    };
    let audit = rehearsal.files(args)?;
    let config = rehearsal.folder.join("acc-a.yaml");
    let log = rehearsal.folder.join("accelerator.log");
    let accelerator = programs.join("accelerator");
    let mut command = rehearsal.on(HostSide::Accelerator, &accelerator);
    command.arg("--config").arg(config);
    println!("$ {}", command_line(&command));
    let mut accelerator = Accelerator::start_in(&mut command, &log)?;
    rehearsal.runs(&audit, &mut accelerator, &log)?;
    let nodes = ["describe", "--config", "offline.yaml", "--output", "nodes"];
    rehearsal.quietly(&nodes)?;
    drop(accelerator);
    rehearsal.form()?;
    let code = rehearsal.submit(args)?;
    println!(
        "{} after {} s; all of it lies in {}",
        match code {
            0 => "the rehearsal is complete",
            _ => "the rehearsal found more than it cannot have",
        },
        began.elapsed().as_secs(),
        rehearsal.folder.display()
    );
    Ok(code)
}

impl Rehearsal<'_> {
    /// Writes the rehearsal's configurations; returns the path of the audit.config to use.
    fn files(&self, args: &Args) -> Result<PathBuf> {
        let table = fs::read_to_string(self.root.join(TABLE)).context(TABLE)?;
        let address = |side| match &self.machines {
            Some(machines) => machines.address(side, 0),
            None => "127.0.0.1".to_owned(),
        };
        let [front, acc] = [HostSide::Frontend, HostSide::Accelerator].map(address);
        self.write("acc-a.yaml", &files::accelerator(&acc))?;
        for (name, model) in [
            ("offline", "llama3_1-8b"),
            ("server", "llama3_1-8b-interactive"),
        ] {
            let yaml = files::frontend(&front, &acc, model);
            self.write(&format!("{name}.yaml"), &yaml)?;
        }
        self.write("user.conf", &files::user_conf(&table)?)?;
        match &args.checker {
            Some(checker) => {
                let path = checker.join("compliance/TEST06/audit.config");
                path.canonicalize()
                    .with_context(|| path.display().to_string())
            }
            None => {
                fs::create_dir_all(self.folder.join("TEST06"))?;
                self.write("TEST06/audit.config", files::AUDIT)
            }
        }
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Runs performance, accuracy and TEST06 in both scenarios.
    fn runs(&self, audit: &Path, accelerator: &mut Accelerator, log: &Path) -> Result<()> {
        let table = fs::read_to_string(self.root.join(TABLE)).context(TABLE)?;
        let seconds = files::value(&table, "duration_s")?;
        let audit = audit.to_string_lossy();
        for scenario in ["offline", "server"] {
            let kinds: [(&str, &[&str]); 3] = [
                (
                    "performance",
                    &["--mode", "performance", "--duration-s", &seconds],
                ),
                ("accuracy", &["--mode", "accuracy"]),
                (
                    "TEST06",
                    &["--mode", "performance", "--audit-config", &audit],
                ),
            ];
            for (kind, flags) in kinds {
                accelerator.check(log)?;
                let out = format!("runs/{scenario}/{kind}");
                let config = format!("{scenario}.yaml");
                let mut command = self.command("frontend");
                command.args(["--quiet", "--config", &config, "--scenario", scenario]);
                command.args(flags).args(["--force", "--output", &out]);
                println!("$ {}", command_line(&command));
                let status = run("frontend", &mut command, RUN)?;
                // A run of seconds may be INVALID, which a rehearsal expects.
                if !matches!(status.code(), Some(0 | 1)) {
                    bail!("the run {scenario} {kind} failed: {status}");
                }
            }
            let scores = format!("runs/{scenario}/accuracy/accuracy.txt");
            self.write(&scores, files::SCORES)?;
        }
        Ok(())
    }

    fn form(&self) -> Result<()> {
        let blank = self.quietly(&["describe", "--ask"])?;
        self.write("form.yaml", &files::fill(&blank))?;
        Ok(())
    }

    fn submit(&self, args: &Args) -> Result<i32> {
        let mut command = self.command("qdl");
        command.args(["submit", "--runs", "runs", "--output", "tree"]);
        command.args(["--form", "form.yaml", "--src"]);
        command.arg(self.root.join("qdl/src"));
        command.arg("--rehearsal").arg(self.root.join(TABLE));
        // `qdl submit` runs in the rehearsal's folder, and starts Python in the checkout's folder.
        if let Some(checker) = &args.checker {
            command.arg("--checker").arg(std::path::absolute(checker)?);
        }
        if let Some(python) = &args.python {
            // The system searches PATH for a bare name. In a path, keep links: a virtual
            // environment's Python is a link, and finds its packages by it.
            let python = match python.components().count() {
                1 => python.clone(),
                _ => std::path::absolute(python)?,
            };
            command.arg("--python").arg(python);
        }
        println!("$ {}\n", command_line(&command));
        let status = run("qdl submit", &mut command, RUN)?;
        status.code().context("qdl submit was ended")
    }

    fn quietly(&self, words: &[&str]) -> Result<String> {
        let mut command = self.command("qdl");
        command.args(words);
        println!("$ {}", command_line(&command));
        run_quietly("qdl", &mut command, SOON)
    }

    fn on(&self, side: HostSide, program: &Path) -> Command {
        match &self.machines {
            Some(machines) => machines.command(side, program),
            None => Command::new(program),
        }
    }

    fn command(&self, program: &str) -> Command {
        let program = self.programs.join(program);
        let mut command = self.on(HostSide::Frontend, &program);
        command.current_dir(&self.folder);
        command
    }
}
