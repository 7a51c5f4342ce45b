//! How fast the generators are, beside the barest loops that do the same and beside coturn's:
//! `cargo run --release --example generator_speed [SECONDS] [ROUNDS] [PART OF A NAME]`, as root (frames are
//! injected).
//!
//! All contestants take a turn in each round, forwards and backwards by turns; the first round is thrown away; ratios
//! are taken within a round, and the table shows the medians. Sockets send to a socket that nobody reads, from
//! processor 0. Rates are per second of the sending thread's processor time, which on loopback includes what the kernel
//! does for it: other work on the machine disturbs them little. Frames are counted by the XDP program that drops them
//! at the other end of a virtual link.
//!
//! At the end four sender threads stand against one, each with its own rate, to see whether they hinder each other.

mod bare;
mod ours;
mod uclient;

use std::time::Duration;

use hairpin_load::bench;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Segments that one send may have, and bytes.
const SEGMENTS: usize = 64;
const RUN_BYTES: usize = 65_507;
const LOOPBACK: &str = "127.0.0.1:0";
/// Processors of senders, and of what receives apart from them.
const SENDER: usize = 0;
const RECEIVER: usize = 1;

/// Who takes part, what a turn yields, and against whom it is held.
struct Contestant {
    name: String,
    turn: Box<dyn Fn(Duration) -> Result<f64, Failure> + Sync>,
    against: Option<usize>,
    rates: Vec<f64>,
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().map_or(Ok(1.0), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(7), |text| text.parse())?;
    let time = Duration::from_secs_f64(seconds);
    let wanted = arguments.next().unwrap_or_default();
    let mut contestants = contestants();
    for round in 0..=rounds {
        let mut order: Vec<usize> = (0..contestants.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let contestant = &mut contestants[index];
            if !contestant.name.contains(&wanted) {
                continue;
            }
            let rate = on_one_processor(|| (contestant.turn)(time))
                .map_err(|error| format!("{}: {error}", contestant.name))?;
            if round > 0 {
                contestant.rates.push(rate);
            }
        }
    }
    println!(
        "{:<58}{:>11} {:<20}ratio (range)",
        "median of the rounds", "per second", "(range)"
    );
    for contestant in contestants.iter().filter(|one| !one.rates.is_empty()) {
        print(contestant, &contestants);
    }
    threads(rounds, time)
}

fn contestants() -> Vec<Contestant> {
    let mut all = Vec::new();
    for size in [120, 1_200] {
        pair(
            &mut all,
            &format!("{size} B, single"),
            "bare sendmmsg loop",
            move |time| bare::single(size, time),
            move |time| ours::rate_of_one(false, false, size, time),
        );
        if size == 120 {
            all.push(alone("120 B, single: turnutils_uclient", |_| {
                uclient::rate()
            }));
        }
        for (name, gro) in [("trains", true), ("trains, split at the sink", false)] {
            pair(
                &mut all,
                &format!("{size} B, {name}"),
                "bare UDP_SEGMENT loop",
                move |time| bare::segmented(size, time, gro),
                move |time| ours::rate_of_one(true, gro, size, time),
            );
        }
    }
    let frames = |time| Ok(bench::generator_speed(SENDER, RECEIVER, 120, time)?.delivered);
    all.push(alone("120 B, frames into an XDP sink", frames));
    all
}

/// A bare loop and the generator that is held against it.
fn pair(
    all: &mut Vec<Contestant>,
    name: &str,
    loop_name: &str,
    bare: impl Fn(Duration) -> Result<f64, Failure> + Sync + 'static,
    ours: impl Fn(Duration) -> Result<f64, Failure> + Sync + 'static,
) {
    let against = all.len();
    all.push(alone(&format!("{name}: {loop_name}"), bare));
    all.push(Contestant {
        against: Some(against),
        ..alone(&format!("{name}: generator"), ours)
    });
}

fn alone(
    name: &str,
    turn: impl Fn(Duration) -> Result<f64, Failure> + Sync + 'static,
) -> Contestant {
    Contestant {
        name: name.to_owned(),
        turn: Box::new(turn),
        against: None,
        rates: Vec::new(),
    }
}

fn print(contestant: &Contestant, all: &[Contestant]) {
    let ratio = contestant.against.map_or(String::new(), |index| {
        let ratios: Vec<f64> = contestant
            .rates
            .iter()
            .zip(&all[index].rates)
            .map(|(own, other)| own / other)
            .collect();
        let (low, high) = spread(&ratios);
        format!("{:.3} ({low:.3} to {high:.3})", median(&ratios))
    });
    let rate = median(&contestant.rates);
    let (low, high) = spread(&contestant.rates);
    let range = format!("({:.2} to {:.2} M)", low / 1e6, high / 1e6);
    println!("{:<58}{rate:>11.0} {range:<20}{ratio}", contestant.name);
}

/// One sender against four, a sink for each: for the same processor time four should send hardly less than one.
fn threads(rounds: usize, time: Duration) -> Result<(), Failure> {
    const SENDERS: usize = 4;
    let (mut ratios, mut shares) = (Vec::new(), vec![Vec::new(); SENDERS]);
    for round in 0..=rounds {
        let one = ours::rate(&ours::run(false, false, 120, time, 1)?);
        let four = ours::run(false, false, 120, time, SENDERS)?;
        if round == 0 {
            continue;
        }
        ratios.push(ours::rate(&four) / one);
        let senders = four.threads.iter().filter(|thread| thread.sent > 0);
        for (rates, thread) in shares.iter_mut().zip(senders) {
            rates.push(thread.send_pps / thread.cpu);
        }
    }
    println!(
        "{SENDERS} senders on {} processors, against 1, for the same processor time: {:.2}; each of them, per second of its own:",
        std::thread::available_parallelism()?,
        median(&ratios),
    );
    for (number, rates) in shares.iter().enumerate() {
        println!("  sender-{number:<49}{:>11.0}", median(rates));
    }
    Ok(())
}

/// Does `work` on a thread that has one processor to itself and its children.
fn on_one_processor<T: Send>(
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            io::affinity::pin_current_thread(SENDER)?;
            work()
        });
        thread.join().map_err(|_| "a turn has panicked")?
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

/// As many as fit into one send.
fn segments(size: usize) -> usize {
    SEGMENTS.min(RUN_BYTES / size)
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
