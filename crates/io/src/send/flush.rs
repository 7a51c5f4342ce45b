//! Sends the datagrams of the queue: builds messages for the kernel, with GSO where possible, and handles errors.

use std::ffi::c_void;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::AsFd;
use std::{io, mem, ptr, slice};

use libc::{iovec, mmsghdr, msghdr};

use super::Flushed;
use super::queue::{END_OF_LIST, Entry, Flow, Queue};
use super::refused::GsoRefusal;
use crate::UdpSocket;
use crate::control::{ControlWriter, SendControl};
use crate::icmp::retry_after_icmp;
use crate::sys;

/// Most payload in one IPv4 send: 65,535 less the headers of IPv4 and UDP. An IPv6 header is 20 bytes longer; it is not
/// counted in its length field, but offloading devices count it.
const MAX_RUN_V4: usize = 65_507;
const MAX_RUN_V6: usize = 65_487;

static PADDING: [u8; 3] = [0; 3];

/// Kernel messages, built for one lane at a time: the flows of one socket. The vectors have their full capacity from
/// the start and never move.
pub(super) struct Wire {
    messages: Vec<Message>,
    /// The headers of the messages with the same index.
    headers: Vec<mmsghdr>,
    controls: Vec<SendControl>,
    iovecs: Vec<iovec>,
}

/// A run of datagrams of one flow that leave together.
#[derive(Clone, Copy, Debug)]
struct Message {
    flow: u32,
    first: u32,
    count: u32,
    dont_fragment: bool,
}

/// Datagrams of a flow that follow each other and leave in one message.
struct Run {
    /// How many there are.
    count: u32,
    /// The entry after the last of them.
    next: u32,
}

impl Wire {
    pub(super) fn new(capacity: usize) -> Wire {
        Wire {
            messages: Vec::with_capacity(capacity),
            headers: (0..capacity).map(|_| empty_header()).collect(),
            controls: vec![SendControl::new(); capacity],
            // Prefix, payload and padding.
            iovecs: Vec::with_capacity(capacity * 3),
        }
    }
}

impl Queue {
    /// Sends everything and empties the queue.
    ///
    /// # Safety
    /// Every buffer and socket pushed since the last `forget` must still be alive.
    pub(super) unsafe fn transmit(&mut self, counts: &mut Flushed) {
        for lane in 0..self.lanes.len() {
            let lane = self.lanes[lane];
            // SAFETY: the socket was pushed, and the caller guarantees that it is alive.
            let socket = unsafe { &*lane.socket };
            // SAFETY: the caller guarantees that the buffers of all entries are alive.
            unsafe {
                if lane.first != lane.last || !self.send_lone(socket, lane.first, counts) {
                    self.send_lane(socket, lane.first, counts);
                }
            }
        }
        self.forget();
    }

    /// Sends the only datagram of a lane with `sendto`. Returns `false` and sends nothing if the flow has more
    /// datagrams, or if the datagram needs a control message or several buffers.
    ///
    /// # Safety
    /// As for `transmit`.
    unsafe fn send_lone(&self, socket: &UdpSocket, flow: u32, counts: &mut Flushed) -> bool {
        let flow = &self.flows[flow as usize];
        let entry = &self.entries[flow.first as usize];
        if flow.first != flow.last
            || entry.tos != 0
            || entry.pad != 0
            || flow.source(socket).is_some()
        {
            return false;
        }
        let datagram = match (entry.prefix_len, entry.payload_len) {
            // SAFETY: pointer and length are of a pushed payload. The caller guarantees that it is alive.
            (0, len) => unsafe { slice::from_raw_parts(entry.payload, len as usize) },
            (len, 0) => &self.prefixes[entry.prefix_at as usize..][..len.into()],
            _ => return false,
        };
        let result = set_dont_fragment(socket, entry.dont_fragment, counts).and_then(|()| {
            counts.syscalls += 1;
            retry_after_icmp(socket, || {
                sys::send::sendto(socket.as_fd(), datagram, &flow.raw)
            })
        });
        match result {
            Ok(len) => {
                counts.sent += 1;
                counts.sent_bytes += len as u64;
                counts.per_call.count(1);
            }
            Err(error) => counts.count_error(&error, 1),
        }
        true
    }

