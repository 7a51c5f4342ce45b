//! The in-kernel relay: ChannelData and Binding below the socket layer, in XDP or at tc, for what user space has
//! entered.
//!
//! ```text
//!            ┌─ entry, alive, next hop known, TTL, size, rate ──▶ rewritten, out by the next hop's interface
//!  packet ───┤
//!            └─ any doubt ──▶ on to the stack, untouched: user space relays, answers or drops it
//! ```
//! User space decides who may send what to whom. It enters both directions of a bound channel into the [`Table`], with
//! a deadline, and removes them again. The programs apply the entries. So a stalled process prolongs nothing, and one
//! that ends leaves nothing attached. No entry ever gives way to another: when the table is full, user space relays.
//!
//! Both programs use the same decision code (`relay_decide.h`). XDP moves frames. tc moves packets of the stack and can
//! handle checksums that the sender leaves to hardware. What is not one whole UDP datagram in an untagged Ethernet
//! frame, without IPv4 options or IPv6 extension headers, to this machine, passes.

mod buckets;
mod front;
mod gate;
mod layout;
mod next_hops;
mod program_run;
mod table;
mod totals;

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya::programs::tc::TcAttachType;
use aya::programs::{SchedClassifier, Xdp};

pub use buckets::{BUCKET_GROUPS, Bucket, Buckets};
pub use gate::Gate;
pub use next_hops::{NextHop, NextHops};
pub use program_run::{ProgramRun, Verdict};
pub use table::{Counts, FlowEntry, FlowKey, InsertError, Table};
pub use totals::{PathTotals, Totals};

use crate::BpfError;
use crate::frame::Mac;
use crate::object::Object;
use crate::reason::Kernel;
use crate::sys::{self, AttachType, RawMap};
use layout::{INTERFACE_BYTES, LISTENER_BYTES, SETTINGS_BYTES};

/// How many listener ports the programs can distinguish from other traffic.
pub const MAX_LISTENER_PORTS: usize = 8;

/// The maximum number of listener addresses at which the programs answer Binding requests.
pub const MAX_LISTENERS: u32 = 1024;

/// What both programs need: atomic operations that return the old value.
const NEEDS: Kernel = Kernel(5, 12);

/// The number of interface slots. An interface uses the slot of its index modulo this number.
const INTERFACE_SLOTS: u32 = 256;

/// Bytes of `PathTotals` on each processor.
const TOTALS_BYTES: usize = PathTotals::COUNT * 8;

/// The settings with which the programs are loaded. They cannot change while the programs run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The ports that clients send to over UDP: 1 to [`MAX_LISTENER_PORTS`].
    pub listener_ports: Vec<u16>,
    /// The ports that relays may have. A listener's port in the range is a listener's.
    pub relay_ports: RangeInclusive<u16>,
    /// The maximum number of channels. The kernel reserves 512 bytes for each of them when it makes the maps, after
    /// rounding the number up to a power of two.
    pub channels: u32,
    /// How many rate limits: of allocations and of their groups.
    pub buckets: u32,
    /// How many next hops, up to 65,535.
    pub next_hops: u32,
    /// Whether Binding requests are answered, and how many; see [`Relay::set_binding`].
    pub binding: Option<BindingLimit>,
}

/// How many Binding requests are answered to sources of one prefix: /24 of IPv4, /56 of IPv6. Prefixes share 65,536
/// places, by a hash with a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindingLimit {
    /// Answers per second, at least 1.
    pub per_second: u32,
    /// How many may come at once; at most a second's worth makes sense.
    pub burst: u32,
    /// Whether requests beyond that are dropped, or left to user space.
    pub drop_excess: bool,
}

impl Default for BindingLimit {
    fn default() -> BindingLimit {
        BindingLimit {
            per_second: 10_000,
            burst: 10_000,
            drop_excess: false,
        }
    }
}

/// Which programs the kernel has accepted.
#[derive(Debug, Default)]
struct Loaded {
    xdp: bool,
    tc: bool,
}

