//! A real node, and a frontend that sends over TCP samples that no model can take. The node refuses
//! each one in its own slot, with the reason, and serves all other samples. The tests fail without
//! the files that `cargo xtask setup` fetches.

use std::thread::JoinHandle;

use accelerator::node::Accelerator;
use qdl::{
    config::load_accelerator,
    control::ClientEvent,
    model::ModelSpec,
    response::Refusal,
    run::Stop,
    testkit::{assert_has, peer::Peer},
};

/// Rows of a table, summed for four indices.
const CONFIG: &str = concat!(
    "node: a\ncontrol: {listen: 127.0.0.1:0}\nengine: {kind: onnx, max_delay_us: 2000}\n",
    "nics: [{listen: 127.0.0.1:0}]\nmodel:\n  name: lookup\n  file: ",
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/lookup.onnx\n  inputs: [{name: ids, dtype: i64, shape: [4]}]\n",
    "  output: {name: total, dtype: i64, shape: [1]}\n",
);

/// A running accelerator.
struct Node {
    model: ModelSpec,
    control: String,
    stop: Stop,
    thread: JoinHandle<Option<String>>,
}

impl Node {
    fn start() -> Node {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.yaml");
        std::fs::write(&path, CONFIG).expect("written");
        let config = load_accelerator(&path).unwrap_or_else(|e| panic!("{e}"));
        let node = Accelerator::start(&config, "", false).unwrap_or_else(|e| panic!("{e}"));
        let control = node.ready_line.split("control ").nth(1);
        let control = control.and_then(|rest| rest.split(',').next());
        Node {
            model: node.model.clone(),
            control: control.expect("an address").to_owned(),
            stop: node.stopper(),
            thread: std::thread::spawn(move || node.run(&mut |_| ())),
        }
    }

    /// Stops the node, and checks that no engine failure ended it.
    fn stop(self) {
        self.stop.stop("the test is over");
        assert_eq!(self.thread.join().expect("no panic"), None);
    }
}

/// The next answer: its slot and the model's output.
fn answer(frontend: &mut Peer, connection: usize) -> (u16, Vec<u8>) {
    let (slot, header, payload) = frontend.response(connection);
    assert_eq!(header.refusal, None);
    (slot, payload)
}

/// The whole reason of the next answer, which is none, and its slot.
fn refusal(frontend: &mut Peer, connection: usize) -> (u16, String) {
    let (slot, header, payload) = frontend.response(connection);
    let part = String::from_utf8_lossy(&payload).into_owned();
    match header.refusal.expect("refused") {
        Refusal::Whole => (slot, part),
        // Its slot had no room for it: it comes by the control plane.
        Refusal::Cut => {
            let (of, whole) = frontend.hear(|e| match e {
                ClientEvent::RefusedSample(of, words) => Some((*of, words.clone())),
                ClientEvent::ConnectionLost { cause, .. } => panic!("lost: {cause}"),
                _ => None,
            });
            assert_eq!((of.0, of.2), (connection as u16, slot));
            assert!(whole.as_bytes().starts_with(&payload), "{part}: {whole}");
            (slot, whole)
        }
    }
}

fn words(words: &[i64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

#[test]
fn a_sample_that_no_model_can_take_is_refused_alone() {
    let good = words(&[1, 2, 3, 4]);
    let wants = "the model takes 32 bytes";
    // No length of the model, and indices outside its table.
    let outside = &["engine onnx", "out of data bounds"];
    let bad: [(Vec<u8>, &[&str]); 4] = [
        (vec![], &["a sample of 0 bytes", wants]),
        (good[..31].to_vec(), &["a sample of 31 bytes", wants]),
        (words(&[1, 2, 10, 3]), outside),
        (words(&[i64::MIN, 2, 1, 3]), outside),
    ];
    let right = words(&[1000]);
    let node = Node::start();
    let mut frontend = Peer::join(&node.control, &node.model, 1 + bad.len() as u16);
    for (i, (sample, texts)) in (0u16..).zip(&bad) {
        let connection = 1 + usize::from(i);
        frontend.send(connection, 5, sample);
        // The good sample goes out at the same time, so it may be in the same batch.
        frontend.send(0, i, &good);
        let (slot, cause) = refusal(&mut frontend, connection);
        assert_eq!(slot, 5, "{cause}");
        assert_has(&cause, texts);
        frontend.send(connection, 6, &good);
        let again = answer(&mut frontend, connection);
        assert_eq!(again, (6, right.clone()), "after: {cause}");
        let beside = answer(&mut frontend, 0);
        assert_eq!(beside, (i, right.clone()), "after: {cause}");
    }
    frontend.leave();
    let mut next = Peer::join(&node.control, &node.model, 1);
    next.send(0, 2, &good);
    assert_eq!(answer(&mut next, 0), (2, right));
    next.leave();
    node.stop();
}
