//! Describes GPUs from the PCIe bus, and NVIDIA's GPUs from NVML if the driver is installed.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::Library;
use qdl::topology::{PciAddress, Topology};

use super::{Gpu, Node};

const NVIDIA: u16 = 0x10de;
/// Constants of nvml.h.
const SUCCESS: c_int = 0;
const CLOCK_SM: c_int = 1;
/// Maximum NVLinks of a GPU, NVML's `NVML_NVLINK_MAX_LINKS`.
const NVLINKS: c_uint = 18;

type Device = *mut c_void;

#[repr(C)]
#[derive(Default)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlPciInfo_t`.
#[repr(C)]
struct PciInfo {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    id: c_uint,
    subsystem: c_uint,
    bus_id: [c_char; 32],
}

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

/// Fills in what NVML reports of the node's GPUs.
pub(super) fn ask(node: &mut Node) {
    let Some(nvml) = Nvml::open() else { return };
    node.gpu_driver = nvml.driver();
    for mut found in nvml.devices() {
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

struct Nvml(Library);

/// Calls a function of NVML with `value => type` for each argument; true if the library has the
/// function and the call succeeds.
macro_rules! call {
    ($nvml:expr, $name:literal $(, $arg:expr => $kind:ty)*) => {{
        // SAFETY: name and types are those of nvml.h, which never changes a versioned function.
        let function = unsafe {
            let name = concat!($name, "\0").as_bytes();
            $nvml.0.get::<unsafe extern "C" fn($($kind),*) -> c_int>(name)
        };
        // SAFETY: every pointer is to a live variable of the type that the function writes; where
        // the function takes a length, it is that of the buffer.
        let done: bool = function.ok().is_some_and(|f| unsafe { f($($arg),*) } == SUCCESS);
        done
    }};
}

impl Nvml {
    fn open() -> Option<Self> {
        // SAFETY: loads the driver's own library, whose initialisation has no preconditions.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        let nvml = Nvml(library);
        call!(nvml, "nvmlInit_v2").then_some(nvml)
    }

    fn driver(&self) -> String {
        let mut text = [0 as c_char; 96];
        call!(self, "nvmlSystemGetDriverVersion", text.as_mut_ptr() => *mut c_char, 96 => c_uint);
        let mut cuda: c_int = 0;
        call!(self, "nvmlSystemGetCudaDriverVersion_v2", &mut cuda => *mut c_int);
        let driver = words(&text);
        match cuda {
            0 => format!("NVIDIA driver {driver}"),
            n => format!(
                "NVIDIA driver {driver}, CUDA {}.{}",
                n / 1000,
                n % 1000 / 10
            ),
        }
    }

    fn devices(&self) -> Vec<Gpu> {
        let mut count: c_uint = 0;
        call!(self, "nvmlDeviceGetCount_v2", &mut count => *mut c_uint);
        (0..count).filter_map(|index| self.device(index)).collect()
    }

    fn device(&self, index: c_uint) -> Option<Gpu> {
        let mut device: Device = std::ptr::null_mut();
        let by_index = call!(self, "nvmlDeviceGetHandleByIndex_v2",
            index => c_uint, &mut device => *mut Device);
        if !by_index {
            return None;
        }
        let mut name = [0 as c_char; 96];
        call!(self, "nvmlDeviceGetName",
            device => Device, name.as_mut_ptr() => *mut c_char, 96 => c_uint);
        let mut memory = MemoryInfo::default();
        call!(self, "nvmlDeviceGetMemoryInfo", device => Device, &mut memory => *mut MemoryInfo);
        let (mut now, mut pending): (c_int, c_int) = (0, 0);
        let ecc = call!(self, "nvmlDeviceGetEccMode",
            device => Device, &mut now => *mut c_int, &mut pending => *mut c_int);
        let mut mhz: c_uint = 0;
        let clock = call!(self, "nvmlDeviceGetMaxClockInfo",
            device => Device, CLOCK_SM => c_int, &mut mhz => *mut c_uint);
        let (mut generation, mut width): (c_uint, c_uint) = (0, 0);
        let link = call!(self, "nvmlDeviceGetMaxPcieLinkGeneration",
            device => Device, &mut generation => *mut c_uint)
            && call!(self, "nvmlDeviceGetMaxPcieLinkWidth",
                device => Device, &mut width => *mut c_uint);
        // SAFETY: `PciInfo` holds integers and arrays of integers; all zeros are a valid value.
        let mut pci: PciInfo = unsafe { std::mem::zeroed() };
        call!(self, "nvmlDeviceGetPciInfo_v3", device => Device, &mut pci => *mut PciInfo);
        let nvlinks = (0..NVLINKS).filter(|link| {
            let mut active: c_int = 0;
            let known = call!(self, "nvmlDeviceGetNvLinkState",
                device => Device, *link => c_uint, &mut active => *mut c_int);
            known && active == 1
        });
        Some(Gpu {
            name: words(&name),
            bytes: memory.total,
            ecc: ecc.then_some(now == 1),
            max_mhz: clock.then_some(u64::from(mhz)),
            // NVML prints the PCI domain with eight digits, sysfs with four.
            pci: words(&pci.bus_id).to_ascii_lowercase(),
            pcie: link.then(|| format!("PCIe Gen{generation} x{width}")),
            nvlinks: u32::try_from(nvlinks.count()).unwrap_or(0),
        })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        call!(self, "nvmlShutdown");
    }
}

/// Text of a buffer that NVML has filled, up to its NUL.
fn words(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().map(|c| *c as u8).collect();
    let text = CStr::from_bytes_until_nul(&bytes).map(|c| c.to_string_lossy().into_owned());
    text.unwrap_or_default()
}
