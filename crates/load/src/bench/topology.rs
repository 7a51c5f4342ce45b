//! The measured network: three namespaces joined by two veth pairs.
//!
//! The namespaces have no names. Descriptors of this process and of the servers keep them alive,
//! and the servers end with this process. So when it ends, in any way, the kernel removes the
//! namespaces and everything in them.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::linux::fs::MetadataExt;
use std::sync::Arc;
use std::thread;

use ::io::NetNs;
use ::io::netlink::{Netlink, VethEnd, interface_index};

use super::certificate::Certificate;
use super::error::{BenchError, IoContext};
use super::layout::{self, CLIENT, PEER, Port, RELAY, SERVER, prefix};
use super::napi::{Cpus, NapiThreads, softirq_thread};
use super::procfs;

const LOOPBACK_INDEX: u32 = 1;

/// One measured network.
#[derive(Debug)]
pub(crate) struct Topology {
    client: NetNs,
    server: NetNs,
    peer: NetNs,
    server_inode: u64,
    napi: NapiThreads,
    softirq: Option<u32>,
    cpus: Cpus,
    certificate: Option<Arc<Certificate>>,
}

/// Processor time spent for the server, in nanoseconds since some fixed time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerCpu {
    /// By its processes, in user space and in the kernel.
    pub(crate) processes: u64,
    /// By the kernel, receiving on its interfaces.
    pub(crate) softirq: u64,
}

impl Topology {
    /// Builds a network whose server side is polled on one processor and whose far ends are polled
    /// on the other.
    pub(crate) fn build(cpus: Cpus) -> Result<Topology, BenchError> {
        let napi = NapiThreads::new().network("list kernel threads")?;
        let [client, server, peer] = [new_namespace(), new_namespace(), new_namespace()];
        let client = client.network("make a network namespace")?;
        let server = server.network("make a network namespace")?;
        let peer = peer.network("make a network namespace")?;
        let server_inode = inode(&server).network("identify a network namespace")?;
        let mut topology = Topology {
            client,
            server,
            peer,
            server_inode,
            napi,
            softirq: softirq_thread(cpus.server),
            cpus,
            certificate: None,
        };
        topology
            .wire()
            .network("join network namespaces by veth pairs")?;
        topology
            .configure()
            .network("configure the network inside the namespaces")?;
        topology
            .poll_in_threads()
            .network("move the interfaces to threaded NAPI")?;
        topology
            .pin()
            .network("pin the interfaces' kernel threads")?;
        match topology.napi.complete() {
            true => Ok(topology),
            false => Err(BenchError::Network {
                what: "find the interfaces' kernel threads (is this a PID namespace, or a kernel before 5.12?)",
                source: io::ErrorKind::NotFound.into(),
            }),
        }
    }

    /// Gives servers a certificate.
    pub(crate) fn set_certificate(&mut self, certificate: Arc<Certificate>) {
        self.certificate = Some(certificate);
    }

    /// Replaces the placeholders of files.
    pub(crate) fn fill(&self, words: Vec<String>) -> Vec<String> {
        match &self.certificate {
            Some(certificate) => certificate.fill(words),
            None => words,
        }
    }

    /// The server's namespace.
    pub(crate) fn server(&self) -> &NetNs {
        &self.server
    }

    /// Which processors do what.
    pub(crate) fn cpus(&self) -> Cpus {
        self.cpus
    }

    /// Pins the threads of the interfaces, which the kernel starts anew when XDP is attached to
    /// one.
    pub(crate) fn pin(&mut self) -> io::Result<()> {
        self.napi.refresh(self.cpus)
    }

