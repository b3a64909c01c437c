//! Slots in the memory of a GPU, beside slots in the host's: the same samples through the same
//! connection, NIC thread, batcher and engine, over the fabric inside the process, whose writes go
//! to wherever the slots are. Counts copies for each batch, and compares the answers.
//!
//! ```text
//! cargo run --release -p accelerator --example resident -- CONFIG [ROUNDS]
//! ```
//!
//! CONFIG is an accelerator's with an engine on a GPU. Where the model's inputs are ragged, each
//! slot has samples of another length in every round. One line of JSON; exit code 1 where answers
//! differ.

use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use accelerator::{
    engine::cuda::Device,
    node::engine_params,
    pipeline::Options,
    pipelines::{self, Pipelines},
};
use anyhow::{Context, bail, ensure};
use fabric::{
    Endpoint, Event, Flushed, Grants, Imm, Link, Post, Region, SourceId, Window, os::Near, probe,
    testkit::memory,
};
use qdl::{
    connection::{NicThreadCfgs, Spin},
    model::ModelSpec,
    response::RESPONSE_HEADER_BYTES,
    run::request_stride,
    serve::{OnConnectionLost, ServeConnection, ServeConnectionCfgs, Server, Service},
};
use record::GpuRecord;
use serde_json::{Value, json};

/// What one poll of a NIC thread takes: so many slots arrive together, and become one batch.
const MOST: usize = 128;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    match run(&std::env::args().collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &[String]) -> anyhow::Result<bool> {
    let [_, config, rest @ ..] = args else {
        bail!("usage: resident CONFIG [ROUNDS]");
    };
    let rounds = rest.first().map_or(Ok(20), |s| s.parse())?;
    let config = qdl::config::load_accelerator(std::path::Path::new(config))?;
    let spec = config.model.spec();
    let file = config.model.file.as_deref();
    let mut params = engine_params(&config.engine, &config.model.name, file, spec.as_ref());
    // One batch at a time, so that nothing but the order of slots decides what a batch is.
    params.engine.threads = 1;
    let engines = pipelines::create(&params, &[params.engine.gpu])?;
    let options = Options::from(&params);
    let pipelines = Pipelines::start(engines, &options, |e| {
        eprintln!("error: {e}");
        std::process::exit(3);
    })?;
    let pipelines = Arc::new(pipelines);
    let slots = params.engine.max_batch.min(MOST);
    let model = pipelines.engine().model().clone();
    let size = request_stride(&model).context("a model too large")?;

    let gpu = |bytes| pipelines.slots(None, bytes).map_err(anyhow::Error::msg);
    let tried = gpu(2 << 20)?;
    let probed = probe(&tried, PATIENCE, |a, b| {
        let pair = memory::pair(a, b).map_err(|e| e.to_string())?;
        Ok((pair.0, pair.1))
    });
    let exported = tried.device().map(|d| d.dma_buf());
    let mut said = json!({
        "engine": pipelines.engine().name(), "model": model.name, "slots": slots, "sample_bytes": size,
        "direct": Device::open(params.engine.gpu)?.direct(),
        "probe": probed.as_ref().map_or_else(ToString::to_string, |()| "seen".to_owned()),
        "dma_buf": match exported {
            Some(Ok((_, at))) => format!("exported, at {at}"),
            Some(Err(e)) => e,
            None => "no device".to_owned(),
        },
    });
    probed.map_err(anyhow::Error::msg)?;

    let samples = Arc::new(Region::new(size * slots)?);
    fill(&samples, &model)?;
    let mut answers: Vec<Vec<Vec<u8>>> = Vec::new();
    for (name, region) in [
        ("pinned", Arc::new(Region::new(size * slots)?)),
        ("gpu", gpu(size * slots)?),
    ] {
        let mut connection = Connection::new(&pipelines, &model, slots, &samples, region)?;
        let all: Vec<u16> = (0..slots as u16).collect();
        let every_other: Vec<u16> = all.iter().copied().step_by(2).collect();
        let middle_first: Vec<u16> = [&all[slots / 2..], &all[..slots / 2]].concat();
        let mut each = serde_json::Map::new();
        for (order, of) in [
            ("in_order", &all),
            ("out_of_order", &middle_first),
            ("every_other", &every_other),
        ] {
            let before = record(&pipelines)?;
            let begun = Instant::now();
            for _ in 0..rounds {
                answers.push(connection.round(of)?);
            }
            let took = begun.elapsed();
            let since = record(&pipelines)?.since(&before);
            each.insert(order.to_owned(), told(&since, took));
            // The first of them is kept for comparing.
            answers.truncate(answers.len() + 1 - rounds.max(1));
        }
        said[name] = Value::Object(each);
    }
    let (pinned, on_gpu) = answers.split_at(3);
    let equal = pinned == on_gpu;
    let mut different = pinned[0].clone();
    different.sort();
    different.dedup();
    said["answers_equal"] = equal.into();
    said["different_answers"] = different.len().into();
    println!("{said}");
    Ok(equal)
}

