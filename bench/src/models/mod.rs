//! The models of the round in `configs/`, carried with the engine `digest` by both programs, beside
//! plain sockets that carry the same sizes and do the same work: each sample is hashed where it
//! landed, each byte of each answer written there and compared here.
//!
//! * `mod` - the rows, and the table
//! * `ours` - the two programs, and the memory they used
//! * `plain` - plain sockets, in two processes as well

mod ours;
mod plain;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use frontend::dataset::Dataset;
use qdl::config::{FrontendConfig, load_frontend};
use serde::Serialize;

use crate::{json, table::Table};

/// Samples of so many bytes on average, answers included, are measured beside plain sockets too:
/// for smaller ones see `bench fabric`, whose plain sockets are written for them.
const BESIDE_PLAIN: u64 = 256 << 10;
/// And from so many on, this is the least share of plain sockets' bytes per second.
const LARGE: u64 = 1 << 20;
const DUE: f64 = 0.95;

/// Folder below `configs`, what its files' names end with, samples of the data set (all of them
/// loaded), how often each goes.
const ROWS: [(&str, &str, usize, usize); 12] = [
    ("vision/3d-unet", "", 6, 3),
    ("speech/whisper", "", 256, 4),
    ("graph/rgat", "", 100_000, 4),
    ("recommendation/dlrm-v3", "", 1024, 4),
    ("video/wan-2.2", "", 8, 1),
    ("multimodal/qwen3-vl", "", 8000, 4),
    ("rag/e2e-rag-qna", "", 824, 100),
    ("rag/e2e-rag-db", "", 1024, 3),
    ("llm/llama3.1-8b", "-digest", 10_000, 4),
    ("llm/llama2-70b", "-digest", 10_000, 10),
    ("llm/gpt-oss-120b", "-digest", 6396, 4),
    ("llm/deepseek-r1", "-digest", 4388, 4),
];

/// What `bench models` is told.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of the programs `frontend` and `accelerator`
    #[arg(long, value_name = "DIR", default_value = "target/release")]
    programs: PathBuf,
    /// The folder `configs` of this project
    #[arg(long, value_name = "DIR", default_value = "configs")]
    configs: PathBuf,
    /// Only models whose folder has this in its name
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// How often each is measured, in turns with plain sockets; the table has the medians
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Where the rows go
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What the far end of the plain sockets is told.
#[derive(clap::Args)]
pub struct PeerArgs {
    #[command(flatten)]
    plan: plain::Plan,
}

/// The far end of the plain sockets.
///
/// # Errors
/// Sockets.
pub fn peer(args: &PeerArgs) -> Result<()> {
    plain::serve(&args.plan)
}

/// A model's samples.
struct Row {
    name: String,
    frontend: PathBuf,
    accelerator: PathBuf,
    config: FrontendConfig,
    dataset: Dataset,
    count: usize,
    times: usize,
}

impl Row {
    /// Bytes of all samples of the data set, and of their answers.
    fn bytes(&self) -> (u64, u64) {
        let answers = accelerator::engine::DigestAnswers::of(&self.config.model);
        let lens = (0..self.count).filter_map(|i| self.dataset.len(i));
        let lens = lens.map(|len| len as usize);
        lens.fold((0, 0), |(a, b), len| {
            (a + len as u64, b + answers.len(len) as u64)
        })
    }
}

/// One row of the table.
#[derive(Debug, Default, Serialize)]
struct Measured {
    model: String,
    samples: usize,
    sample_bytes: u64,
    answer_bytes: u64,
    compared: u64,
    gb_per_s: f64,
    plain_gb_per_s: Option<f64>,
    ratio: Option<f64>,
    frontend_announced: u64,
    frontend_used: u64,
    accelerator_announced: u64,
    accelerator_used: u64,
}

/// Measures, prints the table, writes the rows.
///
/// # Errors
/// A program failed, an answer was wrong, or a large payload fell short of plain sockets.
pub fn run(args: &Args) -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("qdl-bench-models-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
    let measured = all(args, &scratch);
    let _ = std::fs::remove_dir_all(&scratch);
    let rows = measured?;
    json::write(args.json.as_deref(), &rows)?;
    let short: Vec<_> = rows.iter().filter(|r| falls_short(r)).collect();
    for row in &short {
        println!(
            "{}: {:.3} of plain sockets, {DUE} is due from {LARGE} bytes on",
            row.model,
            row.ratio.unwrap_or(0.0)
        );
    }
    ensure!(short.is_empty(), "{} rows fall short", short.len());
    Ok(())
}

