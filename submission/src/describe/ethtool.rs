//! Two of ethtool's calls: the firmware version of a driver, and the media of a port.

use std::{ffi::c_char, io, mem, net::UdpSocket, os::fd::AsRawFd};

/// `SIOCETHTOOL`, `ETHTOOL_GSET` and `ETHTOOL_GDRVINFO` from linux/sockios.h and linux/ethtool.h.
const SIOCETHTOOL: u32 = 0x8946;
const GSET: u32 = 1;
const GDRVINFO: u32 = 3;
/// `PORT_*` from linux/ethtool.h.
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

// The kernel copies as many bytes as its own structures have.
const _: () = assert!(size_of::<DrvInfo>() == 196);
const _: () = assert!(size_of::<Settings>() == 44);

/// A structure of integers whose first field is ethtool's command.
///
/// # Safety
/// Every bit pattern must be a valid value, and the type must be at least as large as the
/// kernel's structure for `COMMAND`.
unsafe trait Request: Sized {
    const COMMAND: u32;
}

// SAFETY: the type holds integers and arrays of integers; its size is asserted above.
unsafe impl Request for DrvInfo {
    const COMMAND: u32 = GDRVINFO;
}

// SAFETY: the type holds integers and an array of integers; its size is asserted above.
unsafe impl Request for Settings {
    const COMMAND: u32 = GSET;
}

/// Firmware version that an interface's driver reports, if any.
pub(super) fn firmware(interface: &str) -> Option<String> {
    let info: DrvInfo = ask(interface).ok()?;
    let text = String::from_utf8_lossy(&info.fw_version);
    let text = text.split('\0').next().unwrap_or_default().trim();
    (!text.is_empty() && text != "N/A").then(|| text.to_owned())
}

/// Media of an interface's port, `copper` or `fiber`, if the driver reports it.
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
    // SAFETY: `Request` guarantees that all zeros are a valid value.
    let mut data: T = unsafe { mem::zeroed() };
    let pointer: *mut T = &mut data;
    // SAFETY: `Request` guarantees a leading u32, the command; `pointer` comes from `data`.
    unsafe { pointer.cast::<u32>().write(T::COMMAND) };
    request.ifr_ifru.ifru_data = pointer.cast();
    let socket = UdpSocket::bind(("127.0.0.1", 0)).or_else(|_| UdpSocket::bind(("::1", 0)))?;
    // SAFETY: the socket is open, the name ends in zero, and `Request` guarantees that `data` has
    // room for the kernel's answer. `data` outlives the call.
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
        // Loopback has no port settings.
        assert_eq!(media("lo"), None);
    }
}
