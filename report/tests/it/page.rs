//! Whole pages: tables without a script, charts that fit together, nothing from elsewhere, sound,
//! small, and the record of their runs.

use crate::common::{RunShape, charts, folder, parts, run, well_formed, without_scripts};
use qdl::testkit::assert_has;
use record::RunFolder;
use report::{html, read_all};

/// Writes the page below the target folder, to be looked at.
fn keep(name: &str, page: &str) {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(path, page).expect("written");
}

#[test]
fn every_picture_has_a_table_that_needs_no_script() {
    let page = html(&[run(&RunShape::default())]);
    keep("report.html", &page);
    let page = without_scripts(&page);
    well_formed(&page).expect("well formed");
    let latency = ["limits", "percentiles", "stages", "slowest", "course"];
    let nodes = ["connections", "engines", "threads", "ledger"];
    for id in latency.into_iter().chain(nodes) {
        let (_, rest) = page.split_once(&format!("<figure id=\"{id}\">")).expect(id);
        let figure = rest.split("</figure>").next().unwrap_or("");
        let is_whole = figure.contains("<table") && figure.contains("<figcaption>");
        assert!(is_whole, "{id}: {figure:.300}");
    }
    let turn = "raise <code>completion.spin_us</code>";
    assert_has(&page, &["VALID", "wake-ups", turn, "Run successful."]);
    // The strongest finding is named first.
    let cards: Vec<&str> = page.split("<div class=\"card\">").skip(1).collect();
    assert!(cards[0].starts_with("<h3>wake-ups</h3>"), "{}", cards[0]);
    let sentence = ", VALID; not a submission: &lt;loopback&gt; (not a permitted fabric)</h1>";
    assert_has(&page, &["<h1>Server: 1,200/s, p99 latency ", sentence]);
    // Names from a run are text, whatever is in them.
    assert!(page.contains("&lt;lost&gt; &amp; gone") && !page.contains("<lost>"));
}

#[test]
fn a_line_has_a_value_for_each_place_and_an_event_a_mark_and_a_row() {
    let page = html(&[run(&RunShape::default())]);
    let charts = charts(&page);
    assert_eq!(charts.len(), 18);
    for chart in &charts {
        let places = chart["x"].as_array().expect("x").len();
        for line in chart["lines"].as_array().expect("lines") {
            let values = line["values"].as_array().expect("values");
            assert_eq!(values.len(), places, "{}", line["name"]);
        }
    }
    let marks = charts.iter().map(|c| c["marks"].as_array().expect("marks"));
    let last = marks.filter_map(|m| m.last());
    let last: Vec<&str> = last.filter_map(|m| m["text"].as_str()).collect();
    assert_eq!(last, ["7", "7", "7"]);
    assert!(page.contains("<td>7</td><td class=\"f\">8.16 s</td><td>rail</td>"));
}

#[test]
fn a_page_loads_nothing() {
    let made = RunShape::default();
    for page in [html(&[run(&made)]), html(&[run(&made), run(&made)])] {
        let page = without_scripts(&page);
        for outside in [
            "http:", "https:", "src=", "url(", "@import", "<link", "<img", "href",
        ] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("default-src 'none'"));
    }
}

#[test]
fn ten_minutes_of_sixteen_connections_are_less_than_two_megabytes() {
    let page = html(&[run(&RunShape {
        ticks: 600,
        connections: 16,
        samples: 60,
        ..RunShape::default()
    })]);
    keep("report-long.html", &page);
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    // And not because anything is left out.
    for connection in ["acc-01/0", "acc-01/15"] {
        let of = |c: &serde_json::Value| c.to_string().contains(&format!("\"{connection}\""));
        assert_eq!(charts(&page).iter().filter(|c| of(c)).count(), 6);
    }
}

#[test]
fn a_page_is_the_record_of_its_run() {
    let place = folder(&RunShape::default());
    let first = RunFolder::read(place.path()).expect("a run");
    let page = html(std::slice::from_ref(&first));
    let path = place.path().join("page.html");
    std::fs::write(&path, &page).expect("written");
    let again = read_all(&path).expect("its run");
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].timeline, first.timeline);
    assert_eq!(again[0].summary, first.summary);
    assert_eq!(again[0].histograms, first.histograms);
    assert_eq!(html(&again), page);
    std::fs::write(&path, "<p>another page</p>").expect("written");
    let error = read_all(&path).expect_err("no record").to_string();
    assert_has(&error, &["page.html", "no record"]);
}

#[test]
fn what_an_older_run_lacks_is_said() {
    let place = folder(&RunShape::default());
    std::fs::remove_file(place.path().join("timeline.json")).expect("removed");
    std::fs::remove_file(place.path().join("latency.hlog")).expect("removed");
    let page = html(&[RunFolder::read(place.path()).expect("a run")]);
    let page = without_scripts(&page);
    well_formed(&page).expect("well formed");
    let slowest = "slowest samples were not kept";
    assert_has(
        &page,
        &["What is not there", slowest, "no percentile curves"],
    );
    // A folder with nothing but an empty summary is a page too.
    std::fs::write(place.path().join("summary.json"), "{}").expect("written");
    let page = html(&[RunFolder::read(place.path()).expect("a run")]);
    well_formed(&without_scripts(&page)).expect("well formed");
}

#[test]
fn it_is_written_into_the_folder_of_its_run() {
    let place = folder(&RunShape::default());
    let path = report::write(place.path()).expect("written");
    assert!(path.ends_with(report::FILE) && path.is_file());
    let error = report::write(&place.path().join("nowhere")).expect_err("no folder");
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn a_run_that_goes_on_has_pictures() {
    let (summary, timeline, _) = parts(&RunShape::default());
    let reading = record::timeline::ConnectionTick::default();
    let named = summary.run.system.connections.iter();
    let so_far = report::SoFar {
        title: "Server <1>".to_owned(),
        state: report::State::Running,
        elapsed_s: 12.0,
        completed: 14_400,
        limits: summary.run.loadgen.map(|l| l.limits).unwrap_or_default(),
        connections: named.map(|c| (c.name.clone(), reading)).collect(),
        timeline,
        ..report::SoFar::default()
    };
    let pictures = report::so_far(&so_far);
    well_formed(&pictures).expect("well formed");
    for id in ["course", "limits", "percentiles", "connections", "threads"] {
        assert!(pictures.contains(&format!("id=\"{id}\"")), "{id}");
    }
    // One that has not begun has nothing to draw, and says so.
    let before = report::so_far(&report::SoFar::default());
    well_formed(&before).expect("well formed");
    assert!(before.contains("NOT BEGUN") && before.contains("No tick of the run is over yet."));
}
