//! Two of ethtool's calls: the firmware version of a driver, and the media of a port.

use std::{ffi::c_char, io, mem, net::UdpSocket, os::fd::AsRawFd};

/// From linux/sockios.h.
const SIOCETHTOOL: u32 = 0x8946;
/// `ETHTOOL_GSET` and `ETHTOOL_GDRVINFO` from linux/ethtool.h.
enum EthtoolCommand {
    Settings = 1,
    Driver = 3,
}
/// `PORT_*` from linux/ethtool.h.
const TWISTED_PAIR: u8 = 0;
const FIBRE: u8 = 3;
const DIRECT_ATTACH: u8 = 5;

/// Bytes of `struct ethtool_drvinfo`, which is larger than `struct ethtool_cmd`.
const MOST_BYTES: usize = 196;
/// Begin and end of `fw_version` in `struct ethtool_drvinfo`.
const FIRMWARE: std::ops::Range<usize> = 68..100;
/// Offset of `port` in `struct ethtool_cmd`.
const PORT: usize = 15;

/// The kernel's answer to either command. Its structure begins with the command's number.
#[repr(C, align(4))]
struct Answer([u8; MOST_BYTES]);

/// Firmware version that an interface's driver reports, if any.
pub(super) fn firmware(interface: &str) -> Option<String> {
    let answer = ask(interface, EthtoolCommand::Driver).ok()?;
    let text = String::from_utf8_lossy(&answer.0[FIRMWARE]);
    let text = text.split('\0').next().unwrap_or_default().trim();
    (!text.is_empty() && text != "N/A").then(|| text.to_owned())
}

/// Media of an interface's port, `copper` or `fiber`, if the driver reports it.
pub(super) fn media(interface: &str) -> Option<&'static str> {
    match ask(interface, EthtoolCommand::Settings).ok()?.0[PORT] {
        TWISTED_PAIR | DIRECT_ATTACH => Some("copper"),
        FIBRE => Some("fiber"),
        _ => None,
    }
}

fn ask(interface: &str, command: EthtoolCommand) -> io::Result<Answer> {
    // SAFETY: all bytes zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as c_char;
    }
    let mut answer = Answer([0; MOST_BYTES]);
    answer.0[..4].copy_from_slice(&(command as u32).to_ne_bytes());
    let pointer: *mut Answer = &mut answer;
    request.ifr_ifru.ifru_data = pointer.cast();
    let socket = UdpSocket::bind(("127.0.0.1", 0)).or_else(|_| UdpSocket::bind(("::1", 0)))?;
    // SAFETY: the socket is open, the name ends in zero, and `answer` has room for the kernel's
    // structure of each `EthtoolCommand` and outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_and_what_has_no_port_says_nothing() {
        assert_eq!(firmware("no_such_device"), None);
        assert_eq!(media("a_name_that_is_too_long_for_it"), None);
        // Loopback has no port settings.
        assert_eq!(media("lo"), None);
    }
}
