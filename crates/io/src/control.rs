//! Ancillary data: the `cmsghdr` records beside a message.
//!
//! ```text
//!  0              8       12      16                       cmsg_len
//!  | cmsg_len     | level | type  | data ................. | padding to 8
//! ```
//! (8 and 16 are 4 and 12 where pointers have 4 bytes.) Written and read as bytes, so that nothing here is unsafe.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{c_int, cmsghdr};

const WORD: usize = size_of::<usize>();
const HEADER: usize = size_of::<cmsghdr>();

const _: () = {
    assert!(offset_of!(cmsghdr, cmsg_len) == 0);
    assert!(offset_of!(cmsghdr, cmsg_level) == WORD);
    assert!(offset_of!(cmsghdr, cmsg_type) == WORD + 4);
    assert!(HEADER == WORD + 8 && HEADER.is_multiple_of(WORD));
};

/// Bytes aligned as the kernel expects of a `msg_control` buffer.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControlBuffer<const N: usize> {
    pub(crate) bytes: [u8; N],
}

/// Room for UDP_SEGMENT, IPV6_PKTINFO and IPV6_TCLASS: 24 + 40 + 24.
pub(crate) type SendControl = ControlBuffer<88>;

/// Room for the control messages with a local address, TOS, TTL, UDP_GRO, SO_RXQ_OVFL and SO_TIMESTAMPING (40, 24, 24,
/// 24, 24 and 64 bytes), and 24 bytes for one more.
pub(crate) type RecvControl = ControlBuffer<224>;

impl<const N: usize> ControlBuffer<N> {
    pub(crate) const fn new() -> ControlBuffer<N> {
        ControlBuffer { bytes: [0; N] }
    }
}

/// Appends records to a buffer.
pub(crate) struct ControlWriter<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> ControlWriter<'a> {
    pub(crate) fn new(buffer: &'a mut SendControl) -> ControlWriter<'a> {
        ControlWriter {
            bytes: &mut buffer.bytes,
            len: 0,
        }
    }

    /// Bytes used so far: `msg_controllen`.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn push<const D: usize>(&mut self, level: c_int, kind: c_int, data: [u8; D]) {
        let record = &mut self.bytes[self.len..][..(HEADER + D).next_multiple_of(WORD)];
        record[..WORD].copy_from_slice(&(HEADER + D).to_ne_bytes());
        record[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        record[WORD + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        record[HEADER..HEADER + D].copy_from_slice(&data);
        self.len += record.len();
    }

    /// Cut what follows into datagrams of `size` bytes.
    pub(crate) fn segment_size(&mut self, size: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, size.to_ne_bytes());
    }

    /// TOS (`v4`) or traffic class.
    pub(crate) fn tos(&mut self, tos: u8, v4: bool) {
        let (level, kind) = if v4 {
            (libc::IPPROTO_IP, libc::IP_TOS)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
        };
        self.push(level, kind, c_int::from(tos).to_ne_bytes());
    }

    /// Source address. On an IPv6 socket (`v6_socket`) an IPv4 address is mapped.
    pub(crate) fn source(&mut self, ip: IpAddr, v6_socket: bool) {
        match (ip, v6_socket) {
            (IpAddr::V4(ip), false) => self.source_v4(ip),
            (IpAddr::V4(ip), true) => self.source_v6(ip.to_ipv6_mapped()),
            (IpAddr::V6(ip), _) => self.source_v6(ip),
        }
    }

    /// in_pktinfo: interface index (0: by route), source address, destination (ignored).
    fn source_v4(&mut self, ip: Ipv4Addr) {
        let mut info = [0; size_of::<libc::in_pktinfo>()];
        let at = offset_of!(libc::in_pktinfo, ipi_spec_dst);
        info[at..at + 4].copy_from_slice(&ip.octets());
        self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
    }

    /// in6_pktinfo: source address, interface index (0: by route).
    fn source_v6(&mut self, ip: Ipv6Addr) {
        let mut info = [0; size_of::<libc::in6_pktinfo>()];
        info[..16].copy_from_slice(&ip.octets());
        self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
    }
}

/// What a received message's records say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ancillary {
    pub(crate) local_ip: Option<IpAddr>,
    pub(crate) tos: u8,
    pub(crate) ttl: Option<u8>,
    pub(crate) segment_size: Option<usize>,
    pub(crate) drops: Option<u32>,
    /// Since 1970, nanoseconds.
    pub(crate) arrived_ns: Option<u64>,
}

impl Ancillary {
    /// Reads the records of `control`, the first `msg_controllen` bytes of the buffer.
    #[inline]
    pub(crate) fn parse(mut control: &[u8]) -> Ancillary {
        let mut found = Ancillary::default();
        while let Some((level, kind, data, rest)) = split_record(control) {
            found.take(level, kind, data);
            control = rest;
        }
        found
    }

