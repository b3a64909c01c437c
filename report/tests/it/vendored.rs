//! What is not ours is what its makers published.

use sha2::{Digest, Sha256};

#[test]
fn vendored_files_are_the_published_ones() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("vendor");
    let list = std::fs::read_to_string(folder.join("SHA256SUMS")).expect("a list");
    let mut files = 0;
    for line in list.lines() {
        let (hash, name) = line.split_once("  ").expect("a hash and a name");
        let bytes = std::fs::read(folder.join(name)).expect(name);
        assert_eq!(hex::encode(Sha256::digest(&bytes)), hash, "{name}");
        files += 1;
    }
    assert_eq!(files, 3);
    let there = std::fs::read_dir(&folder).expect("the folder").count();
    // And the list itself, and the page that says what they are.
    assert_eq!(
        there,
        files + 2,
        "a file of {} is in no list",
        folder.display()
    );
}
