//! Settings of devices and connections, from an entry of `nics`.

use fabric::{
    OpenError,
    ib::{IbDeviceCfgs, IbWishes},
    ofi::{NicAddress, OfiDeviceCfgs},
    os::Near,
};

use crate::{
    config::{IbKeys, NicConfig, OfiKeys},
    topology::Topology,
};

/// Placement near the configured or the device's NUMA node; empty where sysfs does not say.
fn near(topology: &Topology, nic: &NicConfig) -> Near {
    topology.near(topology.node_of_nic(nic).as_slice())
}

pub(crate) fn ib_device(topology: &Topology, nic: &NicConfig, ib: &IbKeys) -> IbDeviceCfgs {
    IbDeviceCfgs {
        device: ib.device.clone(),
        port: ib.port,
        gid_index: ib.gid_index.fixed(),
        near: near(topology, nic),
    }
}

/// Requested settings of each connection of an entry with `device`.
pub(crate) fn ib(nic: &NicConfig, ib: &IbKeys) -> IbWishes {
    IbWishes {
        device: ib.device.clone(),
        queue_pairs: ib.queue_pairs,
        send_depth: ib.send_depth.fixed(),
        receive_depth: ib.receive_depth.fixed(),
        mtu: ib.mtu.fixed(),
        inline_bytes: nic.inline_bytes(),
        signal_every: ib.signal_every,
        solicited: ib.solicited,
        split_above: ib.adaptive_routing.split_above,
        service_level: ib.service_level,
        traffic_class: ib.traffic_class,
        timeout: ib.timeout,
        retry_count: ib.retry_count,
        rnr_retry: ib.rnr_retry,
        min_rnr_timer: ib.min_rnr_timer,
    }
}

/// Device settings of an entry with `ofi`.
///
/// # Errors
/// [`OpenError::Setting`]: the entry has `match` and stands for several NICs.
pub(crate) fn ofi_device(nic: &NicConfig, ofi: &OfiKeys) -> Result<OfiDeviceCfgs, OpenError> {
    if nic.matching.is_some() {
        return Err(OpenError::Setting {
            nic: nic.label(),
            key: "match",
            problem: "this entry stands for several NICs, and is to be spelled out".to_owned(),
        });
    }
    Ok(OfiDeviceCfgs {
        label: nic.label(),
        at: NicAddress {
            provider: ofi.provider.clone(),
            domain: ofi.domain.clone(),
            address: ofi.address.map(|a| a.to_string()),
        },
        near: near(&Topology::of_this_machine().unwrap_or_default(), nic),
    })
}
