//! The delivery counter: what of a load arrives, datagram by datagram, checked.

use std::net::{IpAddr, SocketAddr};
use std::ops::{Add, Sub};

use aya::maps::{Array, MapData, PerCpuArray};
use aya::programs::Xdp;
use aya::programs::tc::{self, SchedClassifier, TcAttachType};
use aya::programs::xdp::XdpMode;
use aya::util::KernelVersion;
use aya::{TestRun, TestRunOptions};

use crate::BpfError;
use crate::object::{Bytes, Cell, Object};
use crate::payload;
use crate::reason::Kernel;

/// Where a counter is attached. In both places it drops the packets of the load after counting, and
/// passes all other packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// tc ingress: sees packets of several datagrams as the network stack would, like a card with
    /// segmentation offload.
    Tc,
    /// XDP in the driver. On a veth it also makes the *sending* end split such packets in software,
    /// like a card without segmentation offload. It is the only sink that is as fast as an
    /// in-kernel relay.
    Xdp,
}

/// The format in which the load arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivingPayload {
    /// The payload as a peer receives it; its length in bytes.
    Raw(usize),
    /// ChannelData as a client receives it; the length of the payload in bytes.
    ChannelData(usize),
    /// Binding success responses, with the address that the request came from in XOR-MAPPED-ADDRESS.
    Binding,
}

/// One flow as it should arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedFlow {
    /// Who it must come from: the relayed transport address, or the server.
    pub source: SocketAddr,
    /// The port it must go to.
    pub destination_port: u16,
    /// The channel number it must have. The counter compares it only for [`ArrivingPayload::ChannelData`].
    pub channel: u16,
}

/// What to count, and the values that arriving datagrams must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The datagrams.
    pub arrives: ArrivingPayload,
    /// The first destination port of the load.
    pub first_port: u16,
    /// The number of destination ports of the load, from `first_port` on. Datagrams to other ports go
    /// to the stack uncounted.
    pub ports: u16,
    /// The flows, by their number.
    pub flows: Vec<ExpectedFlow>,
    /// The mask that the numbers of flows in payloads and transaction IDs are XORed with. If each run has its own mask,
    /// datagrams of another run count as misdirected, and do not mark a sequence number as seen.
    pub flow_mask: u32,
    /// The counter compares the whole payload of one sequence in this many, rounded up to a power of
    /// two. With 1 it compares all.
    pub verify_one_in: u32,
}

/// Counters since the counter was loaded; subtract two readings.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Datagrams that arrived as they were sent, where they belong. Each segment of an aggregate
    /// counts.
    pub datagrams: u64,
    /// Their UDP payload bytes.
    pub bytes: u64,
    /// Packets (socket buffers or frames) that carried the load.
    pub packets: u64,
    /// Packets of more than one datagram among them.
    pub aggregated: u64,
    /// Datagrams with a wrong length, header or payload.
    pub corrupt: u64,
    /// Datagrams that are whole but came from, or went to, a place where their flow does not
    /// belong.
    pub misdirected: u64,
    /// Datagrams that came after a later one of their flow (counted in `datagrams` too).
    pub reordered: u64,
    /// Datagrams that came again (not counted in `datagrams`). The counter remembers the latest eight million
    /// sequences; what comes after its sequence is forgotten counts here, too.
    pub duplicated: u64,
    /// Datagrams whose whole payload was compared.
    pub verified: u64,
    /// CLOCK_MONOTONIC in nanoseconds at one of the latest sixteen datagrams that arrived unharmed.
    /// It is a time, not a count: sums and differences of readings keep the later one.
    pub last_ns: u64,
}

// SAFETY: ten u64, no padding.
unsafe impl aya::Pod for Totals {}
const _: () = assert!(size_of::<Totals>() == 80);

impl Totals {
    /// Datagrams that arrived but not as they were sent.
    pub fn wrong(&self) -> u64 {
        self.corrupt + self.misdirected
    }

    fn zip(self, other: Totals, f: impl Fn(u64, u64) -> u64) -> Totals {
        Totals {
            datagrams: f(self.datagrams, other.datagrams),
            bytes: f(self.bytes, other.bytes),
            packets: f(self.packets, other.packets),
            aggregated: f(self.aggregated, other.aggregated),
            corrupt: f(self.corrupt, other.corrupt),
            misdirected: f(self.misdirected, other.misdirected),
            reordered: f(self.reordered, other.reordered),
            duplicated: f(self.duplicated, other.duplicated),
            verified: f(self.verified, other.verified),
            last_ns: self.last_ns.max(other.last_ns),
        }
    }
}

