//! The archive that the guest's kernel starts from: a static busybox, the modules in the order in
//! which they load, and the first program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::kernel::Kernel;

/// What the guest needs: the two file systems of its root, the cable or the NICs in its place, what
/// disturbs it, and soft-RoCE (which will not add a link without a CRC-32).
const MODULES: &[&str] = &[
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "veth",
    "virtio_net",
    "sch_netem",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
];

/// The commands of busybox that the first program uses.
const APPLETS: &[&str] = &["sh", "mount", "insmod", "switch_root", "mkdir", "cat"];

/// Packs the archive under `cache`, unless there is one that is newer than what goes into it.
///
/// # Errors
///
/// When a module or busybox is missing, or a file cannot be written.
pub fn ensure(cache: &Path, kernel: &Kernel, init: &Path) -> Result<PathBuf> {
    let archive = cache.join("initramfs.cpio");
    if is_newer(&archive, &[init, &kernel.image]) {
        return Ok(archive);
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .map(Path::new)
        .find(|path| path.exists());
    let busybox = busybox.context("no busybox: the package busybox-static is incomplete")?;

    let mut out = Cpio::default();
    for folder in [
        "bin", "dev", "proc", "sys", "modules", "lower", "upper", "root",
    ] {
        out.folder(folder);
    }
    out.file("bin/busybox", &fs::read(busybox)?);
    for applet in APPLETS {
        out.link(&format!("bin/{applet}"), "busybox");
    }
    out.file(
        "init",
        &fs::read(init).with_context(|| format!("reading {}", init.display()))?,
    );
    for (number, (name, module)) in in_load_order(&kernel.modules)?.into_iter().enumerate() {
        out.file(&format!("modules/{number:02}-{name}.ko"), &module);
    }
    let partial = cache.join(format!("initramfs.{}", std::process::id()));
    fs::write(&partial, out.finish()).with_context(|| format!("writing {}", partial.display()))?;
    fs::rename(&partial, &archive)?;
    Ok(archive)
}

fn is_newer(file: &Path, than: &[&Path]) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    let Some(time) = changed(file) else {
        return false;
    };
    // The module list is part of this program: a newer program packs anew.
    let program = std::env::current_exe().ok();
    than.iter()
        .copied()
        .chain(program.as_deref())
        .all(|path| changed(path).is_some_and(|other| other <= time))
}

/// The modules and all they depend on, each after what it depends on.
fn in_load_order(modules: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = BTreeMap::new();
    find_modules(&modules.join("kernel"), &mut files)?;
    let builtin = fs::read_to_string(modules.join("modules.builtin"))
        .context("reading the kernel's list of built-in modules")?;
    let builtin: BTreeSet<_> = builtin
        .lines()
        .filter_map(|line| module_name(Path::new(line)))
        .collect();

    let mut order = Order {
        files: &files,
        builtin: &builtin,
        seen: BTreeSet::new(),
        out: Vec::new(),
    };
    for module in MODULES {
        order.add(module)?;
    }
    Ok(order.out)
}

struct Order<'a> {
    files: &'a BTreeMap<String, PathBuf>,
    builtin: &'a BTreeSet<String>,
    seen: BTreeSet<String>,
    out: Vec<(String, Vec<u8>)>,
}

impl Order<'_> {
    fn add(&mut self, name: &str) -> Result<()> {
        let name = name.replace('-', "_");
        if !self.seen.insert(name.clone()) {
            return Ok(());
        }
        let Some(file) = self.files.get(&name) else {
            // Some kernels have it built in, and some have what
            // replaced it: soft-RoCE itself must be there.
            if self.builtin.contains(&name) || name == "crc32_generic" {
                return Ok(());
            }
            bail!("the kernel has no module {name}");
        };
        let content = read_module(file)?;
        for dependency in dependencies(&content) {
            self.add(&dependency)?;
        }
        self.out.push((name, content));
        Ok(())
    }
}

fn find_modules(folder: &Path, found: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            find_modules(&path, found)?;
        } else if let Some(name) = module_name(&path) {
            found.insert(name, path);
        }
    }
    Ok(())
}

/// `veth` for `.../veth.ko` and for `.../veth.ko.xz`; dashes are underscores in a module's name.
fn module_name(path: &Path) -> Option<String> {
    let (name, _) = path.file_name()?.to_str()?.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

fn read_module(file: &Path) -> Result<Vec<u8>> {
    if file.extension().is_none_or(|extension| extension != "xz") {
        return fs::read(file).with_context(|| format!("reading {}", file.display()));
    }
    let output = Command::new("xz")
        .arg("-dc")
        .arg(file)
        .stderr(Stdio::null())
        .output()
        .context("running xz")?;
    if !output.status.success() {
        bail!("{} cannot be unpacked", file.display());
    }
    Ok(output.stdout)
}

/// What a module says it depends on, in its section of NUL-terminated `key=value` texts.
fn dependencies(module: &[u8]) -> Vec<String> {
    module
        .split(|&byte| byte == 0)
        .filter_map(|text| text.strip_prefix(b"depends="))
        .flat_map(|list| list.split(|&byte| byte == b','))
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

/// An archive in the "newc" cpio format, which the kernel unpacks.
#[derive(Default)]
struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

impl Cpio {
    fn folder(&mut self, name: &str) {
        self.entry(name, 0o040_755, &[]);
    }

    /// Every file may be executed: some are, and it matters to none.
    fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, 0o100_755, content);
    }

    fn link(&mut self, name: &str, target: &str) {
        self.entry(name, 0o120_777, target.as_bytes());
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    /// A header of thirteen 8-digit hexadecimal numbers, the
    /// name, and the content, each padded to four bytes.
    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let (inode, owner, links, time) = (self.entries, 0, 1, 0);
        let (size, name_size) = (content.len() as u32, name.len() as u32 + 1);
        let numbers = [
            inode, mode, owner, owner, links, time, size, 0, 0, 0, 0, name_size, 0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for number in numbers {
            write!(self.bytes, "{number:08x}").ok(); // a vector takes every write
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_modules_dependencies_are_read_from_its_texts() {
        let module = b"\x7fELF\0license=GPL\0depends=ib_core,udp_tunnel\0name=rdma_rxe\0";
        assert_eq!(dependencies(module), ["ib_core", "udp_tunnel"]);
        assert!(dependencies(b"depends=\0name=veth\0").is_empty());
    }

    #[test]
    fn names_of_modules() {
        assert_eq!(
            module_name(Path::new("a/9pnet-virtio.ko.xz")).as_deref(),
            Some("9pnet_virtio")
        );
        assert_eq!(module_name(Path::new("a/veth.ko")).as_deref(), Some("veth"));
        assert_eq!(module_name(Path::new("a/modules.dep")), None);
    }

    #[test]
    fn every_part_of_an_archive_starts_on_four_bytes() {
        let mut out = Cpio::default();
        out.file("abc", b"12345");
        out.link("d", "abc");
        let bytes = out.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(&bytes[..6], b"070701");
        // header 110, "abc\0" to 114, padded to 116; five bytes of content, padded to 124
        assert_eq!(&bytes[116..121], b"12345");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(
            &bytes[94..102],
            b"00000004",
            "the name's size counts its NUL"
        );
    }
}
