//! Identity of the machine.
//!
//! Linux has two ids. The machine-id is set when a system is installed and is copied with its
//! image; a container has its image's machine-id or none. The boot-id belongs to the running
//! kernel: it is random at each boot, and all containers and network namespaces share it.

use std::{fs, path::Path};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const MACHINE_ID: [&str; 2] = ["etc/machine-id", "var/lib/dbus/machine-id"];
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";
const HOST_NAME: &str = "proc/sys/kernel/hostname";

/// Identity of a machine. Both ids are keyed hashes of 32 hexadecimal digits: they can be compared,
/// and they do not reveal the id itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Host name; empty where the system does not say.
    pub name: String,
    /// Hash of the machine-id.
    pub machine: Option<String>,
    /// Hash of the kernel's boot-id.
    pub boot: Option<String>,
}

impl Host {
    /// Identity of this machine.
    pub fn this() -> Host {
        Host::below(Path::new("/"))
    }

    /// Identity of the machine whose `etc` and `proc` lie below `root`.
    pub(crate) fn below(root: &Path) -> Host {
        let text = |file: &str| {
            let text = fs::read_to_string(root.join(file)).ok()?;
            let text = text.trim();
            (!text.is_empty()).then(|| text.to_owned())
        };
        let id = |file: &str| text(file).filter(|id| is_id(id));
        let machine = MACHINE_ID.iter().find_map(|file| id(file));
        Host {
            name: text(HOST_NAME).unwrap_or_default(),
            machine: machine.and_then(|id| keyed(&id, b"qdl machine 1")),
            boot: id(BOOT_ID).and_then(|id| keyed(&id, b"qdl boot 1")),
        }
    }
}

/// Whether the text is an id: hexadecimal digits, not "uninitialized", not all zeros.
fn is_id(text: &str) -> bool {
    let digits = |c: char| c.is_ascii_hexdigit() || c == '-';
    text.chars().all(digits) && text.chars().any(|c| c != '0' && c != '-')
}

/// Hashes `label` with the id as the key, as systemd derives application-specific ids.
fn keyed(id: &str, label: &[u8]) -> Option<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(id.as_bytes()).ok()?;
    mac.update(label);
    Some(hex::encode(&mac.finalize().into_bytes()[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_hashed_and_what_is_missing_is_left_out() {
        let root = tempfile::tempdir().expect("a folder");
        let put = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        assert_eq!(Host::below(root.path()), Host::default());
        put("etc/machine-id", "uninitialized\n");
        put(HOST_NAME, "dgx-1\n");
        let none = Host::below(root.path());
        assert_eq!((none.name.as_str(), &none.machine), ("dgx-1", &None));
        let id = "3d1219c7c4c5404aaa1f6d2a48adfda4";
        put("var/lib/dbus/machine-id", id);
        put(BOOT_ID, "49798b26-5767-44dd-917d-dde12615591a\n");
        let host = Host::below(root.path());
        let (machine, boot) = (host.machine.expect("an id"), host.boot.expect("an id"));
        assert!(machine.len() == 32 && boot.len() == 32 && machine != boot);
        assert!(!machine.contains(id));
        // Equal ids have equal hashes, different ids have different hashes.
        put("etc/machine-id", &format!("{id}\n"));
        assert_eq!(Host::below(root.path()).machine.as_ref(), Some(&machine));
        put("etc/machine-id", "00000000000000000000000000000001\n");
        assert_ne!(Host::below(root.path()).machine, Some(machine));
    }
}
