//! How fast the generator sends, beside the barest loops that do the same: `cargo run --release --example generator_speed`.
//!
//! Both sides send to a socket that nobody reads, from one core, in alternating rounds; the first round is thrown away. Single
//! datagrams stand against a bare `sendmmsg` loop, segmented trains against a bare loop of `send` with UDP_SEGMENT. Then four
//! sender threads stand against one, to see whether they hinder each other.
//!
//! Rates are per second of the sending thread's processor time, which on loopback includes what the kernel does for it: other
//! work on the machine disturbs them little. Arguments: seconds per round (1) and rounds (7).

use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hairpin_load::generator::{Lane, Plan, Run, Stamping, Stream, Tap};
use hairpin_load::measure::Payload;
use hairpin_load::report::LoadReport;
use nix::sys::socket::sockopt::UdpGsoSegment;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg, setsockopt};

/// Datagrams of one `sendmmsg`, as many as the generator hands over at once.
const BATCH: usize = 256;
/// Segments that one send may have, and bytes.
const SEGMENTS: usize = 64;
const RUN_BYTES: usize = 65_507;

const LOOPBACK: &str = "127.0.0.1:0";

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().map_or(Ok(1.0), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(7), |text| text.parse())?;
    let round = Duration::from_secs_f64(seconds);
    for size in [120, 1_200] {
        on_one_processor(|| {
            compare(
                &format!("{size} B, single, sendmmsg"),
                rounds,
                || bare_single(size, round),
                || Ok(rate(&generator(false, size, round, false, 1)?)),
            )
        })?;
        for (name, gro) in [("cut up by the sink", false), ("taken whole", true)] {
            on_one_processor(|| {
                compare(
                    &format!("{size} B, UDP_SEGMENT, {name}"),
                    rounds,
                    || bare_segmented(size, round, gro),
                    || Ok(rate(&generator(gro, size, round, true, 1)?)),
                )
            })?;
        }
    }
    threads(rounds, round)
}

/// Alternates the two sides and prints the ratio of each round's rates.
fn compare(
    name: &str,
    rounds: usize,
    mut bare: impl FnMut() -> Result<f64, Failure>,
    mut ours: impl FnMut() -> Result<f64, Failure>,
) -> Result<(), Failure> {
    let (mut bares, mut oursides, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        let (a, b) = if round % 2 == 0 {
            let a = bare()?;
            (a, ours()?)
        } else {
            let b = ours()?;
            (bare()?, b)
        };
        if round > 0 {
            bares.push(a);
            oursides.push(b);
            ratios.push(b / a);
        }
    }
    let spread = spread(&ratios);
    println!(
        "{name:<48} bare {:>10.0}/s   generator {:>10.0}/s   ratio {:.3} ({:.3} to {:.3})",
        median(&bares),
        median(&oursides),
        median(&ratios),
        spread.0,
        spread.1,
    );
    Ok(())
}

/// One sender against four, a sink for each: per second of processor time four should send hardly less than one.
fn threads(rounds: usize, round: Duration) -> Result<(), Failure> {
    let (mut ones, mut fours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = None;
    for number in 0..=rounds {
        let one = rate(&generator(false, 120, round, false, 1)?);
        let four = generator(false, 120, round, false, 4)?;
        if number > 0 {
            ones.push(one);
            fours.push(rate(&four));
            ratios.push(rate(&four) / one);
        }
        last = Some(four);
    }
    println!(
        "senders on {} processors, each its own sink: 1 sends {:.0}/s, 4 send {:.0}/s for the same processor time, ratio {:.2}",
        std::thread::available_parallelism()?,
        median(&ones),
        median(&fours),
        median(&ratios),
    );
    for thread in last.iter().flat_map(|report| &report.threads) {
        println!(
            "  {:<12} {:>10.0}/s, cpu {:>5.1} %",
            thread.name,
            thread.send_pps,
            thread.cpu * 100.0
        );
    }
    Ok(())
}

/// Does `work` on a thread that has one processor to itself and its children.
fn on_one_processor<T: Send>(
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            io::affinity::pin_current_thread(0)?;
            work()
        });
        thread.join().map_err(|_| "a round has panicked")?
    })
}

