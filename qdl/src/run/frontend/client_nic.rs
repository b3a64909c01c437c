//! The steps of opening a connection that differ between fabrics, at the frontend.
//!
//! | | `tcp` | `ib` | `ofi` |
//! | --- | --- | --- | --- |
//! | frontend, before `open` | draws a key | queue pair, describes it | endpoint, describes it |
//! | accelerator, for `opened` | states its address | connects queue pair | connects its endpoint |
//! | frontend, after `opened` | connects, proves the key | connects queue pair | exchanges hellos |

use std::{net::IpAddr, sync::Arc, time::Duration};

use crate::{
    config::{Deadlines, NicConfig, NicFabric},
    control::{ConnectionGrant, GrantTransport, Key, RequestTransport},
    run::{
        error::{ClusterError, NicError},
        ib_nic::IbNic,
        ofi_nic::{OfiNic, dial},
        settings,
    },
};
use fabric::{
    Endpoint, Link, OpenError, Region,
    ib::{IbConnection, check_memory},
    ofi::OfiConnection,
    tcp::{self, ConnectionSecret, Preamble, TcpCfgs, TcpDevice},
};

#[derive(Debug)]
pub(crate) enum ClientNic {
    Tcp {
        local: IpAddr,
        congestion: Option<String>,
        cfgs: TcpCfgs,
    },
    Ib(IbNic),
    Ofi(OfiNic),
}

/// Local half of a connection, made before the accelerator's answer.
#[derive(Debug)]
pub(crate) enum Prepared {
    Tcp(Key),
    Ib(Box<IbConnection>),
    Ofi(Box<OfiConnection>),
}

impl ClientNic {
    /// Opens the device, if any, and registers the samples' memory with it. `slots` is the size of
    /// all slots on this node, in bytes.
    pub(crate) fn open(
        index: usize,
        nic: &NicConfig,
        accelerators: usize,
        deadlines: &Deadlines,
        sources: &[Arc<Region>],
        slots: usize,
    ) -> Result<Self, ClusterError> {
        match &nic.fabric {
            NicFabric::Tcp(tcp) => Ok(ClientNic::Tcp {
                local: tcp.at().ip(),
                congestion: settings::congestion(tcp, &nic.label()).map_err(NicError::of(index))?,
                cfgs: settings::tcp(nic, tcp, deadlines),
            }),
            NicFabric::Ib(ib) => {
                let open = || -> Result<_, OpenError> {
                    check_memory(&ib.device, slots)?;
                    let nic = IbNic::open(nic, ib)?;
                    nic.resources.keep(sources)?;
                    Ok(nic)
                };
                Ok(ClientNic::Ib(open().map_err(NicError::of(index))?))
            }
            NicFabric::Ofi(ofi) => {
                let open = || -> Result<_, OpenError> {
                    let nic = OfiNic::open(nic, ofi, accelerators * nic.connections())?;
                    nic.check_memory(slots)?;
                    nic.resources.keep(sources)?;
                    Ok(nic)
                };
                Ok(ClientNic::Ofi(open().map_err(NicError::of(index))?))
            }
        }
    }

    /// Prepares the local half, and the parameters of the request.
    pub(crate) fn prepare(
        &self,
        index: usize,
        endpoint: impl FnOnce() -> Endpoint,
    ) -> Result<(Prepared, RequestTransport), ClusterError> {
        match self {
            ClientNic::Tcp { .. } => {
                let key = Key::random().map_err(NicError::of(index))?;
                Ok((Prepared::Tcp(key), RequestTransport::Tcp { key }))
            }
            ClientNic::Ib(nic) => {
                let half = nic.prepare(endpoint()).map_err(NicError::of(index))?;
                let end = half.end();
                Ok((Prepared::Ib(Box::new(half)), RequestTransport::Ib { end }))
            }
            ClientNic::Ofi(nic) => {
                let half = nic.prepare(endpoint()).map_err(NicError::of(index))?;
                let end = half.end().clone();
                Ok((Prepared::Ofi(Box::new(half)), RequestTransport::Ofi { end }))
            }
        }
    }

    /// Completes a connection that the accelerator has granted.
    pub(crate) async fn connect(
        &self,
        index: usize,
        prepared: Prepared,
        grant: &ConnectionGrant,
        endpoint: impl FnOnce() -> Endpoint,
        node: &str,
        deadline: Duration,
    ) -> Result<Link, ClusterError> {
        match (self, prepared, &grant.transport) {
            (
                ClientNic::Tcp {
                    local,
                    congestion,
                    cfgs,
                },
                Prepared::Tcp(key),
                GrantTransport::Tcp { address },
            ) => {
                let preamble = Preamble::new(grant.connection, grant.epoch);
                let preamble = preamble.map_err(NicError::of(index))?;
                let secret = ConnectionSecret {
                    key: key.0,
                    address: *address,
                };
                let congestion = congestion.as_deref();
                let stream =
                    TcpDevice::connect(*local, *address, &preamble, &secret, congestion, deadline)
                        .await;
                let stream = stream.map_err(|e| ClusterError::Failed(format!("{node}: {e}")))?;
                Ok(tcp::link(stream, endpoint(), cfgs)?)
            }
            (ClientNic::Ib(_), Prepared::Ib(half), GrantTransport::Ib { end }) => {
                Ok(half.connect(end).map_err(NicError::of(index))?)
            }
            (ClientNic::Ofi(_), Prepared::Ofi(half), GrantTransport::Ofi { end }) => {
                let link = dial(*half, end, deadline).await;
                Ok(link.map_err(NicError::of(index))?)
            }
            (_, _, granted) => {
                let problem = format!("{node} granted a {} connection", granted.fabric());
                Err(NicError::of(index)(problem).into())
            }
        }
    }
}
