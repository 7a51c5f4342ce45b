//! Bare relays in the kernel. They do the least work that a relayed datagram requires in XDP and tc. Benchmarks compare
//! a server with them.
//!
//! Static flows over IPv4, one hash look-up each, no permissions, timers, counters or limits. For benchmarks only.

use std::net::{Ipv4Addr, SocketAddrV4};

use aya::maps::{HashMap, MapData};
use aya::programs::Xdp;
use aya::programs::tc::{SchedClassifier, TcAttachType};
use aya::programs::xdp::XdpMode;
use aya::{TestRun, TestRunOptions};

use crate::BpfError;
use crate::frame::Mac;
use crate::object::Object;
use crate::reason::Kernel;

/// The programs require BPF instructions that compare 32 bits.
const NEEDS: Kernel = Kernel(5, 1);

/// Which bare relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// ChannelData and datagrams, in XDP in the driver.
    RelayXdp,
    /// The same behind the driver, at tc ingress.
    RelayTc,
    /// Binding requests without attributes, in XDP in the driver.
    StunXdp,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Kind::RelayXdp => "floor_relay_xdp",
            Kind::RelayTc => "floor_relay_tc",
            Kind::StunXdp => "floor_stun_xdp",
        }
    }
}

/// The interface and the link-layer addresses that packets of one direction of a flow leave with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The interface's number.
    pub if_index: u32,
    /// Its link-layer address.
    pub source_mac: Mac,
    /// The next hop's.
    pub destination_mac: Mac,
}

/// One flow, known beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The client.
    pub client: SocketAddrV4,
    /// Where the client sends to; the port is 3478.
    pub server: SocketAddrV4,
    /// Number of the client's channel.
    pub channel: u16,
    /// The relayed transport address.
    pub relay: SocketAddrV4,
    /// The peer.
    pub peer: SocketAddrV4,
    /// The way to the client.
    pub to_client: Exit,
    /// The way to the peer.
    pub to_peer: Exit,
}

/// A loaded bare relay; attached until it is dropped.
pub struct Floor {
    object: Object,
    kind: Kind,
}

impl Floor {
    /// Loads it with room for this many flows.
    ///
    /// # Errors
    /// When the kernel refuses (privileges).
    pub fn load(kind: Kind, flows: u32) -> Result<Floor, BpfError> {
        let bytes = aya::include_bytes_aligned!("../objects/bench_floor.o");
        let entries = flows.max(1).saturating_mul(2);
        let mut object = Object::load("bench_floor", bytes, &[("FLOWS", entries)])?;
        match kind {
            Kind::RelayTc => object.load_program(kind.program(), NEEDS, SchedClassifier::load)?,
            _ => object.load_program(kind.program(), NEEDS, Xdp::load)?,
        }
        Ok(Floor { object, kind })
    }

    /// Enters both directions of flows.
    ///
    /// # Errors
    /// When there are more than it was loaded for.
    pub fn add(&mut self, flows: impl IntoIterator<Item = Flow>) -> Result<(), BpfError> {
        let mut table: HashMap<&mut MapData, Key, Out> = self.object.map("FLOWS")?;
        for flow in flows {
            let (key, out) = to_peer(&flow);
            table.insert(key, out, 0)?;
            let (key, out) = to_client(&flow);
            table.insert(key, out, 0)?;
        }
        Ok(())
    }

    /// Attaches to an interface of the calling thread's network namespace. May be called for several.
    ///
    /// # Errors
    /// When there is no such interface, or another program holds the hook.
    pub fn attach(&mut self, interface: &str) -> Result<(), BpfError> {
        match self.kind {
            Kind::RelayTc => {
                self.object
                    .program::<SchedClassifier>(self.kind.program())?
                    .attach(interface, TcAttachType::Ingress)?;
            }
            _ => {
                self.object
                    .program::<Xdp>(self.kind.program())?
                    .attach(interface, XdpMode::Driver)?;
            }
        }
        Ok(())
    }

    /// Runs the program once on a frame, without an interface. Returns the frame that leaves, or `None` if the frame
    /// goes on to the stack.
    ///
    /// # Errors
    /// When the kernel refuses the run.
    pub fn relay(&mut self, frame: &[u8]) -> Result<Option<Vec<u8>>, BpfError> {
        const XDP_TX: u32 = 3;
        const XDP_REDIRECT: u32 = 4;
        const TC_ACT_REDIRECT: u32 = 7;
        let mut out = vec![0; frame.len() + 64];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..TestRunOptions::new()
        };
        let (run, taken): (_, &[u32]) = match self.kind {
            Kind::RelayTc => {
                let program = self
                    .object
                    .program::<SchedClassifier>(self.kind.program())?;
                (program.test_run(options)?, &[TC_ACT_REDIRECT])
            }
            _ => {
                let program = self.object.program::<Xdp>(self.kind.program())?;
                (program.test_run(options)?, &[XDP_TX, XDP_REDIRECT])
            }
        };
        out.truncate(run.data_size_out as usize);
        Ok(taken.contains(&run.return_value).then_some(out))
    }
}

impl std::fmt::Debug for Floor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Floor").field("kind", &self.kind).finish()
    }
}

fn to_peer(flow: &Flow) -> (Key, Out) {
    let key = Key::new(flow.client, flow.server.port(), flow.channel);
    (key, Out::new(flow.relay, flow.peer, 0, &flow.to_peer))
}

fn to_client(flow: &Flow) -> (Key, Out) {
    let key = Key::new(flow.peer, flow.relay.port(), 0);
    let out = Out::new(flow.server, flow.client, flow.channel, &flow.to_client);
    (key, out)
}

/// `struct flow_key` of the program.
#[repr(C)]
#[derive(Clone, Copy)]
struct Key {
    remote: [u8; 4],
    remote_port: [u8; 2],
    local_port: [u8; 2],
    channel: [u8; 2],
    /// The upper half of the program's word.
    reserved: [u8; 2],
}

// SAFETY: bytes without padding (asserted below), of which every pattern is a value.
unsafe impl aya::Pod for Key {}
const _: () = assert!(size_of::<Key>() == 12);

impl Key {
    fn new(remote: SocketAddrV4, local_port: u16, channel: u16) -> Key {
        Key {
            remote: remote.ip().octets(),
            remote_port: remote.port().to_be_bytes(),
            local_port: local_port.to_be_bytes(),
            channel: channel.to_be_bytes(),
            reserved: [0; 2],
        }
    }
}

/// `struct flow_exit` of the program.
#[repr(C)]
#[derive(Clone, Copy)]
struct Out {
    source: [u8; 4],
    destination: [u8; 4],
    source_port: [u8; 2],
    destination_port: [u8; 2],
    interface: u32,
    destination_mac: Mac,
    source_mac: Mac,
    channel: [u8; 2],
    reserved: [u8; 2],
}

// SAFETY: bytes and one aligned word without padding (asserted below), of which every pattern is a value.
unsafe impl aya::Pod for Out {}
const _: () = assert!(size_of::<Out>() == 32);

impl Out {
    fn new(source: SocketAddrV4, destination: SocketAddrV4, channel: u16, exit: &Exit) -> Out {
        let octets = |ip: &Ipv4Addr| ip.octets();
        Out {
            source: octets(source.ip()),
            destination: octets(destination.ip()),
            source_port: source.port().to_be_bytes(),
            destination_port: destination.port().to_be_bytes(),
            interface: exit.if_index,
            destination_mac: exit.destination_mac,
            source_mac: exit.source_mac,
            channel: channel.to_be_bytes(),
            reserved: [0; 2],
        }
    }
}
