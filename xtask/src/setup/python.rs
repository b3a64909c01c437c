//! The virtual environment in `.deps/venv` with the packages of `models/requirements.txt`. pip
//! checks each package by its hash in `models/requirements.lock`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use launch::run_quietly;

use super::{deps, is_stamped, paths_in, remove_folder, sha256, write_stamp};

/// Limit for pip to fetch 150 MB over a slow line.
const DEADLINE: Duration = Duration::from_secs(1800);
/// The oldest Python with wheels of the pinned packages.
const OLDEST: (u32, u32) = (3, 11);

pub fn interpreter(root: &Path) -> PathBuf {
    deps(root).join("venv/bin/python")
}

/// The environment's Python, for scripts of this repository.
pub fn command(root: &Path) -> Command {
    let mut command = Command::new(interpreter(root));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.current_dir(root);
    command
}

/// Runs a script of this repository.
pub fn script<'a>(
    root: &Path,
    script: &str,
    arguments: impl IntoIterator<Item = &'a Path>,
    limit: Duration,
) -> Result<()> {
    let mut command = command(root);
    command.arg(script).args(arguments);
    run_quietly(script, &mut command, limit).map(drop)
}

/// Path of the pinned packages, with versions and hashes.
pub fn requirements(root: &Path) -> PathBuf {
    root.join("models/requirements.lock")
}

/// Path of the environment's `site-packages`.
pub fn packages(root: &Path) -> Result<PathBuf> {
    let libraries = deps(root).join("venv/lib");
    let packages = paths_in(&libraries)?.map(|path| path.join("site-packages"));
    let found = packages.into_iter().find(|path| path.is_dir());
    found.with_context(|| format!("no site-packages under {}", libraries.display()))
}

/// Fetches pinned packages into `work` with pip. `pinned` has a line with version and hash per
/// package; `choices` are pip's options on wheels and sources.
pub fn download(python: &Path, work: &Path, pinned: &str, choices: &[&str]) -> Result<()> {
    let requirements = work.join("requirements.txt");
    std::fs::write(&requirements, pinned)
        .with_context(|| format!("cannot write {}", requirements.display()))?;
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "download", "--no-input", "--no-deps"])
        .arg("--disable-pip-version-check")
        .args(choices)
        .args(["--require-hashes", "--requirement"])
        .arg(&requirements)
        .arg("--dest")
        .arg(work)
        .env("PIP_REQUIRE_VIRTUALENV", "0");
    run_quietly("pip download", &mut pip, DEADLINE).map(|_| ())
}

/// Unpacks all wheels of a folder into another, and returns their paths.
pub fn unpack_wheels(python: &Path, folder: &Path, into: &Path) -> Result<Vec<PathBuf>> {
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|e| e == "whl");
    let wheels: Vec<_> = paths_in(folder)?.filter(is_wheel).collect();
    for wheel in &wheels {
        let mut unpack = Command::new(python);
        unpack.args(["-m", "zipfile", "-e"]).arg(wheel).arg(into);
        run_quietly("zipfile", &mut unpack, DEADLINE)?;
    }
    Ok(wheels)
}

/// Path of the environment's stamp, and the stamp's text for the current pins.
fn stamp(root: &Path) -> Result<(PathBuf, String)> {
    let wanted = format!("requirements {}\n", sha256(&[requirements(root)])?);
    Ok((deps(root).join("venv/complete"), wanted))
}

/// Creates the environment with pip, unless it exists with the packages of the current pins.
pub fn environment(root: &Path) -> Result<Option<String>> {
    let environment = deps(root).join("venv");
    let (stamp, wanted) = stamp(root)?;
    if is_stamped(&stamp, &wanted) && works(root) {
        return Ok(None);
    }
    let version = version()?;
    // Replace an incomplete or outdated environment instead of repairing it.
    if environment.exists() {
        remove_folder(&environment)?;
    }
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(&environment);
    run_quietly("python3 -m venv", &mut make, DEADLINE)?;
    Ok(Some(format!("made, Python {version}")))
}

/// Installs the packages into the [`environment`], unless they are there.
pub fn ensure(root: &Path) -> Result<Option<String>> {
    let (stamp, wanted) = stamp(root)?;
    install(root, &requirements(root), &stamp, &wanted)
}

/// Installs the packages of tests alone, unless they are there. Their stamp is their own: the
/// models' stamp decides whether these are written again.
pub fn of_tests(root: &Path) -> Result<Option<String>> {
    let pinned = root.join("models/tests.lock");
    let wanted = format!("tests {}\n", sha256(std::slice::from_ref(&pinned))?);
    install(root, &pinned, &deps(root).join("venv/tests"), &wanted)
}

fn install(root: &Path, pinned: &Path, stamp: &Path, wanted: &str) -> Result<Option<String>> {
    if is_stamped(stamp, wanted) {
        return Ok(None);
    }
    let mut install = Command::new(interpreter(root));
    install
        .args(["-m", "pip", "install", "--no-input"])
        .args(["--only-binary=:all:", "--require-hashes", "--requirement"])
        .arg(pinned)
        // The machine's other pip settings apply; these two make no sense in a virtual environment.
        .env("PIP_USER", "0")
        .env("PIP_REQUIRE_VIRTUALENV", "0");
    run_quietly("pip install", &mut install, DEADLINE)?;
    write_stamp(stamp, wanted)?;
    Ok(Some("installed".to_owned()))
}

/// Whether the environment's interpreter starts: it is a link, whose target may be gone.
fn works(root: &Path) -> bool {
    run_quietly(
        "python",
        command(root).args(["-c", ""]),
        Duration::from_secs(60),
    )
    .is_ok()
}

/// The version of `python3`; an error if it is older than [`OLDEST`].
fn version() -> Result<String> {
    let mut ask = Command::new("python3");
    ask.args(["-c", "import platform; print(platform.python_version())"]);
    let text = run_quietly("python3", &mut ask, Duration::from_secs(60))?;
    let version = text.trim();
    let (major, minor) = OLDEST;
    if parse(version).is_none_or(|found| found < OLDEST) {
        bail!(
            "python3 is {version}; the pinned packages need {major}.{minor} or later, as `python3` on PATH"
        );
    }
    Ok(version.to_owned())
}

/// Major and minor number of a dotted version.
fn parse(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(parse("3.11.2"), Some((3, 11)));
        assert!(parse("3.9.2").unwrap() < OLDEST);
        assert!(parse("3.13.0rc1").unwrap() > OLDEST);
        assert_eq!(parse("three"), None);
    }

    /// The pins in a file, spelled as package registries compare them.
    fn pins(file: &str) -> Vec<String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap()
            .join("models")
            .join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        let pin = |line: &str| {
            let pin = line
                .split_whitespace()
                .next()
                .filter(|pin| pin.contains("=="))?;
            Some(pin.to_lowercase().replace('_', "-"))
        };
        text.lines().filter_map(pin).collect()
    }

    #[test]
    fn the_lock_holds_every_pin() {
        let (wanted, locked) = (pins("requirements.txt"), pins("requirements.lock"));
        assert!(!wanted.is_empty());
        for pin in wanted {
            assert!(
                locked.contains(&pin),
                "{pin} is not in requirements.lock: make it again"
            );
        }
    }
}
