//! Language models' servers that go away, are busy, and come back, behind real accelerators.
//!
//! The scripted servers keep answers back, so that each run lasts until its test lets them go.

use std::{fs, process::Command};

use crate::common::{
    ProgramEnd, Running, TestFolder, accelerator, accelerator_program, assert_has, free_ports,
    offline, repository,
};

const MODEL: &str = "model: {name: llm, \
    inputs: [{name: prompt, dtype: i32, shape: [16], ragged: true}], \
    output: {name: tokens, dtype: i32, shape: [8], ragged: true}}\n";
/// Four slots: the frontend keeps the other samples until a slot is free.
const FRONTEND: &str = "dataset: {kind: tokens, count: 64, min_len: 1, max_len: 16, vocab: 1000, \
    seed: 3}\nnics: [{address: 127.0.0.1, slots: 4}]\n";
const AWAY: &str = "takes no samples for now: the server at http://127.0.0.1:";
const BACK: &str = "takes samples again";

/// A server, its port, and its accelerator of the same name, which the drop ends.
struct Node<'p> {
    place: &'p TestFolder,
    name: &'static str,
    port: u16,
    server: Option<Running>,
    accelerator: Option<Running>,
    control: u16,
}

impl<'p> Node<'p> {
    /// Starts a server, and an accelerator for it that waits `ready_s` for the server.
    fn start(place: &'p TestFolder, name: &'static str, ready_s: u32) -> Self {
        let mut node = Self::without_server(place, name, ready_s);
        node.serve();
        node.accelerator = Some(accelerator(place, &place.path(&format!("{name}.yaml"))));
        node
    }

    fn without_server(place: &'p TestFolder, name: &'static str, ready_s: u32) -> Self {
        let [control, port] = free_ports();
        let engine = format!(
            "engine: {{kind: http, http: {{url: \"http://127.0.0.1:{port}\", dialect: vllm, \
             vocab: 1000, in_flight: 4, busy_s: 1, ready_s: {ready_s}}}}}\n"
        );
        place.accelerator_of(name, control, &(MODEL.to_owned() + &engine));
        Node {
            place,
            name,
            port,
            server: None,
            accelerator: None,
            control,
        }
    }

    fn serve(&mut self) {
        let mut command = Command::new("python3");
        let script = repository().join("frontend/tests/data/llm_server.py");
        command.arg(script).arg(self.place.path(""));
        command.args([self.name, &self.port.to_string()]);
        self.server = Some(Running::start(
            self.place,
            &format!("{}-server", self.name),
            command,
        ));
    }

    fn kill_server(&mut self) {
        self.server = None;
    }

    fn set(&self, what: &str) {
        self.place.write(&format!("{}.{what}", self.name), "");
    }

    fn unset(&self, what: &str) {
        fs::remove_file(self.place.path(&format!("{}.{what}", self.name))).expect("it was set");
    }

    /// Number of prompts that the running server was asked.
    fn asked(&self) -> usize {
        let path = self.place.path(&format!("{}.asked", self.name));
        let text = fs::read_to_string(path).unwrap_or_default();
        let id = self.server.as_ref().expect("it runs").id().to_string();
        text.lines().filter(|line| *line == id).count()
    }

    fn log(&self) -> String {
        let path = self.place.path(&format!("{}.stderr", self.name));
        fs::read_to_string(path).unwrap_or_default()
    }
}

fn run_over(place: &TestFolder, nodes: &[&Node<'_>]) -> Running {
    let controls: Vec<_> = nodes.iter().map(|node| node.control).collect();
    let config = place.frontend_of(&controls, &(MODEL.to_owned() + FRONTEND));
    let command = place.frontend(&config, "out", &offline("64"));
    Running::start(place, "frontend", command)
}

/// Checks that each sample has its answer from a server.
fn must_be_whole(place: &TestFolder, frontend: Running) -> ProgramEnd {
    let ended = frontend.end().with_code(0);
    let s = place.summary("out");
    assert_eq!((&s["valid"], &s["samples"]), (&true.into(), &64.into()));
    assert_eq!(s["ledger"]["emptied"], 0, "{}", ended.stdout);
    ended
}

#[test]
fn a_server_that_is_killed_comes_back_however_late_while_another_node_is_up() {
    let place = TestFolder::new();
    let mut nodes = ["acc-a", "acc-b"].map(|name| Node::start(&place, name, 1));
    nodes.iter().for_each(|node| node.set("hold"));
    let mut frontend = run_over(&place, &nodes.each_ref());
    frontend.wait_until("prompts", || nodes.iter().all(|node| node.asked() > 0));
    let [a, b] = &mut nodes;
    b.kill_server();
    frontend.wait_until_it_says(&format!("acc-b {AWAY}"));
    frontend.wait_until("the limit", || b.log().contains("is overdue"));
    b.serve();
    frontend.wait_until_it_says(&format!("acc-b {BACK}"));
    frontend.wait_until("prompts", || b.asked() > 0);
    a.unset("hold");
    b.unset("hold");
    must_be_whole(&place, frontend);
}

#[test]
fn a_server_that_answers_503_in_warm_up_comes_back() {
    let place = TestFolder::new();
    let nodes = ["acc-a", "acc-b"].map(|name| Node::start(&place, name, 600));
    let [a, b] = &nodes;
    a.set("hold");
    b.set("busy");
    let mut frontend = run_over(&place, &nodes.each_ref());
    frontend.wait_until("prompts", || a.asked() > 0);
    frontend.wait_until_it_says(&format!("acc-b {AWAY}"));
    let before = b.asked();
    b.unset("busy");
    frontend.wait_until_it_says(&format!("acc-b {BACK}"));
    frontend.wait_until("prompts", || b.asked() > before);
    a.unset("hold");
    must_be_whole(&place, frontend);
    // The warm-up's are not the run's.
    let s = place.summary("out");
    let busy = |i: usize| s["accelerators"][i]["used"]["engine"]["server_busy"].as_u64();
    assert_eq!([0, 1].map(|i| busy(i) > Some(0)), [false; 2]);
}

#[test]
fn a_run_ends_with_its_only_server_whether_it_leaves_before_or_in_the_run() {
    for in_run in [true, false] {
        let place = TestFolder::new();
        let mut node = Node::start(&place, "acc-a", 1);
        node.set("hold");
        if !in_run {
            node.kill_server();
        }
        let mut frontend = run_over(&place, &[&node]);
        if in_run {
            frontend.wait_until("prompts", || node.asked() > 0);
            node.kill_server();
        }
        let ended = frontend.end().with_code(3);
        let words = [
            "no accelerator left: acc-a (",
            &format!("the server at http://127.0.0.1:{} is gone: ", node.port),
            "engine.http.ready_s",
        ];
        assert_has(ended.error(), &words);
    }
}

#[test]
fn a_frontend_waits_for_a_server_that_is_started_last() {
    let place = TestFolder::new();
    let mut node = Node::without_server(&place, "acc-a", 600);
    let mut program = Command::new(accelerator_program());
    program.arg("--config").arg(place.path("acc-a.yaml"));
    let _accelerator = Running::start(&place, "acc-a", program);
    let mut frontend = run_over(&place, &[&node]);
    frontend.wait_until_it_says("loads its model");
    frontend.wait_until("the wait", || node.log().contains("waiting for the server"));
    node.serve();
    must_be_whole(&place, frontend);
}