fn falls_short(row: &Measured) -> bool {
    row.sample_bytes.max(row.answer_bytes) >= LARGE && row.ratio.is_some_and(|r| r < DUE)
}

fn all(args: &Args, scratch: &Path) -> Result<Vec<Measured>> {
    let table = Table::new(&[
        ("model", 24),
        ("samples", 8),
        ("mean bytes", 10),
        ("answer", 10),
        ("GB/s", 8),
        ("plain", 8),
        ("ratio", 6),
        ("frontend says MiB", 10),
        ("uses", 10),
        ("accelerator says MiB", 10),
        ("uses", 10),
    ]);
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for (folder, suffix, count, times) in ROWS {
        if folder.contains(&args.only) {
            let row = prepare(args, scratch, folder, suffix, (count, times))?;
            match measure(args, scratch, &row) {
                Ok(measured) => {
                    table.row(measured.cells());
                    rows.push(measured);
                }
                Err(e) => {
                    println!("{folder}: {e:#}");
                    failed.push(folder);
                }
            }
        }
    }
    ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    Ok(rows)
}

impl Measured {
    /// Its row of the table.
    fn cells(&self) -> [String; 11] {
        let mib = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
        let or = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.3}"));
        [
            self.model.clone(),
            self.samples.to_string(),
            self.sample_bytes.to_string(),
            self.answer_bytes.to_string(),
            format!("{:.3}", self.gb_per_s),
            or(self.plain_gb_per_s),
            or(self.ratio),
            mib(self.frontend_announced),
            mib(self.frontend_used),
            mib(self.accelerator_announced),
            mib(self.accelerator_used),
        ]
    }
}

/// The pair of files with fewer samples, at ports of this run's own.
fn prepare(
    args: &Args,
    scratch: &Path,
    folder: &str,
    suffix: &str,
    (count, times): (usize, usize),
) -> Result<Row> {
    let control = ours::free_port()?;
    let file = |side: &str| -> Result<PathBuf> {
        let from = args
            .configs
            .join(folder)
            .join(format!("{side}{suffix}.yaml"));
        let text = std::fs::read_to_string(&from).with_context(|| from.display().to_string())?;
        let to = scratch.join(format!("{}-{side}.yaml", folder.replace('/', "-")));
        std::fs::write(&to, ours::rewritten(&text, control, count))?;
        Ok(to)
    };
    let (frontend, accelerator) = (file("frontend")?, file("accelerator")?);
    let config = load_frontend(&frontend)?;
    let dataset = Dataset::open(&config.dataset, &config.model, None)?;
    Ok(Row {
        name: folder.to_owned(),
        frontend,
        accelerator,
        config,
        dataset,
        count,
        times,
    })
}

fn measure(args: &Args, scratch: &Path, row: &Row) -> Result<Measured> {
    let (sent, answered) = row.bytes();
    let samples = row.count * row.times;
    let moved = (sent + answered) * row.times as u64;
    let count = row.count as u64;
    let mut m = Measured {
        model: row.name.clone(),
        samples,
        sample_bytes: sent / count,
        answer_bytes: answered / count,
        ..Measured::default()
    };
    ours::announced(row, &mut m)?;
    let beside = m.sample_bytes + m.answer_bytes >= BESIDE_PLAIN;
    let (mut ours, mut plain, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds.max(1) {
        let seconds = ours::run(args, scratch, row, samples, &mut m)?;
        ours.push(moved as f64 / seconds / 1e9);
        if beside {
            let seconds = plain::run(row, samples)?;
            plain.push(moved as f64 / seconds / 1e9);
            ratios.push(ours[ours.len() - 1] / plain[plain.len() - 1]);
        }
    }
    m.gb_per_s = median(ours).unwrap_or(0.0);
    m.plain_gb_per_s = median(plain);
    m.ratio = median(ratios);
    Ok(m)
}

fn median(mut of: Vec<f64>) -> Option<f64> {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied()
}
