//! Checksums that the sender has left to hardware, and packets of several datagrams: what BPF_PROG_TEST_RUN cannot
//! make.
//!
//! ```text
//!   far end                                    this end
//!   packet socket with a virtio-net header ──▶ s0 ── tc program ─┐
//!   UDP sockets, packet socket  ◀── c0 ◀───────────────── s0 ◀───┘  transmit checksums off: the kernel completes them
//! ```
//! The frame that arrives at the far end must be the reference's to the last byte of its checksum, and the socket there
//! must accept it.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use hairpin_bpf::relay::Attached;

use crate::cases::reference::{LEAVING, Packet, sum};
use crate::cases::{Case, Expect, Family, Hop, Way, cases};
use crate::rig::{Path, Rig, skipped};

const NEAR_MAC: [u8; 6] = [2, 0, 0, 0, 2, 1];
const FAR_MAC: [u8; 6] = LEAVING[0];
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Both ends of the wire. The near end is in the calling thread's namespace, with the program attached.
struct Wire {
    rig: Rig,
    near: u32,
    far: FarEnd,
    _attached: Attached,
}

/// What is open at the far end.
struct FarEnd {
    inject: OwnedFd,
    capture: OwnedFd,
    sockets: Vec<UdpSocket>,
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip")
        .args(arguments.split(' '))
        .status()
        .expect("iproute2");
    assert!(status.success(), "ip {arguments}");
}

fn mac(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

fn index(name: &str) -> u32 {
    let name = std::ffi::CString::new(name).expect("a name");
    // SAFETY: the string ends with a zero and outlives the call.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// Moves this thread into a new network namespace.
fn unshare() -> io::Result<()> {
    // SAFETY: affects nothing but the calling thread's network.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

/// ETHTOOL_STXCSUM: the interface sums no checksums for the stack.
fn transmit_checksums_off(name: &str) {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let mut value = [0x17_u32, 0];
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    // SAFETY: the request names a structure of the two words that this command reads; both outlive the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) };
    checked(done).expect("ETHTOOL_STXCSUM");
}

/// A packet socket on an interface, for these protocols (0: to send only).
fn packet_socket(interface: u32, protocol: u16, header: bool) -> io::Result<OwnedFd> {
    const PACKET_VNET_HDR: libc::c_int = 15;
    // SAFETY: no pointers.
    let fd = checked(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) })?;
    // SAFETY: the kernel has just made it for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let on: libc::c_int = header.into();
    // SAFETY: option value and length belong together and outlive the call.
    checked(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_VNET_HDR,
            (&raw const on).cast(),
            size_of_val(&on) as u32,
        )
    })?;
    // SAFETY: all-zero is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface as i32;
    // SAFETY: address and length belong together and outlive the call.
    checked(unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as u32,
        )
    })?;
    let wait = libc::timeval {
        tv_sec: RECEIVE_TIMEOUT.as_secs() as i64,
        tv_usec: 0,
    };
    // SAFETY: as above.
    checked(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const wait).cast(),
            size_of_val(&wait) as u32,
        )
    })?;
    Ok(fd)
}

/// Addresses and sockets of clients and peer. Runs in the far end's namespace.
fn open_far_end() -> FarEnd {
    ip("link set lo up");
    ip("link set c0 up");
    let mut sockets = Vec::new();
    for family in [Family::V4, Family::V6] {
        let case = Case {
            client: family,
            peer: family,
            ..Case::NEW
        };
        let addresses = case.addresses();
        for address in [addresses.client, addresses.peer, addresses.other_client] {
            match address {
                SocketAddr::V4(v4) => ip(&format!("addr add {}/24 dev c0", v4.ip())),
                SocketAddr::V6(v6) => ip(&format!("addr add {}/64 dev c0 nodad", v6.ip())),
            }
            let socket = UdpSocket::bind(address).expect("bound");
            socket
                .set_read_timeout(Some(RECEIVE_TIMEOUT))
                .expect("a timeout");
            sockets.push(socket);
        }
    }
    let c0 = index("c0");
    FarEnd {
        inject: packet_socket(c0, 0, true).expect("a packet socket"),
        capture: packet_socket(c0, libc::ETH_P_ALL as u16, false).expect("a packet socket"),
        sockets,
    }
}

impl Wire {
    /// `None`, with the reason on stderr, where this process may not.
    fn new() -> Option<Wire> {
        let mut rig = Rig::new()?;
        if let Err(error) = unshare() {
            skipped(&format_args!("a network namespace: {error}"));
            return None;
        }
        let (born, birth) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let far = thread::spawn(move || {
            unshare().expect("another namespace");
            // SAFETY: no preconditions.
            born.send(unsafe { libc::gettid() }).expect("waited for");
            gone.recv().expect("told");
            open_far_end()
        });
        let namespace = birth.recv().expect("born");
        ip(&format!(
            "link add s0 address {} type veth peer name c0 address {} netns {namespace}",
            mac(NEAR_MAC),
            mac(FAR_MAC)
        ));
        ip("link set lo up");
        transmit_checksums_off("s0");
        ip("addr add 198.51.100.2/24 dev s0");
        ip("link set s0 up");
        go.send(()).expect("waiting");
        let far = far.join().expect("open");
        let near = index("s0");
        rig.interface = near;
        let attached = rig.relay.attach_tc(near).expect("TCX");
        Some(Wire {
            rig,
            near,
            far,
            _attached: attached,
        })
    }