    #[inline]
    fn take(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                self.segment_size = int(data)
                    .and_then(|size| usize::try_from(size).ok())
                    .filter(|&size| size > 0);
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                self.drops = int(data).map(|drops| drops as u32)
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => self.arrived_ns = software_time(data),
            (libc::IPPROTO_IP, libc::IP_TOS) => self.tos = octet(data).unwrap_or(0),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => self.tos = octet(data).unwrap_or(0),
            (libc::IPPROTO_IP, libc::IP_TTL) => self.ttl = octet(data),
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => self.ttl = octet(data),
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // ipi_spec_dst, not ipi_addr: for a broadcast it is the address to answer from.
                let at = offset_of!(libc::in_pktinfo, ipi_spec_dst);
                let ip = data.get(at..).and_then(|rest| rest.first_chunk::<4>());
                self.local_ip = ip.map(|&octets| IpAddr::V4(octets.into()));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                self.local_ip = data
                    .first_chunk::<16>()
                    .map(|&octets| IpAddr::V6(octets.into()));
            }
            _ => {}
        }
    }
}

/// The first of three times of 16 bytes each; the others are of hardware. `None` where times are shorter, and where it
/// is not set.
fn software_time(data: &[u8]) -> Option<u64> {
    let half = |at: usize| {
        let bytes = data.get(at..).and_then(|rest| rest.first_chunk::<8>());
        bytes.map(|&bytes| u64::from_ne_bytes(bytes))
    };
    let whole = data.len() == 3 * 16;
    let (seconds, nanoseconds) = (half(0).filter(|_| whole)?, half(8)?);
    let time = seconds
        .checked_mul(1_000_000_000)?
        .checked_add(nanoseconds)?;
    (time > 0).then_some(time)
}

/// Level, type and data of the first record, and what follows it.
#[inline]
pub(crate) fn split_record(control: &[u8]) -> Option<(c_int, c_int, &[u8], &[u8])> {
    let len = usize::from_ne_bytes(*control.first_chunk::<WORD>()?);
    let data = control.get(HEADER..len)?;
    let level = int(&control[WORD..])?;
    let kind = int(&control[WORD + 4..])?;
    let rest = control.get(len.next_multiple_of(WORD)..).unwrap_or(&[]);
    Some((level, kind, data, rest))
}

#[inline]
fn int(data: &[u8]) -> Option<c_int> {
    data.first_chunk::<4>()
        .map(|&bytes| c_int::from_ne_bytes(bytes))
}

/// An octet that comes as one byte (IP_TOS) or as an int (the others).
#[inline]
fn octet(data: &[u8]) -> Option<u8> {
    int(data).map_or_else(|| data.first().copied(), |value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut ControlWriter<'_>)) -> Vec<u8> {
        let mut buffer = SendControl::new();
        let mut writer = ControlWriter::new(&mut buffer);
        write(&mut writer);
        let len = writer.len();
        buffer.bytes[..len].to_vec()
    }

    #[test]
    fn records_written_are_the_records_read() {
        let bytes = written(|w| {
            w.segment_size(120);
            w.source("192.0.2.7".parse().unwrap(), false);
            w.tos(0xb8, true);
        });
        let mut read = Vec::new();
        let mut rest = bytes.as_slice();
        while let Some((level, kind, data, next)) = split_record(rest) {
            read.push((level, kind, data.len()));
            rest = next;
        }
        let expected = [
            (libc::SOL_UDP, libc::UDP_SEGMENT, 2),
            (libc::IPPROTO_IP, libc::IP_PKTINFO, 12),
            (libc::IPPROTO_IP, libc::IP_TOS, 4),
        ];
        assert_eq!(read, expected);
        let ancillary = Ancillary::parse(&bytes);
        assert_eq!(ancillary.local_ip, Some("192.0.2.7".parse().unwrap()));
        assert_eq!(ancillary.tos, 0xb8);
    }

    #[test]
    fn the_largest_set_fits_exactly() {
        let bytes = written(|w| {
            w.segment_size(1200);
            w.source("192.0.2.7".parse().unwrap(), true);
            w.tos(1, false);
        });
        assert_eq!(bytes.len(), size_of::<SendControl>());
        assert_eq!(
            Ancillary::parse(&bytes).local_ip,
            Some("::ffff:192.0.2.7".parse().unwrap())
        );
    }

    #[test]
    fn malformed_records_end_the_walk() {
        assert_eq!(Ancillary::parse(&[]), Ancillary::default());
        assert_eq!(Ancillary::parse(&[0; 24]), Ancillary::default());
        let mut bytes = written(|w| w.tos(7, true));
        bytes[..WORD].copy_from_slice(&usize::MAX.to_ne_bytes());
        assert_eq!(Ancillary::parse(&bytes), Ancillary::default());
        let short = written(|w| w.tos(7, true))[..HEADER + 2].to_vec();
        assert_eq!(Ancillary::parse(&short), Ancillary::default());
    }

    #[test]
    fn octets_are_read_in_both_widths() {
        assert_eq!(octet(&[0xb8]), Some(0xb8));
        assert_eq!(octet(&64i32.to_ne_bytes()), Some(64));
        assert_eq!(octet(&(-1i32).to_ne_bytes()), None);
        assert_eq!(octet(&[]), None);
    }
}
