//! Slots in GPU memory that a NIC writes, with a simulated GPU and NIC: the memory is registered as
//! a dma-buf, and any access through its addresses in this process faults.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use crate::harness::*;
use fabric::{
    Region,
    testkit::device_memory::{Handle, Pretended},
};
use qdl::{
    config::NicConfig,
    serve::{Arrival, Sent, Service, respond_all},
    testkit::{ib_keys, rig::finished},
};
use xxhash_rust::xxh3::xxh3_64;

/// Answers with digests of samples, which it reads as the GPU does.
#[derive(Default)]
struct OnGpu {
    handle: Arc<Handle>,
    regions: Mutex<Vec<Weak<Region>>>,
    /// Samples that arrived in GPU memory, and in host memory.
    landed: [AtomicU64; 2],
    /// Maximum bytes of one allocation of GPU memory; larger ones fail.
    most: Option<usize>,
}

impl OnGpu {
    fn read(&self, a: &Arrival) -> Vec<u8> {
        let mut bytes = vec![0; a.input_len()];
        let regions = self.regions.lock().expect("no panic");
        for region in regions.iter().filter_map(Weak::upgrade) {
            let offset = a.address().wrapping_sub(region.base() as usize);
            if offset < region.len() {
                // SAFETY: the sample has arrived, and its slot is not written until it is answered.
                unsafe { region.load(offset, &mut bytes) }.expect("it lies inside");
                return bytes;
            }
        }
        panic!("{a:?} lies in none of {} regions", regions.len())
    }
}

impl Service for OnGpu {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let each = arrivals.drain(..).map(|mut a| {
            let digest = if a.is_on_device() {
                assert!(a.input().is_empty());
                xxh3_64(&self.read(&a))
            } else {
                xxh3_64(a.input())
            };
            self.landed[usize::from(!a.is_on_device())].fetch_add(1, SeqCst);
            a.output()[..8].copy_from_slice(&digest.to_le_bytes());
            let done = finished(&a, 8, Sent::default());
            (a, done)
        });
        respond_all(each, &mut Vec::new());
    }

    fn slots(&self, gpu: Option<u32>, bytes: usize) -> Result<Arc<Region>, String> {
        assert_eq!(gpu, Some(77));
        if self.most.is_some_and(|most| bytes > most) {
            return Err(format!("{bytes} bytes are more than there are"));
        }
        let memory = Pretended::new(bytes, &self.handle).map_err(|e| e.to_string())?;
        let region = Arc::new(Region::of_device(Box::new(memory)));
        let mut regions = self.regions.lock().expect("no panic");
        regions.push(Arc::downgrade(&region));
        Ok(region)
    }
}

/// Runs `total` samples; returns how many arrived in GPU memory and in host memory.
fn run(service: OnGpu, gpudirect: bool, total: usize) -> (u64, u64) {
    let service = Arc::new(service);
    let erased: Arc<dyn Service> = service.clone();
    let mut nic = NicConfig::ib("stub1");
    nic.gpu = Some(77);
    ib_keys(&mut nic).gpudirect = gpudirect;
    let nics = vec![nic];
    let node = Running::start(NodeSetup {
        nics,
        service: erased,
        ..NodeSetup::default()
    });
    let entry = "  - device: stub0\n    queue_pairs: 3\n    slots: 16\n";
    let config = config_with(&[&node], entry, "");
    let front = Front::connect(&config, 64, total);
    for at in (0..total).step_by(50) {
        front.issue(at..(at + 50).min(total));
    }
    front.wait_done();
    assert_eq!(front.check(), 0, "nothing went again");
    drop(node);
    let [gpu, host] = &service.landed;
    (gpu.load(SeqCst), host.load(SeqCst))
}

#[test]
fn samples_land_in_the_memory_of_the_gpu() {
    let service = OnGpu::default();
    let handle = service.handle.clone();
    assert_eq!(run(service, true, 2_000), (2_000, 0));
    assert_eq!(handle.fences.load(SeqCst), 1, "the probe's");
}

#[test]
fn where_the_gpu_cannot_have_them_slots_are_in_the_hosts_memory() {
    let no_dma_buf = OnGpu::default();
    no_dma_buf.handle.no_dma_buf.store(true, SeqCst);
    let writes_are_not_seen = OnGpu::default();
    writes_are_not_seen.handle.blind.store(true, SeqCst);
    // Enough for the probe, and not for the slots of a connection.
    let full = OnGpu {
        most: Some((2 << 20) + 4096),
        ..OnGpu::default()
    };
    for (why, service, gpudirect) in [
        ("it is not wanted", OnGpu::default(), false),
        ("no dma-buf", no_dma_buf, true),
        ("the NIC's writes are not seen", writes_are_not_seen, true),
        ("no memory is left", full, true),
    ] {
        assert_eq!(run(service, gpudirect, 300), (0, 300), "{why}");
    }
}
