//! Two of ethtool's calls: a driver's firmware, and what a port is made for.

use std::{ffi::c_char, io, mem, net::UdpSocket, os::fd::AsRawFd};

/// `SIOCETHTOOL`, `ETHTOOL_GSET` and `ETHTOOL_GDRVINFO` of linux/sockios.h and linux/ethtool.h.
const SIOCETHTOOL: u32 = 0x8946;
const GSET: u32 = 1;
const GDRVINFO: u32 = 3;
/// `PORT_*` of linux/ethtool.h.
const TWISTED_PAIR: u8 = 0;
const FIBRE: u8 = 3;
const DIRECT_ATTACH: u8 = 5;

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DrvInfo {
    cmd: u32,
    driver: [u8; 32],
    version: [u8; 32],
    fw_version: [u8; 32],
    bus_info: [u8; 32],
    erom_version: [u8; 32],
    reserved: [u8; 12],
    counts: [u32; 5],
}

/// `struct ethtool_cmd`.
#[repr(C)]
struct Settings {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    duplex: u8,
    port: u8,
    rest: [u8; 28],
}

// The kernel copies as many bytes as its own structs have.
const _: () = assert!(size_of::<DrvInfo>() == 196);
const _: () = assert!(size_of::<Settings>() == 44);

/// A structure of integers whose first field is ethtool's command.
///
/// # Safety
/// All bit patterns are values of it, and it is at least as large as the kernel's for `command`.
unsafe trait Request: Sized {
    const COMMAND: u32;
}

// SAFETY: integers and arrays of them; the sizes are asserted above.
unsafe impl Request for DrvInfo {
    const COMMAND: u32 = GDRVINFO;
}

// SAFETY: integers and an array of them; the size is asserted above.
unsafe impl Request for Settings {
    const COMMAND: u32 = GSET;
}

/// The firmware that an interface's driver names.
pub(super) fn firmware(interface: &str) -> Option<String> {
    let info: DrvInfo = ask(interface).ok()?;
    let text = String::from_utf8_lossy(&info.fw_version);
    let text = text.split('\0').next().unwrap_or_default().trim();
    (!text.is_empty() && text != "N/A").then(|| text.to_owned())
}

/// `copper` or `fiber`.
pub(super) fn media(interface: &str) -> Option<&'static str> {
    match ask::<Settings>(interface).ok()?.port {
        TWISTED_PAIR | DIRECT_ATTACH => Some("copper"),
        FIBRE => Some("fiber"),
        _ => None,
    }
}

fn ask<T: Request>(interface: &str) -> io::Result<T> {
    // SAFETY: all bytes zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as c_char;
    }
    // SAFETY: `Request` promises that zeros are a value.
    let mut data: T = unsafe { mem::zeroed() };
    let pointer: *mut T = &mut data;
    // SAFETY: a request begins with a u32, its command.
    unsafe { pointer.cast::<u32>().write(T::COMMAND) };
    request.ifr_ifru.ifru_data = pointer.cast();
    let socket = UdpSocket::bind(("127.0.0.1", 0)).or_else(|_| UdpSocket::bind(("::1", 0)))?;
    // SAFETY: the descriptor is open, the name ends in zero, and the data is as large as the kernel
    // writes for this command and lives through the call.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_and_what_has_no_port_says_nothing() {
        assert_eq!(firmware("no_such_device"), None);
        assert_eq!(media("a_name_that_is_too_long_for_it"), None);
        // Loopback has no settings of a port.
        assert_eq!(media("lo"), None);
    }
}
