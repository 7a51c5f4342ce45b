//! Sending without a queue: one system call for one buffer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use super::flush::{empty_header, part, set_control};
use crate::UdpSocket;
use crate::address::RawAddress;
use crate::control::{ControlWriter, SendControl};
use crate::sys;

/// Sends `bytes` from `from` if given: as one datagram, or cut up by UDP_SEGMENT every `segment` bytes.
pub(crate) fn send_at_once(
    socket: &UdpSocket,
    bytes: &[u8],
    segment: Option<u16>,
    to: SocketAddr,
    from: Option<IpAddr>,
) -> io::Result<()> {
    let raw = if socket.is_v6() {
        RawAddress::new_on_v6(to)
    } else {
        RawAddress::new(to)
    };
    let source = from.filter(|ip| *ip != socket.local_ip());
    if segment.is_none() && source.is_none() {
        return sys::send::sendto(socket.as_fd(), bytes, &raw).map(drop);
    }
    let mut buffer = SendControl::new();
    let mut control = ControlWriter::new(&mut buffer);
    if let Some(segment) = segment {
        control.segment_size(segment);
    }
    if let Some(source) = source {
        control.source(source, socket.is_v6());
    }
    let control_len = control.len();
    let mut payload = part(bytes.as_ptr(), bytes.len());
    let mut header = empty_header().msg_hdr;
    header.msg_name = raw.as_ptr().cast_mut().cast();
    header.msg_namelen = raw.len();
    header.msg_iov = &raw mut payload;
    header.msg_iovlen = 1;
    set_control(&mut header, &mut buffer, control_len);
    // SAFETY: address, iovec, control data and bytes are live locals or borrowed arguments.
    unsafe { sys::send::sendmsg(socket.as_fd(), &header) }.map(drop)
}
