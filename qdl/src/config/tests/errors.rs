//! Tests of every class of error: text and place.

use super::*;

/// A key that does not belong to its entry, kind or side is marked, not its value.
#[test]
fn a_key_that_does_not_belong_is_marked_itself() {
    let marked = |found: String, place: &str, key: &str| {
        let carets = "^".repeat(key.len());
        assert!(
            found.starts_with(place) && found.contains(&carets),
            "{found}"
        );
        assert!(!found.contains(&format!("{carets}^")), "{found}");
    };
    let nics = ACCELERATOR.replace("nics: [{", "nics: [{slotz: 3, ");
    marked(
        text(accelerator(&nics)),
        "a.yaml:5:9: unknown key `slotz`",
        "slotz",
    );
    let side = format!("{ACCELERATOR}deadlines: {{lost_ms: 9000}}\n");
    marked(
        text(accelerator(&side)),
        "a.yaml:6:13: an accelerator has no",
        "lost_ms",
    );
}

#[test]
fn unknown_value() {
    assert_eq!(
        text(frontend(&format!("{FRONTEND}{REST}arbiter: round-robin\n"))),
        "\
f.yaml:9:10: `round-robin` is not a value of this key
  |
9 | arbiter: round-robin
  |          ^^^^^^^^^^^
  = did you mean `round_robin`? it must be: round_robin, least_outstanding, best, \
health_best_fit, health_spray"
    );
}

#[test]
fn wrong_type() {
    assert_eq!(
        text(frontend(&format!("{FRONTEND}{REST}one_by_one: many\n"))),
        "\
f.yaml:9:13: a value of the wrong type
  |
9 | one_by_one: many
  |             ^^^^
  = it must be true or false"
    );
    assert_eq!(
        text(frontend(&format!("{FRONTEND}nics:\n  - slots: lots\n"))),
        "\
f.yaml:8:12: found string \"lots\"
  |
8 |   - slots: lots
  |            ^^^^
  = it must be `auto` or a number, not negative"
    );
    assert_eq!(
        text(frontend("node: f\nmodel: 3\n")),
        "\
f.yaml:2:8: a value of the wrong type
  |
2 | model: 3
  |        ^
  = it must be a block of keys, as in `{key: value}`"
    );
}

#[test]
fn missing_key() {
    let none = text(accelerator(&ACCELERATOR.replace("node: a\n", "")));
    assert_has(&none, &["the key `node` is missing", "add `node: ...`"]);
}

#[test]
fn no_yaml() {
    assert_eq!(
        text(frontend("node: f\nnode: g\n")),
        "\
f.yaml:2:1: the key `node` is here twice
  |
2 | node: g
  | ^^^^
  = remove one of the two"
    );
    assert!(text(frontend("")).starts_with("f.yaml:1:1: the file ends too early"));
    let two = text(accelerator(&format!("{ACCELERATOR}---\nnode: g\n")));
    assert!(
        two.contains("a second document begins here") && !two.contains("from_str"),
        "{two}"
    );
    let tab = text(frontend("node: f\nmodel:\n\tname: m\n"));
    assert!(
        tab.starts_with("f.yaml:3:1: line 3 begins with a tab"),
        "{tab}"
    );
    // A tab that YAML permits and a tab within a text are no such error.
    let other = text(frontend("node:\tf\nx: |\n  a\n  \tb\nmodel: {\n"));
    assert!(!other.contains("begins with a tab"), "{other}");
    assert_eq!(
        text(frontend("node: \"f\n")),
        "\
f.yaml:1:9: invalid indentation in multiline quoted scalar
  |
1 | node: \"f
  |         ^"
    );
}

#[test]
fn out_of_range_names_key_and_range() {
    assert_eq!(
        text(frontend(&format!(
            "{FRONTEND}accelerators: [{{control: 127.0.0.1:7400}}]\nnics:\n  - address: \
             127.0.0.1\n    slots: 8193\n    completion:\n      spin_us: 1000001\n"
        ))),
        "\
f.yaml:10:12: slots is 8193
   |
10 |     slots: 8193
   |            ^^^^
   = it must be 1 to 8192
f.yaml:12:16: spin_us is 1000001
   |
12 |       spin_us: 1000001
   |                ^^^^^^^
   = it must be 0 to 1000000"
    );
    let long = "x".repeat(65);
    for name in ["a b", "\"\"", "ä", &long] {
        let text = format!("{FRONTEND}{REST}").replace("node: f", &format!("node: {name}"));
        assert_eq!(problems(frontend(&text)), ["1:7 node is no usable name"]);
    }
}

fn load_accelerator(path: impl AsRef<Path>) -> Result<AcceleratorConfig, ConfigError> {
    load::<_, NoSection>(path.as_ref(), None).map(|(config, _)| config)
}

#[test]
fn missing_file_and_folder() {
    assert_eq!(
        text(load_accelerator("nowhere/f.yaml")),
        "\
nowhere/f.yaml: cannot read the configuration: No such file or directory (os error 2)
   = check the path; working examples are in configs/"
    );
    assert!(text(load_accelerator("src")).contains("name the YAML file in that folder"));
}

#[test]
fn a_file_that_a_key_names_must_be_there() {
    let file = std::env::temp_dir().join(format!("qdl-{}-missing-token.yaml", std::process::id()));
    std::fs::write(&file, format!("{ACCELERATOR}token_file: no-such-token\n")).unwrap();
    let error = text(load_accelerator(&file));
    std::fs::remove_file(&file).unwrap();
    assert!(error.contains("missing-token.yaml:6:13: "), "{error}");
    assert!(error.contains("no-such-token: No such file"), "{error}");
}

#[test]
fn a_long_line_is_cut_around_the_place() {
    let error = text(frontend(&format!("{}: 1\nx", "k".repeat(5000))));
    assert!(error.lines().all(|line| line.chars().count() < 6000));
    let shown = error.lines().nth(2).unwrap();
    assert!(shown.chars().count() < 130, "{shown}");
}
