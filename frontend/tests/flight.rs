//! The flight recorder in real runs: its files at the end, on SIGUSR1 and at a fault, and what
//! `frontend flight` reads in them.

mod common;

use std::{path::Path, process::Command, time::Duration};

use common::{Place, Running, accelerator_with, assert_has, free_ports, run};
use qdl::flight::{Flight, Kind, Record};

struct Rig {
    place: Place,
    config: std::path::PathBuf,
    accelerators: Vec<Running>,
}

/// Two accelerators that record into a folder.
fn rig() -> Rig {
    let place = Place::new();
    let ports: [u16; 2] = free_ports();
    let to = place.path("there");
    std::fs::create_dir_all(&to).expect("a folder");
    let to = to.to_str().expect("text").to_owned();
    let accelerators = [("acc-a", ports[0]), ("acc-b", ports[1])].map(|(node, port)| {
        let config = place.digest_accelerator(node, port, "");
        accelerator_with(&place, &config, &["--record", "4", "--record-to", &to])
    });
    let config = place.digest_frontend(&ports, "");
    Rig {
        place,
        config,
        accelerators: accelerators.into(),
    }
}

const SERVER: [&str; 10] = [
    "--scenario",
    "server",
    "--target-qps",
    "500",
    "--duration-s",
    "1.5",
    "--set",
    "target_latency=10000",
    "--record",
    "4",
];

fn of(flight: &Flight, kind: Kind) -> impl Iterator<Item = &Record> {
    let all = flight.threads.iter().flat_map(|t| &t.records);
    all.filter(move |r| r.kind == kind as u8)
}

fn read(path: &Path, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_frontend"));
    let out = command.arg("flight").arg(path).args(words).output();
    let out = out.expect("runs");
    let text = String::from_utf8(out.stdout).expect("text");
    assert!(
        out.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

#[test]
fn every_sample_of_a_run_is_on_record_at_both_nodes() {
    let rig = rig();
    let ended = run(&rig.place, rig.place.frontend(&rig.config, "out", &SERVER));
    assert!(
        ended.code.is_some_and(|c| c <= 1),
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    let s = rig.place.summary("out");
    let folder = rig.place.path("out");
    let here = Flight::read(&folder.join("flight-fe.bin"));
    let here = here.or_else(|_| {
        let node = s["node"].as_str().expect("a name");
        Flight::read(&folder.join(format!("flight-{node}.bin")))
    });
    let here = here.expect("a file of this node");
    let samples = s["samples"].as_u64().expect("samples");
    let answers = of(&here, Kind::Arrived).count() as u64;
    assert_eq!(answers, samples);
    let completed: u64 = of(&here, Kind::Completed).map(|r| u64::from(r.count)).sum();
    assert_eq!(completed, samples);
    assert!(of(&here, Kind::Posted).count() as u64 >= samples);
    assert!(of(&here, Kind::Rung).count() > 0 && here.first_ns > 0);
    for (i, c) in s["connections"]
        .as_array()
        .expect("connections")
        .iter()
        .enumerate()
    {
        let own = of(&here, Kind::Arrived).filter(|r| usize::from(r.connection) == i);
        assert_eq!(Some(own.count() as u64), c["samples"].as_u64());
        assert_eq!(c["name"], here.connections[i]);
    }
    // The accelerators write theirs as the session ends, which is about now.
    let text = read(&folder, &[]);
    assert_has(&text, &["posted", "acc-a/0"]);
    let both = ["acc-a", "acc-b"].map(|n| {
        let path = rig.place.path("there").join(format!("flight-{n}.bin"));
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while !path.is_file() && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        Flight::read(&path).expect("a file of an accelerator")
    });
    drop(rig.accelerators);
    let arrived: usize = both.iter().map(|f| of(f, Kind::Arrived).count()).sum();
    let answered: usize = both.iter().map(|f| of(f, Kind::Answered).count()).sum();
    assert_eq!(arrived, answered);
    assert!(arrived as u64 >= samples);
}

#[test]
fn a_fault_has_a_file_and_is_read_in_order() {
    let mut rig = rig();
    let mut arguments = SERVER;
    arguments[5] = "3";
    let mut command = rig.place.frontend(&rig.config, "out", &arguments);
    command.arg("-v");
    let mut frontend = Running::start(&rig.place, "frontend", command);
    frontend.wait_until_it_says(" warmed ");
    std::thread::sleep(Duration::from_millis(900));
    frontend.signal(libc::SIGUSR1);
    let folder = rig.place.path("out");
    let found = |fault: bool| {
        let files = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let names = files.filter_map(|e| e.file_name().into_string().ok());
        let mut names = names.filter(|n| n.starts_with("flight-") && n.ends_with(".bin"));
        names.find(|n| n.contains("-fault-1") == fault)
    };
    frontend.wait_until("a file after SIGUSR1", || found(false).is_some());
    let gone = rig.accelerators.pop().expect("two");
    gone.signal(libc::SIGKILL);
    frontend.wait_until("a file of the fault", || found(true).is_some());
    let ended = frontend.end();
    assert!(
        ended.code.is_some_and(|c| c <= 1),
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    let of_fault = folder.join(found(true).expect("its file"));
    let text = read(&of_fault, &["--fault", "1", "--around-ms", "50"]);
    assert!(text.starts_with("fault 1 of"), "{text}");
    assert!(
        text.lines()
            .any(|l| l.contains("+0.0 us") && l.contains("lost acc-b/")),
        "{text}"
    );
    // What was lost with it was posted again, behind it.
    let flight = Flight::read(&of_fault).expect("reads");
    let lost = of(&flight, Kind::Lost).next().expect("a loss");
    let again: u64 = of(&flight, Kind::Lost).map(|r| u64::from(r.count)).sum();
    let posted = || of(&flight, Kind::Posted).filter(|r| r.count > 0);
    // A post bears the time at which its burst began, which may be a little before.
    assert!(posted().all(|r| r.at_ns + 1_000_000_000 >= lost.at_ns));
    assert!(posted().count() as u64 >= again.min(1));
    drop(gone);
}
