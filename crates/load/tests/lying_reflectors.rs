//! Reflectors, STUN servers and middleboxes that lie: the report equals the liar's own account.
#![allow(clippy::unwrap_used)] // helpers of tests

mod common;
#[path = "liars/udp.rs"]
mod liar;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{PASSWORD, RunRequest, TestServer, USER};
use hairpin_load::generator::{
    BindingOptions, Direction, Lane, Path, Plan, ReceiveSocket, RelayOptions, Run, Stamping,
    Stopper, Stream, Target, TurnClients, binding, relay,
};
use hairpin_load::measure::{Payload, Rate, RunStamp, Schedule};
use hairpin_load::probe::Credentials;
use hairpin_load::report::{LoadReport, Totals};
use liar::Liar;

const SIZE: usize = 120;

/// Clients that send measured payloads to a reflector.
fn echo(server: SocketAddr, clients: u32, rate: f64) -> Plan {
    let (mut lanes, mut receive_sockets) = (Vec::new(), Vec::new());
    let payload = Payload::new();
    for flow in 0..clients {
        let options = io::UdpOptions {
            recv_buffer: Some(4 << 20),
            ..io::UdpOptions::default()
        };
        let socket = io::UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let socket = Arc::new(socket);
        let mut frame = vec![0; SIZE];
        payload.fill(&mut frame, flow);
        let stamping = Stamping::Payload { at: 0, padding: 0 };
        lanes.push(Lane::new(socket.clone(), server, flow, stamping, &frame));
        receive_sockets.push(ReceiveSocket::raw(socket));
    }
    let streams = vec![Stream::new("echo", lanes)];
    let mut plan = Plan::of_flows("echo", &server.to_string(), streams, receive_sockets);
    plan.latency_is = "round trip".to_owned();
    shape(&mut plan, rate);
    plan
}

/// A second without a warm-up: then the liar's account is of what is measured.
fn shape(plan: &mut Plan, rate: f64) {
    plan.set_schedule(&Schedule::constant(Rate(rate)));
    plan.warm_up = Duration::ZERO;
    plan.duration = Duration::from_secs(1);
    plan.linger = Duration::from_millis(300);
}

fn run(plan: Plan) -> LoadReport {
    let report = Run::start(plan).unwrap().finish();
    let total = &report.total;
    assert_eq!(
        total.sent,
        total.received + total.lost + total.late,
        "{report}"
    );
    assert_eq!(total.overflow, 0, "{report}");
    report
}

/// What a liar did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Account {
    passed: u64,
    repeated: u64,
    late: u64,
    reordered: u64,
    truncated: u64,
    corrupt: u64,
    damaged: u64,
    other_run: u64,
    misdelivered: u64,
    foreign: u64,
    unknown_ids: u64,
    untrusted: u64,
    unbound: u64,
    wrong_addresses: u64,
}

/// The same, as the report has it.
fn told(total: &Totals) -> Account {
    Account {
        passed: total.received,
        repeated: total.duplicates,
        late: total.late,
        reordered: total.reordered,
        truncated: total.truncated,
        corrupt: total.corrupt,
        damaged: total.damaged,
        other_run: total.other_run,
        misdelivered: total.misdelivered,
        foreign: total.foreign,
        unknown_ids: total.unknown_ids,
        untrusted: total.untrusted,
        unbound: total.unbound,
        wrong_addresses: total.wrong_addresses,
    }
}

fn agrees(report: &LoadReport, account: &Account) {
    assert_eq!(told(&report.total), *account, "{report}");
}

#[test]
fn changed_lengths_count_as_truncated_and_not_as_received() {
    let liar = Liar::<Account>::start(|number, bytes, from, account, sends| match number % 5 {
        0 => {
            account.truncated += 1;
            sends.now(from, &bytes[..2 + number as usize % (SIZE - 2)]);
        }
        1 => {
            account.truncated += 1;
            sends.now(from, &[bytes, &[7; 9]].concat());
        }
        _ => {
            account.passed += 1;
            sends.now(from, bytes);
        }
    });
    let report = run(echo(liar.address, 3, 2_000.0));
    agrees(&report, &liar.account());
    assert!(report.total.truncated > 700, "{report}");
}

