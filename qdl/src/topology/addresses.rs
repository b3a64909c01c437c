//! Addresses of this machine's network interfaces, which sysfs does not contain.

use std::{
    collections::BTreeMap,
    ffi::CStr,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ptr,
};

use super::TopologyError;

/// Addresses of each network interface, IPv4 first, without link-local addresses.
pub type Addresses = BTreeMap<String, Vec<IpAddr>>;

/// Reads the addresses of this machine from the system.
///
/// # Errors
/// The system call `getifaddrs` fails.
pub(crate) fn interface_addresses() -> io::Result<Addresses> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `first` is a valid place for the returned pointer.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Addresses::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: `next` is `first` or an `ifa_next` of its list, alive until `freeifaddrs` below.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_name.is_null() || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: the pointer is not null, and the system ends names with a zero byte.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: the pointer is not null; every socket address begins with its family.
        let family = i32::from(unsafe { (*entry.ifa_addr).sa_family });
        let address = match family {
            libc::AF_INET => {
                // SAFETY: an address of this family is a `sockaddr_in`; the read does not require
                // alignment.
                let a = unsafe { ptr::read_unaligned(entry.ifa_addr.cast::<libc::sockaddr_in>()) };
                IpAddr::V4(Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr)))
            }
            libc::AF_INET6 => {
                // SAFETY: an address of this family is a `sockaddr_in6`; the read does not require
                // alignment.
                let a = unsafe { ptr::read_unaligned(entry.ifa_addr.cast::<libc::sockaddr_in6>()) };
                IpAddr::V6(Ipv6Addr::from(a.sin6_addr.s6_addr))
            }
            _ => continue,
        };
        if !is_link_local(&address) {
            let name = name.to_string_lossy().into_owned();
            found.entry(name).or_default().push(address);
        }
    }
    // SAFETY: `first` came from `getifaddrs`, and no pointer into the list remains.
    unsafe { libc::freeifaddrs(first) };
    found.values_mut().for_each(|list| list.sort_unstable());
    Ok(found)
}

/// Parses a file of addresses: lines with an interface and its addresses, separated by commas.
///
/// # Errors
/// [`TopologyError`] if a line is malformed; it names the line.
pub(crate) fn parse_addresses(text: &str) -> Result<Addresses, TopologyError> {
    let mut all = Addresses::new();
    for (i, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        let (Some(name), list) = (words.next(), words.next().unwrap_or_default()) else {
            continue;
        };
        let list = list.split(',').filter(|a| !a.is_empty()).map(|a| {
            a.parse().map_err(|_| {
                let line = i + 1;
                TopologyError(format!("addresses, line {line}: `{a}` is no address"))
            })
        });
        all.insert(name.to_owned(), list.collect::<Result<_, _>>()?);
    }
    Ok(all)
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_loopback_address() {
        let found = interface_addresses().expect("every system has interfaces");
        let loopback = |a: &IpAddr| a.is_loopback();
        assert!(found.values().flatten().any(loopback), "{found:?}");
    }
}
