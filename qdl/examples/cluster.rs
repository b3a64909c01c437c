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

use qdl::{
    config::{
        self, AcceleratorAddress, AcceleratorConfig, AcceleratorModel, FrontendConfig, NicConfig,
    },
    dispatch::{Completer, Response, Sample},
    model::ModelSpec,
    run::{Cluster, ClusterEvent, Node, NodeParams, SampleMemory},
    serve::{Arrival, Finished, Service, respond_all},
};

/// The accelerator's service, which answers on the NIC thread.
struct Sums;

impl Service for Sums {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let answered = arrivals.drain(..).map(|mut arrival| {
            let sum: u64 = arrival.input().iter().copied().map(u64::from).sum();
            arrival.output()[..8].copy_from_slice(&sum.to_le_bytes());
            let finished = Finished::new(&arrival, 8);
            (arrival, finished)
        });
        respond_all(answered, &mut Vec::new());
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
    let front = config::check(FrontendConfig {
        node: "frontend".to_owned(),
        model,
        accelerators: vec![AcceleratorAddress {
            role: Default::default(),
            control: address.to_string(),
        }],
        nics: vec![NicConfig::tcp_from(Ipv4Addr::LOCALHOST.into())],
        ..FrontendConfig::default()
    })?;
    let memory = SampleMemory::of(&(0..32).collect::<Vec<u8>>())?;
    let (send, answers) = mpsc::channel();
    let mut completer = |_| -> Box<dyn Completer> {
        let send = send.clone();
        Box::new(move |r: Response<'_>| {
            // On a NIC thread. The receiver is gone only if `main` has failed.
            let _ = send.send((r.index, r.payload[0]));
        })
    };
    let on_event = |event: ClusterEvent<'_>| {
        if let ClusterEvent::Aborted(cause) = event {
            eprintln!("aborted: {cause}");
        }
    };
    let cluster = Cluster::connect(&front, memory, &mut completer, Arc::new(on_event))?;

    let sample = |index| Sample::now(index, index as usize * 4, 4);
    let samples: Vec<_> = (0..8).map(sample).collect();
    cluster.dispatcher().issue(&samples);
    for _ in 0..8 {
        let (index, sum) = answers.recv_timeout(Duration::from_secs(20))?;
        println!("sample {index}: {sum}");
    }

    // The frontend says good-bye, then the accelerator stops.
    cluster.finish();
    stop.stop("the example is over");
    node.join()
        .map_err(|_| "the accelerator's thread panicked")?;
    Ok(())
}
