//! The folder of a run: a new one, or the one that `--output` names. A finished run in that folder
//! stays, unless `--force` is given and the new run finishes too.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Error, Result, anyhow, bail};
use record::{HISTOGRAMS, SUMMARY, TIMELINE};
use submission::manifest;

use crate::{
    live,
    loadgen::exit::ExitCode,
    outcome::report::{ACCURACY_FILE, INVALID_FILE},
    settings::Settings,
};

/// Name of the subfolder that holds the finished run until the replacing run ends.
const ASIDE: &str = "replaced-run";
/// Name of [`ASIDE`] while files move in or out: files in this subfolder and beside it are one run.
const MOVING: &str = "replaced-run.tmp";
/// Name of [`ASIDE`] during its removal.
const OLD: &str = "replaced-run.old";
/// Name of the subfolder for a run that ended too early to replace the finished run.
const UNFINISHED: &str = "unfinished-run";
/// Exit codes of a run that ended too early to replace the finished run.
const UNENDED: [ExitCode; 3] = [ExitCode::Interrupted, ExitCode::Lost, ExitCode::Setup];
/// Maximum number of runs that may begin in the same second.
const TRIED: u32 = 1000;

/// Checks that a run may write into its folder: the folder is writable and holds no finished run,
/// unless `force` is set.
pub fn check(settings: &Settings, force: bool) -> Result<()> {
    let folder = settings.folder();
    let there = folder.ancestors().find(|a| a.exists());
    let there = there.filter(|a| !a.as_os_str().is_empty());
    let there = there.unwrap_or(Path::new("."));
    if !there.is_dir() {
        return Err(unusable(folder)(io::ErrorKind::NotADirectory.into()));
    }
    writable(there).map_err(unusable(folder))?;
    match finished(settings).filter(|_| settings.own_folder) {
        Some(found) if !force => bail!(
            "--output {}: {} is there, of a run that has ended; name another folder, leave \
             --output out, or give --force to replace it",
            folder.display(),
            found.display()
        ),
        _ => Ok(()),
    }
}

fn unusable(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |e| anyhow!("--output {}: {e}", path.display())
}

/// Checks that `folder` is writable: makes and removes a subfolder.
fn writable(folder: &Path) -> io::Result<()> {
    let probe = folder.join(format!(".frontend-{}", std::process::id()));
    fs::create_dir(&probe)?;
    fs::remove_dir(&probe)
}

/// A file of a finished run in the folder, if any. Files of an interrupted run do not count.
fn finished(settings: &Settings) -> Option<PathBuf> {
    let folder = settings.folder();
    let summary = folder.join(SUMMARY);
    if let Ok(text) = fs::read(&summary) {
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let interrupted = json["exit"]["code"] == ExitCode::Interrupted.code();
        return (!interrupted).then_some(summary);
    }
    let logs = settings.log.files();
    let others = [
        folder.join(::report::FILE),
        folder.join(ACCURACY_FILE),
        logs.summary,
    ];
    let whole = |path: &PathBuf| fs::metadata(path).is_ok_and(|m| m.len() > 0);
    others.into_iter().find(whole)
}

/// Names of LoadGen's logs in the folder; empty if the names have a date, because then no run
/// overwrites another's logs.
fn logs(settings: &Settings) -> Vec<PathBuf> {
    if settings.log.prefix_with_datetime {
        return Vec::new();
    }
    let l = settings.log.files();
    let all = [l.summary, l.detail, l.accuracy, l.trace].into_iter();
    all.filter_map(|path| Some(path.strip_prefix(settings.folder()).ok()?.to_owned()))
        .collect()
}

/// All files that a run may leave in `folder`; `logs` are the names of LoadGen's logs.
fn files(folder: &Path, logs: &[PathBuf]) -> Vec<PathBuf> {
    // Remove the file INVALID last, so that it remains if an earlier removal fails.
    let named = [
        HISTOGRAMS,
        ACCURACY_FILE,
        ::report::FILE,
        TIMELINE,
        SUMMARY,
        INVALID_FILE,
    ];
    let own = logs.iter().map(|name| folder.join(name));
    own.chain(manifest::files(folder))
        .chain(named.map(|name| folder.join(name)))
        .collect()
}

/// Removes the files of a run; the folder stays.
fn clear(folder: &Path, logs: &[PathBuf]) -> Result<()> {
    for path in files(folder, logs) {
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(unusable(&path)(e)),
            _ => {}
        }
    }
    remove_key(folder);
    Ok(())
}

