use super::*;

/// A workspace of a test's own: a library of four rooms and two crates, with nothing wrong.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Tree(tempfile::tempdir().unwrap());
        let mut members = vec!["qdl"];
        members.extend(CRATES.iter().filter(|name| **name != "qdl"));
        tree.write(
            "Cargo.toml",
            &format!("[workspace]\nmembers = {members:?}\n"),
        );
        members.retain(|name| *name != "qdl");
        for name in members {
            tree.write(&format!("{name}/Cargo.toml"), "[dependencies]\n");
            tree.write(&format!("{name}/src/lib.rs"), "");
        }
        tree.write("qdl/Cargo.toml", "[dependencies]\nverbs.workspace = true\n");
        tree.write(
            "qdl/src/lib.rs",
            "pub mod wire;\npub mod fabric;\npub mod run;\n#[cfg(test)]\nmod helpers;\n",
        );
        tree.write("qdl/src/wire.rs", "pub struct W;\n");
        tree.write(
            "qdl/src/fabric/mod.rs",
            "mod tcp;\nmod ib;\npub mod shared;\npub use tcp::Tcp;\nfn all() { ib::make() }\n",
        );
        tree.write("qdl/src/fabric/shared.rs", "pub struct Region;\n");
        tree.write(
            "qdl/src/fabric/tcp/mod.rs",
            "mod tx;\nuse crate::fabric::shared;\n#[cfg(test)]\nmod tests { use crate::run::R; }\n",
        );
        tree.write("qdl/src/fabric/tcp/tx.rs", "use super::super::shared;\n");
        tree.write("qdl/src/fabric/ib/mod.rs", "mod tx;\nuse verbs::Context;\n");
        tree.write("qdl/src/fabric/ib/tx.rs", "use super::super::shared;\n");
        tree.write(
            "qdl/src/run.rs",
            "use crate::{\n    fabric::Tcp,\n    wire,\n};\n",
        );
        tree.write(
            TABLE,
            "| where | what | knows |\n| --- | --- | --- |\n\
             | `verbs`, `loadgen-bridge` | libraries | nothing |\n\
             | `qdl::wire` | types | nothing |\n| `qdl::fabric` | bytes | wire, verbs |\n\
             | `qdl::run` | glue | all of the above |\n\
             | `report`, `tune` | pages | qdl |\n\
             | `accelerator`, `frontend` | programs | qdl |\n",
        );
        tree
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn add(&self, name: &str, text: &str) {
        let before = std::fs::read_to_string(self.0.path().join(name)).unwrap();
        self.write(name, &(before + text));
    }

    fn complaints(&self) -> Vec<String> {
        check(self.0.path()).unwrap()
    }
}

#[test]
fn a_sound_tree_has_no_complaints() {
    assert_eq!(Tree::new().complaints(), [""; 0]);
}

#[test]
fn a_planted_circle_between_rooms_fails_even_where_the_table_allows_it() {
    let tree = Tree::new();
    tree.add(
        "qdl/src/wire.rs",
        "\nuse crate::fabric::{\n    shared::Region,\n};\n",
    );
    tree.add("qdl/src/fabric/shared.rs", "fn f(_: crate::wire::W) {}\n");
    let table = std::fs::read_to_string(tree.0.path().join(TABLE)).unwrap();
    tree.write(
        TABLE,
        &table.replace("| types | nothing |", "| types | fabric |"),
    );
    assert_eq!(
        tree.complaints(),
        [
            "circle: qdl::fabric -> qdl::wire (qdl/src/fabric/shared.rs:2) -> qdl::fabric \
             (qdl/src/wire.rs:4)"
        ]
    );
}

#[test]
fn a_planted_arrow_that_the_table_does_not_allow_fails_and_is_named() {
    let tree = Tree::new();
    tree.add("qdl/src/wire.rs", "type F = crate::fabric::Tcp;\n");
    assert_eq!(
        tree.complaints(),
        [
            "qdl/src/wire.rs:2: `qdl::wire` imports `qdl::fabric`; docs/architecture.md lets it \
             know nothing"
        ]
    );
    let tree = Tree::new();
    tree.add("qdl/src/run.rs", "use verbs::Context;\n");
    let complaints = tree.complaints();
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    assert!(
        complaints[0].starts_with("qdl/src/run.rs:5: `qdl::run` imports `verbs`"),
        "{complaints:?}"
    );
}

#[test]
fn a_planted_circle_between_folders_of_a_room_fails() {
    let tree = Tree::new();
    tree.add("qdl/src/fabric/ib/tx.rs", "use crate::fabric::Tcp;\n");
    assert_eq!(tree.complaints(), [""; 0], "one way is allowed");
    tree.add("qdl/src/fabric/tcp/tx.rs", "use super::super::ib::tx;\n");
    let complaints = tree.complaints();
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    assert!(
        complaints[0].starts_with("circle: qdl::fabric::ib -> qdl::fabric::tcp (qdl/src/fabric/ib"),
        "{complaints:?}"
    );
    let tree = Tree::new();
    tree.add("qdl/src/fabric/shared.rs", "use super::tcp::Tcp;\n");
    assert_eq!(
        tree.complaints().len(),
        1,
        "a folder and the files beside it"
    );
}

#[test]
fn a_circle_between_files_at_the_top_of_a_crate_fails() {
    let tree = Tree::new();
    tree.write("frontend/src/lib.rs", "mod a;\nmod b;\npub use a::A;\n");
    tree.write("frontend/src/a.rs", "use crate::b;\n");
    tree.write("frontend/src/b.rs", "fn f(_: crate::A) {}\n");
    assert_eq!(
        tree.complaints(),
        [
            "circle: frontend::a -> frontend::b (frontend/src/a.rs:1) -> frontend::a \
             (frontend/src/b.rs:1)"
        ]
    );
}

#[test]
fn rooms_and_crates_have_rows_and_rows_have_rooms() {
    let tree = Tree::new();
    tree.add("qdl/src/lib.rs", "mod new;\n");
    tree.write("qdl/src/new.rs", "");
    tree.add(
        TABLE,
        "| `qdl::gone` | x | nothing |\n| `bench` | x | wire, nowhere |\n",
    );
    let complaints = tree.complaints().join("\n");
    for part in [
        "has no row for `qdl::new`",
        "there is no room `qdl::gone`",
        "there is no crate `bench`",
        "`bench` knows `nowhere`",
    ] {
        assert!(complaints.contains(part), "{part}: {complaints}");
    }
}

#[test]
fn a_dependency_that_the_table_lacks_fails() {
    let tree = Tree::new();
    tree.add("qdl/Cargo.toml", "accelerator.workspace = true\n");
    assert_eq!(
        tree.complaints(),
        [
            "qdl/Cargo.toml: `qdl` depends on `accelerator`; docs/architecture.md lets it know \
             verbs"
        ]
    );
}

#[test]
fn a_table_that_cannot_be_read_is_a_complaint() {
    let tree = Tree::new();
    tree.write(TABLE, "# Architecture\n");
    assert_eq!(tree.complaints().len(), 1);
}