/// The programs and their maps.
pub struct Relay {
    object: Object,
    settings: RawMap<4, SETTINGS_BYTES>,
    interfaces: RawMap<4, INTERFACE_BYTES>,
    listeners: RawMap<LISTENER_BYTES, 4>,
    totals: RawMap<4, TOTALS_BYTES>,
    table: Table,
    loaded: Loaded,
    next_hops: u32,
    buckets: u32,
    relaying: bool,
    binding: Option<BindingLimit>,
}

impl Relay {
    /// Makes the maps. No program is loaded or attached yet, and no listener's address known. Processors that come
    /// online later leave their packets to user space.
    ///
    /// # Errors
    /// [`BpfError::Settings`] for more than fits; else when the kernel refuses. Maps need CAP_BPF, the programs
    /// CAP_NET_ADMIN and, because they compare pointers, CAP_PERFMON too, and Linux 5.12.
    pub fn load(settings: &Settings) -> Result<Relay, BpfError> {
        Relay::load_as(settings, false)
    }

    /// Like [`Relay::load`], with an XDP program that may have another one behind it: see [`Relay::set_behind`].
    ///
    /// # Errors
    /// As [`Relay::load`].
    pub fn load_in_front(settings: &Settings) -> Result<Relay, BpfError> {
        Relay::load_as(settings, true)
    }

    /// Makes the maps, and loads no program yet. `is_in_front`: the XDP program calls another process's program for
    /// packets that it does not relay.
    fn load_as(settings: &Settings, is_in_front: bool) -> Result<Relay, BpfError> {
        let places = places(settings)?;
        let seed = seed()?;
        let object = load_object(settings, places, seed, is_in_front)?;
        let possible = sys::possible_processors().map_err(|source| BpfError::System {
            what: "number of processors",
            source,
        })?;
        let table = Table::new(
            &object.own_map("FLOWS")?,
            &object.own_map("FLOW_TAILS")?,
            places,
            2 * settings.channels.max(1),
            seed,
        )?;
        // SAFETY: the sizes are those of `relay_maps.h`, and TOTALS is the only one of the four that is per processor.
        let (live, interfaces, listeners, totals) = unsafe {
            (
                RawMap::new(object.own_map("SETTINGS")?, 1),
                RawMap::new(object.own_map("INTERFACES")?, 1),
                RawMap::new(object.own_map("LISTENERS")?, 1),
                RawMap::new(object.own_map("TOTALS")?, possible),
            )
        };
        let relay = Relay {
            object,
            settings: live,
            interfaces,
            listeners,
            totals,
            table,
            loaded: Loaded::default(),
            next_hops: settings.next_hops + 1,
            buckets: settings.buckets.max(1),
            relaying: true,
            binding: settings.binding,
        };
        relay.write_settings()?;
        Ok(relay)
    }

