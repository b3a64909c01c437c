//! A NIC of a libfabric provider, for both sides.

use std::{sync::Arc, time::Duration};

use crate::{
    config::NicConfig,
    fabric::{
        Endpoint, Link, Region,
        ofi::{OfiCfgs, OfiConnection, OfiDevice, OfiEnd, OfiError, OfiResources},
    },
};

/// Looks at a first message that come one after the other; then others have their turn.
const EAGER: usize = 64;
/// The pause between later looks.
const PAUSE: Duration = Duration::from_millis(1);

/// A NIC that connections are opened on.
#[derive(Debug)]
pub(super) struct OfiNic {
    resources: Arc<OfiResources>,
    config: Box<NicConfig>,
}

impl OfiNic {
    /// Opens the NIC, for at least so many connections.
    pub fn open(config: &NicConfig, connections: usize) -> Result<Self, OfiError> {
        let device = OfiDevice::open(config)?;
        let info = device.info();
        let most = info.endpoints();
        if most > 0 && connections > most {
            return Err(OfiError::Setting {
                nic: device.name(),
                key: "connections",
                problem: format!(
                    "{connections} connections need an endpoint each, and the provider has {most}"
                ),
            });
        }
        tracing::info!(
            "{} is up: {}libfabric {}, writes arrive {}",
            device.name(),
            info.gbps()
                .map_or(String::new(), |g| format!("{g} Gbit/s, ")),
            info.ofi().version(),
            if device.keeps_order() {
                "in order"
            } else {
                "in any order"
            },
        );
        Ok(OfiNic {
            resources: OfiResources::new(device)?,
            config: Box::new(config.clone()),
        })
    }

    /// Makes memory known that is sent from, for good.
    pub fn keep(&self, sources: &[Arc<Region>]) -> Result<(), OfiError> {
        self.resources.keep(sources)
    }

    /// Half a connection, which does not know its peer yet.
    pub fn prepare(&self, endpoint: Endpoint) -> Result<OfiConnection, OfiError> {
        let cfgs = OfiCfgs::resolve(&self.config, self.resources.device(), &endpoint)?;
        OfiConnection::prepare(&self.resources, endpoint, &cfgs)
    }

    /// Both steps of the side that answers: its end, and the link, over which the peer speaks
    /// first.
    pub fn accept(&self, endpoint: Endpoint, peer: &OfiEnd) -> Result<(OfiEnd, Link), OfiError> {
        let half = self.prepare(endpoint)?;
        let end = half.end().clone();
        Ok((end, half.accept(peer)?))
    }
}

/// Introduces the peer and waits until a message has crossed both ways.
pub(super) async fn dial(
    half: OfiConnection,
    peer: &OfiEnd,
    deadline: Duration,
) -> Result<Link, OfiError> {
    let mut dialling = half.dial(peer)?;
    let started = tokio::time::Instant::now();
    let mut looks = 0;
    while !dialling.step()? {
        if started.elapsed() >= deadline {
            return Err(dialling.too_late(deadline));
        }
        looks += 1;
        if looks < EAGER {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(dialling.link())
}