fn record(pipelines: &Pipelines) -> anyhow::Result<GpuRecord> {
    let mut all = pipelines.gpus();
    all.pop().context("the engine uses no GPU")
}

fn told(r: &GpuRecord, took: Duration) -> Value {
    let batches = r.batches.batches().max(1) as f64;
    json!({
        "batches": r.batches.batches(), "samples": r.batches.samples(),
        "copies_per_batch": r.copies_in as f64 / batches, "in_place": r.in_place, "fences": r.fences,
        "bytes_in": r.bytes_in, "gathered": r.gathered,
        "copy_in_us_per_batch": r.copy_in_us as f64 / batches, "compute_us_per_batch": r.compute_us as f64 / batches,
        "seconds": took.as_secs_f64(),
    })
}

/// A connection over the fabric inside the process, its accelerator's end served by the pipelines.
struct Connection {
    link: Link,
    responses: Window,
    uses: Vec<u16>,
    size: usize,
    lengths: Lengths,
    round: usize,
    _server: Server,
}

impl Connection {
    fn new(
        pipelines: &Arc<Pipelines>,
        model: &ModelSpec,
        slots: usize,
        samples: &Arc<Region>,
        region: Arc<Region>,
    ) -> anyhow::Result<Self> {
        let size = request_stride(model).context("a model too large")?;
        let output = model.max_output_bytes().context("a model too large")?;
        let response_stride = (output + RESPONSE_HEADER_BYTES).next_multiple_of(64);
        let cfgs = ServeConnectionCfgs {
            session: 1,
            connection: 0,
            epoch: 1,
            gpu: None,
            slots,
            request_stride: size,
            response_stride,
            stream: fabric::wire::Stream::None,
        };
        let connection = Arc::new(ServeConnection::on_nodes(cfgs, &[], Some(region))?);
        let memory = Arc::new(Region::new(response_stride * slots)?);
        let responses = Window::new(memory, 0, response_stride, Arc::new(Grants::new(slots)))?;
        let ours = Endpoint {
            window: responses.clone(),
            sources: vec![samples.clone()],
            peer_slots: slots,
            peer_stride: size,
            peer_stream: fabric::wire::Stream::None,
            send_depth: 2 * slots,
        };
        let (link, theirs, _) = memory::pair(ours, connection.endpoint(2 * slots))?;
        let rail = NicThreadCfgs {
            name: "nic-0".to_owned(),
            spin: Spin::new(50_000),
            tick_ns: 25_000_000,
            near: Near::default(),
            begin: None,
        };
        let service: Arc<dyn Service> = pipelines.clone();
        let lost: Arc<OnConnectionLost> = Arc::new(|_| {});
        let server = Server::new(vec![rail], &service, &lost)?;
        server.attach(0, connection, theirs);
        Ok(Connection {
            link,
            responses,
            uses: vec![0; slots],
            size,
            lengths: Lengths::of(model),
            round: 0,
            _server: server,
        })
    }

