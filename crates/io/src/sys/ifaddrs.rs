//! `getifaddrs`.

use std::ffi::CStr;
use std::io;
use std::ptr;

use libc::{c_int, c_uint};

use super::check;
use crate::address::RawAddress;

/// Calls `each` with name, flags (IFF_*) and address of every IPv4 and IPv6 address of the machine.
pub(crate) fn getifaddrs(mut each: impl FnMut(&CStr, c_uint, &RawAddress)) -> io::Result<()> {
    let mut list = ptr::null_mut();
    // SAFETY: writes one pointer, a local one.
    check(unsafe { libc::getifaddrs(&mut list) })?;
    let guard = List(list);
    let mut entry = guard.0;
    // SAFETY: the list ends with null and is freed only when `guard` drops.
    while let Some(current) = unsafe { entry.as_ref() } {
        if let Some(address) = read_address(current.ifa_addr) {
            // SAFETY: every entry has a name that ends with a zero byte and lives as long as the list.
            each(
                unsafe { CStr::from_ptr(current.ifa_name) },
                current.ifa_flags,
                &address,
            );
        }
        entry = current.ifa_next;
    }
    Ok(())
}

struct List(*mut libc::ifaddrs);

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: this is what getifaddrs returned, and it is freed once.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

fn read_address(at: *const libc::sockaddr) -> Option<RawAddress> {
    // SAFETY: null (an interface without an address), or a live sockaddr of this list.
    let family = unsafe { at.as_ref() }?.sa_family;
    let len = match c_int::from(family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    let mut address = RawAddress::default();
    // SAFETY: the family says that `len` bytes are there, no more than a RawAddress holds, and any bytes are valid in
    // it.
    unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), address.as_mut_ptr().cast::<u8>(), len) };
    Some(address)
}