impl Add for Totals {
    type Output = Totals;
    fn add(self, other: Totals) -> Totals {
        self.zip(other, u64::wrapping_add)
    }
}

impl Sub for Totals {
    type Output = Totals;
    fn sub(self, earlier: Totals) -> Totals {
        self.zip(earlier, u64::wrapping_sub)
    }
}

/// A packet of several datagrams, for [`Counter::judge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aggregate {
    /// Payload bytes of each segment but the last.
    pub stride: u32,
    /// Number of segments.
    pub segments: u32,
}

/// What the programs need: the helper `xdp_load_bytes`.
const NEEDS: Kernel = Kernel(5, 18);

/// A loaded counter; attached until it is dropped.
pub struct Counter {
    object: Object,
    hook: Hook,
    max_flows: u32,
}

impl Counter {
    /// Loads a counter with room for `max_flows` flows. It counts nothing before
    /// [`Counter::expect`].
    ///
    /// # Errors
    /// When the kernel refuses (privileges, or older than 5.18).
    pub fn load(hook: Hook, max_flows: u32) -> Result<Counter, BpfError> {
        let max_flows = max_flows.max(1);
        let bytes = aya::include_bytes_aligned!("../objects/bench_count.o");
        let mut object = Object::load("bench_count", bytes, &[("EXPECTED", max_flows)])?;
        match hook {
            Hook::Tc => object.load_program("count_tc", NEEDS, SchedClassifier::load)?,
            Hook::Xdp => object.load_program("count_xdp", NEEDS, Xdp::load)?,
        }
        let mut pattern: Array<_, Bytes<{ payload::MAX_LEN }>> = object.map("PATTERN")?;
        pattern.set(0, Bytes(std::array::from_fn(payload::pattern)), 0)?;
        Ok(Counter {
            object,
            hook,
            max_flows,
        })
    }

    /// Attaches to an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// When there is no such interface, or another program holds the hook.
    pub fn attach(&mut self, interface: &str) -> Result<(), BpfError> {
        match self.hook {
            Hook::Xdp => {
                self.object
                    .program::<Xdp>("count_xdp")?
                    .attach(interface, XdpMode::Driver)?;
            }
            Hook::Tc => {
                // TCX (Linux 6.6) needs no queueing discipline, and its link vanishes with the
                // process.
                if KernelVersion::current()
                    .is_ok_and(|running| running < KernelVersion::new(6, 6, 0))
                {
                    add_clsact(interface)?;
                }
                self.object
                    .program::<SchedClassifier>("count_tc")?
                    .attach(interface, TcAttachType::Ingress)?;
            }
        }
        Ok(())
    }

    /// Sets what to count from now on. The check of the order in each flow begins again. The totals and the remembered
    /// sequences stay.
    ///
    /// # Errors
    /// [`BpfError::Flows`] when there are more flows than the counter was loaded for.
    pub fn expect(&mut self, expectation: &Expectation) -> Result<(), BpfError> {
        let flows = u32::try_from(expectation.flows.len()).unwrap_or(u32::MAX);
        if flows > self.max_flows {
            return Err(BpfError::Flows(
                "more flows than the counter was loaded for",
            ));
        }
        self.pass_everything()?;
        let mut map: Array<_, Expected> = self.object.map("EXPECTED")?;
        for (number, flow) in (0..).zip(&expectation.flows) {
            map.set(number, Expected::new(flow), 0)?;
        }
        let mut settings: Cell<'_, Settings> = self.object.map("SETTINGS")?;
        Ok(settings.set(0, Settings::new(expectation, flows), 0)?)
    }

    /// Stops counting: everything goes to the stack.
    ///
    /// # Errors
    /// When the kernel refuses the map write, which it has no reason to.
    pub fn pass_everything(&mut self) -> Result<(), BpfError> {
        let mut settings: Cell<'_, Settings> = self.object.map("SETTINGS")?;
        Ok(settings.set(0, Settings::default(), 0)?)
    }