    /// Has the kernel check the XDP program, if it has not yet: some tens of milliseconds. Attaching does so by itself.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn load_xdp(&mut self) -> Result<(), BpfError> {
        if !self.loaded.xdp {
            self.object.load_program("relay_xdp", NEEDS, Xdp::load)?;
            self.loaded.xdp = true;
        }
        Ok(())
    }

    /// Has the kernel check the tc program, if it has not yet: see [`Relay::load_xdp`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn load_tc(&mut self) -> Result<(), BpfError> {
        if !self.loaded.tc {
            self.object
                .load_program("relay_tc", NEEDS, SchedClassifier::load)?;
            self.loaded.tc = true;
        }
        Ok(())
    }

    /// Attaches the XDP program to an interface of the calling thread's network namespace, in the driver (native mode).
    /// Frames to another link-layer address than this one pass.
    ///
    /// # Errors
    /// [`BpfError::Attach`]: see [`BpfError::is_busy`] and [`BpfError::is_unsupported`]. [`BpfError::Settings`] when an
    /// interface whose index is equal modulo 256 is attached.
    pub fn attach_xdp(&mut self, interface: u32, address: Mac) -> Result<Attached, BpfError> {
        self.load_xdp()?;
        self.set_interface(interface, interface, address)?;
        let program = self.object.program::<Xdp>("relay_xdp")?.fd()?.as_fd();
        let attached = attach(program, interface, AttachType::Xdp, sys::XDP_DRIVER_MODE);
        match attached {
            Ok(link) => Ok(Attached { link, interface }),
            Err(error) => {
                // The first error is returned.
                let _ = self.forget_interface(interface);
                Err(error)
            }
        }
    }

    /// Attaches the tc program to an interface's ingress by TCX, after all existing programs. Packets that this program
    /// passes go to the next one.
    ///
    /// # Errors
    /// [`BpfError::Attach`], before Linux 6.6 one that [`BpfError::is_unsupported`]: then a [`Gate`] can be attached by
    /// clsact.
    pub fn attach_tc(&mut self, interface: u32) -> Result<Attached, BpfError> {
        self.load_tc()?;
        let program = self.object.program::<SchedClassifier>("relay_tc")?;
        let program = program.fd()?.as_fd();
        let link = attach(program, interface, AttachType::TcxIngress, 0)?;
        Ok(Attached { link, interface })
    }

    /// Says which link-layer address frames have to come to on an interface, as [`Relay::attach_xdp`] does. The program
    /// of a bond runs on its lower devices, and frames carry their index: `device` is then the bond, which sends.
    ///
    /// # Errors
    /// [`BpfError::Settings`] when an interface whose index is equal modulo 256 is known.
    pub fn set_interface(
        &mut self,
        interface: u32,
        device: u32,
        address: Mac,
    ) -> Result<(), BpfError> {
        let mut bytes = [0; INTERFACE_BYTES];
        let slot = (interface % INTERFACE_SLOTS).to_ne_bytes();
        self.interfaces
            .get(&slot, &mut bytes)
            .map_err(|source| element("INTERFACES", source))?;
        let holder = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if holder != 0 && holder != interface {
            return Err(BpfError::Settings(
                "two interfaces have the same index modulo 256: one of them cannot have the XDP program",
            ));
        }
        bytes[0..4].copy_from_slice(&interface.to_ne_bytes());
        bytes[4..10].copy_from_slice(&address);
        bytes[12..16].copy_from_slice(&device.to_ne_bytes());
        self.interfaces
            .set(&slot, &bytes)
            .map_err(|source| element("INTERFACES", source))
    }

    /// Frees the slot of an interface. Call it when nothing is attached to the interface any more. Then another
    /// interface whose index is equal modulo 256 can use the slot.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn forget_interface(&mut self, interface: u32) -> Result<(), BpfError> {
        let mut bytes = [0; INTERFACE_BYTES];
        let slot = (interface % INTERFACE_SLOTS).to_ne_bytes();
        let known = self.interfaces.get(&slot, &mut bytes);
        known.map_err(|source| element("INTERFACES", source))?;
        if bytes[..4] != interface.to_ne_bytes() {
            return Ok(());
        }
        self.interfaces
            .set(&slot, &[0; INTERFACE_BYTES])
            .map_err(|source| element("INTERFACES", source))
    }

    /// How many frames the XDP program has passed on this interface because their checksum looks as if it were to be
    /// completed by hardware. One in 65,536 frames looks so by chance. If most do, do not attach XDP to this interface.
    pub fn partial_checksums(&self, interface: u32) -> u64 {
        let mut bytes = [0; INTERFACE_BYTES];
        let slot = (interface % INTERFACE_SLOTS).to_ne_bytes();
        if self.interfaces.get(&slot, &mut bytes).is_err() || bytes[..4] != interface.to_ne_bytes()
        {
            return 0;
        }
        let [.., a, b, c, d, e, f, g, h] = bytes;
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }

    /// Sets whether the programs answer Binding requests to this address of a listener, which is never a wildcard.
    ///
    /// # Errors
    /// When there are more than [`MAX_LISTENERS`].
    pub fn set_listener(&mut self, address: SocketAddr, answer: bool) -> Result<(), BpfError> {
        let key = layout::listener(address);
        if answer {
            let set = self.listeners.set(&key, &[1, 0, 0, 0]);
            return set.map_err(|source| element("LISTENERS", source));
        }
        // An error says that there is no entry.
        let _ = self.listeners.remove(&key);
        Ok(())
    }

    /// Limits the Binding requests that the programs answer. `None`: they answer none.
    ///
    /// # Errors
    /// When the kernel refuses the map write, which it has no reason to.
    pub fn set_binding(&mut self, limit: Option<BindingLimit>) -> Result<(), BpfError> {
        self.binding = limit;
        self.write_settings()
    }

    /// Sets whether the programs relay the flows of the table, as after loading, or pass everything to user space.
    ///
    /// # Errors
    /// When the kernel refuses the map write, which it has no reason to.
    pub fn set_relaying(&mut self, relaying: bool) -> Result<(), BpfError> {
        self.relaying = relaying;
        self.write_settings()
    }

    fn write_settings(&self) -> Result<(), BpfError> {
        const RELAYING: u32 = 1;
        const BINDING: u32 = 2;
        const DROP_EXCESS: u32 = 4;
        let mut flags = if self.relaying { RELAYING } else { 0 };
        let (mut cost, mut burst) = (0, 0);
        if let Some(limit) = self.binding {
            flags |= BINDING | if limit.drop_excess { DROP_EXCESS } else { 0 };
            cost = 1_000_000_000 / limit.per_second.max(1);
            burst = u64::from(cost) * u64::from(limit.burst);
        }
        let mut bytes = [0; SETTINGS_BYTES];
        bytes[0..4].copy_from_slice(&flags.to_ne_bytes());
        bytes[4..8].copy_from_slice(&cost.to_ne_bytes());
        bytes[8..16].copy_from_slice(&burst.to_ne_bytes());
        self.settings
            .set(&[0; 4], &bytes)
            .map_err(|source| element("SETTINGS", source))
    }

    /// A handle to the table of flows.
    #[must_use]
    pub fn table(&self) -> Table {
        self.table.clone()
    }

    /// The table of next hops.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub fn next_hops(&self) -> Result<NextHops, BpfError> {
        let map = self.object.own_map("NEXT_HOPS")?;
        Ok(NextHops::new(map, self.next_hops))
    }

    /// The rate limits. A program applies those that an entry names.
    ///
    /// # Errors
    /// When the kernel refuses to map them into memory.
    pub fn buckets(&self) -> Result<Buckets, BpfError> {
        Buckets::new(&self.object.own_map("BUCKETS")?, self.buckets)
    }

    /// What the programs have counted.
    ///
    /// # Errors
    /// When the kernel refuses the map read, which it has no reason to.
    pub fn totals(&self) -> Result<Totals, BpfError> {
        let mut totals = Totals::default();
        let mut values = vec![0; self.totals.room()];
        for (path, total) in (0_u32..).zip([&mut totals.xdp, &mut totals.tc]) {
            self.totals
                .get(&path.to_ne_bytes(), &mut values)
                .map_err(|source| element("TOTALS", source))?;
            for processor in values.chunks_exact(TOTALS_BYTES) {
                let (words, _) = processor.as_chunks::<8>();
                let mut numbers = [0; PathTotals::COUNT];
                for (number, word) in numbers.iter_mut().zip(words) {
                    *number = u64::from_ne_bytes(*word);
                }
                total.add(&numbers);
            }
        }
        Ok(totals)
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Relay")
    }
}