    /// Builds the messages of all flows of a lane, and sends them.
    ///
    /// # Safety
    /// As for `transmit`.
    unsafe fn send_lane(&mut self, socket: &UdpSocket, first_flow: u32, counts: &mut Flushed) {
        self.wire.messages.clear();
        self.wire.iovecs.clear();
        let mut flow = first_flow;
        while flow != END_OF_LIST {
            let mut entry = self.flows[flow as usize].first;
            while entry != END_OF_LIST {
                let run = if self.gso {
                    self.cut_run(flow, entry)
                } else {
                    Run {
                        count: 1,
                        next: self.after(entry),
                    }
                };
                self.append(socket, flow, entry, run.count);
                entry = run.next;
            }
            flow = self.flows[flow as usize].next;
        }
        // SAFETY: the messages were just built from entries. The caller guarantees that their buffers are alive.
        unsafe { self.send_messages(socket, 0..self.wire.messages.len(), counts) };
    }

    /// The next entry of the same flow.
    fn after(&self, entry: u32) -> u32 {
        self.entries[entry as usize].next
    }

    /// The longest run that begins with the entry `first`. Its datagrams have the same TOS, DF and size; only the last
    /// may be shorter.
    fn cut_run(&mut self, flow: u32, first: u32) -> Run {
        let to = self.flows[flow as usize].to.ip();
        let head = self.entries[first as usize];
        let size = head.len();
        let mut run = Run {
            count: 1,
            next: head.next,
        };
        if size == 0 || head.next == END_OF_LIST {
            return run;
        }
        let limit = if to.is_ipv4() { MAX_RUN_V4 } else { MAX_RUN_V6 };
        let mut total = size;
        while run.next != END_OF_LIST && (run.count as usize) < self.max_segments {
            let entry = &self.entries[run.next as usize];
            let len = entry.len();
            let alike = entry.tos == head.tos && entry.dont_fragment == head.dont_fragment;
            if !alike || len == 0 || len > size || total + len > limit {
                break;
            }
            if run.count == 1 && !self.refused.allows(to, size) {
                break;
            }
            run = Run {
                count: run.count + 1,
                next: entry.next,
            };
            total += len;
            if len < size {
                break;
            }
        }
        run
    }

    /// Builds one message of `count` datagrams of `flow`, from the entry `first` on.
    fn append(&mut self, socket: &UdpSocket, flow: u32, first: u32, count: u32) {
        let index = self.wire.messages.len();
        let iovecs_before = self.wire.iovecs.len();
        let head = self.entries[first as usize];
        let mut entry = head;
        self.push_iovecs(&entry);
        for _ in 1..count {
            entry = self.entries[entry.next as usize];
            self.push_iovecs(&entry);
        }
        let flow_at = &self.flows[flow as usize];
        let mut control = ControlWriter::new(&mut self.wire.controls[index]);
        if count > 1 {
            // At most 65,507, or there would not be two.
            control.segment_size(head.len() as u16);
        }
        if let Some(source) = flow_at.source(socket) {
            control.source(source, socket.is_v6());
        }
        if head.tos != 0 {
            control.tos(head.tos, flow_at.to.is_ipv4());
        }
        let control_len = control.len();
        let header = &mut self.wire.headers[index].msg_hdr;
        header.msg_name = flow_at.raw.as_ptr().cast_mut().cast();
        header.msg_namelen = flow_at.raw.len();
        // SAFETY: within the vector, or one past its end if the message is empty.
        header.msg_iov = unsafe { self.wire.iovecs.as_mut_ptr().add(iovecs_before) };
        header.msg_iovlen = (self.wire.iovecs.len() - iovecs_before) as _;
        set_control(header, &mut self.wire.controls[index], control_len);
        self.wire.messages.push(Message {
            flow,
            first,
            count,
            dont_fragment: head.dont_fragment,
        });
    }

    fn push_iovecs(&mut self, entry: &Entry) {
        let iovecs = &mut self.wire.iovecs;
        debug_assert!(
            iovecs.capacity() - iovecs.len() >= 3,
            "iovecs must not move"
        );
        if entry.prefix_len != 0 {
            let prefix = &self.prefixes[entry.prefix_at as usize..][..entry.prefix_len.into()];
            iovecs.push(part(prefix.as_ptr(), prefix.len()));
        }
        if entry.payload_len != 0 {
            iovecs.push(part(entry.payload, entry.payload_len as usize));
        }
        if entry.pad != 0 {
            iovecs.push(part(PADDING.as_ptr(), entry.pad.into()));
        }
    }

