//! `SIOCETHTOOL` with a single value.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check;

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Sets one on/off feature of the interface called `name` (at most 15 bytes and no zero among
/// them).
pub(crate) fn set_value(
    socket: BorrowedFd<'_>,
    name: &str,
    command: u32,
    on: bool,
) -> io::Result<()> {
    value(socket, name, command, on.into()).map(drop)
}

/// Gets a set of flags of the interface called `name`, under the same conditions.
pub(crate) fn get_flags(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    const ETHTOOL_GFLAGS: u32 = 0x25;
    value(socket, name, ETHTOOL_GFLAGS, 0)
}

fn value(socket: BorrowedFd<'_>, name: &str, command: u32, data: u32) -> io::Result<u32> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let mut value = EthtoolValue { command, data };
    // SAFETY: integers, bytes and a union of such: all zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the name is terminated (checked above). The data pointer leads to an ethtool_value, which all commands in
    // use read or write. Both outlive the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) })?;
    Ok(value.data)
}
