//! The admission filter of SIP listeners. In an overload, the kernel drops requests for new work before it queues them.
//!
//! ```text
//!  datagram ──▶ not new work ──▶ the socket's queue
//!           ├─▶ remembered ──▶ the socket's queue, while [`Rules::retransmissions`] lasts; else dropped
//!           ├─▶ its hash is not above its source's threshold ──▶ the socket's queue
//!           └─▶ otherwise ──▶ dropped, counted, remembered
//! ```
//! The program is a filter of the socket (SO_ATTACH_BPF) and ends with it. Without rules, it passes everything.
//! `programs/sip_admission_filter.bpf.c` defines new work. The caller computes the thresholds from the counts of the
//! program. The program remembers dropped requests in two generations of a Bloom filter. The caller limits how many of
//! the remembered requests pass.

use std::os::fd::AsFd;
use std::time::Duration;

use aya::programs::SocketFilter;
use aya::{TestRun, TestRunOptions};

use crate::BpfError;
use crate::object::Object;
use crate::reason::Kernel;
use crate::sys::{Mapping, RawMap, possible_processors};

/// The number of places for sources that are not peers. A keyed hash of the source's prefix selects the place.
pub const HASHED_PLACES: usize = 1024;
/// The number of all places: the hashed ones, then one for each peer, at most 256, in the order of the peers.
pub const PLACES: usize = HASHED_PLACES + MAX_PEERS;
const MAX_PEERS: usize = 256;

/// The program requires global functions with pointer arguments. Its helper `ktime_get_coarse_ns` requires Linux 5.11.
const NEEDS: Kernel = Kernel(5, 12);

/// Bytes of `struct rules`. The thresholds begin after the first `RULES_HEAD_BYTES`.
const RULES_BYTES: usize = RULES_HEAD_BYTES + 2 * PLACES;
const RULES_HEAD_BYTES: usize = 32;
/// Bytes of one generation of the Bloom filter.
const GENERATION_BYTES: usize = 1 << 21;

/// The headers of the frame for a test run.
const ETHERNET_BYTES: usize = 14;
const ETHERTYPE_IPV4: u16 = 0x0800;
const UDP_BYTES: usize = 8;

/// The rules by which the program drops requests.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// The secret keys of the hashes: the initial value, and the multiplier, which must be odd.
    pub keys: [u64; 2],
    /// The threshold of each place, 0 to 65535. A request whose hash is above its threshold is dropped.
    pub thresholds: &'a [u16; PLACES],
    /// How many retransmissions of remembered requests may pass until the next [`AdmissionFilter::set`], at most
    /// 2^31 - 1.
    pub retransmissions: u32,
    /// The time at which these rules end, in nanoseconds of CLOCK_MONOTONIC.
    pub until_ns: u64,
}

/// The loaded program. After this value is dropped, the program stays attached to its sockets, with its last rules.
pub struct AdmissionFilter {
    object: Object,
    rules: RawMap<4, RULES_BYTES>,
    peers: RawMap<20, 4>,
    dropped: RawMap<4, 8>,
    counts: Mapping,
    counted: Box<[u64; PLACES + 1]>,
    memory: Mapping,
    generation: u16,
    networks: Vec<[u8; 20]>,
    by_processor: Vec<u8>,
    bytes: Box<[u8; RULES_BYTES]>,
}

impl AdmissionFilter {
    /// Loads the program. It passes everything until [`AdmissionFilter::set`].
    ///
    /// # Errors
    /// When the kernel refuses: without CAP_BPF, or before Linux 5.12.
    pub fn load() -> Result<AdmissionFilter, BpfError> {
        let bytes = aya::include_bytes_aligned!("../objects/sip_admission_filter.o");
        let mut object = Object::load("sip_admission_filter", bytes, &[])?;
        object.load_program("sip_admission_filter", NEEDS, SocketFilter::load)?;
        let processors = possible_processors().map_err(|source| BpfError::System {
            what: "number of processors",
            source,
        })?;
        // SAFETY: RULES is an array of `struct rules`, whose size the program asserts.
        let rules = unsafe { RawMap::new(object.own_map("RULES")?, 1) };
        // SAFETY: PEERS has keys of five and values of one 32-bit number.
        let peers = unsafe { RawMap::new(object.own_map("PEERS")?, 1) };
        // SAFETY: DROPPED is a per-CPU array of u64.
        let dropped = unsafe { RawMap::new(object.own_map("DROPPED")?, processors) };
        let map = |name, bytes| {
            let map = object.own_map(name)?;
            Mapping::new(map.as_fd(), bytes).map_err(|source| element(name, source))
        };
        Ok(AdmissionFilter {
            counts: map("COUNTS", 8 * (PLACES + 1))?,
            memory: map("MEMORY", 2 * GENERATION_BYTES)?,
            object,
            counted: Box::new([0; PLACES + 1]),
            generation: 0,
            networks: Vec::new(),
            by_processor: vec![0; 8 * processors],
            rules,
            peers,
            dropped,
            bytes: Box::new([0; RULES_BYTES]),
        })
    }

