//! A frontend and an accelerator in one process, over TCP, without YAML. The answer to a sample is
//! the sum of its bytes.
//!
//! `cargo run -p qdl --example cluster`

use std::{
    error::Error,
    net::Ipv4Addr,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use fabric::{Region, clock::now_ns, tcp::TcpKeys};
use qdl::{
    config::{self, AcceleratorAddress, AcceleratorConfig, AcceleratorModel, FrontendConfig},
    config::{NicConfig, NicFabric},
    dispatch::{Completer, Response, Sample},
    model::ModelSpec,
    run::{Cluster, ClusterEvent, Node, NodeParams, SampleMemory},
    serve::{Arrival, Finished, Sent, Service, respond_all},
};

/// The accelerator's service, which answers on the NIC thread.
struct Sums;

impl Service for Sums {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let answered = arrivals.drain(..).map(|mut arrival| {
            let sum: u64 = arrival.input().iter().copied().map(u64::from).sum();
            arrival.output()[..8].copy_from_slice(&sum.to_le_bytes());
            let (ticket, len, sent) = (arrival.ticket(), 8, Sent::default());
            let (queue_us, compute_us) = (0, 0);
            (
                arrival,
                Finished {
                    ticket,
                    len,
                    queue_us,
                    compute_us,
                    sent,
                },
            )
        });
        respond_all(answered, &mut Vec::new());
    }
}

/// Passes answers on from a NIC thread of the frontend.
struct Answers(mpsc::Sender<(u64, Vec<u8>)>);

impl Completer for Answers {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        for response in responses {
            // The receiver is gone only if `main` has failed.
            let _ = self.0.send((response.index, response.payload.to_vec()));
        }
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let model = ModelSpec::opaque("sums", 4, 8);

    // The accelerator. `check` finds what it would find in a file.
    let node = config::check(AcceleratorConfig {
        node: "accelerator".to_owned(),
        model: AcceleratorModel::of(&model),
        nics: vec![NicConfig::tcp((Ipv4Addr::LOCALHOST, 0).into())],
        ..AcceleratorConfig::default()
    })?;
    let params = NodeParams::new("sums", model.clone());
    let service: Arc<dyn Service> = Arc::new(Sums);
    let node = Node::start(&node, params, &service)?;
    let (stop, address) = (node.stopper(), node.control_address());
    let node = thread::spawn(move || node.run_with(&mut |_| {}));

    // The frontend, with eight samples of four bytes.
    let nic = NicFabric::Tcp(TcpKeys {
        address: Some(Ipv4Addr::LOCALHOST.into()),
        ..TcpKeys::default()
    });
    let front = config::check(FrontendConfig {
        node: "frontend".to_owned(),
        model,
        accelerators: vec![AcceleratorAddress {
            control: address.to_string(),
        }],
        nics: vec![nic.into()],
        ..FrontendConfig::default()
    })?;
    let region = Arc::new(Region::new(32)?);
    let bytes: Vec<u8> = (0..32).collect();
    // SAFETY: no other reference to the region exists yet.
    unsafe { region.store(0, &bytes)? };
    let memory = SampleMemory {
        sources: vec![region],
        staged_from: None,
    };
    let (send, answers) = mpsc::channel();
    let mut completer = |_| -> Box<dyn Completer> { Box::new(Answers(send.clone())) };
    let on_event = |event: ClusterEvent<'_>| {
        if let ClusterEvent::Aborted(cause) = event {
            eprintln!("aborted: {cause}");
        }
    };
    let cluster = Cluster::connect(&front, memory, &mut completer, Arc::new(on_event))?;

    let sample = |index: u64| Sample {
        id: index,
        index,
        offset: index as usize * 4,
        len: 4,
        issued_ns: now_ns(),
        ..Sample::default()
    };
    cluster
        .dispatcher()
        .issue(&(0..8).map(sample).collect::<Vec<_>>());
    for _ in 0..8 {
        let (index, sum) = answers.recv_timeout(Duration::from_secs(20))?;
        println!("sample {index}: {}", sum[0]);
    }

    // The frontend says good-bye, then the accelerator stops.
    cluster.finish();
    stop.stop("the example is over");
    node.join()
        .map_err(|_| "the accelerator's thread panicked")?;
    Ok(())
}