/// A socket that nobody reads; with GRO it takes trains whole, without the kernel cuts them up first.
fn sink(gro: bool) -> Result<io::UdpSocket, Failure> {
    let options = io::UdpOptions {
        gro,
        ..io::UdpOptions::default()
    };
    Ok(io::UdpSocket::bind(LOOPBACK.parse()?, &options)?)
}

/// What leaves per second if the same datagrams are handed to `sendmmsg` again and again.
fn bare_single(size: usize, round: Duration) -> Result<f64, Failure> {
    let sink = sink(false)?;
    let socket = UdpSocket::bind(LOOPBACK)?;
    let datagram = vec![0x55u8; size];
    let messages = vec![[IoSlice::new(&datagram)]; BATCH];
    let to = vec![Some(SockaddrStorage::from(sink.local_addr())); BATCH];
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None);
    repeat(round, || {
        let sent = sendmmsg(
            socket.as_raw_fd(),
            &mut headers,
            &messages,
            &to,
            [],
            MsgFlags::empty(),
        )?;
        Ok(sent.count())
    })
}

/// What leaves per second if the same train is sent again and again.
fn bare_segmented(size: usize, round: Duration, gro: bool) -> Result<f64, Failure> {
    let sink = sink(gro)?;
    let socket = UdpSocket::bind(LOOPBACK)?;
    socket.connect(sink.local_addr())?;
    setsockopt(&socket, UdpGsoSegment, &i32::try_from(size)?)?;
    let segments = segments(size);
    let train = vec![0x55u8; size * segments];
    repeat(round, || {
        socket.send(&train)?;
        Ok(segments)
    })
}

/// As many as fit into one send.
fn segments(size: usize) -> usize {
    SEGMENTS.min(RUN_BYTES / size)
}

fn repeat(
    round: Duration,
    mut send: impl FnMut() -> Result<usize, Failure>,
) -> Result<f64, Failure> {
    let (start, processor) = (Instant::now(), io::clock::thread_cpu_ns());
    let mut sent = 0;
    while start.elapsed() < round {
        for _ in 0..16 {
            sent += send()?;
        }
    }
    let used = io::clock::thread_cpu_ns() - processor;
    Ok(sent as f64 * 1e9 / used as f64)
}

/// Datagrams per second of processor time of its senders.
fn rate(report: &LoadReport) -> f64 {
    let senders = || report.threads.iter().filter(|thread| thread.sent > 0);
    let sent: f64 = senders().map(|thread| thread.send_pps).sum();
    let used: f64 = senders().map(|thread| thread.cpu).sum();
    sent / used
}

/// The generator, flat out: one flow to one sink for each sender, measured payloads.
fn generator(
    gro: bool,
    size: usize,
    round: Duration,
    gso: bool,
    senders: usize,
) -> Result<LoadReport, Failure> {
    let payload = Payload::new();
    let (mut lanes, mut taps, mut sinks) = (Vec::new(), Vec::new(), Vec::new());
    for flow in 0..senders as u32 {
        let options = io::UdpOptions::default();
        let socket = Arc::new(io::UdpSocket::bind(LOOPBACK.parse()?, &options)?);
        let mut frame = vec![0; size];
        payload.fill(&mut frame, flow);
        let sink = sink(gro)?;
        let (to, stamping) = (sink.local_addr(), Stamping::Payload { at: 0 });
        sinks.push(sink);
        lanes.push(Lane::new(socket.clone(), to, flow, stamping, &frame));
        taps.push(Tap::raw(socket));
    }
    let streams = vec![Stream::new("up", lanes)];
    let mut plan = Plan::of_flows("speed", "nobody", streams, taps);
    (plan.senders, plan.gso) = (senders, gso);
    (plan.warm_up, plan.duration) = (Duration::from_millis(50), round);
    (plan.linger, plan.silence) = (Duration::ZERO, Duration::ZERO);
    plan.set_train(segments(size) as u64);
    let mut run = Run::start(plan)?;
    while run.next_second().is_some() {}
    Ok(run.finish())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn spread(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    (low, values.iter().copied().fold(0.0, f64::max))
}