    /// Attaches the program before the queue of a bound UDP socket. It stays attached until the socket is closed.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach(&mut self, socket: &impl AsFd) -> Result<(), BpfError> {
        let program = self
            .object
            .program::<SocketFilter>("sip_admission_filter")?;
        program.attach(socket)?;
        Ok(())
    }

    /// Applies these rules from now on. `None` passes everything. Makes one system call.
    ///
    /// # Errors
    /// When this process may not write to maps any more. Then the earlier rules still apply.
    pub fn set(&mut self, rules: Option<&Rules<'_>>) -> Result<(), BpfError> {
        let (head, thresholds) = self.bytes.split_at_mut(RULES_HEAD_BYTES);
        let numbers = [
            rules.map_or(0, |rules| rules.keys[0]),
            rules.map_or(1, |rules| rules.keys[1]),
            rules.map_or(0, |rules| rules.until_ns),
            u64::from(!self.networks.is_empty())
                | u64::from(self.generation) << 16
                | u64::from(rules.map_or(0, |rules| rules.retransmissions.min(i32::MAX as u32)))
                    << 32,
        ];
        for (to, number) in head.chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_ne_bytes());
        }
        if let Some(rules) = rules {
            let thresholds = thresholds.chunks_exact_mut(2).zip(rules.thresholds);
            thresholds.for_each(|(to, from)| to.copy_from_slice(&from.to_ne_bytes()));
        }
        let set = self.rules.set(&[0; 4], &self.bytes);
        set.map_err(|source| element("RULES", source))
    }

    /// Sets the networks whose sources have separate entries, after the hashed ones, in this order. They apply from the
    /// next [`AdmissionFilter::set`]. Addresses are IPv6 (IPv4 is mapped), and prefix lengths go up to 128. Uses the
    /// first 256 networks. Makes one system call for each of them, and one for each earlier network.
    ///
    /// # Errors
    /// When this process may not write to maps any more.
    pub fn set_peers(
        &mut self,
        networks: impl Iterator<Item = (u128, u8)>,
    ) -> Result<(), BpfError> {
        for network in self.networks.drain(..) {
            // The first entry of a network that was named twice is already deleted.
            let _ = self.peers.remove(&network);
        }
        for (place, (address, length)) in (HASHED_PLACES as u32..).zip(networks.take(MAX_PEERS)) {
            let mut key = [0; 20];
            key[..4].copy_from_slice(&u32::from(length).to_ne_bytes());
            key[4..].copy_from_slice(&address.to_be_bytes());
            if !self.networks.contains(&key) {
                let set = self.peers.set(&key, &place.to_ne_bytes());
                set.map_err(|source| element("PEERS", source))?;
            }
            self.networks.push(key);
        }
        Ok(())
    }

    /// Forgets the requests that were dropped before the previous call of `age`. This applies from the next
    /// [`AdmissionFilter::set`]. It takes at most a millisecond.
    pub fn age(&mut self) {
        self.generation ^= 1;
        let start = usize::from(self.generation) * GENERATION_BYTES;
        self.memory.clear(start..start + GENERATION_BYTES);
    }

    /// Calls `each` with each place and the number of its new requests since the last call, in order. Returns how many
    /// dropped requests the program has remembered since then. Reads 10 KiB of shared memory, without a system call.
    pub fn count(&mut self, mut each: impl FnMut(usize, u32)) -> u64 {
        let mut since = |at: usize| {
            let total = self.counts.word(8 * at);
            total.wrapping_sub(std::mem::replace(&mut self.counted[at], total))
        };
        for place in 0..PLACES {
            each(place, u32::try_from(since(place)).unwrap_or(u32::MAX));
        }
        since(PLACES)
    }

    /// Runs the program `repeat` times on a datagram, without a socket. Its fifth to eighth bytes stand for the source
    /// address. Returns whether the program drops the datagram, and the average duration of a run.
    ///
    /// # Errors
    /// When the kernel refuses the run.
    pub fn test_run(&mut self, datagram: &[u8], repeat: u32) -> Result<(bool, Duration), BpfError> {
        // The kernel shows what follows an Ethernet header, as it shows a socket what follows the IP header.
        let mut frame = vec![0; ETHERNET_BYTES + UDP_BYTES];
        frame[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        frame.extend_from_slice(datagram);
        let program = self
            .object
            .program::<SocketFilter>("sip_admission_filter")?;
        let run = program.test_run(TestRunOptions {
            data_in: Some(&frame),
            repeat,
            ..TestRunOptions::new()
        })?;
        Ok((run.return_value == 0, run.duration))
    }

    /// Datagrams dropped since the program was loaded, by all sockets it is attached to. One system call.
    ///
    /// # Errors
    /// When this process may not read maps any more.
    pub fn dropped(&mut self) -> Result<u64, BpfError> {
        let read = self.dropped.get(&[0; 4], &mut self.by_processor);
        read.map_err(|source| element("DROPPED", source))?;
        let counts = self.by_processor.as_chunks::<8>().0.iter();
        Ok(counts.map(|count| u64::from_ne_bytes(*count)).sum())
    }
}

impl std::fmt::Debug for AdmissionFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdmissionFilter")
    }
}

fn element(map: &'static str, source: std::io::Error) -> BpfError {
    BpfError::Element { map, source }
}
