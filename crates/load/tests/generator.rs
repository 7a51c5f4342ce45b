//! The open-loop core against reflectors that behave and one that does not.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hairpin_load::generator::{
    Lane, Plan, PlanError, ReceiveSocket, Run, RunError, Stamping, Stream,
};
use hairpin_load::measure::{Payload, Rate, Schedule};
use hairpin_load::peer::{Peer, PeerOptions};
use hairpin_load::report::{Ending, LoadReport};

/// Clients that send measured payloads to a reflector and hear them again.
fn echo_plan(server: SocketAddr, clients: u32, rate: f64) -> Plan {
    framed_plan(server, clients, rate, 0)
}

/// The same with so many bytes in front of each payload.
fn framed_plan(server: SocketAddr, clients: u32, rate: f64, header: usize) -> Plan {
    let (mut lanes, mut receive_sockets) = (Vec::new(), Vec::new());
    let payload = Payload::new();
    for flow in 0..clients {
        let options = io::UdpOptions {
            recv_buffer: Some(4 << 20),
            gro: true,
            ..io::UdpOptions::default()
        };
        let socket =
            Arc::new(io::UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap());
        let mut frame = vec![0; header + 120];
        payload.fill(&mut frame[header..], flow);
        let stamping = Stamping::Payload {
            at: header,
            padding: 0,
        };
        lanes.push(Lane::new(socket.clone(), server, flow, stamping, &frame));
        receive_sockets.push(ReceiveSocket::raw(socket));
    }
    let streams = vec![Stream::new("echo", lanes)];
    let mut plan = Plan::of_flows("echo", &server.to_string(), streams, receive_sockets);
    plan.latency_is = "round trip".to_owned();
    plan.set_schedule(&Schedule::constant(Rate(rate)));
    plan.warm_up = Duration::from_millis(200);
    plan.duration = Duration::from_secs(2);
    plan
}

fn run(plan: Plan) -> LoadReport {
    let mut run = Run::start(plan).unwrap();
    while run.next_second().is_some() {}
    run.finish()
}

#[test]
fn a_fixed_rate_is_kept_and_nothing_is_lost() {
    let peer = Peer::start(&PeerOptions::echo(vec!["127.0.0.1:0".parse().unwrap()])).unwrap();
    let report = run(echo_plan(peer.addresses()[0], 20, 5_000.0));
    assert_eq!(
        (report.total.lost, report.total.corrupt),
        (0, 0),
        "{report}"
    );
    assert_eq!(report.total.received, report.total.sent);
    let achieved = report.send_pps() / report.run.offered_rate.unwrap();
    assert!((achieved - 1.0).abs() < 0.005, "{report}");
    let last = report.run.last_arrival_s - report.run.measured_s;
    assert!(last.abs() < 0.2, "{last}: {report}");
    assert_eq!(report.latency.count, report.total.received);
    assert!(!report.seconds.is_empty());
}

#[test]
fn our_own_wake_up_is_measured_apart_from_the_server_at_low_rates() {
    let peer = Peer::start(&PeerOptions::echo(vec!["127.0.0.1:0".parse().unwrap()])).unwrap();
    let mut plan = echo_plan(peer.addresses()[0], 4, 1_000.0);
    plan.duration = Duration::from_secs(1);
    let report = run(plan);
    let own = report.own_wake_up.as_ref().unwrap();
    // Not all: where the thread was interrupted between the two clocks, there is no telling.
    let told = own.percentiles.count;
    assert!(
        told <= report.total.received && told * 2 > report.total.received,
        "{report}"
    );
    assert!(report.to_string().contains("woke up late"), "{report}");
    let mut plan = echo_plan(peer.addresses()[0], 4, 1_000.0);
    plan.close_loop(2);
    plan.duration = Duration::from_millis(500);
    let report = run(plan);
    assert_eq!((report.own_wake_up, report.own_delay), (None, None));
}

#[test]
fn several_senders_and_receivers_share_the_work() {
    let peer = Peer::start(&PeerOptions::echo(vec!["127.0.0.1:0".parse().unwrap()])).unwrap();
    let mut plan = echo_plan(peer.addresses()[0], 16, 4_000.0);
    (plan.senders, plan.receivers) = (4, 2);
    let report = run(plan);
    assert_eq!(report.total.lost, 0, "{report}");
    let threads: Vec<_> = report
        .threads
        .iter()
        .map(|thread| thread.name.as_str())
        .collect();
    let expected = [
        "sender-0",
        "sender-1",
        "sender-2",
        "sender-3",
        "receiver-0",
        "receiver-1",
    ];
    assert_eq!(threads, expected);
    assert!(
        report.threads[..4].iter().all(|thread| thread.sent > 1500),
        "{report}"
    );
}

#[test]
fn trains_leave_segmented_and_arrive_whole() {
    let peer = Peer::start(&PeerOptions::echo(vec!["127.0.0.1:0".parse().unwrap()])).unwrap();
    let mut plan = echo_plan(peer.addresses()[0], 4, 20_000.0);
    plan.set_schedule(&Schedule::constant(Rate(20_000.0)).with_burst(32));
    plan.set_train(8);
    plan.gso = true;
    let report = run(plan);
    assert_eq!(report.total.lost, 0, "{report}");
    assert_eq!(report.sending.method, "UDP_SEGMENT", "{report}");
}

