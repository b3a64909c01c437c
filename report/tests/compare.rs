//! Runs beside each other: what is called noise and what is not.

mod common;

use common::{Made, run};
use report::{Run, html};

fn made(name: &'static str, network_us: f64, seed: u64) -> Run {
    run(&Made {
        name,
        network_us,
        seed,
        ticks: 60,
        ..Made::default()
    })
}

/// Another value of a setting, which makes it another group.
fn with(mut run: Run, slots: &str) -> Run {
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
    std::fs::write(
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("compare.html"),
        &page,
    )
    .expect("written");
    let said = sentence(&page);
    assert!(
        said.contains("longer") && said.contains("more than noise, and worse"),
        "{said}"
    );
    assert!(said.contains("one run of a setting"), "{said}");
    assert!(page.contains("<code>nics[0].slots</code></td><td>64</td><td>8</td>"));
    for id in ["differences", "percentiles", "stages", "rate", "p99"] {
        assert!(page.contains(&format!("<figure id=\"{id}\">")), "{id}");
    }
}

#[test]
fn the_same_again_is_noise() {
    let page = html(&[made("plain", 90.0, 1), with(made("again", 90.0, 2), "8")]);
    let said = sentence(&page);
    assert!(said.contains("no more than noise"), "{said}");
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
    assert!(
        said.contains("B slow x 2") && said.contains("repetitions are in that"),
        "{said}"
    );
}

#[test]
fn without_timelines_nothing_is_said_of_noise() {
    let strip = |mut r: Run| {
        r.timeline = None;
        r
    };
    let page = html(&[
        strip(made("a", 90.0, 1)),
        with(strip(made("b", 200.0, 2)), "8"),
    ]);
    assert!(
        sentence(&page).contains("cannot be said"),
        "{}",
        sentence(&page)
    );
}

#[test]
fn a_page_of_several_holds_them_all() {
    let page = html(&[made("plain", 90.0, 1), with(made("slow", 200.0, 2), "8")]);
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().join("compare.html");
    std::fs::write(&path, page).expect("written");
    let names: Vec<String> = Run::read_all(&path)
        .expect("runs")
        .into_iter()
        .map(|r| r.name)
        .collect();
    assert_eq!(names, ["plain", "slow"]);
}
