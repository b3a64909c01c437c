//! Debian's own kernel with its modules: downloaded as a package and unpacked, never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::packages::apt_get;

/// Where it is unpacked: another number whenever more of the package is.
const FOLDER: &str = "kernel-2";

/// An unpacked kernel.
pub struct Kernel {
    /// What the emulator boots.
    pub image: PathBuf,
    /// The folder with its modules.
    pub modules: PathBuf,
}

/// Finds the unpacked kernel under `cache`, or fetches it.
///
/// # Errors
///
/// When the package cannot be found, downloaded or unpacked.
pub fn ensure(cache: &Path) -> Result<Kernel> {
    let folder = cache.join(FOLDER);
    if folder.is_dir() {
        return locate(&folder);
    }
    let package = match current_package()? {
        Some(package) => package,
        None => {
            apt_get(&["update", "-qq"])?;
            current_package()?
                .context("apt knows no linux-image-amd64: is this Debian on x86_64?")?
        }
    };
    println!("soft-roce: downloading {package}");
    let work = cache.join(format!("kernel.{}", std::process::id()));
    fs::create_dir_all(&work)?;
    let result = fetch(&work, &package).and_then(|()| {
        // A second run may have been faster; its kernel is as good.
        fs::rename(work.join("tree"), &folder)
            .or_else(|error| if folder.is_dir() { Ok(()) } else { Err(error) })?;
        locate(&folder)
    });
    fs::remove_dir_all(&work).ok();
    result
}

/// The package that the distribution's current kernel is in.
fn current_package() -> Result<Option<String>> {
    let output = Command::new("apt-cache")
        .args(["depends", "linux-image-amd64"])
        .stderr(Stdio::null())
        .output()
        .context("running apt-cache: is this Debian?")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "))
        .map(str::to_owned))
}

/// Downloads the package into `work` and unpacks what is needed of it into `work/tree`.
fn fetch(work: &Path, package: &str) -> Result<()> {
    let download = || {
        let status = Command::new("apt-get")
            .args(["download", "-qq", package])
            .current_dir(work)
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    };
    if !download() {
        apt_get(&["update", "-qq"])?;
        if !download() {
            bail!("apt-get download {package} failed");
        }
    }
    let archive = fs::read_dir(work)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get downloaded no package")?;
    let tree = work.join("tree");
    fs::create_dir_all(&tree)?;
    let mut unpack = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(&archive)
        .stdout(Stdio::piped())
        .spawn()?;
    let tar = unpack.stdout.take().context("reading the package")?;
    // The rest of the package, some 400 MB, is never written.
    let needed = [
        "./boot/vmlinuz*",
        "*/modules.builtin",
        "*/drivers/infiniband/*",
        "*/drivers/virtio/*",
        "*/drivers/net/veth*",
        "*/drivers/net/virtio_net*",
        "*/drivers/net/net_failover*",
    ];
    let folders = [
        "*/kernel/net/*",
        "*/kernel/fs/*",
        "*/kernel/crypto/*",
        "*/kernel/lib/*",
        "*/kernel/arch/*",
    ];
    let status = Command::new("tar")
        .args(["-x", "--wildcards", "-C"])
        .arg(&tree)
        .args(needed)
        .args(folders)
        .stdin(tar)
        .stderr(Stdio::null())
        .status()
        .context("running tar")?;
    if !unpack.wait()?.success() || !status.success() {
        bail!("unpacking {} failed", archive.display());
    }
    Ok(())
}

fn locate(folder: &Path) -> Result<Kernel> {
    let only = |within: &Path, prefix: &str| -> Result<PathBuf> {
        fs::read_dir(within)
            .with_context(|| format!("reading {}", within.display()))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
            })
            .with_context(|| {
                format!(
                    "{} is incomplete: delete {} and try again",
                    within.display(),
                    folder.display()
                )
            })
    };
    let image = only(&folder.join("boot"), "vmlinuz")?;
    let lib = ["lib/modules", "usr/lib/modules"]
        .iter()
        .map(|path| folder.join(path))
        .find(|path| path.is_dir());
    let modules = only(&lib.context("the kernel package has no modules")?, "")?;
    Ok(Kernel { image, modules })
}
