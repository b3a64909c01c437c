//! A real node, and a frontend that sends over TCP samples that no model can take. The node refuses
//! each one in its own slot, with the reason, and serves all other samples. The tests fail without
//! the files that `cargo xtask setup` fetches.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    sync::mpsc,
    thread::JoinHandle,
    time::Duration,
};

use accelerator::node::Accelerator;
use fabric::{
    Imm,
    tcp::{HEADER_BYTES, Preamble},
};
use qdl::{
    config::load_accelerator,
    control::{
        Auth, ClientEvent, ClientParams, ClientSession, ConnectionRequest, GrantTransport,
        RequestTransport, Timing,
    },
    model::{DType, ModelSpec, TensorSpec},
    response::{RESPONSE_HEADER_BYTES, Refusal, ResponseHeader},
    run::Stop,
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

/// A frontend that sends any bytes, whatever the model requires.
struct Frontend {
    runtime: tokio::runtime::Runtime,
    session: ClientSession,
    connections: Vec<TcpStream>,
}

impl Frontend {
    fn join(node: &Node, model: &ModelSpec, connections: u16) -> Frontend {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let params = ClientParams {
            address: node.control.clone(),
            node: "hostile".to_owned(),
            auth: Auth::Unset,
            model: model.clone(),
            stream: fabric::wire::Stream::None,
            facts: record::NodeFacts::default(),
            timing: Timing::default(),
        };
        let largest = model.max_input_bytes().expect("small");
        let stride = if model.fixed_size() {
            largest
        } else {
            largest.next_multiple_of(64)
        };
        let output = model.max_output_bytes().expect("small");
        let request = |connection| ConnectionRequest {
            connection,
            nic: 0,
            gpu_turn: 0,
            epoch: 1,
            slots: 8,
            request_stride: stride as u32,
            response_stride: (RESPONSE_HEADER_BYTES + output).next_multiple_of(64) as u32,
            transport: RequestTransport::Tcp {},
        };
        let (session, grants) = runtime.block_on(async {
            let session = ClientSession::connect(params).await.expect("taken");
            let requests = (0..connections).map(request).collect();
            let grants = session.handle.open(requests).within(PATIENCE).await;
            session
                .handle
                .start()
                .within(PATIENCE)
                .await
                .expect("ready");
            (session, grants.expect("granted"))
        });
        let connect = |grant: &qdl::control::ConnectionGrant| {
            let GrantTransport::Tcp { address } = grant.transport else {
                panic!("not over TCP");
            };
            let mut stream = TcpStream::connect(address).expect("connected");
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            let preamble = Preamble {
                connection: grant.connection,
                epoch: grant.epoch,
                key: grant.key.0,
            };
            stream.write_all(&preamble.encode()).expect("sent");
            let mut answer = [0; 8];
            stream.read_exact(&mut answer).expect("let in");
            assert_eq!(&answer, b"QDLOK\0\0\0");
            stream
        };
        Frontend {
            connections: grants.iter().map(connect).collect(),
            runtime,
            session,
        }
    }

    /// Sends a sample in the first use of a slot.
    fn send(&mut self, connection: usize, slot: u16, sample: &[u8]) {
        let mut frame = vec![1, 0, 0, 0];
        frame.extend_from_slice(&Imm::new(slot, 1).bits().to_le_bytes());
        frame.extend_from_slice(&0u32.to_le_bytes());
        frame.extend_from_slice(&(sample.len() as u32).to_le_bytes());
        assert_eq!(frame.len(), HEADER_BYTES);
        frame.extend_from_slice(sample);
        self.connections[connection]
            .write_all(&frame)
            .expect("sent");
    }

    /// Returns the slot and the model's output of the next answer.
    fn answer(&mut self, connection: usize) -> (u16, Vec<u8>) {
        let (slot, header, payload) = self.response(connection);
        assert_eq!(header.refusal, None);
        (slot, payload)
    }

    /// Returns the slot and the complete reason of the next refusal.
    fn refusal(&mut self, connection: usize) -> (u16, String) {
        let (slot, header, payload) = self.response(connection);
        let part = String::from_utf8_lossy(&payload).into_owned();
        match header.refusal.expect("refused") {
            Refusal::Whole => (slot, part),
            Refusal::Cut => {
                let (of, whole) = self.reason();
                assert_eq!((of.0, of.2), (connection as u16, slot));
                assert!(whole.as_bytes().starts_with(&payload), "{part}: {whole}");
                (slot, whole)
            }
        }
    }

    fn response(&mut self, connection: usize) -> (u16, ResponseHeader, Vec<u8>) {
        let stream = &mut self.connections[connection];
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).expect("an answer");
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        let mut bytes = vec![0; word(12) as usize];
        stream.read_exact(&mut bytes).expect("an answer");
        let imm = Imm::from_bits(word(4));
        let header = ResponseHeader::decode(&bytes, word(12), imm.use_count()).expect("sound");
        (imm.slot(), header, bytes.split_off(RESPONSE_HEADER_BYTES))
    }

    /// Waits for a reason that did not fit into its slot.
    fn reason(&mut self) -> ((u16, u32, u16, u16), String) {
        let Self {
            runtime, session, ..
        } = self;
        let reason = async {
            loop {
                match session.events.next().await.expect("an event") {
                    ClientEvent::RefusedSample(of, words) => return (of, words),
                    ClientEvent::ConnectionLost { cause, .. } => panic!("lost: {cause}"),
                    ClientEvent::Gone(e) => panic!("the session ended: {e}"),
                    _ => {}
                }
            }
        };
        runtime
            .block_on(async { tokio::time::timeout(PATIENCE, reason).await })
            .expect("a reason")
    }

    fn leave(self) {
        self.session.handle.bye();
        let mut events = self.session.events;
        let gone = async { while events.next().await.is_some() {} };
        self.runtime
            .block_on(async { tokio::time::timeout(PATIENCE, gone).await })
            .expect("it ends");
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
    (good, answer): (&[u8], i64),
    bad: &[(Vec<u8>, &[&str])],
) {
    let node = Node::start(file, model);
    let mut frontend = Frontend::join(&node, model, 1 + bad.len() as u16);
    for (i, (sample, texts)) in (0u16..).zip(bad) {
        frontend.send(1 + usize::from(i), 5, sample);
        // The good sample goes out at the same time, so it may be in the same batch.
        frontend.send(0, i, good);
        let (slot, cause) = frontend.refusal(1 + usize::from(i));
        assert_eq!(slot, 5, "{cause}");
        for text in *texts {
            assert!(cause.contains(text), "no `{text}` in: {cause}");
        }
        frontend.send(1 + usize::from(i), 6, good);
        let again = frontend.answer(1 + usize::from(i));
        assert_eq!(again, (6, words(&[answer])), "after: {cause}");
        assert_eq!(frontend.answer(0), (i, words(&[answer])), "after: {cause}");
    }
    frontend.leave();
    let mut next = Frontend::join(&node, model, 1);
    next.send(0, 2, good);
    assert_eq!(next.answer(0), (2, words(&[answer])));
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
