//! Bindings with a log, in a storage that can lose power.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use sip::flow::{ConnectionKey, Flow, ListenerKey, Transport};
use sip::{HashKey, Mono, Now};
use sip_server::flow::FlowId;
use sip_server::location::{
    Binding, Change, ChangeError, Found, Limits, Location, MemoryLocation, NO_Q, NewBinding,
};
use sip_server::log::{Image, Journal, Log, Persistent, Settings, Storage};
use sip_server::{Aor, AorHash};

/// A log and its copy, and what of them would survive a power cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tape {
    pub(crate) log: Vec<u8>,
    pub(crate) synced: usize,
    copy: Option<Vec<u8>>,
    copy_synced: usize,
    /// The log that a power cut may bring back, until the next synchronization.
    before: Option<Vec<u8>>,
    /// After so many bytes the storage fails, each time until it is filled again.
    pub(crate) room: Option<usize>,
}

impl Tape {
    /// With this log.
    pub(crate) fn holding(log: Vec<u8>) -> Tape {
        Tape {
            log,
            ..Tape::default()
        }
    }

    fn take_room(&mut self, bytes: usize) -> usize {
        match &mut self.room {
            None => bytes,
            Some(room) => {
                let taken = bytes.min(*room);
                *room -= taken;
                taken
            }
        }
    }

    /// What is there after a power cut: which log, and how much of what was not synchronized, is left to chance.
    pub(crate) fn after_power_cut(&self, chance: u64) -> Vec<u8> {
        match &self.before {
            Some(before) if chance.is_multiple_of(2) => before.clone(),
            _ => {
                let unsynced = self.log.len() - self.synced;
                let kept = self.synced + (chance as usize / 2) % (unsynced + 1);
                self.log[..kept].to_vec()
            }
        }
    }
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl Storage for Tape {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.log.clone())
    }

    fn read_at(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let at = at as usize;
        let found = self.log.get(at..at + bytes.len());
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let taken = self.take_room(bytes.len());
        self.log.extend_from_slice(&bytes[..taken]);
        match taken == bytes.len() {
            true => Ok(()),
            false => Err(full()),
        }
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.log.truncate(len as usize);
        self.synced = self.synced.min(self.log.len());
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.synced = self.log.len();
        self.before = None;
        Ok(())
    }

    fn begin_copy(&mut self) -> io::Result<()> {
        (self.copy, self.copy_synced) = (Some(Vec::new()), 0);
        Ok(())
    }

    fn append_to_copy(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.take_room(bytes.len()) < bytes.len() {
            return Err(full());
        }
        self.copy.as_mut().unwrap().extend_from_slice(bytes);
        Ok(())
    }

    fn sync_copy(&mut self) -> io::Result<()> {
        self.copy_synced = self.copy.as_ref().unwrap().len();
        Ok(())
    }

    fn install_copy(&mut self) -> io::Result<()> {
        let copy = self.copy.take().unwrap();
        assert_eq!(self.copy_synced, copy.len(), "a copy must be whole first");
        let before = std::mem::replace(&mut self.log, copy);
        self.before = Some(before[..self.synced].to_vec());
        self.synced = self.copy_synced;
        Ok(())
    }
}

/// URIs by address.
pub(crate) type Model = BTreeMap<String, Vec<String>>;

pub(crate) const KEY: [u8; 16] = [1; 16];

pub(crate) fn key() -> HashKey {
    HashKey::new(KEY)
}

pub(crate) const START: Now = Now {
    mono: Mono(1_000_000_000_000),
    unix_s: 1_794_571_200,
};

pub(crate) fn later(seconds: u64) -> Now {
    Now {
        mono: START.mono.plus_secs(seconds),
        unix_s: START.unix_s + seconds,
    }
}

pub(crate) fn memory() -> MemoryLocation {
    MemoryLocation::new(key(), Limits::default())
}

pub(crate) fn persistent() -> Persistent {
    Persistent {
        memory: memory(),
        journal: Journal::new(Duration::from_millis(500)),
    }
}

pub(crate) fn aor(user: &str) -> Aor {
    Aor::from_canonical(format!("{user}@example.com").as_bytes()).unwrap()
}

/// A binding with something in each of its places.
pub(crate) fn binding(uri: &str, now: Now, seconds: u64) -> Binding {
    let connection = Some(ConnectionKey(9));
    let flow = Flow {
        transport: Transport::Tcp,
        listener: ListenerKey(1),
        connection,
        local: "192.0.2.1:5060".parse().unwrap(),
        remote: "[2001:db8::1]:40000".parse().unwrap(),
    };
    let new = NewBinding {
        uri: uri.as_bytes(),
        params: b";+sip.instance=\"<urn:x:1>\";reg-id=7",
        instance: b"urn:x:1",
        call_id: b"call@h",
        cseq: 77,
        path: b"<sip:p.example;lr>",
        agent: b"phone/1.0",
        flow: Some(FlowId {
            worker: 3,
            run: 5,
            flow,
        }),
        q: NO_Q,
        reg_id: 7,
        gruu: 12345,
        expires: now.mono.plus_secs(seconds),
        updated: now.mono,
    };
    Binding::new(&new).unwrap()
}

pub(crate) fn change(
    location: &mut impl Location,
    now: Now,
    user: &str,
    mut changes: Vec<Change>,
) -> Result<(), ChangeError> {
    let Found::Bindings(revision, _) = location.find(&aor(user)) else {
        panic!("memory never asks")
    };
    location
        .change(now, &aor(user), revision, &mut changes)
        .map(drop)
}

pub(crate) fn open(tape: Tape, settings: Settings) -> (Log<Tape>, Image) {
    Log::open(tape, settings, key()).unwrap()
}

/// All bindings of an image, loaded by so many workers.
pub(crate) fn load(image: &Image, now: Now, workers: u16) -> Vec<MemoryLocation> {
    let hash = AorHash::new(key());
    (0..workers)
        .map(|worker| {
            let mut memory = memory();
            assert_eq!(image.load(now, &hash, (worker, workers), &mut memory), 0);
            // Each has its own addresses only.
            for (aor, _) in memory.iter() {
                let key = hash.of(&Aor::from_canonical(aor).unwrap());
                assert_eq!(key.worker(workers), worker);
            }
            memory
        })
        .collect()
}

pub(crate) fn model(locations: &[MemoryLocation]) -> Model {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let all = locations.iter().flat_map(MemoryLocation::iter);
    all.map(|(aor, bindings)| {
        let uris = bindings.iter().map(|binding| text(binding.uri()));
        let mut uris: Vec<String> = uris.collect();
        uris.sort_unstable();
        (text(aor), uris)
    })
    .collect()
}

pub(crate) fn recovered(log: Vec<u8>, now: Now) -> Model {
    let (_, image) = open(Tape::holding(log), Settings::default());
    model(&load(&image, now, 3))
}

/// Reproducible chance (splitmix64).
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
