//! The format of frames between two processes on one host.
//!
//! ```text
//! length  kind  body
//!   32     8    length - 1 bytes; numbers are little-endian
//! ```

use super::Frame;
use crate::sip::balance::{BatchItem, ItemKind, SipBatch};
use sip::flow::{ConnectionKey, Flow, ListenerKey, Transport};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of a frame's length.
pub(super) const LENGTH_BYTES: usize = 4;

/// Bytes of a frame. A batch has at most 128 KiB and one message more.
pub(super) const MAX_FRAME_BYTES: usize = 64 << 20;

const TRANSPORTS: [Transport; 5] = [
    Transport::Udp,
    Transport::Tcp,
    Transport::Tls,
    Transport::Ws,
    Transport::Wss,
];

/// Writes a frame into `out`, in place of its contents.
pub(super) fn encode(frame: &Frame, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    match frame {
        Frame::Batch { to, batch } => {
            out.push(0);
            out.extend_from_slice(&to.to_le_bytes());
            out.extend_from_slice(&batch.from.to_le_bytes());
            for item in &batch.items {
                let bytes = batch.bytes.get(item.bytes.clone()).unwrap_or_default();
                put_kind(&item.kind, out);
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(bytes);
            }
        }
        Frame::Transactions { worker, ids } => {
            out.push(1);
            out.extend_from_slice(&worker.to_le_bytes());
            out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        }
        Frame::Bindings(records) => {
            out.push(2);
            out.extend_from_slice(records);
        }
        Frame::Settled => out.push(3),
    }
    let len = (out.len() - LENGTH_BYTES) as u32;
    out[..LENGTH_BYTES].copy_from_slice(&len.to_le_bytes());
}

/// Reads a frame without its length; `None` if it is none.
pub(super) fn decode(bytes: &[u8]) -> Option<Frame> {
    let mut rest = FrameReader(bytes);
    let [kind] = rest.take()?;
    Some(match kind {
        0 => Frame::Batch {
            to: u16::from_le_bytes(rest.take()?),
            batch: batch(&mut rest)?,
        },
        1 => Frame::Transactions {
            worker: u16::from_le_bytes(rest.take()?),
            ids: ids(rest.0)?,
        },
        2 => Frame::Bindings(rest.0.to_vec()),
        3 => Frame::Settled,
        _ => return None,
    })
}

fn ids(bytes: &[u8]) -> Option<Vec<u64>> {
    let (ids, rest) = bytes.as_chunks::<8>();
    let ids = ids.iter().map(|id| u64::from_le_bytes(*id));
    rest.is_empty().then(|| ids.collect())
}

fn batch(rest: &mut FrameReader<'_>) -> Option<SipBatch> {
    let mut batch = SipBatch {
        from: u16::from_le_bytes(rest.take()?),
        ..SipBatch::default()
    };
    while !rest.0.is_empty() {
        let kind = take_kind(rest)?;
        let len = u32::from_le_bytes(rest.take()?) as usize;
        let (bytes, behind) = rest.0.split_at_checked(len)?;
        rest.0 = behind;
        let start = batch.bytes.len();
        batch.bytes.extend_from_slice(bytes);
        batch.messages += usize::from(matches!(kind, ItemKind::Message { .. }));
        batch.items.push(BatchItem {
            kind,
            bytes: start..batch.bytes.len(),
        });
    }
    Some(batch)
}

fn put_kind(kind: &ItemKind, out: &mut Vec<u8>) {
    let mut put = |number: u8, key: ConnectionKey| {
        out.push(number);
        out.extend_from_slice(&key.0.to_le_bytes());
    };
    match kind {
        ItemKind::Message { flow, asked } => {
            out.push(0);
            out.extend_from_slice(&asked.to_le_bytes());
            put_flow(flow, out);
        }
        ItemKind::Names(key) => put(1, *key),
        ItemKind::Bytes(key) => put(2, *key),
        ItemKind::Closed(key) => put(3, *key),
        ItemKind::Unreachable => out.push(4),
        ItemKind::HalfClosed(key) => put(5, *key),
    }
}

fn take_kind(rest: &mut FrameReader<'_>) -> Option<ItemKind> {
    let [number] = rest.take()?;
    let key = |rest: &mut FrameReader<'_>| rest.take().map(u64::from_le_bytes).map(ConnectionKey);
    Some(match number {
        0 => {
            let asked = u16::from_le_bytes(rest.take()?);
            let flow = take_flow(rest)?;
            ItemKind::Message { flow, asked }
        }
        1 => ItemKind::Names(key(rest)?),
        2 => ItemKind::Bytes(key(rest)?),
        3 => ItemKind::Closed(key(rest)?),
        4 => ItemKind::Unreachable,
        5 => ItemKind::HalfClosed(key(rest)?),
        _ => return None,
    })
}