    /// Sends the built messages in `range` in as few system calls as possible. The DF bit is an option of the socket,
    /// so each call sends messages with the same bit.
    ///
    /// # Safety
    /// What their headers point to must be alive.
    unsafe fn send_messages(
        &mut self,
        socket: &UdpSocket,
        range: Range<usize>,
        counts: &mut Flushed,
    ) {
        let mut at = range.start;
        while at < range.end {
            let dont_fragment = self.wire.messages[at].dont_fragment;
            let rest = &self.wire.messages[at..range.end];
            let group_end = at
                + rest
                    .iter()
                    .take_while(|message| message.dont_fragment == dont_fragment)
                    .count();
            if let Err(error) = set_dont_fragment(socket, dont_fragment, counts) {
                counts.count_error(&error, self.datagrams(at..group_end));
                at = group_end;
            }
            while at < group_end {
                counts.syscalls += 1;
                // SAFETY: the caller guarantees that what the headers point to is alive.
                match unsafe { send_some(socket, &mut self.wire.headers[at..group_end]) } {
                    Ok(sent) => {
                        self.count_sent(at..at + sent, counts);
                        at += sent;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        // The buffer is full, so the rest would fail as well, with a system call each.
                        counts.count_error(&error, self.datagrams(at..range.end));
                        return;
                    }
                    Err(error) => {
                        // SAFETY: the caller guarantees that what the message points to is alive.
                        unsafe { self.recover(socket, at, &error, counts) };
                        at += 1;
                    }
                }
            }
        }
    }

    /// Handles the error that the kernel returned for the message at `at`. If GSO caused it, sends the datagrams one by
    /// one. Otherwise, drops them.
    ///
    /// # Safety
    /// As for `send_messages`.
    unsafe fn recover(
        &mut self,
        socket: &UdpSocket,
        at: usize,
        error: &io::Error,
        counts: &mut Flushed,
    ) {
        let Message {
            flow, first, count, ..
        } = self.wire.messages[at];
        let refusal = GsoRefusal::of(error).filter(|_| count > 1);
        let Some(refusal) = refusal else {
            return counts.count_error(error, count.into());
        };
        match refusal {
            GsoRefusal::Size => counts.gso_wrong_size += 1,
            GsoRefusal::Path => counts.gso_unsupported += 1,
        }
        counts.gso_refused += 1;
        let to = self.flows[flow as usize].to.ip();
        let size = self.entries[first as usize].len();
        self.refused.remember(to, size, refusal);
        let singles = self.wire.messages.len();
        let iovecs = self.wire.iovecs.len();
        let mut entry = first;
        for _ in 0..count {
            self.append(socket, flow, entry, 1);
            entry = self.after(entry);
        }
        // SAFETY: the messages are built from the entries of the refused message. Each has a single datagram, so that
        // `recover` does not call itself again.
        unsafe { self.send_messages(socket, singles..self.wire.messages.len(), counts) };
        self.wire.messages.truncate(singles);
        self.wire.iovecs.truncate(iovecs);
    }

    /// The number of datagrams in these messages.
    fn datagrams(&self, range: Range<usize>) -> u64 {
        self.wire.messages[range]
            .iter()
            .map(|message| u64::from(message.count))
            .sum()
    }

    /// Counts the messages that one system call has sent.
    fn count_sent(&mut self, range: Range<usize>, counts: &mut Flushed) {
        let before = counts.sent;
        for (message, header) in self.wire.messages[range.clone()]
            .iter()
            .zip(&self.wire.headers[range])
        {
            counts.sent += u64::from(message.count);
            counts.sent_bytes += u64::from(header.msg_len);
            if message.count > 1 {
                counts.gso_runs += 1;
                counts.gso_segments += u64::from(message.count);
                self.refused.note_success();
            }
        }
        counts.per_call.count(counts.sent - before);
    }
}

impl Flow {
    /// The source address that the kernel must use. `None` if the socket is bound to it, or there is none.
    fn source(&self, socket: &UdpSocket) -> Option<IpAddr> {
        self.from_ip.filter(|ip| *ip != socket.local_ip())
    }
}

/// Sets the DF option of the socket, and counts the system call if one was needed.
fn set_dont_fragment(socket: &UdpSocket, wanted: bool, counts: &mut Flushed) -> io::Result<()> {
    counts.syscalls += u64::from(socket.set_dont_fragment(wanted)?);
    Ok(())
}

/// Sends at least the first of the messages. Returns how many were sent.
///
/// # Safety
/// What the headers point to must be alive.
unsafe fn send_some(socket: &UdpSocket, headers: &mut [mmsghdr]) -> io::Result<usize> {
    if let [only] = headers {
        // SAFETY: the caller guarantees that what the header points to is alive.
        let sent = retry_after_icmp(socket, || unsafe {
            sys::send::sendmsg(socket.as_fd(), &only.msg_hdr)
        })?;
        only.msg_len = sent as _;
        return Ok(1);
    }
    // SAFETY: the caller guarantees that what the headers point to is alive.
    retry_after_icmp(socket, || unsafe {
        sys::send::sendmmsg(socket.as_fd(), headers)
    })
}

