//! `qdl report`, and the page that every run writes.

mod common;

use std::{fs, process::Command};

use common::{TestFolder, assert_has, frontend, run, words};

fn server(place: &TestFolder, out: &str, rate: &str) -> Command {
    let config = place.digest_frontend(&[], "");
    let server = "--local --scenario server --duration-s 0.5 --set target_latency=1000";
    let arguments = [&words(server)[..], &["--target-qps", rate]].concat();
    place.frontend(&config, out, &arguments)
}

fn report(place: &TestFolder, arguments: &[&str]) -> (Option<i32>, String, String) {
    let out = frontend()
        .current_dir(place.path("."))
        .arg("report")
        .args(arguments)
        .output()
        .expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn a_run_leaves_its_page_and_the_page_is_its_record() {
    let place = TestFolder::new();
    for (out, rate) in [("one", "1200"), ("two", "2400")] {
        let ended = run(&place, server(&place, out, rate)).with_code(0);
        assert!(!ended.stderr.contains("no page"), "{}", ended.stderr);
    }
    let left = place.path("one").join("report.html");
    let page = fs::read_to_string(&left).expect("the page");
    assert!(page.contains("<b>VALID</b>") && page.contains("id=\"percentiles\""));

    // The run folder and the page alone both give the same page again.
    for from in ["one", "one/report.html"] {
        let (code, said, error) = report(&place, &[from, "--out", "again.html"]);
        assert_eq!((code, said.trim()), (Some(0), "again.html"), "{error}");
        let again = fs::read_to_string(place.path("again.html")).expect("the page");
        assert!(again == page, "made of {from} it is another page");
    }

    let (code, said, error) = report(&place, &["one", "two"]);
    assert_eq!((code, said.trim()), (Some(0), "compare.html"), "{error}");
    let page = fs::read_to_string(place.path("compare.html")).expect("the page");
    assert_has(
        &page,
        &[
            "server_target_qps",
            "<td>1200</td><td>2400</td>",
            "different loads",
        ],
    );
}