/// How many classifiers are attached to the ingress of this interface by TCX, by any program.
///
/// # Errors
/// When there is no such interface in the calling thread's namespace, without CAP_NET_ADMIN, or before Linux 6.6.
pub fn classifiers_at(interface: &str) -> Result<usize, BpfError> {
    let (_, programs) = SchedClassifier::query_tcx(interface, TcAttachType::Ingress)?;
    Ok(programs.len())
}

/// An attachment, which ends when this is dropped (or the process ends).
#[derive(Debug)]
pub struct Attached {
    link: OwnedFd,
    interface: u32,
}

impl Attached {
    /// The interface's index.
    #[must_use]
    pub fn interface(&self) -> u32 {
        self.interface
    }
}

impl AsFd for Attached {
    /// The bpf_link.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// How many places the table of flows has.
fn places(settings: &Settings) -> Result<u32, BpfError> {
    let places = settings
        .channels
        .max(1)
        .checked_mul(table::PLACES_PER_CHANNEL);
    places
        .and_then(u32::checked_next_power_of_two)
        .ok_or(BpfError::Settings("there are at most 2^29 channels"))
}

/// A random key for the hashes of the programs and of user space.
fn seed() -> Result<[u64; 2], BpfError> {
    let bytes = || sys::random::<8>().map(u64::from_ne_bytes);
    let system = |source| BpfError::System {
        what: "/dev/urandom",
        source,
    };
    Ok([bytes().map_err(system)?, bytes().map_err(system)?])
}

/// Loads the object with the ports and sizes of `settings`. `places` is the size of the table of flows, `seed` the key
/// of its hash.
fn load_object(
    settings: &Settings,
    places: u32,
    seed: [u64; 2],
    is_in_front: bool,
) -> Result<Object, BpfError> {
    let mut ports = [0_u16; MAX_LISTENER_PORTS];
    let given = &settings.listener_ports;
    if given.is_empty() || given.len() > MAX_LISTENER_PORTS {
        return Err(BpfError::Settings("1 to 8 UDP listener ports are needed"));
    }
    // Unused places repeat a port, which changes nothing.
    ports.fill(given[0]);
    ports[..given.len()].copy_from_slice(given);
    if settings.next_hops == 0 || settings.next_hops > u16::MAX.into() {
        return Err(BpfError::Settings("1 to 65,535 next hops are needed"));
    }
    let sizes = [
        ("FLOWS", places),
        ("FLOW_TAILS", places),
        ("BUCKETS", settings.buckets.max(1)),
        ("NEXT_HOPS", settings.next_hops + 1),
    ];
    let seed = seed.map(u64::to_ne_bytes);
    let ports = ports.map(u16::to_be_bytes);
    let (low, high) = (settings.relay_ports.start(), settings.relay_ports.end());
    // At most 8.
    let count = given.len() as u32;
    let constants: [(&'static str, &[u8]); 8] = [
        ("FLOW_MASK", &(places - 1).to_ne_bytes()),
        ("LISTENER_PORTS", ports.as_flattened()),
        ("LISTENER_PORT_COUNT", &count.to_ne_bytes()),
        ("CRC_TABLE", CRC_TABLE.as_flattened().as_flattened()),
        ("RELAY_LOW", &u32::from(*low).to_ne_bytes()),
        ("RELAY_HIGH", &u32::from(*high).to_ne_bytes()),
        ("SEED", seed.as_flattened()),
        ("IS_IN_FRONT", &u32::from(is_in_front).to_ne_bytes()),
    ];
    let bytes = aya::include_bytes_aligned!("../../objects/relay.o");
    Object::load_with("relay", bytes, &sizes, &constants)
}

/// The tables for the CRC-32 of FINGERPRINT, four bytes at a time (slicing by 4). `CRC_TABLE[n][byte]` is what `byte`
/// contributes if `n` bytes follow it.
static CRC_TABLE: [[[u8; 4]; 256]; 4] = crc_table();

/// Computes [`CRC_TABLE`] with the reflected polynomial of CRC-32.
const fn crc_table() -> [[[u8; 4]; 256]; 4] {
    let mut table = [[[0; 4]; 256]; 4];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut behind = 0;
        while behind < 4 {
            let mut bit = 0;
            while bit < 8 {
                crc = (crc >> 1) ^ (0xEDB8_8320 * (crc & 1));
                bit += 1;
            }
            table[behind][byte] = crc.to_ne_bytes();
            behind += 1;
        }
        byte += 1;
    }
    table
}

fn attach(
    program: BorrowedFd<'_>,
    interface: u32,
    at: AttachType,
    flags: u32,
) -> Result<OwnedFd, BpfError> {
    sys::link(program, interface, at, flags)
        .map_err(|source| BpfError::attach(interface, at, source))
}

fn element(map: &'static str, source: io::Error) -> BpfError {
    BpfError::Element { map, source }
}