    /// Sends a frame from the far end with a virtio-net header.
    fn inject(&self, header: [u8; 10], frame: &[u8]) {
        let bytes = [&header[..], frame].concat();
        // SAFETY: pointer and length are of one live vector.
        let sent = unsafe {
            libc::send(
                self.far.inject.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                0,
            )
        };
        assert_eq!(sent, bytes.len() as isize, "{}", io::Error::last_os_error());
    }

    /// The next frame from the near end to this port.
    fn captured(&self, port: u16) -> Vec<u8> {
        for _ in 0..100 {
            let mut frame = vec![0; 2048];
            let capture = self.far.capture.as_raw_fd();
            // SAFETY: pointer and length are of one live vector.
            let got = unsafe { libc::recv(capture, frame.as_mut_ptr().cast(), frame.len(), 0) };
            assert!(got > 0, "nothing came: {}", io::Error::last_os_error());
            frame.truncate(got as usize);
            let udp = if frame[12] == 8 { 34 } else { 54 };
            if frame.starts_with(&FAR_MAC)
                && frame.get(udp + 2..udp + 4) == Some(&port.to_be_bytes())
            {
                return frame;
            }
        }
        panic!("only other frames came");
    }

    fn socket(&self, address: SocketAddr) -> &UdpSocket {
        let mut sockets = self.far.sockets.iter();
        let found = sockets.find(|socket| socket.local_addr().is_ok_and(|local| local == address));
        found.expect("one of ours")
    }
}

/// The frame as a sender leaves it that has its checksum done by hardware, and the header that says so.
fn partial(packet: &Packet) -> ([u8; 10], Vec<u8>) {
    const NEEDS_CHECKSUM: u8 = 1;
    let mut frame = packet.frame([NEAR_MAC, FAR_MAC]);
    let udp = if packet.source.is_ipv4() { 34 } else { 54 };
    let field = sum(&packet.pseudo_header());
    frame[udp + 6..udp + 8].copy_from_slice(&field.to_be_bytes());
    let mut header = [0; 10];
    header[0] = NEEDS_CHECKSUM;
    header[6] = udp as u8;
    header[8] = 6;
    (header, frame)
}

#[test]
fn a_partial_checksum_is_complete_and_right_at_the_far_end() {
    // A thread of its own: it changes its namespace.
    thread::spawn(|| {
        let Some(mut wire) = Wire::new() else { return };
        let plain = cases().into_iter().filter(|case| {
            let relayed = case.expect == Expect::Relayed;
            // The wire has a next hop for what comes in by it, and one MTU.
            relayed
                && case.hop == Hop::Back
                && case.trailer.is_empty()
                && case.what != "no UDP checksum"
        });
        let mut seen = 0;
        for case in plain {
            let (_, identification) = wire.rig.enter(&case);
            let (header, frame) = partial(&case.arriving());
            let before = wire.rig.totals(Path::Tc);
            wire.inject(header, &frame);
            let addresses = case.addresses();
            let target = match case.way {
                Way::ToPeer => addresses.peer,
                Way::ToClient => addresses.client,
                Way::Between => addresses.other_client,
            };
            let left = wire.captured(target.port());
            let label = match left[12] {
                8 => identification,
                _ => u32::from_be_bytes([0, left[15] & 15, left[16], left[17]]),
            };
            let wanted = case.leaving(label);
            assert_eq!(left, wanted.frame(LEAVING), "{case}");
            let mut payload = [0; 2048];
            let (length, from) = wire
                .socket(target)
                .recv_from(&mut payload)
                .expect("accepted");
            assert_eq!(payload[..length], wanted.payload, "{case}");
            assert_eq!(
                (from.ip(), from.port()),
                (wanted.source.ip(), wanted.source.port())
            );
            assert!(!wire.rig.grown(Path::Tc, &before).is_empty(), "{case}");
            wire.rig.leave(&case);
            seen += 1;
        }
        assert!(seen > 150, "{seen} cases");
    })
    .join()
    .expect("passed");
}

#[test]
fn several_datagrams_in_one_packet_go_to_user_space_in_one_piece_each() {
    thread::spawn(|| {
        let Some(mut wire) = Wire::new() else { return };
        let case = Case {
            payload: 96,
            ..Case::NEW
        };
        wire.rig.enter(&case);
        let local = UdpSocket::bind(case.addresses().listener).expect("bound");
        local
            .set_read_timeout(Some(RECEIVE_TIMEOUT))
            .expect("a timeout");
        let one = case.arriving();
        let several = Packet {
            payload: one.payload.repeat(3),
            ..one.clone()
        };
        let (mut header, frame) = partial(&several);
        // VIRTIO_NET_HDR_GSO_UDP_L4, headers, bytes in each.
        header[1] = 5;
        header[2] = 42;
        header[4] = one.payload.len() as u8;
        let before = wire.rig.totals(Path::Tc);
        wire.inject(header, &frame);
        for _ in 0..3 {
            let mut payload = [0; 2048];
            let (length, from) = local.recv_from(&mut payload).expect("three");
            assert_eq!(
                (&payload[..length], from),
                (&one.payload[..], case.addresses().client)
            );
        }
        assert_eq!(wire.rig.grown(Path::Tc, &before), [("pass_gso", 1)]);
        assert_eq!(wire.near, wire.rig.interface);
    })
    .join()
    .expect("passed");
}