fn put_flow(flow: &Flow, out: &mut Vec<u8>) {
    let transport = TRANSPORTS.iter().position(|known| *known == flow.transport);
    out.push(transport.unwrap_or_default() as u8);
    out.push(flow.connection.is_some().into());
    out.extend_from_slice(&flow.listener.0.to_le_bytes());
    out.extend_from_slice(&flow.connection.map_or(0, |key| key.0).to_le_bytes());
    put_address(flow.local, out);
    put_address(flow.remote, out);
}

fn take_flow(rest: &mut FrameReader<'_>) -> Option<Flow> {
    let [transport, has_connection] = rest.take()?;
    let listener = u16::from_le_bytes(rest.take()?);
    let connection = u64::from_le_bytes(rest.take()?);
    Some(Flow {
        transport: *TRANSPORTS.get(usize::from(transport))?,
        listener: ListenerKey(listener),
        connection: (has_connection != 0).then_some(ConnectionKey(connection)),
        local: take_address(rest)?,
        remote: take_address(rest)?,
    })
}

fn put_address(address: SocketAddr, out: &mut Vec<u8>) {
    match address {
        SocketAddr::V4(v4) => {
            out.push(4);
            out.extend_from_slice(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            out.push(6);
            out.extend_from_slice(&v6.ip().octets());
            out.extend_from_slice(&v6.scope_id().to_le_bytes());
        }
    }
    out.extend_from_slice(&address.port().to_le_bytes());
}

fn take_address(rest: &mut FrameReader<'_>) -> Option<SocketAddr> {
    match rest.take()? {
        [4] => {
            let ip = Ipv4Addr::from(rest.take::<4>()?);
            let port = u16::from_le_bytes(rest.take()?);
            Some(SocketAddr::from((ip, port)))
        }
        [6] => {
            let ip = Ipv6Addr::from(rest.take::<16>()?);
            let scope = u32::from_le_bytes(rest.take()?);
            let port = u16::from_le_bytes(rest.take()?);
            Some(SocketAddrV6::new(ip, port, 0, scope).into())
        }
        _ => None,
    }
}

/// Bytes that are not read yet.
struct FrameReader<'a>(&'a [u8]);

impl FrameReader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(transport: Transport, local: &str, remote: &str) -> Flow {
        Flow {
            transport,
            listener: ListenerKey(7),
            connection: transport
                .is_reliable()
                .then_some(ConnectionKey(u64::MAX - 1)),
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
        }
    }

    fn all() -> SipBatch {
        let message = |flow| ItemKind::Message { flow, asked: 3 };
        let kinds = [
            message(flow(Transport::Udp, "192.0.2.1:5060", "198.51.100.1:1")),
            ItemKind::Names(ConnectionKey(1)),
            message(flow(Transport::Wss, "[fe80::1%2]:443", "[2001:db8::2]:9")),
            ItemKind::Bytes(ConnectionKey(2)),
            ItemKind::Closed(ConnectionKey(3)),
            ItemKind::Unreachable,
            ItemKind::HalfClosed(ConnectionKey(4)),
        ];
        let mut batch = SipBatch {
            from: 9,
            messages: 2,
            ..SipBatch::default()
        };
        for (number, kind) in kinds.into_iter().enumerate() {
            let start = batch.bytes.len();
            batch.bytes.extend(std::iter::repeat_n(b'x', number * 10));
            batch.items.push(BatchItem {
                kind,
                bytes: start..batch.bytes.len(),
            });
        }
        batch
    }

    #[test]
    fn a_frame_arrives_as_it_was_and_no_part_of_one_is_taken_for_another() {
        let frames = [
            Frame::Batch {
                to: 300,
                batch: all(),
            },
            Frame::Transactions {
                worker: 2,
                ids: vec![1, u64::MAX],
            },
            Frame::Bindings(b"records".to_vec()),
            Frame::Settled,
        ];
        for frame in &frames {
            let mut bytes = Vec::new();
            encode(frame, &mut bytes);
            let (length, body) = bytes.split_first_chunk::<LENGTH_BYTES>().unwrap();
            assert_eq!(u32::from_le_bytes(*length) as usize, body.len());
            let read = decode(body).unwrap();
            assert_eq!(format!("{read:?}"), format!("{frame:?}"));
        }
        let mut bytes = Vec::new();
        encode(&frames[0], &mut bytes);
        let whole = format!("{:?}", frames[0]);
        for end in LENGTH_BYTES..bytes.len() {
            // A batch may end behind any of its items.
            let read = decode(&bytes[LENGTH_BYTES..end]);
            assert!(read.is_none_or(|frame| format!("{frame:?}") != whole));
        }
        assert!(decode(&[9]).is_none());
    }
}
