//! The `garbage` workload: what the open internet sends all day, and whether honest requests still get through.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use io::{UdpOptions, UdpSocket};

use super::plan::{Flows, Work};
use super::setup::{OptionsError, SetupError, reserve_descriptors, unspecified_of};
use super::{Lane, Plan, ReceiveSocket, Stream, Target, binding};
use crate::client::AddError;
use crate::garbage::{Corpus, Sources};
use crate::measure::{Rate, Schedule};

/// What the `garbage` workload needs beyond the plan's own settings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GarbageOptions {
    /// The server.
    pub server: Target,
    /// Source addresses in 127.0.0.0/8, at most [`Sources::MAX`]; more than 1 only against a server there.
    pub sources: u32,
    /// Source ports, one socket each; at least 1.
    pub ports: u16,
    /// The same seed gives the same garbage.
    pub seed: u64,
    /// Honest Binding requests per second beside it, whose answers are measured; 0 for none.
    pub honest: Rate,
}

/// Different datagrams; they repeat after that.
const CORPUS_DATAGRAMS: usize = 4096;
/// Datagrams of one socket in a row, so that they leave with one system call.
const TRAIN_DATAGRAMS: u64 = 64;
/// Clients that ask honestly.
const HONEST_CLIENTS: u32 = 8;
/// Answers to garbage are counted, not waited for: buffers full of them would be the generator's memory.
const BUFFER_BYTES: u32 = 256 << 10;

impl GarbageOptions {
    /// From 16 ports of this machine's own address, with 100 honest requests per second.
    #[must_use]
    pub fn new(server: Target) -> GarbageOptions {
        GarbageOptions {
            server,
            sources: 1,
            ports: 16,
            seed: 1,
            honest: Rate(100.0),
        }
    }

    fn check(&self) -> Result<(), OptionsError> {
        let loopback = matches!(self.server.address().ip(), IpAddr::V4(ip) if ip.is_loopback());
        if self.ports == 0 {
            return Err(OptionsError::NoClients);
        }
        if self.sources > Sources::MAX || (self.sources > 1 && !loopback) {
            return Err(OptionsError::Sources(self.sources));
        }
        Ok(())
    }
}

/// Makes a plan that floods a server with random, malformed, unauthenticated and forged datagrams, in equal parts.
///
/// In the report, `sent` counts the flood, and `received` the responses to it. Latencies, `succeeded` and `failed` are
/// those of valid requests, which run at the same time.
///
/// # Errors
/// [`SetupError`]: options that contradict each other, or no sockets. Nothing was sent.
pub fn garbage(options: &GarbageOptions) -> Result<Plan, SetupError> {
    options.check()?;
    reserve_descriptors(u64::from(options.ports) + u64::from(HONEST_CLIENTS))?;
    let server = options.server.address();
    let corpus = Arc::new(Corpus::new(options.seed, CORPUS_DATAGRAMS));
    let sources = match options.sources {
        0 | 1 => Sources::OWN,
        many => Sources::loopback(many),
    };
    let (mut lanes, mut receive_sockets) = (Vec::new(), Vec::new());
    for _ in 0..options.ports {
        let socket = Arc::new(open(server)?);
        lanes.push(Lane::garbage(
            socket.clone(),
            server,
            corpus.clone(),
            sources,
        ));
        receive_sockets.push(ReceiveSocket::answers(socket));
    }
    let mut flood = Stream::new("garbage", lanes);
    flood.train = TRAIN_DATAGRAMS;
    let mut streams = vec![flood];
    if options.honest.0 > 0.0 {
        let (lanes, more_taps) = binding::flows(&server.into(), None, HONEST_CLIENTS)?;
        let mut honest = Stream::new("honest", lanes);
        honest.schedule = Some(Schedule::constant(options.honest));
        // Its rate does not depend on that of the flood.
        honest.weight = 0.0;
        streams.push(honest);
        receive_sockets.extend(more_taps);
    }
    let work = Work::Flows(Flows {
        streams,
        receive_sockets,
        one_sided: true,
        ..Flows::default()
    });
    let mut plan = Plan::new("garbage", &format!("udp:{server}"), work);
    plan.latency_is = "round trip of honest requests".to_owned();
    for (name, value) in [
        ("sources", options.sources.to_string()),
        ("ports", options.ports.to_string()),
        ("seed", options.seed.to_string()),
        ("honest requests", format!("{}/s", options.honest.0)),
    ] {
        plan.settings.insert(name.to_owned(), value);
    }
    Ok(plan)
}

fn open(server: SocketAddr) -> Result<UdpSocket, AddError> {
    let local = SocketAddr::new(unspecified_of(server.ip()), 0);
    let options = UdpOptions {
        recv_buffer: Some(BUFFER_BYTES),
        tos: false,
        ..UdpOptions::default()
    };
    UdpSocket::bind(local, &options).map_err(|source| AddError::Socket { local, source })
}
