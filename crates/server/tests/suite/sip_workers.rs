//! What belongs together is answered together, on whichever worker it arrives: over other ports, over other
//! connections, and over one connection that is more than one worker's work.

use crate::sip_client::{Client, Stream, options, serve, status, test_uas};
use hairpin_server::Running;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const WORKERS: usize = 4;

/// Ports and connections tried: that all are the same worker's has a chance of 4^-15.
const MANY: usize = 16;

fn server() -> Running {
    serve(test_uas(), WORKERS)
}

/// One whose first worker is soon busy.
fn slow_server() -> Running {
    let mut settings = test_uas();
    settings.service_time = Duration::from_micros(300);
    // What waits is to be served, however long that takes here.
    settings.tolerance = Duration::ZERO;
    serve(settings, WORKERS)
}

fn address(server: &Running) -> SocketAddr {
    server.sip_listeners()[0]
}

fn request(transport: &str, id: &str, method: &str, user: &str) -> String {
    format!(
        "{method} sip:{user}@127.0.0.1 SIP/2.0\r\n\
         Via: SIP/2.0/{transport} 192.0.2.1:5060;rport;branch=z9hG4bK{id}\r\n\
         From: <sip:a@example.org>;tag=1\r\nTo: <sip:{user}@127.0.0.1>\r\n\
         Call-ID: {id}@test\r\nCSeq: 1 {method}\r\nMax-Forwards: 70\r\n\
         Contact: <sip:a@192.0.2.1>\r\nContent-Length: 0\r\n\r\n"
    )
}

