//! The folder of a run: a new one, or the one that `--output` names. A finished run in that folder
//! stays, unless `--force` is given and the new run finishes too.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

use anyhow::{Error, Result, anyhow, bail};
use disk::FolderLock;
use record::{HISTOGRAMS, SUMMARY, TIMELINE};
use submission::manifest;

use crate::{
    live,
    loadgen::exit::ExitCode,
    outcome::report::{ACCURACY_FILE, INVALID_FILE},
    settings::Settings,
};

/// Name of the subfolder of a run that is to replace a finished run: until the run has finished, or
/// for good if it ends too early.
const UNFINISHED: &str = "unfinished-run";
/// Name of a file in [`UNFINISHED`]: the replaced run is removed, and the files there move up.
const MOVING: &str = "moving";
/// Exit codes of a run that ended too early to replace the finished run.
const UNENDED: [ExitCode; 3] = [ExitCode::Interrupted, ExitCode::Lost, ExitCode::Setup];
/// Maximum number of runs that may begin in the same second.
const TRIED: u32 = 1000;
/// Text of the file INVALID, until the run's end.
const UNENDED_WORDS: &str = "the run did not come to its end\n";

/// Checks that a run may write into its folder: no other process writes there, the folder is
/// writable and holds no finished run, unless `force` is set.
pub fn check(settings: &Settings, force: bool) -> Result<()> {
    let folder = settings.folder();
    if folder.is_dir() {
        FolderLock::take(folder).map_err(unusable(folder))?;
    }
    check_content(settings, force)
}

