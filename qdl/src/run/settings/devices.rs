//! Settings of devices and connections, from an entry of `nics`.

use fabric::{
    ib::{IbDeviceCfgs, IbWishes},
    ofi::{OfiDeviceCfgs, OfiError},
    os::Near,
};

use crate::{
    config::{Auto, NicConfig},
    topology::Topology,
};

/// Placement near the configured or the device's NUMA node; empty where sysfs does not say.
fn near(nic: &NicConfig) -> Near {
    let topology = Topology::of_this_machine().unwrap_or_default();
    topology.near(topology.node_of_nic(nic).as_slice())
}

/// Device settings of an entry with `device`.
pub fn ib_device(nic: &NicConfig) -> IbDeviceCfgs {
    IbDeviceCfgs {
        device: nic.device().to_owned(),
        port: nic.port,
        gid_index: match nic.gid_index {
            Auto::Auto => None,
            Auto::Fixed(index) => Some(index),
        },
        near: near(nic),
    }
}

/// Wishes for each connection of an entry with `device`.
pub fn ib(nic: &NicConfig) -> IbWishes {
    IbWishes {
        device: nic.device().to_owned(),
        queue_pairs: nic.queue_pairs,
        send_depth: nic.send_depth.fixed(),
        receive_depth: nic.receive_depth.fixed(),
        mtu: nic.mtu.fixed(),
        inline_bytes: nic.inline_bytes(),
        signal_every: nic.signal_every,
        solicited: nic.solicited,
        split_above: nic.adaptive_routing.split_above,
        service_level: nic.service_level,
        traffic_class: nic.traffic_class,
        timeout: nic.timeout,
        retry_count: nic.retry_count,
        rnr_retry: nic.rnr_retry,
        min_rnr_timer: nic.min_rnr_timer,
    }
}

/// Device settings of an entry with `ofi`.
///
/// # Errors
/// [`OfiError::Setting`]: the entry has `match` and stands for several NICs.
pub fn ofi_device(nic: &NicConfig) -> Result<OfiDeviceCfgs, OfiError> {
    if nic.matching.is_some() {
        return Err(OfiError::Setting {
            nic: nic.label(),
            key: "match",
            problem: "this entry stands for several NICs, and is to be spelled out".to_owned(),
        });
    }
    Ok(OfiDeviceCfgs {
        label: nic.label(),
        provider: nic.ofi().to_owned(),
        domain: nic.domain.clone(),
        address: nic.address.map(|a| a.to_string()),
        near: near(nic),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_with_nothing_set_has_the_defaults_of_the_fabric() {
        let nic = NicConfig::ib("mlx5_0");
        assert_eq!(
            ib(&nic),
            IbWishes {
                queue_pairs: nic.queue_pairs,
                ..IbWishes::new("mlx5_0")
            }
        );
    }
}
