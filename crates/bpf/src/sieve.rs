//! The sieve of SIP listeners: in an overload the kernel drops requests that begin something, before they are queued.
//!
//! ```text
//!  datagram ──▶ not new work, or its hash is not above its source's threshold ──▶ the socket's queue
//!           └─▶ new work above it ──▶ dropped, counted
//! ```
//! A filter of the socket (SO_ATTACH_BPF): it goes with the socket, and without rules it lets everything through. What counts as
//! new work is said in `programs/sip_sieve.bpf.c`; the thresholds are the caller's. What was dropped is remembered, in two
//! generations of a Bloom filter, and has a threshold of its own.

use std::os::fd::AsFd;
use std::time::Duration;

use aya::programs::SocketFilter;
use aya::{TestRun, TestRunOptions};

use crate::BpfError;
use crate::object::Object;
use crate::reason::Kernel;
use crate::sys::{Mapping, RawMap, possible_processors};

/// Sources share so many thresholds, by a keyed hash of their prefix.
pub const PLACES: usize = 1024;

/// What the program needs: global functions with pointers as arguments. The helper `ktime_get_coarse_ns` is of 5.11.
const NEEDS: Kernel = Kernel(5, 12);

/// Bytes of `struct rules`.
const RULES: usize = 32 + 2 * PLACES;
/// Where its fields are.
const MULTIPLIER: usize = 8;
const UNTIL: usize = 16;
const FLAGS: usize = 24;
const GENERATION: usize = 28;
const STALE: usize = 30;
const PASS: usize = 32;

/// Bytes of one generation of the Bloom filter.
const GENERATION_BYTES: usize = 1 << 21;
/// One word in so many is looked at to tell how full it is.
const SAMPLED: usize = 256;

/// Of the frame that the program is tried on.
const ETHERNET_BYTES: usize = 14;
const ETHERTYPE_IPV4: u16 = 0x0800;
const UDP_BYTES: usize = 8;

const SPARE_CREDENTIALS: u32 = 1;
const SPARE_PRIORITY: u32 = 2;

/// What is held back.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Of the hashes: a number to begin with and an odd one to multiply by, both secret.
    pub keys: [u64; 2],
    /// By place, 0 to 65535: a request whose hash is above it is dropped.
    pub thresholds: &'a [u16; PLACES],
    /// The threshold of what was dropped before, whatever its place.
    pub stale: u16,
    /// Until when this holds, in nanoseconds of CLOCK_MONOTONIC.
    pub until_ns: u64,
    /// Requests with Authorization or Proxy-Authorization always pass.
    pub spare_credentials: bool,
    /// Requests with Priority or Resource-Priority always pass.
    pub spare_priority: bool,
}

/// The loaded program. What is attached stays attached without it, and keeps its last rules.
pub struct Sieve {
    object: Object,
    rules: RawMap<4, RULES>,
    dropped: RawMap<4, 8>,
    stale: Mapping,
    generation: u16,
    counts: Vec<u8>,
    bytes: Box<[u8; RULES]>,
}

impl Sieve {
    /// Loads the program. It lets everything through.
    ///
    /// # Errors
    /// When the kernel refuses: without CAP_BPF, or before Linux 5.12.
    pub fn load() -> Result<Sieve, BpfError> {
        let bytes = aya::include_bytes_aligned!("../objects/sip_sieve.o");
        let mut object = Object::load("sip_sieve", bytes, &[])?;
        object.load_program("sip_sieve", NEEDS, SocketFilter::load)?;
        let processors = possible_processors().map_err(|source| BpfError::System {
            what: "number of processors",
            source,
        })?;
        // SAFETY: RULES is an array of `struct rules`, whose size the program asserts.
        let rules = unsafe { RawMap::new(object.own_map("RULES")?, 1) };
        // SAFETY: DROPPED is a per-CPU array of u64.
        let dropped = unsafe { RawMap::new(object.own_map("DROPPED")?, processors) };
        let stale = object.own_map("STALE")?;
        let stale = Mapping::new(stale.as_fd(), 2 * GENERATION_BYTES);
        Ok(Sieve {
            object,
            stale: stale.map_err(|source| element("STALE", source))?,
            generation: 0,
            counts: vec![0; 8 * processors],
            rules,
            dropped,
            bytes: Box::new([0; RULES]),
        })
    }