fn check_content(settings: &Settings, force: bool) -> Result<()> {
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
    move |e| anyhow!("--output {}: {}", path.display(), disk::words(&e))
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

fn logs(settings: &Settings) -> Vec<PathBuf> {
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

/// Whether the run in `folder` finished, so that it may replace another.
fn is_finished(folder: &Path) -> bool {
    let text = fs::read(folder.join(SUMMARY)).unwrap_or_default();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let code = json["exit"]["code"].as_u64();
    code.is_some_and(|c| UNENDED.iter().all(|u| u64::from(u.code()) != c))
}

/// States of a [`RunFolder`], in this order.
const TAKEN: u8 = 0;
const BEGUN: u8 = 1;
const SETTLED: u8 = 2;

/// The folder of this run. Dropping a value that is not settled undoes what the run has done.
#[derive(Debug)]
pub struct RunFolder {
    folder: PathBuf,
    /// The folder that the run writes into: [`UNFINISHED`] if a finished run is to be replaced.
    own: PathBuf,
    logs: Vec<PathBuf>,
    state: AtomicU8,
    lock: FolderLock,
    /// The lock of [`UNFINISHED`], from `begin` on.
    own_lock: OnceLock<FolderLock>,
}

impl RunFolder {
    /// Locks the folder that `settings` names, and makes it if it is missing. If it holds a
    /// finished run, `settings` names the subfolder [`UNFINISHED`] from here on. Appends a number
    /// to a default name if another run began in the same second. Removes nothing.
    pub fn take(settings: &mut Settings, force: bool) -> Result<RunFolder> {
        let mut folder = settings.folder().to_owned();
        if !settings.own_folder {
            folder = new_folder(&folder)?;
        }
        let mut place = RunFolder {
            lock: FolderLock::take(&folder).map_err(unusable(&folder))?,
            own: folder.clone(),
            folder,
            logs: logs(settings),
            state: AtomicU8::new(TAKEN),
            own_lock: OnceLock::new(),
        };
        if settings.own_folder {
            check_content(settings, force)?;
            place.recover()?;
            check_content(settings, force)?;
            if finished(settings).is_some() {
                place.own = place.folder.join(UNFINISHED);
            }
        } else {
            place.lock.new = true;
        }
        settings.log.outdir.clone_from(&place.own);
        Ok(place)
    }

    /// Empties the run's folder, and marks it INVALID until the run's end.
    pub fn begin(&self) -> Result<()> {
        if self.own != self.folder {
            let lock = FolderLock::take(&self.own).map_err(unusable(&self.own))?;
            let _ = self.own_lock.set(lock);
        }
        clear(&self.own, &self.logs)?;
        self.state.store(BEGUN, Relaxed);
        let mark = self.own.join(INVALID_FILE);
        disk::write(&mark, UNENDED_WORDS).map_err(unusable(&mark))
    }

    /// Removes what the run has left, and the folder if it is new.
    pub fn undo(&self) {
        match self.state.load(Relaxed) {
            SETTLED => return,
            BEGUN => drop(clear(&self.own, &self.logs)),
            _ => drop(fs::remove_file(self.own.join(live::KEY_FILE))),
        }
        if self.own != self.folder {
            match self.own_lock.get() {
                Some(lock) => lock.remove(&self.own),
                None => drop(fs::remove_dir(&self.own)),
            }
        } else if self.lock.new {
            self.lock.remove(&self.folder);
        }
    }

    /// Ends the run with `code`, after its files are written. The run replaces the finished run,
    /// except for the codes in [`UNENDED`]. Returns this run's folder.
    pub fn settle(&self, code: ExitCode) -> Result<PathBuf> {
        self.state.store(SETTLED, Relaxed);
        remove_key(&self.own);
        if self.own == self.folder || UNENDED.contains(&code) {
            return Ok(self.own.clone());
        }
        self.replace()?;
        Ok(self.folder.clone())
    }

    /// Completes the work of a killed run that has finished.
    fn recover(&self) -> Result<()> {
        let unfinished = self.folder.join(UNFINISHED);
        if unfinished.join(MOVING).is_file() {
            self.move_up()
        } else if is_finished(&unfinished) {
            self.replace()
        } else {
            Ok(())
        }
    }

    /// Removes the replaced run, then moves the run in [`UNFINISHED`] to that run's place.
    fn replace(&self) -> Result<()> {
        clear(&self.folder, &self.logs)?;
        let moving = self.folder.join(UNFINISHED).join(MOVING);
        fs::write(&moving, "").map_err(unusable(&moving))?;
        self.move_up()
    }

    fn move_up(&self) -> Result<()> {
        let unfinished = self.folder.join(UNFINISHED);
        move_all(&unfinished, &self.folder, &self.logs)?;
        let moving = unfinished.join(MOVING);
        fs::remove_file(&moving).map_err(unusable(&moving))?;
        remove_key(&unfinished);
        // A file of other origin keeps the folder.
        let _ = fs::remove_dir(&unfinished);
        Ok(())
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        self.undo();
    }
}

/// Makes the folder `first`, or one with a number behind its name.
fn new_folder(first: &Path) -> Result<PathBuf> {
    let parent = first.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(unusable(parent))?;
    let mut folder = first.to_owned();
    for n in 2..TRIED {
        match fs::create_dir(&folder) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let name = first.file_name().unwrap_or_default().to_string_lossy();
                folder = first.with_file_name(format!("{name}-{n}"));
            }
            made => return made.map_err(unusable(&folder)).map(|()| folder),
        }
    }
    Err(unusable(first)(io::ErrorKind::AlreadyExists.into()))
}