    /// Runs `work` in the client's namespace.
    pub(crate) fn in_client<T: Send>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        within(&self.client, work)
    }

    /// Runs `work` in the peer's namespace.
    pub(crate) fn in_peer<T: Send>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        within(&self.peer, work)
    }

    /// Processor time of everything that runs in the server's namespace and of its interfaces.
    pub(crate) fn server_cpu(&self) -> io::Result<ServerCpu> {
        let processes = procfs::processes_in(self.server_inode)?;
        Ok(ServerCpu {
            processes: processes.into_iter().map(procfs::process_cpu_ns).sum(),
            softirq: self.napi.server_cpu_ns() + self.softirq.map_or(0, procfs::task_cpu_ns),
        })
    }

    /// The threads of all processes in the server's network namespace.
    pub(crate) fn server_threads(&self) -> io::Result<Vec<u32>> {
        let processes = procfs::processes_in(self.server_inode)?;
        Ok(processes.into_iter().flat_map(procfs::threads).collect())
    }

    /// Processor time of the interfaces' threads at the far ends, in nanoseconds.
    pub(crate) fn generator_softirq_ns(&self) -> u64 {
        self.napi.generator_cpu_ns()
    }

    /// Resident memory of everything that runs in the server's namespace, in bytes.
    pub(crate) fn server_memory(&self) -> io::Result<u64> {
        Ok(procfs::processes_in(self.server_inode)?
            .into_iter()
            .map(procfs::resident_bytes)
            .sum())
    }

    fn ports(&self) -> [(&NetNs, Port); 4] {
        [
            (&self.client, CLIENT),
            (&self.server, SERVER),
            (&self.server, RELAY),
            (&self.peer, PEER),
        ]
    }

    fn wire(&self) -> io::Result<()> {
        within(&self.server, || {
            let mut netlink = Netlink::open()?;
            self.ports()
                .chunks(2)
                .try_for_each(|pair| netlink.create_veth(&veth_end(pair[0]), &veth_end(pair[1])))
        })
    }

    fn configure(&self) -> io::Result<()> {
        within(&self.client, || configure(&CLIENT, &SERVER, true))?;
        within(&self.peer, || configure(&PEER, &RELAY, true))?;
        within(&self.server, || {
            configure(&SERVER, &CLIENT, false)?;
            configure(&RELAY, &PEER, false)?;
            // The way to sources behind the client.
            Netlink::open()?.add_default_route(CLIENT.ip())
        })
    }

    fn poll_in_threads(&self) -> io::Result<()> {
        for (namespace, port) in self.ports() {
            ::io::sysfs::write(
                namespace,
                &[format!("/sys/class/net/{}/threaded", port.device)],
                "1",
            )?;
        }
        // A veth accepts redirected XDP frames only while its other end polls. It checks this only
        // when GRO is toggled on an interface that is up.
        for on in [false, true] {
            for (namespace, port) in self.ports() {
                within(namespace, || ::io::ethtool::set_gro(port.device, on))?;
            }
        }
        Ok(())
    }
}

fn veth_end((namespace, port): (&NetNs, Port)) -> VethEnd<'_> {
    VethEnd {
        name: port.device,
        mac: port.mac,
        namespace,
    }
}

/// Sets up one interface of the calling thread's namespace. `far` is what is at the other end of
/// its wire.
fn configure(port: &Port, far: &Port, is_host: bool) -> io::Result<()> {
    for interfaces in ["all", "default", port.device] {
        for &(name, value) in ipv6_settings() {
            sysctl(&format!("ipv6/conf/{interfaces}/{name}"), value)?;
        }
    }
    sysctl("ipv4/ip_forward", "0")?;
    let mut netlink = Netlink::open()?;
    netlink.set_up(LOOPBACK_INDEX)?;
    let index = interface_index(port.device)?;
    netlink.set_up(index)?;
    netlink.add_address(index, port.ip(), prefix())?;
    netlink.set_neighbour(index, far.ip(), far.mac)?;
    ::io::ethtool::set_gro(port.device, true)?;
    if is_host {
        netlink.add_default_route(far.ip())?;
        // The far ends send whole checksums, as over a wire: a server that relays below the stack
        // passes them on.
        ::io::ethtool::set_transmit_checksum(port.device, false)?;
    }
    Ok(())
}

/// Without duplicate address detection an address is usable at once; without link-local addresses and router
/// solicitations no packet disturbs a measurement.
fn ipv6_settings() -> &'static [(&'static str, &'static str)] {
    match layout::is_ipv6() {
        false => &[("disable_ipv6", "1")],
        true => &[
            ("accept_dad", "0"),
            ("addr_gen_mode", "1"),
            ("router_solicitations", "0"),
        ],
    }
}

/// Writes a network setting of the calling thread's namespace; one that the kernel does not have is
/// not needed.
fn sysctl(path: &str, value: &str) -> io::Result<()> {
    match fs::write(format!("/proc/sys/net/{path}"), value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

pub(crate) fn new_namespace() -> io::Result<NetNs> {
    in_thread(NetNs::unshare)
}

/// Runs `work` in a namespace. In a separate thread, so that the caller stays where it is.
pub(crate) fn within<T: Send>(
    namespace: &NetNs,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    in_thread(|| {
        namespace.enter()?;
        work()
    })
}

fn in_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|_| {
        Err(io::Error::other(
            "a thread inside a network namespace panicked",
        ))
    })
}

fn inode(namespace: &NetNs) -> io::Result<u64> {
    Ok(fs::File::from(namespace.as_fd().try_clone_to_owned()?)
        .metadata()?
        .st_ino())
}
