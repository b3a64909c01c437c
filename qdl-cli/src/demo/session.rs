//! One accelerator, and runs of the frontend one after the other, each with its own folder.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use engines::trust;
use launch::{Accelerator, command_line, run};
use serde_json::Value;

const RUN: Duration = Duration::from_secs(600);
/// The accelerator's log, which marks a demo's folder.
const LOG: &str = "accelerator.log";
/// The folder of the demo's files, from the folder of a configuration.
const HOME: &str = "../../";

/// The demo's files: the repository, or the folder `share/qdl` of an installation, which has the
/// same layout.
pub struct DemoFiles(PathBuf);

impl DemoFiles {
    /// Finds the nearest folder with `needed`, above this program or the working directory. The
    /// demo runs scripts of this folder, so no other user may have put them there.
    pub fn find(needed: &str, what_to_do: &str) -> Result<Self> {
        let starts = [env::current_exe().ok(), env::current_dir().ok()];
        let folders = starts.iter().flatten().flat_map(|path| path.ancestors());
        let homes = folders.flat_map(|folder| [folder.join("share/qdl"), folder.to_owned()]);
        let mut refused = String::new();
        for home in homes.filter(|home| home.join(needed).is_file()) {
            match trust::check(&home.join(needed)) {
                Ok(()) => return Ok(Self(home)),
                Err(why) => refused = format!(" that only this user can change, as {why}"),
            }
        }
        bail!(
            "{needed} is in no folder above this program or the working directory{refused}: \
             {what_to_do}"
        )
    }

    /// Writes a copy of a configuration into `folder`, which names the demo's files by whole paths.
    fn copy(&self, name: &str, folder: &Path) -> Result<PathBuf> {
        let from = self.path(name)?;
        let text = fs::read_to_string(&from).with_context(|| from.display().to_string())?;
        let to = folder.join(from.file_name().unwrap_or_default());
        fs::write(&to, self.with_whole_paths(&text)).with_context(|| to.display().to_string())?;
        Ok(to)
    }

    /// Replaces paths that begin with [`HOME`] in a configuration's text.
    fn with_whole_paths(&self, text: &str) -> String {
        let mut pieces = text.split(HOME);
        let mut whole = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let end = piece.find(|c: char| c.is_whitespace() || ",}]".contains(c));
            let (path, rest) = piece.split_at(end.unwrap_or(piece.len()));
            // JSON strings are YAML strings.
            whole += &Value::from(self.0.join(path).to_string_lossy()).to_string();
            whole += rest;
        }
        whole
    }

    /// A file of the demo, relative to the working directory if it lies below that.
    ///
    /// # Errors
    /// Another user could have put the file there.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        trust::check(&path).map_err(|why| anyhow!("{name} is not used, as {why}"))?;
        Ok(below_here(path))
    }
}

/// A program in the folder of this one.
pub fn sibling(name: &str) -> Result<PathBuf> {
    let own = env::current_exe().context("the path of this program")?;
    let path = below_here(own.with_file_name(name));
    // A bare name would be looked for on PATH.
    Ok(match path.components().count() {
        1 => Path::new(".").join(path),
        _ => path,
    })
}

/// `path` relative to the working directory, if it lies below that.
fn below_here(path: PathBuf) -> PathBuf {
    let here = env::current_dir().ok();
    let below = here.and_then(|here| path.strip_prefix(here).ok().map(Path::to_owned));
    below.unwrap_or(path)
}

/// Makes `folder` an empty folder. Deletes the files of an earlier demo, and no others.
fn clear(folder: &Path) -> Result<()> {
    let shown = folder.display();
    let is_empty = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
    if folder.exists() && !is_empty {
        ensure!(
            folder.join(LOG).is_file(),
            "{shown} has files, and is no folder of an earlier demo: name another with --output"
        );
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {shown}"))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot write {shown}"))
}

/// A running accelerator, and where the runs go.
pub struct Session {
    folder: PathBuf,
    /// The accelerator's, then the frontend's or the gateway's.
    pub configs: [PathBuf; 2],
    frontend: PathBuf,
    accelerator: Accelerator,
}

impl Session {
    /// Starts the accelerator with the first configuration. All output goes to `folder`, which may
    /// be an earlier demo's; so do copies of both configurations, with which the programs run.
    pub fn start(folder: &Path, serves: &str, files: &DemoFiles, from: [&str; 2]) -> Result<Self> {
        clear(folder)?;
        let [accelerator, frontend] = from;
        let configs = [
            files.copy(accelerator, folder)?,
            files.copy(frontend, folder)?,
        ];
        let log = folder.join(LOG);
        println!("\n== accelerator: {serves}; its log is {}", log.display());
        let mut command = Command::new(sibling("accelerator")?);
        command.arg("--config").arg(&configs[0]);
        println!("$ {}", command_line(&command));
        let accelerator = Accelerator::start_in(&mut command, &log)?;
        println!("{}", accelerator.ready);
        Ok(Session {
            folder: folder.to_owned(),
            configs,
            frontend: sibling("frontend")?,
            accelerator,
        })
    }

    /// Starts a gateway with the second configuration. Its record of requests goes to the folder.
    pub fn start_gateway(&self) -> Result<Accelerator> {
        let log = self.folder.join("gateway.log");
        println!("\n== gateway: OpenAI's API; its log is {}", log.display());
        let mut command = Command::new(sibling("qdl")?);
        command.arg("gateway").arg("--config").arg(&self.configs[1]);
        command.arg("--output").arg(&self.folder);
        println!("$ {}", command_line(&command));
        let gateway = Accelerator::start_named("gateway", &mut command, &log)?;
        println!("{}", gateway.ready);
        Ok(gateway)
    }

    /// Runs the frontend once; returns the run's folder and whether LoadGen found it valid.
    pub fn run(&mut self, name: &str, about: &str, arguments: &str) -> Result<(PathBuf, bool)> {
        println!("\n== {name}: {about}");
        self.accelerator.check(&self.folder.join(LOG))?;
        let folder = self.folder.join(name);
        let mut command = Command::new(&self.frontend);
        command.arg("--config").arg(&self.configs[1]);
        command.args(arguments.split_whitespace());
        command.args(["--force", "--output"]).arg(&folder);
        println!("$ {}", command_line(&command));
        let status = run("frontend", &mut command, RUN)?;
        match status.code() {
            Some(0) => Ok((folder, true)),
            Some(1) => Ok((folder, false)),
            _ => bail!("the frontend failed: {status}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_configuration_names_whole_paths_whatever_is_in_them() {
        let files = DemoFiles(PathBuf::from("/a: {b}"));
        let text = "model: {name: m, file: ../../.deps/m.onnx}  # text\nsamples: ../../x.u8\n";
        let whole = "model: {name: m, file: \"/a: {b}/.deps/m.onnx\"}  # text\nsamples: \
            \"/a: {b}/x.u8\"\n";
        assert_eq!(files.with_whole_paths(text), whole);
    }

    #[test]
    fn a_folder_with_other_files_is_not_emptied() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("a/b");
        clear(&own).expect("it is new");
        clear(&own).expect("it is empty");
        fs::write(own.join("thesis.txt"), "").expect("written");
        let error = clear(&own).expect_err("another's file").to_string();
        assert!(error.contains("--output"), "{error}");
        assert!(own.join("thesis.txt").is_file());
        fs::write(own.join(LOG), "").expect("written");
        clear(&own).expect("an earlier demo's");
        assert!(fs::read_dir(&own).expect("a folder").next().is_none());
    }
}