    /// Puts the program before the queue of a bound UDP socket, for as long as the socket is open.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach(&mut self, socket: &impl AsFd) -> Result<(), BpfError> {
        let program = self.object.program::<SocketFilter>("sip_sieve")?;
        program.attach(socket)?;
        Ok(())
    }

    /// What is held back from now on; `None` lets everything through. One system call.
    ///
    /// # Errors
    /// When this process may not write to maps any more; then the rules are as they were.
    pub fn set(&mut self, rules: Option<&Rules<'_>>) -> Result<(), BpfError> {
        let bytes = &mut self.bytes;
        let until_ns = rules.map_or(0, |rules| rules.until_ns);
        bytes[UNTIL..FLAGS].copy_from_slice(&until_ns.to_ne_bytes());
        bytes[GENERATION..STALE].copy_from_slice(&self.generation.to_ne_bytes());
        if let Some(rules) = rules {
            let mut flags = 0;
            if rules.spare_credentials {
                flags |= SPARE_CREDENTIALS;
            }
            if rules.spare_priority {
                flags |= SPARE_PRIORITY;
            }
            bytes[..MULTIPLIER].copy_from_slice(&rules.keys[0].to_ne_bytes());
            bytes[MULTIPLIER..UNTIL].copy_from_slice(&rules.keys[1].to_ne_bytes());
            bytes[FLAGS..GENERATION].copy_from_slice(&flags.to_ne_bytes());
            bytes[STALE..PASS].copy_from_slice(&rules.stale.to_ne_bytes());
            let thresholds = bytes[PASS..].chunks_exact_mut(2).zip(rules.thresholds);
            thresholds.for_each(|(to, from)| to.copy_from_slice(&from.to_ne_bytes()));
        }
        let set = self.rules.set(&[0; 4], &self.bytes);
        set.map_err(|source| element("RULES", source))
    }

    /// Forgets what was dropped before the last call, from the next [`Sieve::set`] on: takes a millisecond or less.
    pub fn age(&mut self) {
        self.generation ^= 1;
        let start = usize::from(self.generation) * GENERATION_BYTES;
        self.stale.clear(start..start + GENERATION_BYTES);
    }

    /// How many bits of the generation that is written are set, in percent, as far as one word in 256 tells: about 10 microseconds.
    #[must_use]
    pub fn fill_percent(&self) -> u64 {
        let start = usize::from(self.generation) * GENERATION_BYTES;
        let words = (start..start + GENERATION_BYTES).step_by(8 * SAMPLED);
        let set: u64 = words
            .map(|at| u64::from(self.stale.word(at).count_ones()))
            .sum();
        set * 100 / (GENERATION_BYTES / SAMPLED * 8) as u64
    }

    /// Runs the program so often on a datagram, without a socket; its source is made of its fifth to eighth byte. Returns
    /// whether it is dropped, and how long a run took on average.
    ///
    /// # Errors
    /// When the kernel refuses the run.
    pub fn try_on(&mut self, datagram: &[u8], repeat: u32) -> Result<(bool, Duration), BpfError> {
        // The kernel shows what follows an Ethernet header, as it shows a socket what follows the IP header.
        let mut frame = vec![0; ETHERNET_BYTES + UDP_BYTES];
        frame[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        frame.extend_from_slice(datagram);
        let program = self.object.program::<SocketFilter>("sip_sieve")?;
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
        let read = self.dropped.get(&[0; 4], &mut self.counts);
        read.map_err(|source| element("DROPPED", source))?;
        let counts = self.counts.as_chunks::<8>().0.iter();
        Ok(counts.map(|count| u64::from_ne_bytes(*count)).sum())
    }
}

impl std::fmt::Debug for Sieve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sieve")
    }
}

fn element(map: &'static str, source: std::io::Error) -> BpfError {
    BpfError::Element { map, source }
}