/// Removes the live page's key, and the folder of copies if it is empty.
fn remove_key(folder: &Path) {
    let _ = fs::remove_file(folder.join(live::KEY_FILE));
    let _ = fs::remove_dir(folder.join(record::COPIES));
}

/// Removes the files of a run, and the run's folder if no file is left.
fn discard(folder: &Path, logs: &[PathBuf]) -> Result<()> {
    clear(folder, logs)?;
    let _ = fs::remove_dir(folder);
    Ok(())
}

/// Whether the run in `folder` finished, so that it may replace another.
fn is_finished(folder: &Path) -> bool {
    let text = fs::read(folder.join(SUMMARY)).unwrap_or_default();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let code = json["exit"]["code"].as_u64();
    code.is_some_and(|c| UNENDED.iter().all(|u| u64::from(u.code()) != c))
}

/// The folder of this run. Dropping a value or clone without `settle` undoes [`RunFolder::take`].
#[derive(Clone, Debug)]
pub struct RunFolder {
    folder: PathBuf,
    logs: Vec<PathBuf>,
    /// True if [`RunFolder::take`] made the folder for this run.
    new: bool,
    /// True if the files in the folder are this run's.
    taken: bool,
    /// True if a finished run lies in the subfolder [`ASIDE`].
    replaces: bool,
    settled: bool,
}