pub(super) fn set_control(header: &mut msghdr, control: &mut SendControl, len: usize) {
    header.msg_control = if len == 0 {
        ptr::null_mut()
    } else {
        (&raw mut *control).cast::<c_void>()
    };
    header.msg_controllen = len as _;
}

pub(super) fn part(base: *const u8, len: usize) -> iovec {
    // The kernel only reads what is sent; `iovec` has no const variant.
    iovec {
        iov_base: base.cast_mut().cast(),
        iov_len: len,
    }
}

pub(super) fn empty_header() -> mmsghdr {
    // SAFETY: integers and pointers only: all zeros are valid, null pointers with zero lengths.
    unsafe { mem::zeroed() }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire")
            .field("messages", &self.messages)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SendOptions, SendTo, UdpOptions};

    const PAYLOADS: [&[u8]; 3] = [b"one", b"two", b"six"];

    fn socket(address: &str) -> UdpSocket {
        UdpSocket::bind(address.parse().unwrap(), &UdpOptions::default()).unwrap()
    }

    fn push(queue: &mut Queue, socket: &UdpSocket, to: &UdpSocket) {
        for payload in PAYLOADS {
            queue.push(&SendTo::new(socket, to.local_addr()), &[], payload, 0);
        }
    }

    /// Handles the error `errno` for a run of three datagrams to `to`. A loopback device never returns this error.
    fn refuse(queue: &mut Queue, socket: &UdpSocket, to: &UdpSocket, errno: i32) -> Flushed {
        let mut counts = Flushed::default();
        push(queue, socket, to);
        queue.append(socket, 0, 0, 3);
        let error = io::Error::from_raw_os_error(errno);
        // SAFETY: the payloads are constants and the socket lives.
        unsafe { queue.recover(socket, 0, &error, &mut counts) };
        assert_eq!(queue.wire.messages.len(), 1, "the singles are gone again");
        queue.forget();
        queue.wire.messages.clear();
        queue.wire.iovecs.clear();
        counts
    }

    /// Sends a run of three to each of these.
    fn send(queue: &mut Queue, socket: &UdpSocket, to: &[&UdpSocket]) -> Flushed {
        let mut counts = Flushed::default();
        to.iter().for_each(|to| push(queue, socket, to));
        // SAFETY: as in `refuse`.
        unsafe { queue.transmit(&mut counts) };
        counts
    }

    #[test]
    fn a_path_without_gso_costs_other_paths_of_the_socket_nothing() {
        for errno in [libc::EIO, libc::ENOPROTOOPT, libc::EOPNOTSUPP] {
            let (a, b) = (socket("127.0.0.1:0"), socket("127.0.0.2:0"));
            let mut queue = Queue::new(&SendOptions::default());
            let counts = refuse(&mut queue, &a, &a, errno);
            assert_eq!(
                (counts.sent, counts.gso_refused, counts.dropped()),
                (3, 1, 0)
            );
            assert_eq!((counts.gso_unsupported, counts.gso_wrong_size), (1, 0));
            let counts = send(&mut queue, &a, &[&a, &b]);
            assert_eq!((counts.sent, counts.gso_refused), (6, 0));
            assert_eq!((counts.gso_runs, counts.gso_segments), (1, 3), "only to b");
        }
    }

    #[test]
    fn a_size_that_does_not_fit_is_refused_as_such() {
        for errno in [libc::EINVAL, libc::EMSGSIZE] {
            let (a, b) = (socket("127.0.0.1:0"), socket("127.0.0.2:0"));
            let mut queue = Queue::new(&SendOptions::default());
            let counts = refuse(&mut queue, &a, &a, errno);
            assert_eq!(
                (counts.sent, counts.gso_refused, counts.dropped()),
                (3, 1, 0)
            );
            assert_eq!((counts.gso_unsupported, counts.gso_wrong_size), (0, 1));
            assert_eq!(send(&mut queue, &a, &[&a, &b]).gso_runs, 1);
        }
    }

    #[test]
    fn other_errors_drop_the_whole_run_and_count_each_datagram() {
        let a = socket("127.0.0.1:0");
        let mut queue = Queue::new(&SendOptions::default());
        let counts = refuse(&mut queue, &a, &a, libc::EPERM);
        assert_eq!((counts.sent, counts.denied), (0, 3));
        assert_eq!(send(&mut queue, &a, &[&a]).gso_runs, 1);
    }
}
