//! Addresses of accelerators, and this machine's address towards them.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket},
    path::Path,
};

use anyhow::{Context, bail};
use record::NodeRole;

use super::Result;

const DEFAULT: &str = "127.0.0.1:7400";
/// Offset of the data port from the control port.
const DATA: u16 = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedAccelerator {
    /// Address as the user wrote it.
    pub control: String,
    pub listen: SocketAddr,
    /// Data address. Port 0 (chosen by the system) on loopback, where no firewall is involved.
    pub data: SocketAddr,
    pub is_here: bool,
    pub role: NodeRole,
    pub file: String,
}

/// All accelerators, and this machine's address for data connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InitAddresses {
    pub accelerators: Vec<PlannedAccelerator>,
    pub address: IpAddr,
    /// True if the token is required on loopback too.
    pub token: bool,
}

impl InitAddresses {
    /// Resolves the addresses of `--accelerator`, `--prefill` and `--decode`.
    pub fn of(roles: &[(NodeRole, &Vec<String>)]) -> Result<Self> {
        let each = roles.iter();
        let each = each.flat_map(|(role, of_it)| of_it.iter().map(move |at| (*role, at.clone())));
        let mut controls: Vec<_> = each.collect();
        if controls.is_empty() {
            controls.push((NodeRole::Both, DEFAULT.to_owned()));
        }
        let mut accelerators: Vec<PlannedAccelerator> = Vec::with_capacity(controls.len());
        let mut from = None;
        for (role, control) in &controls {
            let word = match role {
                NodeRole::Both => "accelerator",
                role => role.as_str(),
            };
            let said = || format!("--{word} {control}");
            let mut found = control.to_socket_addrs().with_context(|| {
                format!("{}: expected HOST:PORT of a host that is known", said())
            })?;
            let listen = found
                .next()
                .with_context(|| format!("{}: it has no address", said()))?;
            if listen.port() == 0 || accelerators.iter().any(|a| a.listen == listen) {
                bail!(
                    "{}: give each accelerator a port of its own, from 1 on",
                    said()
                );
            }
            let own = route(listen).with_context(|| format!("{}: nothing leads there", said()))?;
            from.get_or_insert(own);
            let port = match listen.ip().is_loopback() {
                true => 0,
                false => listen.port().checked_add(DATA).unwrap_or(0),
            };
            accelerators.push(PlannedAccelerator {
                control: control.clone(),
                listen,
                data: SocketAddr::new(listen.ip(), port),
                is_here: own == listen.ip(),
                role: *role,
                file: match controls.iter().filter(|(of, _)| of == role).count() {
                    1 => format!("{word}.yaml"),
                    _ => {
                        let before = accelerators.iter().filter(|a| a.role == *role);
                        format!("{word}-{}.yaml", before.count() + 1)
                    }
                },
            });
        }
        Ok(InitAddresses {
            accelerators,
            address: from.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            token: false,
        })
    }

    /// Whether the token is required: off loopback, or by request.
    pub fn need_token(&self) -> bool {
        let far = |a: &PlannedAccelerator| !a.listen.ip().is_loopback();
        self.token || self.accelerators.iter().any(far)
    }
}

impl PlannedAccelerator {
    /// Returns the accelerator's unique node name.
    pub fn node(&self) -> String {
        let stem = Path::new(&self.file).file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    }
}

/// Returns this machine's source address towards `to`. Connecting a datagram socket sends nothing:
/// the kernel only looks up the route.
fn route(to: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use qdl::testkit::assert_has;

    use super::*;

    fn of(controls: &[&str]) -> Result<InitAddresses> {
        let controls = controls.iter().map(ToString::to_string).collect();
        InitAddresses::of(&[(NodeRole::Both, &controls)])
    }

    #[test]
    fn without_a_word_it_is_this_machine() {
        let addresses = of(&[]).expect("loopback");
        let [only] = &addresses.accelerators[..] else {
            panic!("{addresses:?}");
        };
        assert_eq!((only.control.as_str(), only.data.port()), (DEFAULT, 0));
        assert_eq!(only.file.as_str(), "accelerator.yaml");
        assert!(only.is_here);
        assert!(addresses.address.is_loopback() && !addresses.need_token());
    }

    #[test]
    fn several_have_files_and_names_of_their_own() {
        let addresses = of(&["127.0.0.1:7400", "[::1]:7401"]).expect("loopback");
        let files = addresses.accelerators.iter().map(|a| a.file.as_str());
        let files: Vec<_> = files.collect();
        assert_eq!(files, ["accelerator-1.yaml", "accelerator-2.yaml"]);
        assert_eq!(addresses.accelerators[1].node(), "accelerator-2");
        let roles = [
            vec!["127.0.0.1:7400".to_owned()],
            vec!["[::1]:7401".to_owned()],
        ];
        let roles = [
            (NodeRole::Prefill, &roles[0]),
            (NodeRole::Decode, &roles[1]),
        ];
        let addresses = InitAddresses::of(&roles).expect("loopback");
        let nodes: Vec<_> = addresses.accelerators.iter().map(|a| a.node()).collect();
        assert_eq!(nodes, ["prefill", "decode"]);
    }

    #[test]
    fn what_is_no_place_is_named() {
        for control in ["127.0.0.1", "127.0.0.1:0", "no such host:7400"] {
            let error = of(&[control]).expect_err("no place").to_string();
            assert_has(&error, &[&format!("--accelerator {control}")]);
        }
        let twice = of(&["127.0.0.1:7400", "127.0.0.1:7400"]).expect_err("one port");
        assert!(twice.to_string().contains("a port of its own"), "{twice}");
    }
}