impl RunFolder {
    /// Makes the folder that `settings` names, or empties it; a finished run moves to [`ASIDE`].
    /// Appends a number to a default name if another run began in the same second.
    pub fn take(settings: &mut Settings, force: bool) -> Result<RunFolder> {
        let mut place = RunFolder {
            folder: settings.folder().to_owned(),
            logs: Vec::new(),
            new: false,
            taken: false,
            replaces: false,
            settled: false,
        };
        if !settings.own_folder {
            let first = place.folder.clone();
            let parent = first.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(parent).map_err(unusable(parent))?;
            for n in 2..TRIED {
                match fs::create_dir(&place.folder) {
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                        let name = first.file_name().unwrap_or_default().to_string_lossy();
                        place.folder = first.with_file_name(format!("{name}-{n}"));
                    }
                    made => {
                        made.map_err(unusable(&place.folder))?;
                        place.new = true;
                        break;
                    }
                }
            }
            if !place.new {
                return Err(unusable(&first)(io::ErrorKind::AlreadyExists.into()));
            }
            settings.log.outdir.clone_from(&place.folder);
        } else {
            check(settings, force)?;
            place.new = !place.folder.exists();
            fs::create_dir_all(&place.folder).map_err(unusable(&place.folder))?;
        }
        place.logs = logs(settings);
        place.recover()?;
        if settings.own_folder {
            check(settings, force)?;
        }
        if finished(settings).is_some() {
            place.put_aside()?;
            place.replaces = true;
        } else {
            clear(&place.folder, &place.logs)?;
        }
        place.taken = true;
        Ok(place)
    }

    /// Ends the run with `code`, after its files are written. Removes the run put aside or, for the
    /// codes in [`UNENDED`], restores that run and moves this run away. Returns this run's folder.
    pub fn settle(mut self, code: ExitCode) -> Result<PathBuf> {
        self.settled = true;
        remove_key(&self.folder);
        if !self.replaces {
            return Ok(self.folder.clone());
        }
        if !UNENDED.contains(&code) {
            self.remove_replaced()?;
            return Ok(self.folder.clone());
        }
        let unfinished = self.folder.join(UNFINISHED);
        discard(&unfinished, &self.logs)?;
        self.move_to(UNFINISHED)?;
        self.restore()?;
        Ok(unfinished)
    }

    /// Completes the work of a killed run: restores the finished run that is put aside, or removes
    /// that run if the replacing run has finished too.
    fn recover(&self) -> Result<()> {
        let holds = |name: &str| {
            let files = files(&self.folder.join(name), &self.logs);
            files.iter().any(|path| path.is_file())
        };
        discard(&self.folder.join(OLD), &self.logs)?;
        if holds(MOVING) {
            self.unpack()?;
        }
        if !holds(ASIDE) {
            return Ok(());
        }
        if is_finished(&self.folder) {
            return self.remove_replaced();
        }
        discard(&self.folder.join(UNFINISHED), &self.logs)?;
        self.move_to(UNFINISHED)?;
        self.restore()
    }

    /// Moves the finished run aside, entirely or not at all.
    fn put_aside(&self) -> Result<()> {
        let moving = self.folder.join(MOVING);
        let aside = self.folder.join(ASIDE);
        let moved = fs::create_dir_all(&moving)
            .map_err(unusable(&moving))
            .and_then(|()| self.move_to(MOVING))
            .and_then(|()| fs::rename(&moving, &aside).map_err(unusable(&aside)));
        if moved.is_err() {
            let _ = self.unpack();
        }
        moved
    }

    /// Removes the run put aside. Renames that run's folder first, so that a later run does not
    /// restore half of a removed run.
    fn remove_replaced(&self) -> Result<()> {
        let (aside, old) = (self.folder.join(ASIDE), self.folder.join(OLD));
        match fs::rename(&aside, &old) {
            Ok(()) => discard(&old, &self.logs),
            // A file that no run wrote has the name [`OLD`].
            Err(_) => discard(&aside, &self.logs),
        }
    }

    /// Moves all files of the run into the subfolder `name`.
    fn move_to(&self, name: &str) -> Result<()> {
        move_all(&self.folder, &self.folder.join(name), &self.logs)?;
        remove_key(&self.folder);
        Ok(())
    }

    /// Moves the run put aside back into the folder, which is empty.
    fn restore(&self) -> Result<()> {
        let aside = self.folder.join(ASIDE);
        fs::rename(&aside, self.folder.join(MOVING)).map_err(unusable(&aside))?;
        self.unpack()
    }

    /// Moves the files in [`MOVING`] back into the folder.
    fn unpack(&self) -> Result<()> {
        let moving = self.folder.join(MOVING);
        move_all(&moving, &self.folder, &self.logs)?;
        discard(&moving, &self.logs)
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        if self.taken {
            let _ = clear(&self.folder, &self.logs);
        }
        if self.replaces {
            let _ = self.restore();
        }
        if self.new {
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// Moves a run's files with their subfolders.
fn move_all(from: &Path, to: &Path, logs: &[PathBuf]) -> Result<()> {
    for path in files(from, logs).iter().filter(|path| path.is_file()) {
        let Ok(name) = path.strip_prefix(from) else {
            continue;
        };
        let to = to.join(name);
        fs::create_dir_all(to.parent().unwrap_or(Path::new("."))).map_err(unusable(&to))?;
        fs::rename(path, &to).map_err(unusable(&to))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use qdl::testkit::assert_has;

    use super::*;

    fn settings(folder: &Path) -> Settings {
        let mut s = crate::outcome::report::tests::settings(folder);
        s.own_folder = true;
        s
    }

    /// Files of a run that ended with this code.
    fn run(s: &Settings, code: ExitCode, words: &str) {
        let json = format!(
            "{{\"exit\": {{\"code\": {}}}, \"who\": \"{words}\"}}",
            code.code()
        );
        fs::write(s.folder().join(SUMMARY), json).expect("written");
        fs::write(s.log.files().summary, words).expect("written");
        fs::write(s.folder().join(::report::FILE), words).expect("written");
    }

    fn says(path: &Path) -> String {
        fs::read_to_string(path.join(::report::FILE)).unwrap_or_default()
    }

    #[test]
    fn a_finished_run_and_a_page_of_other_origin_stay_without_force() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut s = settings(&folder.path().join("r"));
        drop(RunFolder::take(&mut s, false).expect("free"));
        assert!(!s.folder().exists(), "a run that did not begin");
        let place = RunFolder::take(&mut s, false).expect("free");
        run(&s, ExitCode::Invalid, "first");
        place.settle(ExitCode::Invalid).expect("settled");
        for file in [SUMMARY, ::report::FILE] {
            let error = RunFolder::take(&mut s, false).expect_err("taken");
            assert_has(&error.to_string(), &[file, "--force"]);
            assert_eq!(says(s.folder()), "first");
            fs::remove_file(s.folder().join(file)).expect("removed");
        }
    }

    #[test]
    fn a_run_that_does_not_end_lies_beside_the_one_that_it_was_to_replace() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut s = settings(folder.path());
        run(&s, ExitCode::Good, "first");
        for code in [ExitCode::Interrupted, ExitCode::Lost] {
            let place = RunFolder::take(&mut s, true).expect("forced");
            assert_eq!(says(s.folder()), "", "it is put aside");
            run(&s, code, "second");
            let at = place.settle(code).expect("settled");
            assert_eq!(
                (says(s.folder()), says(&at)),
                ("first".into(), "second".into())
            );
        }
        // A killed run does not replace the finished run.
        std::mem::forget(RunFolder::take(&mut s, true).expect("forced"));
        drop(RunFolder::take(&mut s, true).expect("forced"));
        assert_eq!(says(s.folder()), "first");
        let place = RunFolder::take(&mut s, true).expect("forced");
        run(&s, ExitCode::Invalid, "third");
        place.settle(ExitCode::Invalid).expect("settled");
        assert_eq!(says(s.folder()), "third");
        assert!(!s.folder().join(ASIDE).exists());
    }

    #[test]
    fn a_finished_run_that_cannot_be_put_aside_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut s = settings(folder.path());
        run(&s, ExitCode::Good, "first");
        // The folder for the finished run is occupied.
        fs::create_dir(s.folder().join(ASIDE)).expect("made");
        fs::write(s.folder().join(ASIDE).join("note"), "mine").expect("written");
        RunFolder::take(&mut s, true).expect_err("no room");
        assert_eq!(says(s.folder()), "first");
        assert!(s.folder().join(SUMMARY).is_file() && s.log.files().summary.is_file());
        fs::remove_dir_all(s.folder().join(ASIDE)).expect("removed");
        fs::write(s.folder().join(MOVING), "a file").expect("written");
        RunFolder::take(&mut s, true).expect_err("no room");
        assert_eq!(says(s.folder()), "first");
    }

    #[test]
    fn a_kill_between_any_two_moves_loses_no_file_of_a_finished_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut s = settings(folder.path());
        let whole = |s: &Settings| {
            assert_eq!(says(s.folder()), "first");
            assert!(s.folder().join(SUMMARY).is_file() && s.log.files().summary.is_file());
        };
        for moved in 0..3 {
            run(&s, ExitCode::Good, "first");
            let logs = logs(&s);
            let moving = s.folder().join(MOVING);
            fs::create_dir_all(&moving).expect("made");
            let there = files(s.folder(), &logs).into_iter().filter(|f| f.is_file());
            for file in there.take(moved).collect::<Vec<_>>() {
                fs::rename(&file, moving.join(file.file_name().expect("a name"))).expect("moved");
            }
            drop(RunFolder::take(&mut s, true).expect("forced"));
            whole(&s);
        }
        // Killed during the removal of the replaced run.
        let place = RunFolder::take(&mut s, true).expect("forced");
        run(&s, ExitCode::Good, "second");
        std::mem::forget(place);
        RunFolder::take(&mut s, false).expect_err("finished");
        assert_eq!(says(s.folder()), "second");
        drop(RunFolder::take(&mut s, true).expect("forced"));
        assert_eq!(says(s.folder()), "second");
        assert!(!s.folder().join(ASIDE).exists() && !s.folder().join(OLD).exists());
    }

    #[test]
    fn a_file_of_other_origin_beside_a_replaced_run_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut s = settings(folder.path());
        run(&s, ExitCode::Good, "first");
        for code in [ExitCode::Lost, ExitCode::Lost, ExitCode::Good] {
            let place = RunFolder::take(&mut s, true).expect("forced");
            run(&s, code, "second");
            fs::write(s.folder().join(live::KEY_FILE), "").expect("written");
            place.settle(code).expect("settled");
            assert!(!s.folder().join(live::KEY_FILE).exists());
            fs::write(s.folder().join(UNFINISHED).join("note"), "mine").expect("written");
        }
        assert!(s.folder().join(UNFINISHED).join("note").is_file());
    }

    #[test]
    fn an_interrupted_run_is_replaced_without_force() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut s = settings(folder.path());
        run(&s, ExitCode::Interrupted, "first");
        RunFolder::take(&mut s, false).expect("free");
    }

    #[test]
    fn each_run_has_a_new_folder_unless_one_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut s = settings(&folder.path().join("results/2026-server"));
        s.own_folder = false;
        let mut other = s.clone();
        let places = [&mut s, &mut other].map(|s| RunFolder::take(s, false).expect("free"));
        assert!(s.folder().ends_with("results/2026-server"));
        assert!(other.folder().ends_with("results/2026-server-2"));
        drop(places);
        assert_eq!(
            fs::read_dir(folder.path().join("results"))
                .expect("there")
                .count(),
            0
        );
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_said_with_the_cause() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("file"), "").expect("written");
        let error = check(&settings(&folder.path().join("file/r")), false).expect_err("no folder");
        assert!(error.to_string().contains("not a directory"), "{error}");
        assert!(check(&settings(Path::new("/proc/r")), false).is_err());
    }
}