fn move_all(from: &Path, to: &Path, logs: &[PathBuf]) -> Result<()> {
    for path in files(from, logs).into_iter().filter(|path| path.is_file()) {
        let Ok(name) = path.strip_prefix(from) else {
            continue;
        };
        let to = to.join(name);
        fs::create_dir_all(to.parent().unwrap_or(Path::new("."))).map_err(unusable(&to))?;
        fs::rename(&path, &to).map_err(unusable(&to))?;
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

    fn run(s: &Settings, code: ExitCode, words: &str) {
        let json = format!(
            "{{\"exit\": {{\"code\": {}}}, \"who\": \"{words}\"}}",
            code.code()
        );
        fs::write(s.folder().join(SUMMARY), json).expect("written");
        fs::write(s.log.files().summary, words).expect("written");
        fs::write(s.folder().join(::report::FILE), words).expect("written");
    }

    fn begun(s: &mut Settings, force: bool) -> RunFolder {
        let place = RunFolder::take(s, force).expect("free");
        place.begin().expect("room");
        place
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
        drop(begun(&mut s, false));
        assert!(!s.folder().exists(), "a run that was undone");
        let place = begun(&mut s, false);
        run(&s, ExitCode::Invalid, "first");
        place.settle(ExitCode::Invalid).expect("settled");
        drop(place);
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
        let first = settings(folder.path());
        run(&first, ExitCode::Good, "first");
        let unfinished = folder.path().join(UNFINISHED);
        let forced = || {
            let mut s = settings(folder.path());
            let place = begun(&mut s, true);
            assert_eq!(
                (s.folder(), says(s.folder())),
                (&*unfinished, String::new())
            );
            (s, place)
        };
        for code in [ExitCode::Interrupted, ExitCode::Lost] {
            let (s, place) = forced();
            run(&s, code, "second");
            assert_eq!(place.settle(code).expect("settled"), unfinished);
            let both = (says(folder.path()), says(&unfinished));
            assert_eq!(both, ("first".into(), "second".into()));
        }
        // A killed run, and one that was undone, do not replace the finished run.
        forced().1.state.store(SETTLED, Relaxed);
        drop(forced());
        assert_eq!(says(folder.path()), "first");
        assert!(!unfinished.exists());
        // The name of the subfolder is taken.
        fs::write(&unfinished, "mine").expect("written");
        let place = RunFolder::take(&mut settings(folder.path()), true).expect("forced");
        place.begin().expect_err("no room");
        drop(place);
        assert_eq!(says(folder.path()), "first");
        fs::remove_file(&unfinished).expect("removed");
        let (s, place) = forced();
        run(&s, ExitCode::Invalid, "third");
        place.settle(ExitCode::Invalid).expect("settled");
        assert_eq!(says(folder.path()), "third");
        assert!(first.log.files().summary.is_file() && !unfinished.exists());
    }

    #[test]
    fn a_kill_between_any_two_moves_loses_no_file_of_a_finished_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = settings(folder.path());
        let mut second = first.clone();
        second.log.outdir = folder.path().join(UNFINISHED);
        let logs = logs(&first);
        let there = |s: &Settings| -> Vec<PathBuf> {
            let all = files(s.folder(), &logs).into_iter();
            all.filter(|file| file.is_file()).collect()
        };
        // Killed before the replaced run is removed, in between, and while the second moves up.
        for step in 0..6 {
            run(&first, ExitCode::Good, "first");
            fs::create_dir(second.folder()).expect("made");
            run(&second, ExitCode::Good, "second");
            let removed = there(&first).into_iter().take(step);
            removed.for_each(|file| fs::remove_file(file).expect("removed"));
            if step >= 3 {
                fs::write(second.folder().join(MOVING), "").expect("written");
                for file in there(&second).into_iter().take(step - 3) {
                    let name = file.file_name().expect("a name");
                    fs::rename(&file, first.folder().join(name)).expect("moved");
                }
            }
            drop(begun(&mut first.clone(), true));
            assert_eq!(
                (says(first.folder()), there(&first).len()),
                ("second".into(), 3)
            );
            assert!(!second.folder().exists(), "step {step}");
        }
    }

    #[test]
    fn a_file_of_other_origin_beside_a_replaced_run_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        run(&settings(folder.path()), ExitCode::Good, "first");
        let note = folder.path().join(UNFINISHED).join("note");
        for code in [ExitCode::Lost, ExitCode::Lost, ExitCode::Good] {
            let mut s = settings(folder.path());
            let place = begun(&mut s, true);
            run(&s, code, "second");
            fs::write(&note, "mine").expect("written");
            fs::write(s.folder().join(live::KEY_FILE), "").expect("written");
            place.settle(code).expect("settled");
            assert!(!s.folder().join(live::KEY_FILE).exists());
        }
        assert!(note.is_file());
    }

    #[test]
    fn an_interrupted_run_is_replaced_without_force_and_a_live_run_never() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut s = settings(folder.path());
        run(&s, ExitCode::Interrupted, "first");
        drop(RunFolder::take(&mut s, false).expect("free"));
        assert_eq!(
            says(s.folder()),
            "first",
            "nothing is removed before `begin`"
        );
        let place = begun(&mut s, false);
        assert_eq!(says(s.folder()), "");
        assert!(s.folder().join(INVALID_FILE).exists());
        for again in [
            RunFolder::take(&mut s.clone(), true).map(drop),
            check(&s, true),
        ] {
            let error = again.expect_err("a run is in it").to_string();
            assert_has(&error, &["--output", "process", "writes there"]);
        }
        drop(place);
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