    /// Sends the sample of each of these slots with one doorbell, and waits for all answers, in the
    /// order of the slots.
    fn round(&mut self, slots: &[u16]) -> anyhow::Result<Vec<Vec<u8>>> {
        self.round += 1;
        for slot in slots {
            let at = usize::from(*slot);
            // The response's use is the request's: both ends count alike.
            let used = self.responses.grants().open(*slot);
            self.uses[at] = used.context("a slot is still in use")?;
            self.link.tx.post(&Post {
                source: SourceId(0),
                offset: at * self.size,
                len: self.lengths.at(self.round * 7 + at) as u32,
                at: 0,
                imm: Imm::new(*slot, self.uses[at]),
            })?;
        }
        let end = Instant::now() + PATIENCE;
        let mut came = vec![None; self.uses.len()];
        let mut left = slots.len();
        while left > 0 {
            ensure!(Instant::now() < end, "{left} answers are missing");
            let mut broken = None;
            if self.link.tx.flush()? == Flushed::Blocked {
                std::thread::yield_now();
            }
            self.link.rx.poll(MOST, &mut |event| match event {
                Event::Arrived { imm, len, .. } => {
                    came[usize::from(imm.slot())] = Some(len as usize);
                    left -= 1;
                }
                Event::Broken(b) => broken = Some(b),
                Event::Control(_) => {}
            });
            if let Some(b) = broken {
                bail!("the connection broke: {b}");
            }
        }
        let mut answers = Vec::with_capacity(slots.len());
        for slot in slots {
            let len = came[usize::from(*slot)].context("an answer came twice")?;
            let at = self.responses.slot_offset(*slot) + RESPONSE_HEADER_BYTES;
            let payload = len.saturating_sub(RESPONSE_HEADER_BYTES);
            // SAFETY: the response has arrived, and the slot is granted again in the next round
            // only.
            let bytes = unsafe { self.responses.region().bytes(at, payload) }?;
            answers.push(bytes.to_vec());
        }
        Ok(answers)
    }
}

/// Bytes of samples.
struct Lengths {
    fixed: usize,
    /// Of one row of all ragged tensors together, and how many rows there are at most.
    row: usize,
    rows: usize,
}

impl Lengths {
    fn of(model: &ModelSpec) -> Self {
        let mut of = Lengths {
            fixed: 0,
            row: 0,
            rows: 0,
        };
        for t in &model.inputs {
            let (bytes, rows) = (t.bytes().unwrap_or(0), t.shape.first().copied());
            match rows.filter(|rows| t.ragged && *rows > 0) {
                Some(rows) => (of.row, of.rows) = (of.row + bytes / rows, rows),
                None => of.fixed += bytes,
            }
        }
        of
    }

    /// Of the `n`th sample: long and short ones in turn.
    fn at(&self, n: usize) -> usize {
        match self.rows {
            0 => self.fixed,
            rows => self.fixed + self.row * (1 + n * 61 % rows),
        }
    }
}

/// Blots of many values: samples of zeros would all be answered alike. Elements of several bytes
/// are zeros and ones, which every table of a model has.
fn fill(samples: &Region, model: &ModelSpec) -> anyhow::Result<()> {
    let width = model.inputs.first().map_or(1, |t| t.dtype.bytes());
    // SAFETY: nobody else knows the region yet.
    let bytes = unsafe { samples.bytes_mut(0, samples.len())? };
    let mut x = 0x9E37_79B9_7F4A_7C15_u64;
    for chunk in bytes.chunks_mut(16) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        if width == 1 {
            // Within the 17 steps of a pixel of the digits.
            chunk.fill((x % 17) as u8);
        } else {
            for (i, element) in chunk.chunks_mut(width).enumerate() {
                element[0] = (x >> i) as u8 & 1;
            }
        }
    }
    Ok(())
}