    /// Reads the counters of all CPUs, summed.
    ///
    /// # Errors
    /// When the kernel refuses the map read, which it has no reason to.
    pub fn totals(&mut self) -> Result<Totals, BpfError> {
        let map: PerCpuArray<&mut MapData, Totals> = self.object.map("TOTALS")?;
        let per_cpu = map.get(&0, 0)?;
        Ok(per_cpu
            .iter()
            .fold(Totals::default(), |sum, one| sum + *one))
    }

    /// Runs the program once on a frame, without an interface. Returns whether the program drops the
    /// frame, as it drops the load. `aggregate` presents the frame as a packet of several datagrams,
    /// which only [`Hook::Tc`] gets.
    ///
    /// # Errors
    /// When the kernel refuses the run.
    pub fn judge(&mut self, frame: &[u8], aggregate: Option<Aggregate>) -> Result<bool, BpfError> {
        const XDP_DROP: u32 = 1;
        const TC_ACT_SHOT: u32 = 2;
        // `struct __sk_buff`, 192 bytes, with gso_segs at 164 and gso_size at 176.
        let mut context = [0; 192];
        if let Some(Aggregate { stride, segments }) = aggregate {
            context[164..168].copy_from_slice(&segments.to_ne_bytes());
            context[176..180].copy_from_slice(&stride.to_ne_bytes());
        }
        let options = |ctx_in| TestRunOptions {
            data_in: Some(frame),
            ctx_in,
            ..TestRunOptions::new()
        };
        let run = match self.hook {
            Hook::Tc => (
                self.object
                    .program::<SchedClassifier>("count_tc")?
                    .test_run(options(Some(&context)))?,
                TC_ACT_SHOT,
            ),
            Hook::Xdp => (
                self.object
                    .program::<Xdp>("count_xdp")?
                    .test_run(options(None))?,
                XDP_DROP,
            ),
        };
        Ok(run.0.return_value == run.1)
    }
}

fn add_clsact(interface: &str) -> Result<(), BpfError> {
    match tc::qdisc_add_clsact(interface) {
        Ok(()) | Err(tc::TcError::AlreadyAttached) => Ok(()),
        Err(source) => Err(BpfError::Tc {
            interface: interface.to_owned(),
            source: Box::new(source),
        }),
    }
}

/// `struct settings` of the program.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Settings {
    mode: u32,
    first_port: u32,
    ports: u32,
    payload: u32,
    flows: u32,
    verify_mask: u32,
    flow_mask: u32,
}

// SAFETY: seven u32, no padding.
unsafe impl aya::Pod for Settings {}

impl Settings {
    fn new(expectation: &Expectation, flows: u32) -> Settings {
        let (mode, payload) = match expectation.arrives {
            ArrivingPayload::Raw(payload) => (1, payload),
            ArrivingPayload::ChannelData(payload) => (2, payload),
            ArrivingPayload::Binding => (3, 0),
        };
        Settings {
            mode,
            first_port: expectation.first_port.into(),
            ports: expectation.ports.into(),
            // Beyond u32 no datagram has that length, and none will be counted as valid.
            payload: u32::try_from(payload).unwrap_or(u32::MAX),
            flows,
            verify_mask: expectation
                .verify_one_in
                .clamp(1, 1 << 31)
                .next_power_of_two()
                - 1,
            flow_mask: expectation.flow_mask,
        }
    }
}

/// `struct expected_flow` of the program.
#[repr(C)]
#[derive(Clone, Copy)]
struct Expected {
    source: [u8; 16],
    source_port: u16,
    destination_port: u16,
    channel: u16,
    reserved: u16,
    last_sequence: u32,
    seen: u32,
}

// SAFETY: integers and bytes, laid out without padding (asserted below).
unsafe impl aya::Pod for Expected {}
const _: () = assert!(size_of::<Expected>() == 32);

impl Expected {
    fn new(flow: &ExpectedFlow) -> Expected {
        let mut source = [0; 16];
        match flow.source.ip() {
            IpAddr::V4(ip) => source[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => source.copy_from_slice(&ip.octets()),
        }
        Expected {
            source,
            source_port: flow.source.port(),
            destination_port: flow.destination_port,
            channel: flow.channel,
            reserved: 0,
            last_sequence: 0,
            seen: 0,
        }
    }
}
