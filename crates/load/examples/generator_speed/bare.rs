//! The barest loops: the same datagrams, handed to the kernel again and again.

use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::UdpGsoSegment;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg, setsockopt};

use crate::{Failure, LOOPBACK, segments, sink};

/// Datagrams of one `sendmmsg`, as many as the generator hands over at once.
const BATCH: usize = 256;

/// By `sendmmsg`.
pub(crate) fn single(size: usize, time: Duration) -> Result<f64, Failure> {
    let sink = sink(false)?;
    let socket = UdpSocket::bind(LOOPBACK)?;
    let datagram = vec![0x55u8; size];
    let messages = vec![[IoSlice::new(&datagram)]; BATCH];
    let to = vec![Some(SockaddrStorage::from(sink.local_addr())); BATCH];
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None);
    repeat(time, || {
        let sent = sendmmsg(
            socket.as_raw_fd(),
            &mut headers,
            &messages,
            &to,
            [],
            MsgFlags::empty(),
        )?;
        Ok(sent.count())
    })
}

/// By `sendto` with UDP_SEGMENT. With an address each time, as in the generator, whose sockets may send to several: a
/// connected socket saves the look-up of the route.
pub(crate) fn segmented(size: usize, time: Duration, gro: bool) -> Result<f64, Failure> {
    let sink = sink(gro)?;
    let socket = UdpSocket::bind(LOOPBACK)?;
    let to = sink.local_addr();
    setsockopt(&socket, UdpGsoSegment, &i32::try_from(size)?)?;
    let segments = segments(size);
    let train = vec![0x55u8; size * segments];
    repeat(time, || {
        socket.send_to(&train, to)?;
        Ok(segments)
    })
}

fn repeat(
    time: Duration,
    mut send: impl FnMut() -> Result<usize, Failure>,
) -> Result<f64, Failure> {
    let (start, processor) = (Instant::now(), io::clock::thread_cpu_ns());
    let mut sent = 0;
    while start.elapsed() < time {
        for _ in 0..16 {
            sent += send()?;
        }
    }
    let used = io::clock::thread_cpu_ns() - processor;
    Ok(sent as f64 * 1e9 / used as f64)
}
