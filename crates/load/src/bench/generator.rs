//! The speed of the frame generator. A server whose goodput comes near it may be faster than the generator can show.

use std::time::Duration;

use bpf::BpfError;
use bpf::count::{ArrivingPayload, Counter, Expectation, ExpectedFlow, Hook};
use bpf::inject::{Datagram, Flow, Injector, Pace};
use serde::Serialize;

use super::error::{BenchError, IoContext};
use super::layout::{self, CLIENT_DEVICE, SERVER_DEVICE, SERVER_PORT};
use super::napi::Cpus;
use super::run::lock;
use super::topology::{Topology, within};

/// Flows that take turns, frame by frame.
const FLOWS: u16 = 64;

/// Frames per second on one processor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GeneratorSpeed {
    /// Handed to the device.
    pub injected: f64,
    /// Taken, checked and dropped by an XDP program at the other end of the wire, on the other
    /// processor.
    pub delivered: f64,
}

/// Injects ChannelData frames with `payload` bytes unpaced for `duration` into an XDP sink that counts and checks them.
/// Moves the calling thread to `generator_cpu`, where it stays. The sink runs on `sink_cpu`.
///
/// # Errors
/// [`BenchError`], for want of privileges or processors, or while another benchmark runs.
pub fn generator_speed(
    generator_cpu: usize,
    sink_cpu: usize,
    payload: u16,
    duration: Duration,
) -> Result<GeneratorSpeed, BenchError> {
    let _alone = lock()?;
    ::io::affinity::pin_current_thread(generator_cpu).network("pin the generator")?;
    let cpus = Cpus {
        generator: generator_cpu,
        server: sink_cpu,
        second: None,
        preferred: false,
    };
    let mut topology = Topology::build(cpus)?;
    let mut injector = Injector::load(FLOWS.into())?;
    let mut sink = Counter::load(Hook::Xdp, FLOWS.into())?;
    topology
        .in_client(|| Ok(injector.set_device(0, ::io::netlink::interface_index(CLIENT_DEVICE)?)))
        .network("find the client's interface")??;
    within(topology.server(), || Ok(sink.attach(SERVER_DEVICE)))
        .network("enter the server's namespace")??;
    topology
        .pin()
        .network("pin the interfaces' kernel threads")?;
    injector.set_flows(&flows(payload)?)?;
    sink.expect(&expectation(payload))?;
    let sent = injector.run(&Pace {
        rate: None,
        duration,
        train: 1,
        burst: 32,
    })?;
    let seconds = sent.elapsed.as_secs_f64();
    Ok(GeneratorSpeed {
        injected: sent.frames as f64 / seconds,
        delivered: sink.totals()?.datagrams as f64 / seconds,
    })
}

fn flows(payload: u16) -> Result<Vec<Flow>, BpfError> {
    let flow = |flow: u16| {
        let datagram = Datagram::ChannelData(layout::CHANNEL, payload.into());
        Flow::new(flow.into(), 0, &layout::path_to_server(flow), datagram)
    };
    (0..FLOWS).map(flow).collect()
}

/// What the clients send, as it arrives at the server's interface.
fn expectation(payload: u16) -> Expectation {
    let flows = (0..FLOWS).map(|flow| ExpectedFlow {
        source: layout::client(flow),
        destination_port: SERVER_PORT,
        channel: layout::CHANNEL,
    });
    Expectation {
        arrives: ArrivingPayload::ChannelData(payload.into()),
        first_port: SERVER_PORT,
        ports: 1,
        flows: flows.collect(),
        flow_mask: 0,
        verify_one_in: 64,
    }
}