#[test]
fn damage_is_counted_where_it_is_and_ages_nothing() {
    let liar = Liar::<Account>::start(|number, bytes, from, account, sends| {
        let mut bytes = bytes.to_vec();
        match number % 4 {
            0 => {
                // Magic, run, flow, sequence, time, check: one bit after the other.
                let bit = (number / 4) as usize % (24 * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
                account.damaged += 1;
            }
            1 => {
                bytes[24 + number as usize % (SIZE - 24)] ^= 0x10;
                account.corrupt += 1;
            }
            _ => account.passed += 1,
        }
        sends.now(from, &bytes);
    });
    let report = run(echo(liar.address, 3, 2_000.0));
    agrees(&report, &liar.account());
    assert!(report.total.damaged > 400, "{report}");
    assert!(report.latency.max_us < 900_000.0, "{report}");
    assert_eq!(report.latency.count, report.total.received);
}

/// The rest of an old test of windows: nothing is too old to be known again.
#[test]
fn two_thirds_are_lost_and_the_rest_comes_again_300_and_5000_numbers_later() {
    let mut passed: HashMap<u64, Vec<u8>> = HashMap::new();
    let liar = Liar::<Account>::start(move |number, bytes, from, account, sends| {
        if number % 3 == 0 {
            account.passed += 1;
            sends.now(from, bytes);
            passed.insert(number, bytes.to_vec());
        }
        for ago in [300, 5_000] {
            let old = number.checked_sub(ago).and_then(|old| passed.get(&old));
            if let Some(old) = old {
                account.repeated += 1;
                sends.now(from, old);
            }
        }
    });
    let report = run(echo(liar.address, 1, 8_000.0));
    agrees(&report, &liar.account());
    let total = &report.total;
    assert!(total.duplicates > 2_000 && total.sent > 6_000, "{report}");
    assert_eq!(total.lost, total.sent - total.received, "{report}");
}

#[test]
fn what_comes_after_its_number_was_forgotten_is_late() {
    let mut held: Vec<Vec<u8>> = Vec::new();
    let liar = Liar::<Account>::start(move |number, bytes, from, account, sends| {
        match number % 50 {
            0 if number < 400 => held.push(bytes.to_vec()),
            // A gap in each piece of 4,096 numbers, so that each needs memory.
            0 => {}
            _ => {
                account.passed += 1;
                sends.now(from, bytes);
            }
        }
        // The first two pieces with gaps were forgotten at 8,192 and 12,288.
        if number == 9_000 {
            for old in held.drain(..) {
                account.late += 1;
                sends.now(from, &old);
            }
        }
    });
    let mut plan = echo(liar.address, 1, 6_000.0);
    plan.duration = Duration::from_secs(2);
    plan.memory = Some(2);
    let report = run(plan);
    agrees(&report, &liar.account());
    assert_eq!(report.total.late, 8, "{report}");
    assert!(report.to_string().contains("late 8"), "{report}");
}

#[test]
fn a_second_without_arrivals_has_no_percentiles() {
    // The stall begins just before the end of the first second.
    let liar = Liar::<Account>::start(|number, bytes, from, account, sends| {
        if number < 1_940 {
            account.passed += 1;
            sends.now(from, bytes);
        }
    });
    let mut plan = echo(liar.address, 1, 2_000.0);
    plan.duration = Duration::from_secs(3);
    let report = run(plan);
    let seconds = &report.seconds;
    let silent = seconds.iter().filter(|second| second.recv_pps == 0.0);
    assert!(silent.clone().count() > 0, "{seconds:?}");
    for second in silent {
        assert_eq!((second.p50_us, second.p99_us), (None, None), "{seconds:?}");
    }
    assert!(seconds[0].p50_us.is_some(), "{seconds:?}");
}

#[test]
fn copies_and_disorder_are_counted_apart() {
    let mut held: VecDeque<(u64, Vec<u8>)> = VecDeque::new();
    let liar = Liar::<Account>::start(move |number, bytes, from, account, sends| {
        // Held back until 1, 7 or 40 others have gone. What is still held when the senders stop is gone.
        if number % 50 == 0 {
            let until = number + [1, 7, 40][(number / 50) as usize % 3];
            held.push_back((until, bytes.to_vec()));
            return;
        }
        account.passed += 1;
        let copies = if number % 50 == 3 { 3 } else { 1 };
        account.repeated += copies - 1;
        for _ in 0..copies {
            sends.now(from, bytes);
        }
        while held.front().is_some_and(|(until, _)| *until <= number) {
            account.passed += 1;
            account.reordered += 1;
            let (_, bytes) = held.pop_front().unwrap();
            sends.now(from, &bytes);
        }
    });
    let report = run(echo(liar.address, 1, 2_000.0));
    agrees(&report, &liar.account());
    // On a busy machine, the last numbers may be due after the end.
    assert!(report.total.sent > 1_900, "{report}");
    assert!(report.total.reordered >= 37, "{report}");
}

#[test]
fn delays_show_in_the_latencies_and_a_stall_in_those_it_touches() {
    const DELAY: Duration = Duration::from_millis(60);
    let liar = Liar::<Account>::start(|number, bytes, from, account, sends| {
        account.passed += 1;
        match number % 2 {
            0 => sends.now(from, bytes),
            _ => {
                account.reordered += 1;
                sends.after(DELAY, from, bytes);
            }
        }
    });
    let report = run(echo(liar.address, 1, 1_000.0));
    let account = liar.account();
    assert_eq!(
        (report.total.received, report.total.lost),
        (account.passed, 0),
        "{report}"
    );
    let latency = &report.latency;
    assert!(
        latency.p90_us.unwrap() >= 60_000.0 && latency.min_us < 20_000.0,
        "{report}"
    );
}

#[test]
fn a_stall_shows_in_the_latencies_of_all_that_it_held() {
    const STALL: std::ops::Range<u64> = 300..700;
    let mut held: Vec<Vec<u8>> = Vec::new();
    let liar = Liar::<Account>::start(move |number, bytes, from, account, sends| {
        account.passed += 1;
        if STALL.contains(&number) {
            return held.push(bytes.to_vec());
        }
        for old in held.drain(..) {
            sends.now(from, &old);
        }
        sends.now(from, bytes);
    });
    let mut plan = echo(liar.address, 1, 1_000.0);
    plan.duration = Duration::from_secs(2);
    let report = run(plan);
    agrees(&report, &liar.account());
    assert_eq!(report.total.lost, 0, "{report}");
    // It ends when number 700 arrives, which leaves 400 ms after number 300. Of 2,000 datagrams, 200 wait for more than
    // 200 ms.
    let latency = &report.latency;
    assert!(latency.max_us >= 399_000.0, "{report}");
    assert!(latency.p90_us.is_some_and(|us| us >= 199_000.0), "{report}");
}

#[test]
fn a_payload_that_was_made_without_the_key_counts_as_of_another_run() {
    let liar = Liar::<Account>::start(|number, bytes, from, account, sends| {
        let stamp = Payload::peek(bytes, 0, 0).unwrap();
        // All that is in the payload is known, and the check is right. Only the key is not.
        let run = RunStamp {
            number: stamp.run,
            key: number % 3,
        };
        let mut forged = bytes.to_vec();
        for sequence in [stamp.sequence, stamp.sequence + 50] {
            Payload::stamp(&mut forged, run, sequence, stamp.intended_ns + 1);
            account.other_run += 1;
            sends.now(from, &forged);
        }
        account.passed += 1;
        sends.now(from, bytes);
    });
    let report = run(echo(liar.address, 2, 1_000.0));
    agrees(&report, &liar.account());
    assert_eq!(report.total.received, report.total.sent, "{report}");
}

#[test]
fn datagrams_of_other_runs_and_clients_change_no_counts() {
    let mut recorded: Vec<Vec<u8>> = Vec::new();
    let mut clients: Vec<SocketAddr> = Vec::new();
    let mut first_run = true;
    let liar = Liar::<Account>::start(move |_, bytes, from, account, sends| {
        if bytes == b"next" {
            first_run = false;
            clients.clear();
            *account = Account::default();
            return;
        }
        if !clients.contains(&from) {
            clients.push(from);
        }
        account.passed += 1;
        if first_run {
            recorded.push(bytes.to_vec());
            return sends.now(from, bytes);
        }
        // First the lie, then the truth: it is not taken for the truth.
        if let Some(old) = recorded.pop() {
            account.other_run += 1;
            sends.now(from, &old);
        }
        if account.passed % 4 == 0
            && let Some(other) = clients.iter().find(|client| **client != from)
        {
            account.misdelivered += 1;
            sends.now(*other, bytes);
        }
        if account.passed % 7 == 0 {
            account.foreign += 1;
            sends.now(from, b"what is this? nobody here has sent such a thing.");
        }
        sends.now(from, bytes);
    });
    let first = run(echo(liar.address, 2, 1_000.0));
    assert_eq!(first.total.received, first.total.sent, "{first}");
    let signal = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    signal.send_to(b"next", liar.address).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    let report = run(echo(liar.address, 2, 1_000.0));
    agrees(&report, &liar.account());
    let total = &report.total;
    assert!(
        total.other_run > 900 && total.misdelivered > 200 && total.foreign > 100,
        "{report}"
    );
    assert_eq!((total.received, total.lost), (total.sent, 0), "{report}");
    assert!(report.latency.max_us < 900_000.0, "{report}");
}

#[test]
fn datagrams_of_the_warm_up_are_not_measured() {
    let liar = Liar::<Account>::start(|_, bytes, from, account, sends| {
        account.passed += 1;
        // Only the warm-up is lied to.
        if account.passed <= 300 {
            let mut damaged = bytes.to_vec();
            damaged[60] ^= 1;
            sends.now(from, &damaged);
            sends.now(from, &bytes[..50]);
            sends.now(from, b"nonsense");
            sends.now(from, bytes);
            sends.now(from, bytes);
        } else {
            sends.now(from, bytes);
        }
    });
    let mut plan = echo(liar.address, 2, 1_000.0);
    plan.warm_up = Duration::from_millis(500);
    let report = run(plan);
    let clean = Account {
        passed: report.total.sent,
        ..Account::default()
    };
    agrees(&report, &clean);
}

/// A Binding success response with a mapped address, or without one.
fn answer(id: &[u8], mapped: Option<SocketAddr>) -> Vec<u8> {
    let mut bytes = vec![
        1,
        1,
        0,
        if mapped.is_some() { 12 } else { 0 },
        0x21,
        0x12,
        0xA4,
        0x42,
    ];
    bytes.extend_from_slice(id);
    if let Some(SocketAddr::V4(mapped)) = mapped {
        bytes.extend_from_slice(&[0, 0x20, 0, 8, 0, 1]);
        bytes.extend_from_slice(&(mapped.port() ^ 0x2112).to_be_bytes());
        let ip = mapped.ip().to_bits() ^ 0x2112_A442;
        bytes.extend_from_slice(&ip.to_be_bytes());
    }
    bytes
}

#[test]
fn a_faulty_stun_server_is_detected_by_ids_addresses_and_second_responses() {
    let liar = Liar::<Account>::start(|number, bytes, from, account, sends| {
        let id = &bytes[8..20];
        let mut other = from;
        other.set_port(from.port() ^ 1);
        let mut wrong = id.to_vec();
        wrong[number as usize % 12] ^= 1 << (number % 8);
        match number % 8 {
            0 => {
                account.wrong_addresses += 1;
                return sends.now(from, &answer(id, Some(other)));
            }
            1 => {
                account.wrong_addresses += 1;
                sends.now(from, &answer(id, None));
            }
            2 => {
                account.unknown_ids += 1;
                sends.now(from, &answer(&wrong, Some(from)));
            }
            3 => {
                account.repeated += 1;
                sends.now(from, &answer(id, Some(from)));
            }
            4 => {
                account.truncated += 1;
                sends.now(from, &answer(id, Some(from))[..26]);
            }
            5 => {
                account.foreign += 1;
                // A request is no answer.
                sends.now(from, bytes);
            }
            _ => {}
        }
        account.passed += 1;
        sends.now(from, &answer(id, Some(from)));
    });
    let target = Target::admit(liar.address, false).unwrap();
    let mut plan = binding(&BindingOptions::new(target)).unwrap();
    shape(&mut plan, 2_000.0);
    let report = run(plan);
    agrees(&report, &liar.account());
    assert!(report.total.wrong_addresses > 400, "{report}");
    let text = report.to_string();
    for part in ["transaction ID", "mapped address", "duplicate 2"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A middlebox between clients and a server.
#[derive(Default)]
struct Between {
    truncated: u64,
    dropped: u64,
    repeated: u64,
    data: u64,
}

#[test]
fn a_middlebox_before_a_turn_server_is_found_out() {
    let server = TestServer::start(&RunRequest::default());
    let far = server.address;
    let mut client_of: HashMap<[u8; 12], SocketAddr> = HashMap::new();
    let liar = Liar::<Between>::start(move |_, bytes, from, account, sends| {
        // One client: what the server says is for it.
        let client = [0; 12];
        if from == far {
            return sends.now(client_of[&client], bytes);
        }
        client_of.insert(client, from);
        if !(64..128).contains(&bytes[0]) {
            return sends.now(far, bytes);
        }
        account.data += 1;
        match account.data % 10 {
            0 => account.dropped += 1,
            1 => {
                account.truncated += 1;
                // ChannelData of its own, with less in it.
                let mut less = bytes[..4 + SIZE - 20].to_vec();
                less[2..4].copy_from_slice(&(SIZE as u16 - 20).to_be_bytes());
                sends.now(far, &less);
            }
            2 => {
                account.repeated += 1;
                sends.now(far, bytes);
                sends.now(far, bytes);
            }
            _ => sends.now(far, bytes),
        }
    });
    let mut turn = TurnClients::new(Target::admit(liar.address, false).unwrap());
    turn.credentials = Some(Credentials::new(USER, PASSWORD));
    let mut options = RelayOptions::new(turn);
    options.clients = 1;
    options.size = SIZE;
    let mut plan = relay(&options, &Stopper::new()).unwrap();
    shape(&mut plan, 1_000.0);
    let report = run(plan);
    let (total, account) = (&report.total, liar.account());
    assert_eq!(
        (total.truncated, total.duplicates, total.lost),
        (
            account.truncated,
            account.repeated,
            account.dropped + account.truncated
        ),
        "{report}"
    );
    assert!(account.data > 900, "{report}");
}

/// ChannelData that a TURN server sends to its client.
fn changed_channel_data(
    number: u64,
    bytes: &[u8],
    client: SocketAddr,
    account: &mut Account,
    sends: &mut liar::Sends,
) {
    let mut changed = bytes.to_vec();
    match number % 8 {
        0 => {
            account.truncated += 1;
            changed.truncate(4 + number as usize % SIZE);
        }
        1 => {
            account.truncated += 1;
            changed.extend_from_slice(&[9; 9]);
        }
        2 => {
            account.unbound += 1;
            // A channel number that no client binds first (RFC 8656 §12: 0x4000 to 0x4FFF).
            changed[..2].copy_from_slice(&[0x4F, 0xFD]);
        }
        3 => {
            // A response to no request, and then the truth.
            account.unknown_ids += 1;
            account.passed += 1;
            sends.now(client, &answer(&[7; 12], Some(client)));
        }
        4 => {
            // A Data indication that is cut.
            account.truncated += 1;
            changed = [&[0, 0x17, 0, 80, 0x21, 0x12, 0xA4, 0x42][..], &[3; 60]].concat();
        }
        5 => {
            // Padding is allowed (RFC 8656 §12.5).
            account.passed += 1;
            changed.resize(changed.len().next_multiple_of(4), 0);
        }
        _ => account.passed += 1,
    }
    sends.now(client, &changed);
}

#[test]
fn a_middlebox_behind_a_turn_server_is_found_out() {
    const ODD_SIZE: usize = SIZE - 1;
    let server = TestServer::start(&RunRequest::default());
    let far = server.address;
    let (mut client, mut number) = (far, 0);
    let liar = Liar::<Account>::start(move |_, bytes, from, account, sends| {
        if from != far {
            client = from;
            return sends.now(far, bytes);
        }
        if !(64..80).contains(&bytes[0]) {
            return sends.now(client, bytes);
        }
        number += 1;
        changed_channel_data(number, bytes, client, account, sends);
    });
    let mut turn = TurnClients::new(Target::admit(liar.address, false).unwrap());
    turn.credentials = Some(Credentials::new(USER, PASSWORD));
    let mut options = RelayOptions::new(turn);
    (options.clients, options.size) = (1, ODD_SIZE);
    options.path = Path::Peers {
        direction: Direction::Down,
        ip: None,
        sockets: 1,
    };
    let mut plan = relay(&options, &Stopper::new()).unwrap();
    shape(&mut plan, 1_000.0);
    let report = run(plan);
    agrees(&report, &liar.account());
    let total = &report.total;
    assert!(total.truncated > 300 && total.unbound > 100, "{report}");
    let text = report.to_string();
    assert!(text.contains("data on no channel"), "{text}");
}
