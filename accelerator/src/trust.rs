//! Whether code that was found, and not named by the user, may run: only this user, root and the
//! program's owner can have put it there.

use std::{
    collections::BTreeSet,
    env, fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

/// Most symbolic links on one way.
const MOST_LINKS: usize = 40;

/// Users whose files are trusted.
struct Trusted {
    uids: BTreeSet<u32>,
    /// Whether a group has no member but this user.
    is_own_group: fn(u32) -> bool,
}

/// Checks every folder, link and file on the way to `path`: each belongs to this user, root or the
/// program's owner, and nobody else can write there. In a sticky folder such as `/tmp`, others
/// cannot replace these users' entries.
///
/// # Errors
/// Text: the first place where somebody else could have put code.
pub fn check(path: &Path) -> Result<(), String> {
    // SAFETY: the call reads an attribute of the process.
    let own = unsafe { libc::geteuid() };
    let program = env::current_exe().and_then(fs::metadata);
    let uids = [0, own].into_iter().chain(program.map(|m| m.uid()));
    let trusted = Trusted {
        uids: uids.collect(),
        is_own_group,
    };
    trusted.check(path)
}

impl Trusted {
    fn check(&self, path: &Path) -> Result<(), String> {
        let failed = |at: &Path, e: io::Error| format!("{}: {e}", at.display());
        let path = std::path::absolute(path).map_err(|e| failed(path, e))?;
        let parts = |path: &Path| -> Vec<PathBuf> {
            let parts = path.components().rev();
            parts.map(|part| PathBuf::from(part.as_os_str())).collect()
        };
        let (mut at, mut rest, mut links) = (PathBuf::new(), parts(&path), 0);
        while let Some(part) = rest.pop() {
            if part.components().eq([Component::ParentDir]) {
                at.pop();
                continue;
            }
            // Joining `/` begins anew.
            at.push(part);
            let meta = at.symlink_metadata().map_err(|e| failed(&at, e))?;
            let (shown, mode) = (at.display(), meta.mode());
            if !self.uids.contains(&meta.uid()) {
                return Err(format!("{shown} belongs to user {}", meta.uid()));
            }
            if meta.is_symlink() {
                links += 1;
                if links > MOST_LINKS {
                    return Err(format!("{shown} is one of more than {MOST_LINKS} links"));
                }
                let target = at.read_link().map_err(|e| failed(&at, e))?;
                at.pop();
                rest.extend(parts(&target));
                continue;
            }
            let by_group = mode & 0o020 != 0 && !(self.is_own_group)(meta.gid());
            let is_sticky = meta.is_dir() && mode & 0o1000 != 0;
            if (by_group || mode & 0o002 != 0) && !is_sticky {
                return Err(format!(
                    "others can write to {shown} (mode {:o})",
                    mode & 0o7777
                ));
            }
        }
        Ok(())
    }
}

/// Whether this user is the only member of a group, as far as `/etc` lists members: many systems
/// give each user such a group, and folders that the group may write.
fn is_own_group(gid: u32) -> bool {
    // SAFETY: the call reads an attribute of the process.
    let (uid, gid) = (unsafe { libc::geteuid() }.to_string(), gid.to_string());
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let (users, groups) = (read("/etc/passwd"), read("/etc/group"));
    let field = |line: &str, at| line.split(':').nth(at).unwrap_or_default().to_owned();
    let is_own = |user: &&str| field(user, 2) == uid;
    let names: Vec<_> = users
        .lines()
        .filter(is_own)
        .map(|user| field(user, 0))
        .collect();
    let is_other = |name: &str| !name.is_empty() && !names.iter().any(|own| own == name);
    let primary: Vec<_> = users.lines().filter(|user| field(user, 3) == gid).collect();
    let mut listed = groups.lines().filter(|group| field(group, 2) == gid);
    !primary.is_empty()
        && primary.iter().all(is_own)
        && !listed.any(|group| field(group, 3).split(',').any(is_other))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("own");
    }

    #[test]
    fn each_place_on_the_way_belongs_to_trusted_users_who_alone_can_write_there() {
        let root = tempfile::tempdir().expect("a folder");
        let (folder, file) = (root.path().join("a"), root.path().join("a/lib.so"));
        fs::create_dir(&folder).expect("new");
        fs::write(&file, "").expect("written");
        let own = fs::metadata(&file).expect("there").uid();
        let trust = |uids: &[u32], is_own_group| Trusted {
            uids: uids.iter().copied().collect(),
            is_own_group,
        };
        let ours = trust(&[0, own], |_| false);
        let refused = |path: &Path, words: &str| {
            let why = ours.check(path).expect_err(words);
            assert!(why.contains(words), "{why}");
        };
        set_mode(&folder, 0o755);
        set_mode(&file, 0o644);
        assert_eq!(ours.check(&file), Ok(()));
        let why = trust(&[own + 1], |_| true)
            .check(&file)
            .expect_err("another's");
        assert!(why.contains("belongs to user"), "{why}");
        // Group and others, on the file and on a folder above it.
        set_mode(&file, 0o666);
        refused(&file, "lib.so (mode 666)");
        set_mode(&file, 0o644);
        set_mode(&folder, 0o775);
        refused(&file, "others can write to");
        assert_eq!(trust(&[0, own], |_| true).check(&file), Ok(()));
        set_mode(&folder, 0o1777);
        assert_eq!(ours.check(&file), Ok(()), "an own entry of a sticky folder");
        // A link is as good as its own folder and its target.
        let safe = root.path().join("safe");
        fs::create_dir(&safe).expect("new");
        set_mode(&safe, 0o755);
        symlink("../a/lib.so", safe.join("to")).expect("new");
        symlink("to", safe.join("to-to")).expect("new");
        assert_eq!(ours.check(&safe.join("to-to")), Ok(()));
        set_mode(&folder, 0o777);
        refused(&safe.join("to-to"), "a (mode 777)");
        symlink("round", safe.join("round")).expect("new");
        refused(&safe.join("round"), "links");
        refused(&safe.join("absent"), "absent: No such file");
    }
}