/// Of several datagrams that come in any order.
fn statuses(client: &Client, count: usize) -> Vec<u16> {
    let mut all: Vec<u16> = (0..count).map(|_| status(&client.answer())).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_cancel_from_any_port_finds_its_invite_rfc3261_9_2() {
    let server = server();
    for number in 0..MANY {
        let id = format!("c{number}");
        let caller = Client::new(address(&server));
        assert_eq!(
            status(&caller.ask(&request("UDP", &id, "INVITE", "ring"))),
            180
        );
        let other = Client::new(address(&server));
        let cancel = request("UDP", &id, "CANCEL", "ring");
        let answer = other.ask(&cancel);
        assert_eq!(status(&answer), 200);
        assert_eq!(other.ask(&cancel), answer, "from memory");
        assert_eq!(statuses(&caller, 1), [487]);
    }
    let sip = server.stats().sip();
    assert!(
        sip.cancels_passed_on > 0,
        "of sixteen, one is on another worker"
    );
    assert_eq!(sip.requests[4], MANY as u64, "each is counted once");
}

#[test]
fn a_cancel_over_another_connection_is_answered_there() {
    let server = server();
    for number in 0..MANY {
        let id = format!("t{number}");
        let mut caller = Stream::new(address(&server));
        caller.send(request("TCP", &id, "INVITE", "ring").as_bytes());
        assert_eq!(status(&caller.answer()), 180);
        let mut other = Stream::new(address(&server));
        other.send(request("TCP", &id, "CANCEL", "ring").as_bytes());
        assert_eq!(status(&other.answer()), 200);
        assert_eq!(status(&caller.answer()), 487);
    }
    let sip = server.stats().sip();
    assert!(sip.cancels_passed_on > 0 && sip.handed_back > 0);
    assert_eq!(sip.unsent, 0);
}

#[test]
fn a_cancel_of_nothing_gets_one_481_after_all_were_asked() {
    let server = server();
    let client = Client::new(address(&server));
    let cancel = request("UDP", "nothing", "CANCEL", "ring");
    let answer = client.ask(&cancel);
    assert_eq!(status(&answer), 481);
    let sip = server.stats().sip();
    assert_eq!(sip.cancels_passed_on, WORKERS as u64 - 1);
    assert_eq!((sip.requests[4], sip.transactions), (1, 0));
    assert_eq!(client.ask(&cancel), answer, "statelessly the same");
}

#[test]
fn a_flood_of_cancels_does_not_make_workers_ask_each_other_without_end() {
    let server = server();
    let client = Client::new(address(&server));
    for number in 0..3000 {
        client.send(request("UDP", &format!("f{number}"), "CANCEL", "x").as_bytes());
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.stats().sip().requests[4] < 500 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let sip = server.stats().sip();
    assert!(sip.requests[4] >= 500, "{}", sip.requests[4]);
    assert_eq!(
        status(&Client::new(address(&server)).ask(&options("alive", "UDP", ""))),
        200
    );
}

#[test]
fn a_cancel_of_anything_but_an_invite_gets_200_and_changes_nothing_rfc3261_9_2() {
    let server = server();
    for number in 0..MANY {
        let id = format!("r{number}");
        let client = Client::new(address(&server));
        let register = request("UDP", &id, "REGISTER", "a");
        let answer = client.ask(&register);
        assert_eq!(status(&answer), 200);
        let other = Client::new(address(&server));
        assert_eq!(status(&other.ask(&request("UDP", &id, "CANCEL", "a"))), 200);
        assert_eq!(client.ask(&register), answer, "the same answer as before");
    }
}

/// Sends so many REGISTERs at once, each of a Call-ID of its own, and collects the answers.
fn burst(trunk: &mut Stream, first: usize, count: usize) {
    let text: String = (first..first + count)
        .map(|number| request("TCP", &format!("u{number}"), "REGISTER", "a"))
        .collect();
    trunk.send(text.as_bytes());
    let mut left: HashMap<String, ()> = (first..first + count)
        .map(|number| (format!("Call-ID: u{number}@test"), ()))
        .collect();
    for _ in 0..count {
        let answer = trunk.answer();
        assert_eq!(status(&answer), 200, "{answer}");
        let id = answer.lines().find(|line| line.starts_with("Call-ID: "));
        assert!(
            left.remove(id.unwrap_or_default()).is_some(),
            "twice: {answer}"
        );
    }
}

#[test]
fn one_connection_is_served_by_all_workers_and_nothing_of_it_is_lost() {
    let server = slow_server();
    let mut trunk = Stream::new(address(&server));
    let started = Instant::now();
    let mut number = 0;
    while server.stats().sip().handed_over < 400 {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "nothing is handed over"
        );
        burst(&mut trunk, number, 100);
        number += 100;
    }
    // Calls of several messages stay in order.
    for call in 0..20 {
        let id = format!("call{call}");
        trunk.send(request("TCP", &id, "INVITE", "a").as_bytes());
        assert_eq!(status(&trunk.answer()), 180);
        let taken = trunk.answer();
        assert_eq!(status(&taken), 200);
        let tag = taken
            .lines()
            .find(|line| line.starts_with("To: "))
            .expect("a To");
        let in_dialog = |method: &str, cseq: u32| {
            request("TCP", &format!("{id}-{cseq}"), method, "a")
                .replace(
                    &format!("Call-ID: {id}-{cseq}@test"),
                    &format!("Call-ID: {id}@test"),
                )
                .replace("To: <sip:a@127.0.0.1>", tag)
                .replace("CSeq: 1", &format!("CSeq: {cseq}"))
        };
        trunk.send(
            in_dialog("ACK", 1)
                .replace(&format!("{id}-1"), &format!("{id}-ack"))
                .as_bytes(),
        );
        trunk.send(in_dialog("BYE", 2).as_bytes());
        assert_eq!(status(&trunk.answer()), 200);
    }
    let stats = server.stats();
    let sip = stats.sip();
    assert!(sip.handed_back > 0);
    assert_eq!((sip.unsent, sip.mailbox_full, sip.stray_acks), (0, 0, 0));
    let working = stats
        .workers
        .iter()
        .filter(|worker| worker.sip.taken_over > 0);
    assert_eq!(
        working.count(),
        WORKERS - 1,
        "all but the one that has the connection"
    );
}

#[test]
fn a_connection_that_ends_while_others_answer_takes_nothing_along() {
    let server = slow_server();
    let started = Instant::now();
    let mut number = 0;
    while server.stats().sip().handed_over < 400 {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "nothing is handed over"
        );
        let mut trunk = Stream::new(address(&server));
        let text: String = (number..number + 300)
            .map(|number| request("TCP", &format!("g{number}"), "REGISTER", "a"))
            .collect();
        trunk.send(text.as_bytes());
        // Some answers have come, others have not.
        assert_eq!(status(&trunk.answer()), 200);
        number += 300;
    }
    let mut trunk = Stream::new(address(&server));
    burst(&mut trunk, 0, 300);
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.stats().sip().connections > 1 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.stats().sip().connections, 1);
}
