//! Whether code that was found, and not named by the user, may run: only this user, root and the
//! program's owner can have put it there.

use std::{
    env, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Most symbolic links on one way.
const MOST_LINKS: usize = 40;

/// Checks every folder, link and file on the way to `path`: each belongs to this user, root or the
/// program's owner, and nobody else can write there. In a sticky folder such as `/tmp`, others
/// cannot replace these users' entries.
///
/// # Errors
/// Text: the first place where somebody else could have put code.
pub fn check(path: &Path) -> Result<(), String> {
    let program = env::current_exe().and_then(fs::metadata);
    let owner = program.map_or(0, |program| program.uid());
    check_way(path, &[0, own_uid(), owner], is_own_group)
}

fn own_uid() -> u32 {
    // SAFETY: the call only reads an attribute of the process.
    unsafe { libc::geteuid() }
}

fn check_way(path: &Path, owners: &[u32], is_own: fn(u32) -> bool) -> Result<(), String> {
    let parts = |path: &Path| -> Vec<PathBuf> {
        let parts = path.components().rev();
        parts.map(|part| PathBuf::from(part.as_os_str())).collect()
    };
    let failed = |at: &Path, e: io::Error| format!("{}: {e}", at.display());
    let path = std::path::absolute(path).map_err(|e| failed(path, e))?;
    let (mut at, mut rest, mut links) = (PathBuf::new(), parts(&path), 0);
    while let Some(part) = rest.pop() {
        if part.as_os_str() == ".." {
            at.pop();
            continue;
        }
        // Joining `/` begins anew.
        at.push(part);
        let meta = at.symlink_metadata().map_err(|e| failed(&at, e))?;
        let (shown, mode) = (at.display(), meta.mode() & 0o7777);
        let is_sticky = meta.is_dir() && mode & 0o1000 != 0;
        let by_others = mode & 0o002 != 0 || mode & 0o020 != 0 && !is_own(meta.gid());
        if !owners.contains(&meta.uid()) {
            return Err(format!("{shown} belongs to user {}", meta.uid()));
        } else if meta.is_symlink() && links < MOST_LINKS {
            let target = at.read_link().map_err(|e| failed(&at, e))?;
            links += 1;
            at.pop();
            rest.extend(parts(&target));
        } else if by_others && !is_sticky {
            return Err(format!("others can write to {shown} (mode {mode:o})"));
        }
    }
    Ok(())
}

/// Whether this user is the only member of a group, as far as `/etc` lists members: many systems
/// give each user such a group, and folders that the group may write.
fn is_own_group(gid: u32) -> bool {
    let (uid, gid) = (own_uid().to_string(), gid.to_string());
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let (users, groups) = (read("/etc/passwd"), read("/etc/group"));
    let field = |line: &str, at| line.split(':').nth(at).unwrap_or_default().to_owned();
    let mut ours = users.lines().filter(|user| field(user, 2) == uid);
    let name = ours.next().map_or_else(String::new, |user| field(user, 0));
    let is_other = |member: &str| !member.is_empty() && member != name;
    let mut first = users.lines().filter(|user| field(user, 3) == gid);
    let mut listed = groups.lines().filter(|group| field(group, 2) == gid);
    first.clone().count() > 0
        && first.all(|user| field(user, 2) == uid)
        && !listed.any(|group| field(group, 3).split(',').any(is_other))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn each_place_on_the_way_belongs_to_trusted_users_who_alone_can_write_there() {
        let root = tempfile::tempdir().expect("a folder");
        let path = |name| root.path().join(name);
        let own = fs::metadata(root.path()).expect("there").uid();
        let set_mode = |name, mode| {
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).expect("own");
        };
        let passes = |name| assert_eq!(check_way(&path(name), &[0, own], |_| false), Ok(()));
        let refused = |name, words: &str| {
            let why = check_way(&path(name), &[0, own], |_| false).expect_err(words);
            assert!(why.contains(words), "{why}");
        };
        for (folder, file) in [("a", "a/lib.so"), ("safe", "safe/other")] {
            fs::create_dir(path(folder)).expect("new");
            fs::write(path(file), "").expect("written");
            set_mode(folder, 0o755);
            set_mode(file, 0o644);
        }
        for (link, target) in [("to", "../a/lib.so"), ("to-to", "to"), ("round", "round")] {
            symlink(target, root.path().join("safe").join(link)).expect("new");
        }
        passes("a/lib.so");
        passes("safe/to-to");
        let why = check_way(&path("a"), &[own + 1], |_| true).expect_err("another's");
        assert!(why.contains("belongs to user"), "{why}");
        set_mode("a/lib.so", 0o666);
        refused("a/lib.so", "lib.so (mode 666)");
        set_mode("a/lib.so", 0o644);
        set_mode("a", 0o775);
        refused("a/lib.so", "a (mode 775)");
        assert_eq!(check_way(&path("a/lib.so"), &[0, own], |_| true), Ok(()));
        set_mode("a", 0o1777);
        passes("a/lib.so");
        // A link is as good as its target.
        set_mode("a", 0o777);
        refused("safe/to-to", "a (mode 777)");
        refused("safe/round", "round (mode 777)");
        refused("safe/absent", "absent: No such file");
    }
}
