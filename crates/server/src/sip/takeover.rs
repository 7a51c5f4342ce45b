//! The SIP of a new process takes over from that of a running one. This module also has what a server keeps so that
//! another process can take over from it.

use super::link::{self, HandedOverState, ProcessLink, ProcessLinkThreads};
use super::other_process::OtherProcess;
use super::store::{SharedLog, WorkerBindings};
use crate::error::StartError;
use crate::handover::{HandoverError, JoiningSip, OfferedSip};
use crate::random;
use crate::steering::Numbering;
use sip::{HashKey, Now};
use sip_server::AorHash;
use sip_server::flow::Runs;
use sip_server::log::Image;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The running server's SIP, while it hands over.
#[derive(Debug)]
pub(crate) struct SipTakeover {
    offered: OfferedSip,
    /// The numbers of its workers.
    numbering: Numbering,
    /// The number of this process's run.
    run: u32,
    stream: UnixStream,
    /// Receives what the old process hands over, which it does before it answers.
    receiver: JoinHandle<io::Result<HandedOverState>>,
}

impl SipTakeover {
    /// Begins to take over from a server that has this SIP, and workers with these numbers. `own` are those of this
    /// process. `place_id` identifies where this process saves bindings.
    ///
    /// # Errors
    /// If no descriptor or thread is left.
    pub(crate) fn begin(
        offered: OfferedSip,
        numbering: Numbering,
        (own, place_id): (Numbering, u64),
    ) -> io::Result<(SipTakeover, JoiningSip)> {
        let (stream, theirs) = UnixStream::pair()?;
        let reader = stream.try_clone()?;
        let receiver = std::thread::Builder::new()
            .name("hairpin-sip-take".to_owned())
            .spawn(move || link::receive(&reader))?;
        let run = new_run(random::seed()?);
        let joining = JoiningSip {
            numbering: own,
            run,
            place_id,
            link: theirs.into(),
        };
        let taking = SipTakeover {
            offered,
            numbering,
            run,
            stream,
            receiver,
        };
        Ok((taking, joining))
    }

    fn finish(self) -> io::Result<InheritedSip> {
        // A panic there was reported there.
        let handed = self.receiver.join();
        let handed = handed.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        let (link, threads) = ProcessLink::new(self.stream)?;
        Ok(InheritedSip {
            key: self.offered.key,
            runs: Runs {
                own: self.run,
                other: Some(self.offered.run),
            },
            other_process: Some(OtherProcess {
                numbering: self.numbering,
                run: self.offered.run,
                link,
                transactions: Arc::new(handed.transactions),
            }),
            bindings: handed.bindings,
            threads: Some(threads),
        })
    }
}

fn new_run(seed: [u8; 32]) -> u32 {
    seed.first_chunk().map_or(0, |run| u32::from_le_bytes(*run))
}

/// What SIP starts with.
#[derive(Debug)]
pub(super) struct InheritedSip {
    pub(super) key: [u8; 16],
    pub(super) runs: Runs,
    pub(super) other_process: Option<OtherProcess>,
    bindings: Vec<u8>,
    threads: Option<ProcessLinkThreads>,
}

impl InheritedSip {
    /// What the running server hands over; without one, a fresh key and run.
    pub(super) fn of(taking: Option<SipTakeover>) -> Result<InheritedSip, StartError> {
        if let Some(taking) = taking {
            let taken = taking.finish();
            return taken.map_err(|error| HandoverError::Sip(error).into());
        }
        let seed = random::seed().map_err(StartError::Randomness)?;
        let mut key = [0; 16];
        key.copy_from_slice(&seed[16..]);
        Ok(InheritedSip {
            key,
            runs: Runs::of(new_run(seed)),
            other_process: None,
            bindings: Vec::new(),
            threads: None,
        })
    }

    /// Gives each worker its part of the bindings that the old process has sent, and saves them. `key` is that of
    /// addresses of record.
    pub(super) fn give_bindings(&mut self, kept: &mut [WorkerBindings], key: HashKey, now: Now) {
        if self.bindings.is_empty() {
            return;
        }
        let records = std::mem::take(&mut self.bindings);
        if let Some(first) = kept.first() {
            first.save_records(&records);
        }
        let image = Image::of_records(&records, key);
        let hash = AorHash::new(key);
        let workers = u16::try_from(kept.len()).unwrap_or(u16::MAX);
        for (worker, kept) in (0..).zip(kept) {
            kept.take_records(now, &image, &hash, (worker, workers));
        }
    }

    /// What the server keeps.
    pub(super) fn upgrade(self, log: Option<SharedLog>) -> SipUpgrade {
        SipUpgrade {
            key: self.key,
            run: self.runs.own,
            log,
            link: self.other_process.map(|other_process| other_process.link),
            threads: self.threads,
        }
    }
}

/// What a server keeps of its SIP for an upgrade.
#[derive(Debug)]
pub(crate) struct SipUpgrade {
    pub(crate) key: [u8; 16],
    pub(crate) run: u32,
    pub(crate) log: Option<SharedLog>,
    /// To the other process.
    pub(crate) link: Option<Arc<ProcessLink>>,
    /// The threads of `link`, until they are started.
    pub(crate) threads: Option<ProcessLinkThreads>,
}

impl SipUpgrade {
    /// What a new process requires.
    pub(crate) const fn offered(&self) -> OfferedSip {
        OfferedSip {
            key: self.key,
            run: self.run,
        }
    }
}
