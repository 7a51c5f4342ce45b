//! The generator, flat out: one flow to one sink for each sender, measured payloads.

use std::sync::Arc;
use std::time::Duration;

use hairpin_load::generator::{Lane, Plan, ReceiveSocket, Run, Stamping, Stream};
use hairpin_load::measure::Payload;
use hairpin_load::report::LoadReport;

use crate::{Failure, LOOPBACK, segments, sink};

/// One sender, single datagrams or trains by UDP_SEGMENT, to a sink with or without GRO.
pub(crate) fn rate_of_one(
    gso: bool,
    gro: bool,
    size: usize,
    time: Duration,
) -> Result<f64, Failure> {
    Ok(rate(&run(gso, gro, size, time, 1)?))
}

/// Datagrams per second of processor time of its senders.
pub(crate) fn rate(report: &LoadReport) -> f64 {
    let senders = || report.threads.iter().filter(|thread| thread.sent > 0);
    let sent: f64 = senders().map(|thread| thread.send_pps).sum();
    let used: f64 = senders().map(|thread| thread.cpu).sum();
    sent / used
}

/// A run of `senders` threads.
pub(crate) fn run(
    gso: bool,
    gro: bool,
    size: usize,
    time: Duration,
    senders: usize,
) -> Result<LoadReport, Failure> {
    let payload = Payload::new();
    let (mut lanes, mut receive_sockets, mut sinks) = (Vec::new(), Vec::new(), Vec::new());
    for flow in 0..senders as u32 {
        let options = io::UdpOptions::default();
        let socket = Arc::new(io::UdpSocket::bind(LOOPBACK.parse()?, &options)?);
        let mut frame = vec![0; size];
        payload.fill(&mut frame, flow);
        let sink = sink(gro)?;
        let (to, stamping) = (sink.local_addr(), Stamping::Payload { at: 0, padding: 0 });
        sinks.push(sink);
        lanes.push(Lane::new(socket.clone(), to, flow, stamping, &frame));
        receive_sockets.push(ReceiveSocket::raw(socket));
    }
    let streams = vec![Stream::new("up", lanes)];
    let mut plan = Plan::of_flows("speed", "nobody", streams, receive_sockets);
    (plan.senders, plan.gso) = (senders, gso);
    (plan.warm_up, plan.duration) = (Duration::from_millis(50), time);
    (plan.linger, plan.silence) = (Duration::ZERO, Duration::ZERO);
    plan.set_train(segments(size) as u64);
    let mut run = Run::start(plan)?;
    while run.next_second().is_some() {}
    Ok(run.finish())
}
