//! Tests of configurations made in code: the checks are those of YAML. [`frontend`] and
//! [`accelerator`] test that all that YAML permits is permitted in code.

use super::*;

/// Returns field and text of each problem.
fn problems_of<T: std::fmt::Debug>(result: Result<T, ConfigError>) -> Vec<(String, String)> {
    match result.expect_err("a problem") {
        ConfigError::Invalid { problems } => {
            problems.into_iter().map(|p| (p.origin, p.what)).collect()
        }
        other => panic!("{other}"),
    }
}

/// Asserts that a change in code has the problem, of this field, that `yaml` has.
#[track_caller]
fn assert_same<C: ConfigFile + std::fmt::Debug>(
    good: C,
    field: &str,
    change: impl FnOnce(&mut C),
    yaml: Result<C, ConfigError>,
) {
    let mut changed = good;
    change(&mut changed);
    let (found, expected) = (problems_of(check(changed)), problems_of(yaml));
    let whats = expected
        .into_iter()
        .map(|(_, what)| (field.to_owned(), what));
    assert_eq!(found, whats.collect::<Vec<_>>());
}

#[test]
fn a_frontend_made_in_code_has_the_checks_of_yaml() {
    let yaml = format!("{FRONTEND}{REST}");
    let refused = |field: &str, keys: &str, change: fn(&mut FrontendConfig)| {
        let text = match keys.split_once(" -> ") {
            Some(_) => changed(&yaml, keys),
            None => format!("{yaml}{keys}\n"),
        };
        assert_same(good(frontend(&yaml)), field, change, frontend(&text));
    };
    refused("node", "node: f -> node: a/b", |c| {
        c.node = "a/b".to_owned()
    });
    refused("accelerators", "[{control: 127.0.0.1:7400}] -> []", |c| {
        c.accelerators.clear();
    });
    refused("nics", "[{address: 127.0.0.1}] -> []", |c| c.nics.clear());
    refused("nics[0].slots", "nics: [{ -> nics: [{slots: 9000, ", |c| {
        c.nics[0].slots = Auto::Fixed(9000);
    });
    refused("nics[0].gpu", "nics: [{ -> nics: [{gpu: 0, ", |c| {
        c.nics[0].gpu = Some(0);
    });
    refused("deadlines.lost_ms", "deadlines: {lost_ms: 2100}", |c| {
        c.deadlines.lost_ms = 2100;
    });
    let control = "control: 127.0.0.1:7400 -> control: 10.0.0.1:7400";
    refused("accelerators[0].control", control, |c| {
        c.accelerators[0].control = "10.0.0.1:7400".to_owned();
    });
}

#[test]
fn an_accelerator_made_in_code_has_the_checks_of_yaml() {
    let refused = |field: &str, keys: &str, change: fn(&mut AcceleratorConfig)| {
        let text = match keys.split_once(" -> ") {
            Some(_) => changed(ACCELERATOR, keys),
            None => format!("{ACCELERATOR}{keys}\n"),
        };
        assert_same(
            good(accelerator(ACCELERATOR)),
            field,
            change,
            accelerator(&text),
        );
    };
    refused("nics[0].slots", "nics: [{ -> nics: [{slots: 64, ", |c| {
        c.nics[0].slots = Auto::Fixed(64);
    });
    refused("deadlines.name_ms", "deadlines: {name_ms: 1000}", |c| {
        c.deadlines.name_ms = 1000;
    });
    refused("metrics", "metrics: 10.0.0.1:9464", |c| {
        c.metrics = Some(([10, 0, 0, 1], 9464).into());
    });
}

#[test]
fn a_default_lacks_what_has_no_default_and_names_the_fields() {
    let found = problems_of(check(FrontendConfig::default()));
    let fields: Vec<_> = found.iter().map(|(field, _)| field.as_str()).collect();
    for field in ["node", "model.name", "accelerators", "nics"] {
        assert!(fields.contains(&field), "{field}: {fields:?}");
    }
    let text = check(AcceleratorConfig::default())
        .expect_err("no NIC")
        .to_string();
    assert_has(
        &text,
        &["nics: the list of NICs is empty\n   = add at least one"],
    );
}
