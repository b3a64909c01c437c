//! `qdl endpoints`: around a result of MLPerf Endpoints' client.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use gateway::{
    endpoints::{
        baseline::{Baseline, ROUND_TRIPS},
        compare::{self, CompareArgs},
    },
    nodes::GatewayNodes,
};
use machine::{Node, Role};
use submission::endpoints::{self, CheckArgs, ClientConfig, Endpoint, EndpointNode};

/// Describes a point of MLPerf Endpoints, checks a submission, and compares the client's result
/// with the gateway's own figures
#[derive(Clone, Debug, Parser)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct EndpointsArgs {
    #[command(subcommand)]
    task: Task,
}

#[derive(Clone, Debug, Subcommand)]
enum Task {
    /// Write drafts of system_desc.json, point.yaml and documentation/network.md beside a result
    ///
    /// Runs on the client's machine while the gateway runs: it measures the round trip to the
    /// gateway, and counts the routers on the way. A file that exists is kept. What only you know
    /// says FILL IN.
    Describe(DescribeArgs),
    /// Refuse drafts that still say FILL IN, then run MLCommons' endpoints-submission-cli
    ///
    /// Exit code 1: something is to be filled in, or the checker found an error.
    Check(CheckArgs),
    /// Show a client's result and the gateway's figures side by side, and whose time it is
    ///
    /// Exit code 1: a stream was cut, samples failed, or the counts differ.
    Compare(CompareArgs),
}

#[derive(Clone, Debug, Args)]
struct DescribeArgs {
    /// Folder that the gateway wrote with --output
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The client's report folder, with its config.yaml: the drafts are written there
    #[arg(value_name = "CLIENT")]
    client: PathBuf,
    /// The gateway's address; default: the first endpoint in the client's config.yaml
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

/// Runs the command. Returns whether all is well.
///
/// # Errors
/// A file cannot be read or written, or the gateway does not answer; the text names it.
pub fn command(args: &EndpointsArgs) -> Result<bool, String> {
    match &args.task {
        Task::Describe(args) => describe(args).map(|()| true),
        Task::Check(args) => endpoints::check(args).map_err(|e| e.to_string()),
        Task::Compare(args) => compare::command(args),
    }
}

fn describe(args: &DescribeArgs) -> Result<(), String> {
    let nodes = GatewayNodes::read(&args.run)?;
    let client = ClientConfig::read(&args.client).map_err(|e| e.to_string())?;
    let url = args.url.as_deref().or(client.url());
    let url = url.ok_or("the client's config.yaml names no endpoint: write --url")?;
    let measured = Baseline::measure(url)?;
    let times = measured.round_trip_ns;
    let us = |ns: u64| ns as f64 / 1e3;
    let round_trips = format!(
        "p50 {:.1} us, p90 {:.1} us, p99 {:.1} us, longest {:.1} us, of {ROUND_TRIPS}",
        us(times.p50),
        us(times.p90),
        us(times.p99),
        us(times.max)
    );
    println!("{url}: {round_trips}");
    let own = Node::of_this_machine(Role::Frontend, env!("CARGO_PKG_VERSION"));
    let slowest = |node: &str| {
        let of_node = |name: &str| name.rsplit_once('/').is_some_and(|(peer, _)| peer == node);
        let paths = nodes.connections.iter().filter(|path| of_node(&path.name));
        paths.filter_map(|path| path.network_us).max()
    };
    let endpoint = Endpoint {
        client: own.map_err(|e| e.to_string())?,
        gateway: nodes.gateway.clone(),
        fabric: nodes.fabric.clone(),
        accelerators: { nodes.accelerators.iter() }
            .map(|accelerator| EndpointNode {
                network_us: slowest(&accelerator.machine.node),
                machine: accelerator.machine.clone(),
                engine: accelerator.engine.clone(),
            })
            .collect(),
        baseline: endpoints::Baseline {
            client: measured.client,
            gateway: measured.gateway,
            routers: measured.routers,
            round_trips,
        },
    };
    let drafts = endpoints::draft(&endpoint, &client, &args.client).map_err(|e| e.to_string())?;
    for (path, is_new) in drafts {
        let what = if is_new { "written" } else { "kept, it exists" };
        println!("{}: {what}", path.display());
    }
    Ok(())
}
