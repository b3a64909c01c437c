//! A real node, and a frontend that sends over TCP samples that no model can take. The node refuses
//! each one in its own slot, with the reason, and serves all other samples. The tests fail without
//! the files that `cargo xtask setup` fetches.

use std::{path::Path, sync::mpsc, thread::JoinHandle, time::Duration};

use accelerator::node::Accelerator;
use qdl::{
    config::load_accelerator,
    control::ClientEvent,
    model::{DType, ModelSpec, TensorSpec},
    response::Refusal,
    run::Stop,
    testkit::peer::Peer,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// An accelerator that runs an ONNX model of the test data.
struct Node {
    control: String,
    stop: Stop,
    ended: mpsc::Receiver<Option<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    fn start(file: &str, model: &ModelSpec) -> Node {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.yaml");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = format!(
            "node: a\ncontrol: {{listen: 127.0.0.1:0}}\nengine: {{kind: onnx, max_delay_us: 2000}}\n\
             nics: [{{listen: 127.0.0.1:0}}]\nmodel:\n  name: {}\n  file: {}\n  inputs:\n{}  \
             output: {}\n",
            model.name,
            file.display(),
            model
                .inputs
                .iter()
                .map(|t| format!("    - {}\n", yaml(t)))
                .collect::<String>(),
            yaml(&model.output),
        );
        std::fs::write(&path, text).expect("written");
        let config = load_accelerator(&path).unwrap_or_else(|e| panic!("{e}"));
        let node = Accelerator::start(&config, "", false).unwrap_or_else(|e| panic!("{e}"));
        let ready = node.ready_line().to_owned();
        let control = ready.split("control ").nth(1).expect("an address");
        let control = control.split(',').next().expect("an address").to_owned();
        let stop = node.stopper();
        let (tell, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let _ = tell.send(node.run(&mut |_| ()));
        });
        Node {
            control,
            stop,
            ended,
            thread: Some(thread),
        }
    }

    /// Stops the node, and checks that no engine failure ended it.
    fn stop(mut self) {
        self.stop.stop("the test is over");
        let ended = self.ended.recv_timeout(PATIENCE).expect("it ends");
        assert_eq!(ended, None, "the engine ended the node");
        let _ = self.thread.take().expect("once").join();
    }
}

fn yaml(t: &TensorSpec) -> String {
    format!(
        "{{name: {}, dtype: {}, shape: {:?}, ragged: {}}}",
        t.name, t.dtype, t.shape, t.ragged
    )
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

fn tensor(name: &str, dtype: DType, shape: &[usize], ragged: bool) -> TensorSpec {
    TensorSpec {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
        ragged,
    }
}

fn words(words: &[i64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Checks that each of `bad` is refused with these words and that its connection continues. The
/// first connection and the next frontend get answers to `good`.
fn only_that_sample_is_refused(
    file: &str,
    model: &ModelSpec,
    (good, right): (&[u8], i64),
    bad: &[(Vec<u8>, &[&str])],
) {
    let node = Node::start(file, model);
    let mut frontend = Peer::join(&node.control, model, 1 + bad.len() as u16);
    for (i, (sample, texts)) in (0u16..).zip(bad) {
        frontend.send(1 + usize::from(i), 5, sample);
        // The good sample goes out at the same time, so it may be in the same batch.
        frontend.send(0, i, good);
        let (slot, cause) = refusal(&mut frontend, 1 + usize::from(i));
        assert_eq!(slot, 5, "{cause}");
        for text in *texts {
            assert!(cause.contains(text), "no `{text}` in: {cause}");
        }
        frontend.send(1 + usize::from(i), 6, good);
        let again = answer(&mut frontend, 1 + usize::from(i));
        assert_eq!(again, (6, words(&[right])), "after: {cause}");
        assert_eq!(
            answer(&mut frontend, 0),
            (i, words(&[right])),
            "after: {cause}"
        );
    }
    frontend.leave();
    let mut next = Peer::join(&node.control, model, 1);
    next.send(0, 2, good);
    assert_eq!(answer(&mut next, 0), (2, words(&[right])));
    next.leave();
    node.stop();
}

#[test]
fn a_length_that_a_fixed_size_cannot_have() {
    let model = ModelSpec {
        name: "lookup".to_owned(),
        inputs: vec![tensor("ids", DType::I64, &[4], false)],
        output: tensor("total", DType::I64, &[1], false),
        other_outputs: Vec::new(),
        compression: None,
    };
    let good = words(&[1, 2, 3, 4]);
    let wants = "the model takes 32 bytes";
    only_that_sample_is_refused(
        "tests/data/lookup.onnx",
        &model,
        (&good, 1000),
        &[
            (vec![], &["a sample of 0 bytes", wants]),
            (good[..31].to_vec(), &["a sample of 31 bytes", wants]),
        ],
    );
}

#[test]
fn a_length_that_ragged_inputs_cannot_have() {
    let model = ModelSpec {
        name: "sum".to_owned(),
        inputs: vec![
            tensor("ids", DType::I64, &[8], true),
            tensor("bias", DType::I64, &[1], false),
            tensor("mask", DType::I64, &[8], true),
        ],
        output: tensor("total", DType::I64, &[1], false),
        other_outputs: Vec::new(),
        compression: None,
    };
    let good = words(&[1, 2, 100, 1, 1]);
    let wants = "takes 8 bytes and 1 to 8 times 16 bytes";
    only_that_sample_is_refused(
        "tests/data/masked_sum.onnx",
        &model,
        (&good, 103),
        &[
            (vec![], &["a sample of 0 bytes", wants]),
            (good[..8].to_vec(), &["a sample of 8 bytes", wants]),
            (good[..25].to_vec(), &["a sample of 25 bytes", wants]),
        ],
    );
}

#[test]
fn an_index_outside_the_models_table() {
    let model = ModelSpec {
        name: "lookup".to_owned(),
        inputs: vec![tensor("ids", DType::I64, &[4], false)],
        output: tensor("total", DType::I64, &[1], false),
        other_outputs: Vec::new(),
        compression: None,
    };
    only_that_sample_is_refused(
        "tests/data/lookup.onnx",
        &model,
        (&words(&[1, 2, 3, 4]), 1000),
        &[
            (
                words(&[1, 2, 10, 3]),
                &["engine onnx", "out of data bounds"],
            ),
            (
                words(&[i64::MIN, 2, 1, 3]),
                &["engine onnx", "out of data bounds"],
            ),
        ],
    );
}
