//! Two network namespaces, as little as it takes to see what is on the wire:
//!
//! ```text
//!  near: client and server                       far: peers, and a router
//!   lo (MTU 65,536)   near 10.7.7.1 ---- veth ---- far 10.7.7.2      beyond 10.8.8.1 ---> (a link without anybody,
//!                          fd07::1       MTU 1500      fd07::2              fd08::1        MTU 1,300)
//! ```
//! Without the privilege to make them, or without iproute2, a test says so and passes.

use io::NetNs;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The other namespace.
pub(crate) struct Far(NetNs);

impl Far {
    /// Does something there: sockets it opens stay there.
    pub(crate) fn within<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.0.enter().expect("a namespace of our own");
                act()
            });
            thread.join().expect("it does not panic")
        })
    }
}

/// Runs a test on a thread in the near namespace.
pub(crate) fn with_wire(test: impl FnOnce(&Far) + Send + 'static) {
    let thread = std::thread::spawn(move || match build() {
        Ok(far) => test(&far),
        Err(reason) => skipped(&reason),
    });
    thread.join().expect("the test passes");
}

/// Says that a test does nothing, and why: to whoever reads what it prints, and to `cargo xtask test`, which counts
/// them.
pub(crate) fn skipped(reason: &dyn std::fmt::Display) {
    use std::io::Write;
    eprintln!("skipped: {reason}");
    let list = std::env::var_os("HAIRPIN_TESTS_SKIPPED");
    let file = list.map(|list| {
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(list)
    });
    if let Some(Ok(mut file)) = file {
        let of = std::env::args().next().unwrap_or_default();
        let of = of.rsplit('/').next().unwrap_or_default();
        // Then it has been said on stderr only.
        let _ = file.write_all(format!("{of}: {reason}\n").as_bytes());
    }
}

fn build() -> Result<Far, String> {
    let unshare = || match NetNs::unshare() {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(error.to_string()),
        made => Ok(made.expect("a namespace")),
    };
    unshare()?;
    let far = Far(std::thread::scope(|scope| {
        scope.spawn(unshare).join().expect("it does not panic")
    })?);
    let there = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        far.0.as_fd().as_raw_fd()
    );
    ip("link set lo up")?;
    ip("link add near type veth peer name far")?;
    ip(&format!("link set far netns {there}"))?;
    far.within(|| {
        ip("link set lo up")?;
        ip("link add beyond mtu 1300 type veth peer name nobody")?;
        ip("link set nobody up")?;
        [
            "far 10.7.7.2/24 fd07::2/64",
            "beyond 10.8.8.1/24 fd08::1/64",
        ]
        .into_iter()
        .try_for_each(address)?;
        for switch in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/net/{switch}"), "1").map_err(|e| e.to_string())?;
        }
        Ok::<_, String>(())
    })?;
    address("near 10.7.7.1/24 fd07::1/64")?;
    ip("route add 10.8.8.0/24 via 10.7.7.2")?;
    ip("route add fd08::/64 via fd07::2")?;
    wait_for_the_link(&far);
    Ok(far)
}

/// Gives a link its two addresses, and brings it up.
fn address(text: &str) -> Result<(), String> {
    let mut words = text.split(' ');
    let link = words.next().unwrap_or_default();
    ip(&format!("link set {link} up"))?;
    words.try_for_each(|address| {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        ip(&format!("address add {address} dev {link}{nodad}"))
    })
}

fn ip(arguments: &str) -> Result<(), String> {
    let result = Command::new("ip")
        .args(arguments.split(' '))
        .stderr(Stdio::null())
        .status();
    match result {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("ip {arguments}: {other:?}")),
    }
}

/// The kernel tells a fresh link that its other end is up from a work queue, and until then discards what is sent.
fn wait_for_the_link(far: &Far) {
    let start = Instant::now();
    for address in ["10.7.7.2:0", "[fd07::2]:0"] {
        let there = far.within(|| super::socket(address));
        let any = if address.starts_with('[') {
            "[::]:0"
        } else {
            "0.0.0.0:0"
        };
        let here = super::socket(any);
        there
            .set_read_timeout(Some(Duration::from_millis(5)))
            .expect("a timeout");
        let to = there.local_addr().expect("bound");
        loop {
            // It fails until there is a route.
            let _ = here.send_to(b"?", to);
            if there.recv_from(&mut [0; 8]).is_ok() {
                break;
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "{address} stays mute");
        }
    }
}

/// Hears every packet in the namespace it is opened in.
pub(crate) struct Ear(Socket);

impl Ear {
    pub(crate) fn open() -> Ear {
        const ALL: u16 = 3;
        // Without the link's header: what comes starts with IP.
        let all = Protocol::from(i32::from(ALL.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(all)).expect("a raw socket");
        socket
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        Ear(socket)
    }

    /// The next UDP datagram to this port whose payload ends like this (but for padding), with its headers.
    pub(crate) fn hear(&mut self, port: u16, payload: &[u8]) -> Heard {
        loop {
            let mut packet = vec![0; 65_536];
            let length = self.0.read(&mut packet).expect("a packet in time");
            packet.truncate(length);
            let heard = Heard(packet);
            if heard.is_udp() && heard.port() == port && heard.ends_with(payload) {
                return heard;
            }
        }
    }
}

/// A packet, from its IP header on.
pub(crate) struct Heard(Vec<u8>);

impl Heard {
    pub(crate) fn is_v4(&self) -> bool {
        self.0.first().is_some_and(|first| first >> 4 == 4)
    }

    fn is_udp(&self) -> bool {
        const UDP: u8 = 17;
        let next = if self.is_v4() {
            self.0.get(9)
        } else {
            self.0.get(6)
        };
        next == Some(&UDP)
    }

    fn port(&self) -> u16 {
        let port = self.0.get(self.header_len() + 2..);
        let port = port.and_then(|rest| rest.first_chunk());
        port.map_or(0, |bytes| u16::from_be_bytes(*bytes))
    }

    fn ends_with(&self, payload: &[u8]) -> bool {
        (0..4).any(|padding| {
            let (front, back) = self.0.split_at(self.0.len() - padding);
            front.ends_with(payload) && back.iter().all(|byte| *byte == 0)
        })
    }

    /// TOS or traffic class.
    pub(crate) fn tos(&self) -> u8 {
        match self.is_v4() {
            true => self.0[1],
            false => self.0[0] << 4 | self.0[1] >> 4,
        }
    }

    /// Time to live or hop limit.
    pub(crate) fn ttl(&self) -> u8 {
        self.0[if self.is_v4() { 8 } else { 7 }]
    }

    /// Of an IPv4 packet.
    pub(crate) fn dont_fragment(&self) -> bool {
        assert!(self.is_v4());
        self.0[6] & 0x40 != 0
    }

    /// Of an IPv4 packet: the length of its header without options is 20.
    pub(crate) fn header_len(&self) -> usize {
        if self.is_v4() {
            usize::from(self.0[0] & 15) * 4
        } else {
            40
        }
    }

    /// Of an IPv6 packet.
    pub(crate) fn flow_label(&self) -> u32 {
        assert!(!self.is_v4());
        u32::from_be_bytes([0, self.0[1] & 15, self.0[2], self.0[3]])
    }
}
