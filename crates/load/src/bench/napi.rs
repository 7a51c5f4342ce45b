//! The kernel threads that poll the measured interfaces.
//!
//! With threaded NAPI, the receive softirq of an interface is a kernel thread. It can be pinned,
//! and its CPU time can be read. This separates the kernel's work for the server from that for the
//! generator. The kernel names a thread after its interface (`napi/s0-8193`), in every namespace
//! alike, and starts new ones when XDP is attached or GRO is toggled. So threads are assigned to
//! networks. A thread that existed before the interfaces belongs to another program. A new thread
//! belongs to the network that looks first, which is the one that has just changed an interface.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, PoisonError};

use super::layout::{CLIENT_DEVICE, PEER_DEVICE, RELAY_DEVICE, SERVER_DEVICE};
use super::procfs;

/// Before every ordinary task, as a softirq is.
const PRIORITY: u8 = 50;

static CLAIMED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Which processors do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpus {
    /// Generator, counters, this process.
    pub(crate) generator: usize,
    /// The server and its interfaces.
    pub(crate) server: usize,
    /// Another one for a server that is measured on two, and for its interface towards the peer.
    pub(crate) second: Option<usize>,
    /// Whether server and generator run before ordinary tasks.
    pub(crate) preferred: bool,
}

impl Cpus {
    /// Every processor that the server may use.
    pub(crate) fn of_server(self) -> Vec<usize> {
        std::iter::once(self.server).chain(self.second).collect()
    }

    /// Whether the server and the generator are in each other's way.
    pub(crate) fn shared(self) -> bool {
        self.second == Some(self.generator)
    }

    /// The processor of an interface's polling thread, and whether that is the server's work.
    fn of_device(self, device: &str) -> (bool, usize) {
        match device {
            SERVER_DEVICE => (true, self.server),
            RELAY_DEVICE => (true, self.second.unwrap_or(self.server)),
            _ => (false, self.generator),
        }
    }
}

/// The polling threads of one network.
#[derive(Debug, Default)]
pub(crate) struct NapiThreads {
    server: BTreeSet<u32>,
    generator: BTreeSet<u32>,
}

impl NapiThreads {
    /// Leaves all threads that exist now to their owners. To be called before the interfaces are
    /// made.
    pub(crate) fn new() -> io::Result<NapiThreads> {
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        claimed.extend(measured_threads()?.into_iter().map(|(thread, _)| thread));
        Ok(NapiThreads::default())
    }

    /// Finds new threads, forgets ended ones, and pins and prioritises them all.
    pub(crate) fn refresh(&mut self, cpus: Cpus) -> io::Result<()> {
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = measured_threads()?;
        let alive: BTreeSet<u32> = threads.iter().map(|(thread, _)| *thread).collect();
        claimed.retain(|thread| alive.contains(thread));
        self.server.retain(|thread| alive.contains(thread));
        self.generator.retain(|thread| alive.contains(thread));
        for (thread, device) in threads {
            if claimed.insert(thread) {
                let (at_server, cpu) = cpus.of_device(device);
                let own = if at_server {
                    &mut self.server
                } else {
                    &mut self.generator
                };
                own.insert(thread);
                io_error_unless_gone(::io::tasks::pin(thread, cpu))?;
                io_error_unless_gone(::io::tasks::make_realtime(thread, PRIORITY))?;
            }
        }
        Ok(())
    }

    /// Processor time of the server's interfaces, in nanoseconds.
    pub(crate) fn server_cpu_ns(&self) -> u64 {
        self.server
            .iter()
            .map(|thread| procfs::task_cpu_ns(*thread))
            .sum()
    }

    /// Processor time of the far ends' interfaces, in nanoseconds.
    pub(crate) fn generator_cpu_ns(&self) -> u64 {
        self.generator
            .iter()
            .map(|thread| procfs::task_cpu_ns(*thread))
            .sum()
    }

    /// Whether each of the four interfaces has its thread.
    pub(crate) fn complete(&self) -> bool {
        self.server.len() >= 2 && self.generator.len() >= 2
    }
}

impl Drop for NapiThreads {
    fn drop(&mut self) {
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        // Stay claimed until they end with their interfaces; `refresh` of any network forgets them
        // then.
        claimed.extend(self.server.iter().chain(&self.generator));
    }
}

/// The real-time threads of interfaces with the layout's names, each with that name.
fn measured_threads() -> io::Result<Vec<(u32, &'static str)>> {
    let known = |name: String| {
        let (device, _) = name.strip_prefix("napi/")?.rsplit_once('-')?;
        let all = [SERVER_DEVICE, RELAY_DEVICE, CLIENT_DEVICE, PEER_DEVICE];
        all.into_iter().find(|known| *known == device)
    };
    let processes = procfs::processes()?.into_iter();
    Ok(processes
        .filter_map(|process| Some((process, known(procfs::name(process)?)?)))
        .collect())
}

/// The number of the kernel thread that takes over softirq work on a processor; `None` where it
/// cannot be seen.
pub(crate) fn softirq_thread(cpu: usize) -> Option<u32> {
    let name = format!("ksoftirqd/{cpu}");
    procfs::processes()
        .ok()?
        .into_iter()
        .find(|process| procfs::name(*process).as_deref() == Some(&name))
}

fn io_error_unless_gone(result: io::Result<()>) -> io::Result<()> {
    const NO_SUCH_TASK: i32 = 3;
    match result {
        Err(error) if error.raw_os_error() == Some(NO_SUCH_TASK) => Ok(()),
        other => other,
    }
}
