//! The caches of a core.

use std::{fs, path::Path};

/// Bytes of a core's own cache of the second level, as the system says: what is used again soon is
/// best kept within it. `None` where the system does not say.
pub fn core_cache_bytes() -> Option<usize> {
    second_level(Path::new("/sys/devices/system/cpu/cpu0/cache"))
}

/// Of a folder of `index0`, `index1` and so on, as the kernel's `cacheinfo` fills it.
fn second_level(folder: &Path) -> Option<usize> {
    let caches = (0..16).map(|i| folder.join(format!("index{i}")));
    let read = |cache: &Path, file: &str| {
        let text = fs::read_to_string(cache.join(file)).ok()?;
        Some(text.trim().to_owned())
    };
    caches
        .filter(|c| read(c, "level").as_deref() == Some("2"))
        .find(|c| read(c, "type").as_deref() != Some("Instruction"))
        .and_then(|c| bytes(&read(&c, "size")?))
}

/// `512K` or `2M`.
fn bytes(size: &str) -> Option<usize> {
    let (digits, shift) = match size.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 10),
        None => match size.strip_suffix(['M', 'm']) {
            Some(digits) => (digits, 20),
            None => (size, 0),
        },
    };
    let bytes = digits.parse::<usize>().ok()?.checked_mul(1 << shift)?;
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_the_kernel_writes_them() {
        assert_eq!(bytes("512K"), Some(512 << 10));
        assert_eq!(bytes("2M"), Some(2 << 20));
        assert_eq!(bytes("4096"), Some(4096));
        for wrong in ["", "K", "0K", "-1K", "12 K", "18446744073709551615M"] {
            assert_eq!(bytes(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_second_level_is_found_among_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(second_level(folder.path()), None);
        let caches = [
            ("1", "Data", "48K"),
            ("1", "Instruction", "32K"),
            ("2", "Unified", "2048K"),
            ("3", "Unified", "107520K"),
        ];
        for (i, (level, kind, size)) in caches.iter().enumerate() {
            let cache = folder.path().join(format!("index{i}"));
            fs::create_dir(&cache).expect("a folder");
            for (file, text) in [("level", level), ("type", kind), ("size", size)] {
                fs::write(cache.join(file), format!("{text}\n")).expect("a file");
            }
        }
        assert_eq!(second_level(folder.path()), Some(2 << 20));
    }
}
