//! Runs beside each other: what is called noise and what is not.

use crate::common::{RunShape, run};
use qdl::testkit::assert_has;
use record::RunFolder;
use report::{html, read_all};

fn made(name: &'static str, network_us: f64, seed: u64) -> RunFolder {
    run(&RunShape {
        name,
        network_us,
        seed,
        ticks: 60,
        ..RunShape::default()
    })
}

/// Another value of a setting, which makes it another group.
fn with(mut run: RunFolder, slots: &str) -> RunFolder {
    run.summary.run.settings[0].given.value = slots.to_owned();
    run
}

fn sentence(page: &str) -> &str {
    let (_, rest) = page.split_once("<p class=\"says\">").expect("a sentence");
    rest.split("</p>").next().unwrap_or("")
}

#[test]
fn a_difference_is_found_and_its_setting_named() {
    let page = html(&[made("plain", 90.0, 1), with(made("slow", 400.0, 2), "8")]);
    let said = sentence(&page);
    let setting = "B slow has <code>nics[0].slots</code> 8 in place of 64. Its ";
    assert_has(
        said,
        &[setting, "times as long", "more than noise, and worse"],
    );
    assert_has(said, &["one run of a setting"]);
    assert!(page.contains("<code>nics[0].slots</code></td><td>64</td><td>8</td>"));
    for id in ["differences", "percentiles", "stages", "rate", "p99"] {
        assert!(page.contains(&format!("<figure id=\"{id}\">")), "{id}");
    }
}

#[test]
fn the_same_again_is_noise() {
    let page = html(&[made("plain", 90.0, 1), with(made("again", 90.0, 2), "8")]);
    let said = sentence(&page);
    assert!(said.contains("No difference is shown"), "{said}");
}

#[test]
fn repetitions_of_one_setting_are_one_group() {
    let page = html(&[made("plain", 90.0, 1), made("again", 90.0, 2)]);
    assert!(sentence(&page).contains("2 repetitions of one setting"));
    assert!(page.contains("these are repetitions of one setting"));
    let page = html(&[
        made("plain", 90.0, 1),
        made("again", 90.0, 2),
        with(made("slow", 200.0, 3), "8"),
        with(made("slow again", 200.0, 4), "8"),
    ]);
    let said = sentence(&page);
    assert_has(said, &["B slow x 2", "repetitions are in that"]);
}

#[test]
fn without_timelines_nothing_is_said_of_noise() {
    let strip = |mut r: RunFolder| {
        r.timeline = None;
        r
    };
    let page = html(&[
        strip(made("a", 90.0, 1)),
        with(strip(made("b", 200.0, 2)), "8"),
    ]);
    assert_has(sentence(&page), &["cannot be said"]);
}

#[test]
fn a_page_of_several_holds_them_all() {
    let page = html(&[made("plain", 90.0, 1), with(made("slow", 200.0, 2), "8")]);
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().join("compare.html");
    std::fs::write(&path, page).expect("written");
    let runs = read_all(&path).expect("runs");
    let names: Vec<&str> = runs.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["plain", "slow"]);
}

/// Writes a run's folder, with an accelerator's configuration in it.
fn folder(made: &RunShape, yaml: &str) -> tempfile::TempDir {
    let place = crate::common::folder(made);
    let files = place.path().join("files");
    std::fs::create_dir_all(&files).expect("made");
    std::fs::write(files.join("accelerator-acc-01.yaml"), yaml).expect("written");
    place
}

#[test]
fn runs_whose_accelerators_had_another_configuration_are_two_settings() {
    let made = |seed| RunShape {
        seed,
        ticks: 20,
        ..RunShape::default()
    };
    let read = |place: &tempfile::TempDir| RunFolder::read(place.path()).expect("a run");
    let one = folder(&made(1), "engine: {kind: onnx, threads: 1}\n# as it was\n");
    let same = folder(&made(2), "engine:\n  threads: 1\n  kind: onnx\n");
    let other = folder(&made(3), "engine: {kind: onnx, threads: 2}\n");
    let page = html(&[read(&one), read(&same), read(&other)]);
    assert!(page.contains("3 runs of 2 settings"), "{}", sentence(&page));
    let row = "<code>accelerators[0] engine.threads</code></td><td>1</td><td>2</td>";
    assert!(page.contains(row));
    // A page of them knows as much.
    let path = one.path().join("compare.html");
    std::fs::write(&path, &page).expect("written");
    assert!(html(&read_all(&path).expect("runs")).contains(row));
    // Where no copy can be read its hash tells them apart.
    let hashed = |place: &tempfile::TempDir, hash: &str| {
        std::fs::remove_dir_all(place.path().join("files")).expect("removed");
        let left = serde_json::json!({"files": {"accelerator-acc-01.yaml": {"sha256": hash}}});
        std::fs::write(place.path().join("run.json"), left.to_string()).expect("written");
        read(place)
    };
    let runs = [(&one, "aaaa"), (&same, "aaaa"), (&other, "bbbb")];
    let runs = runs.map(|(place, hash)| hashed(place, hash));
    assert!(html(&runs).contains("3 runs of 2 settings"));
}

#[test]
fn loadgens_own_figure_is_the_headline() {
    let theirs = |mut run: RunFolder, p99_us: f64| {
        let loadgen = run.summary.run.loadgen.as_mut().expect("LoadGen's");
        loadgen.latency.as_mut().expect("latencies").p99_us = p99_us;
        run
    };
    // Longer for us, and shorter for LoadGen.
    let page = html(&[
        theirs(made("srv", 90.0, 1), 5_950.0),
        with(theirs(made("local", 400.0, 2), 5_140.0), "8"),
    ]);
    let said = sentence(&page);
    let first =
        "Its LoadGen's p99 is 5.14 ms, against 5.95 ms of A srv: 14 % shorter. Whether that";
    assert_has(
        said,
        &[first, "one figure for each run", "From issue to completion"],
    );
    let page = html(&[
        theirs(made("a", 90.0, 1), 5_950.0),
        theirs(made("b", 90.0, 2), 6_000.0),
        with(theirs(made("c", 90.0, 3), 5_140.0), "8"),
        with(theirs(made("d", 90.0, 4), 5_100.0), "8"),
    ]);
    let said = sentence(&page);
    let wanted = "more than noise, and better; repetitions are in that";
    assert_has(said, &[wanted]);
}