/// A reflector that may be told to hesitate, or to forget: `answers` is asked before each answer, with its number.
struct Reflector {
    address: SocketAddr,
    done: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Reflector {
    fn start(mut answers: impl FnMut(u64) -> bool + Send + 'static) -> Reflector {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let stop = done.clone();
        let thread = std::thread::spawn(move || {
            let timeout = Some(Duration::from_millis(20));
            server.set_read_timeout(timeout).unwrap();
            let mut buffer = [0; 2048];
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                let Ok((length, from)) = server.recv_from(&mut buffer) else {
                    continue;
                };
                count += 1;
                if answers(count) {
                    server.send_to(&buffer[..length], from).unwrap();
                }
            }
        });
        Reflector {
            address,
            done,
            thread: Some(thread),
        }
    }
}

impl Drop for Reflector {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_stalled_server_shows_in_the_percentiles_in_proportion() {
    const STALL: Duration = Duration::from_millis(200);
    let started = Instant::now();
    let mut stalled = false;
    let reflector = Reflector::start(move |_| {
        if !stalled && started.elapsed() > Duration::from_secs(1) {
            std::thread::sleep(STALL);
            stalled = true;
        }
        true
    });
    // 1,000/s for 2 s; 200 ms of stall touch 200 of 2,000 sends, by 0 to 200 ms each.
    let report = run(echo_plan(reflector.address, 4, 1_000.0));
    assert_eq!(report.total.lost, 0, "{report}");
    assert!(report.latency.max_us > 190_000.0, "{report}");
    // A tenth of all is slow, evenly: 1 % is slower than 180 ms, and 90 % hardly touched.
    assert!(
        (150_000.0..=220_000.0).contains(&report.latency.p99_us.unwrap()),
        "{report}"
    );
    assert!(report.latency.p50_us.unwrap() < 20_000.0, "{report}");
}

#[test]
fn arrivals_after_the_last_send_are_in_the_time_of_the_last_arrival() {
    // 200 of the warm-up, then 1,000 in a second. The reflector pauses for 300 ms shortly before the last ones.
    let reflector = Reflector::start(|number| {
        if number == 1_190 {
            std::thread::sleep(Duration::from_millis(300));
        }
        true
    });
    let mut plan = echo_plan(reflector.address, 4, 1_000.0);
    plan.duration = Duration::from_secs(1);
    let report = run(plan);
    assert_eq!(report.total.lost, 0, "{report}");
    let last = report.run.last_arrival_s - report.run.measured_s;
    assert!((0.25..0.5).contains(&last), "{last}: {report}");
}

#[test]
fn a_dead_target_is_total_loss_and_a_warning() {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let report = run(echo_plan(nobody.local_addr().unwrap(), 2, 500.0));
    assert_eq!((report.total.received, report.run.last_arrival_s), (0, 0.0));
    assert!((report.total.loss() - 1.0).abs() < 1e-9);
    assert!(
        report
            .warnings
            .iter()
            .any(|warning| warning.contains("nothing came back"))
    );
}

#[test]
fn a_run_that_is_stopped_still_reports() {
    let peer = Peer::start(&PeerOptions::echo(vec!["127.0.0.1:0".parse().unwrap()])).unwrap();
    let mut plan = echo_plan(peer.addresses()[0], 2, 1_000.0);
    plan.duration = Duration::from_secs(60);
    let mut run = Run::start(plan).unwrap();
    let stopper = run.stopper();
    run.next_second().unwrap();
    stopper.stop();
    let report = run.finish();
    assert!(
        report.ended_early.is_some() && report.total.received > 500,
        "{report}"
    );
    assert!(report.run.measured_s < 5.0);
}

#[test]
fn a_failed_send_ends_the_run_and_says_why() {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    // More than UDP over IPv4 takes.
    let mut plan = framed_plan(nobody.local_addr().unwrap(), 2, 500.0, 65_500);
    plan.duration = Duration::from_secs(60);
    plan.silence = Duration::from_secs(1);
    let report = run(plan);
    assert_eq!(report.ended, Ending::CannotSend, "{report}");
    let reason = report.ended_early.as_deref().unwrap();
    assert!(reason.contains("EMSGSIZE"), "{reason}");
    assert!(
        report.total.sent == 0 && report.total.not_sent > 300,
        "{report}"
    );
    assert!(report.run.measured_s < 5.0);
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut plan = echo_plan(nobody.local_addr().unwrap(), 2, 500.0);
    plan.duration = Duration::from_secs(60);
    plan.silence = Duration::from_secs(1);
    let report = run(plan);
    assert_eq!(report.ended, Ending::ServerSilent, "{report}");
    let reason = report.ended_early.as_deref().unwrap();
    assert!(reason.contains("nothing ever came back"), "{reason}");
}

#[test]
fn a_closed_loop_gives_up_what_is_not_answered_and_goes_on() {
    let reflector = Reflector::start(|number| !number.is_multiple_of(1_000));
    let mut plan = echo_plan(reflector.address, 3, 1.0);
    plan.close_loop(4);
    plan.duration = Duration::from_secs(4);
    let report = run(plan);
    assert!(report.total.lost > 2, "{report}");
    // Each of the four that is lost costs a second.
    assert!(report.total.lost <= 40, "{report}");
    assert!(report.total.received > 2_000, "{report}");
}

#[test]
fn a_closed_loop_of_one_way_traffic_is_refused() {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut plan = echo_plan(nobody.local_addr().unwrap(), 1, 1.0);
    plan.latency_is = "one way".to_owned();
    plan.close_loop(1);
    let error = Run::start(plan).unwrap_err();
    assert!(matches!(error, RunError::Plan(PlanError::NoAnswers)));
}
