//! Describes GPUs from the PCIe bus, and NVIDIA's from nvidia-smi, which comes with their driver.

use std::{
    io::Read,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use qdl::topology::{PciAddress, Topology};

use super::{Gpu, Node};

const NVIDIA: u16 = 0x10de;
/// Columns of nvidia-smi, in the order of [`gpu`].
const QUERY: &str = "--query-gpu=name,memory.total,ecc.mode.current,clocks.max.sm,pci.bus_id,\
                     pcie.link.gen.max,pcie.link.width.max";
/// Limit for nvidia-smi, which waits for a GPU that hangs.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn read(topology: &Topology) -> Vec<Gpu> {
    let all = topology.gpus.iter().map(|gpu| Gpu {
        name: match gpu.vendor {
            NVIDIA => "NVIDIA GPU".to_owned(),
            other => format!("GPU of PCI vendor {other:04x}"),
        },
        pci: gpu.place.address().map_or(String::new(), |a| a.to_string()),
        ..Gpu::default()
    });
    all.collect()
}

/// Fills in what the driver reports of the node's GPUs.
pub(super) fn ask(node: &mut Node) {
    let Some(gpus) = smi(&[QUERY, "--format=csv,noheader,nounits"]) else {
        return;
    };
    let about = smi(&["-q", "-i", "0", "-d", "ECC"]).unwrap_or_default();
    node.gpu_driver = driver(&about);
    for mut found in gpus.lines().filter_map(gpu) {
        let address = PciAddress::parse(&found.pci);
        let mut known = node.gpus.iter_mut();
        match known.find(|g| PciAddress::parse(&g.pci) == address) {
            Some(gpu) => {
                found.pci = gpu.pci.clone();
                *gpu = found;
            }
            None => node.gpus.push(found),
        }
    }
}

/// What nvidia-smi prints; `None` without it, or if it fails.
fn smi(args: &[&str]) -> Option<String> {
    let mut command = Command::new("nvidia-smi");
    let command = command.args(args).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
    let end = Instant::now() + PATIENCE;
    // Its output fits into a pipe.
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
    let mut text = String::new();
    child.stdout.take()?.read_to_string(&mut text).ok()?;
    child.wait().ok()?.success().then_some(text)
}

/// The versions at the head of `nvidia-smi -q`.
fn driver(text: &str) -> String {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let mut of = |name: &str| fields.find(|(key, _)| key.trim() == name);
    let parts = [
        ("Driver Version", "NVIDIA driver"),
        ("CUDA Version", "CUDA"),
    ]
    .map(|(key, word)| of(key).map(|(_, version)| format!("{word} {}", version.trim())));
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// A line of [`QUERY`]. What the driver does not know is in brackets, as `[N/A]`.
fn gpu(line: &str) -> Option<Gpu> {
    let cells: Vec<_> = line.split(", ").map(str::trim).collect();
    let [name, mib, ecc, mhz, pci, generation, lanes] = cells[..] else {
        return None;
    };
    let is_known = |text: &str| !text.starts_with('[');
    Some(Gpu {
        name: name.to_owned(),
        bytes: mib.parse::<u64>().unwrap_or(0) << 20,
        ecc: is_known(ecc).then(|| ecc == "Enabled"),
        max_mhz: mhz.parse().ok(),
        // The PCI domain has eight digits here, and four in sysfs.
        pci: pci.to_ascii_lowercase(),
        pcie: is_known(generation).then(|| format!("PCIe Gen{generation} x{lanes}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_what_its_driver_prints() {
        let line = "NVIDIA H200, 143771, Enabled, 1980, 00000000:00:06.0, 5, 16";
        let expected = Gpu {
            name: "NVIDIA H200".to_owned(),
            bytes: 143_771 << 20,
            ecc: Some(true),
            max_mhz: Some(1980),
            pci: "00000000:00:06.0".to_owned(),
            pcie: Some("PCIe Gen5 x16".to_owned()),
        };
        assert_eq!(gpu(line), Some(expected));
        let line = "NVIDIA T4, 15360, [N/A], [N/A], 00000000:00:1E.0, [N/A], [N/A]";
        let found = gpu(line).expect("a GPU");
        assert_eq!((found.ecc, found.max_mhz, found.pcie), (None, None, None));
        assert_eq!(gpu("No devices were found"), None);
        let head = "\n==============NVSMI LOG==============\n\nDriver Version     : 580.159.04\n\
                    CUDA Version       : 13.0\n\nAttached GPUs      : 1\n";
        assert_eq!(driver(head), "NVIDIA driver 580.159.04, CUDA 13.0");
    }
}
