//! Reads whether the link of a NIC is down.

use std::{ffi::c_short, fs, io, net::IpAddr, path::PathBuf};

use super::interface_addresses;

/// Reads the link state of one NIC. An unreadable state does not count as down.
#[derive(Clone, Debug)]
pub struct LinkWatch(Of);

#[derive(Clone, Debug)]
enum Of {
    /// Name of a network interface.
    Interface(String),
    /// Path of the `state` file of an RDMA device's port.
    Port(PathBuf),
    Unknown,
}

impl LinkWatch {
    /// Watches the network interface that has this address now.
    pub fn of_address(address: IpAddr) -> Self {
        let all = interface_addresses().unwrap_or_default();
        let mut with_it = all.into_iter().filter(|(_, list)| list.contains(&address));
        LinkWatch(
            with_it
                .next()
                .map_or(Of::Unknown, |(name, _)| Of::Interface(name)),
        )
    }

    /// Watches a port of an RDMA device.
    pub fn of_port(device: &str, port: u8) -> Self {
        let port = port.to_string();
        let path: PathBuf = ["/sys/class/infiniband", device, "ports", &port, "state"]
            .iter()
            .collect();
        LinkWatch(Of::Port(path))
    }

    /// Returns the name if the NIC is a network interface.
    pub fn interface(&self) -> Option<&str> {
        match &self.0 {
            Of::Interface(name) => Some(name),
            Of::Port(_) | Of::Unknown => None,
        }
    }

    /// Returns whether the link is down; `None` if the state is unreadable. Costs one to three
    /// system calls.
    pub fn is_down(&self) -> Option<bool> {
        match &self.0 {
            Of::Interface(name) => {
                let flags = i32::from(interface_flags(name).ok()?);
                Some(flags & libc::IFF_UP == 0 || flags & libc::IFF_RUNNING == 0)
            }
            Of::Port(path) => {
                // "4: ACTIVE"; 5 is ACTIVE_DEFER, which still completes transfers.
                let state = fs::read_to_string(path).ok()?;
                let number = state.split(':').next()?.trim().parse::<u8>().ok()?;
                Some(number < 4)
            }
            Of::Unknown => None,
        }
    }
}

fn interface_flags(name: &str) -> io::Result<c_short> {
    // SAFETY: all-zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let socket = std::net::UdpSocket::bind(("127.0.0.1", 0))
        .or_else(|_| std::net::UdpSocket::bind(("::1", 0)))?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: `fd` is open during the call; the name in the request ends with a zero byte.
    if unsafe { libc::ioctl(fd, libc::SIOCGIFFLAGS, &mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the successful call has written the flags.
    Ok(unsafe { request.ifr_ifru.ifru_flags })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_up_and_what_is_not_there_is_not_known() {
        let loopback = LinkWatch::of_address(IpAddr::from([127, 0, 0, 1]));
        assert_eq!(loopback.interface(), Some("lo"));
        assert_eq!(loopback.is_down(), Some(false));
        let none = LinkWatch::of_address(IpAddr::from([192, 0, 2, 77]));
        assert_eq!(none.is_down(), None);
        assert_eq!(LinkWatch::of_port("no_such_device", 1).is_down(), None);
    }
}
