//! Late, reordered, forged and colliding messages.

use hairpin_sip::HashKey;
use hairpin_sip::engine::{DropReason, SendTo};
use hairpin_sip::flow::Transport;

use crate::network::Weather;
use crate::world::{UAC, UAS, World, address, request, text};

fn world() -> World {
    let mut world = World::new(Weather::FINE, 1);
    world.uas().script.other = vec![(0, 200)];
    world.uas().script.invite = vec![(50, 180), (1_000, 486)];
    world
}

/// Hands bytes to a node as if they came from the other one.
fn inject(world: &mut World, node: usize, bytes: &[u8]) -> String {
    inject_from(world, node, address(1 - node), bytes)
}

fn inject_from(
    world: &mut World,
    node: usize,
    source: std::net::SocketAddr,
    bytes: &[u8],
) -> String {
    let now = world.now;
    let node = &mut world.nodes[node];
    let flow = node.flow(source, None);
    let what = node.receive(now, &flow, bytes);
    world.drain();
    what
}

fn dropped(reason: DropReason) -> String {
    format!("Dropped({reason:?})")
}

#[test]
fn responses_find_their_transaction_or_nothing() {
    let mut world = world();
    world.send(Transport::Udp, &request("OPTIONS", 1, ""));
    world.run_until(15);
    let ok = text(&world.uas().last);
    let with = |from: &str, to: &str| ok.replacen(from, to, 1).into_bytes();
    let branch = ok.split("branch=").nth(1).unwrap();
    let branch = branch.split([';', '\r']).next().unwrap().to_owned();
    let mut forged = branch.clone();
    let last = if forged.ends_with('a') { "e" } else { "a" };
    forged.replace_range(20..21, if &forged[20..21] == "b" { "c" } else { "b" });
    let foreign = format!("z9hG4bK{last}");
    for (bytes, reason) in [
        (with(&branch, &forged), DropReason::ForgedBranch),
        (with(&branch, &foreign), DropReason::ForeignBranch),
        (with("1 OPTIONS", "1 REGISTER"), DropReason::WrongMethod),
        (with("1 OPTIONS", "1 CANCEL"), DropReason::WrongMethod),
        (
            with("UDP 192.0.2.1", "UDP 192.0.2.9"),
            DropReason::WrongSentBy,
        ),
    ] {
        assert_eq!(inject(&mut world, UAC, &bytes), dropped(reason));
    }
    assert!(world.heard(UAC).is_empty());
    // The branch is a token: its case does not matter.
    let upper = with(&branch, &branch.to_ascii_uppercase());
    assert_eq!(inject(&mut world, UAC, &upper), "200 OPTIONS");
    world.run_until(10_000);
    let late = inject(&mut world, UAC, ok.as_bytes());
    assert_eq!(late, dropped(DropReason::Stray));
    let counts = world.uac().engine.stats().dropped;
    assert_eq!(counts.iter().sum::<u64>(), 6);
    world.nothing_is_left();
}

#[test]
fn a_response_for_another_worker_is_handed_over() {
    let mut world = World::with(Weather::FINE, 1, |_, config| {
        config.key = HashKey::new([4; 16]);
    });
    world.uas().script.other = vec![(0, 200)];
    world.send(Transport::Udp, &request("OPTIONS", 1, ""));
    world.run_until(15);
    let ok = text(&world.uas().last);
    // The other node is another worker of the same process, and owns the address as well.
    let ours = ok.replacen("UDP 192.0.2.1", "UDP 192.0.2.2", 1);
    let what = inject(&mut world, UAS, ours.as_bytes());
    assert_eq!(what, "Elsewhere { worker: 0 }");
    world.nothing_is_left();
}

#[test]
fn two_clients_with_one_branch_are_two_transactions() {
    let mut world = world();
    let message = |sent_by: &str, method: &str| {
        let request = text(&request(method, 1, ""));
        let via = format!("SIP/2.0\r\nVia: SIP/2.0/UDP {sent_by};branch=z9hG4bKsame\r\n");
        request.replacen("SIP/2.0\r\n", &via, 1).into_bytes()
    };
    let mut what = |sent_by, method| inject(&mut world, UAS, &message(sent_by, method));
    assert_eq!(what("a.example", "OPTIONS"), "request OPTIONS");
    assert_eq!(what("a.example", "OPTIONS"), "Absorbed");
    assert_eq!(what("A.Example", "OPTIONS"), "Absorbed");
    assert_eq!(what("b.example", "OPTIONS"), "request OPTIONS");
    assert_eq!(what("a.example:5070", "OPTIONS"), "request OPTIONS");
    assert_eq!(what("a.example", "REGISTER"), "request REGISTER");
    assert_eq!(world.uas().engine.stats().servers, 4);
    world.nothing_is_left();
}

fn old_client(method: &str, number: u32, to_tag: &str) -> Vec<u8> {
    text(&request(method, number, ""))
        .replacen(
            "SIP/2.0\r\n",
            "SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060\r\n",
            1,
        )
        .replacen(
            "To: <sip:bob@192.0.2.2>",
            &format!("To: <sip:bob@192.0.2.2>{to_tag}"),
            1,
        )
        .into_bytes()
}

#[test]
fn clients_of_rfc_2543_are_matched_by_their_headers() {
    let mut world = world();
    world.uas().script.invite = vec![(0, 486)];
    let invite = old_client("INVITE", 1, "");
    assert_eq!(inject(&mut world, UAS, &invite), "request INVITE");
    assert_eq!(inject(&mut world, UAS, &invite), "Absorbed");
    let other = old_client("INVITE", 2, "");
    assert_eq!(inject(&mut world, UAS, &other), "request INVITE");
    // The ACK must have the To tag of the response (RFC 3261 §17.2.3).
    let sent = text(&world.uas().last);
    let tag = sent
        .split("2.2>")
        .nth(1)
        .unwrap()
        .split('\r')
        .next()
        .unwrap();
    let wrong = old_client("ACK", 2, ";tag=other");
    assert_eq!(inject(&mut world, UAS, &wrong), "ACK of nobody");
    let right = old_client("ACK", 2, tag);
    assert_eq!(inject(&mut world, UAS, &right), "Absorbed");
    let cancel = old_client("CANCEL", 1, "");
    assert_eq!(
        inject(&mut world, UAS, &cancel),
        "Absorbed",
        "it is answered already"
    );
    assert!(text(&world.uas().last).starts_with("SIP/2.0 200"));
    world.nothing_is_left();
}

#[test]
fn a_cancel_for_nothing_is_the_tus() {
    let mut world = world();
    let cancel = text(&request("CANCEL", 1, "")).replacen(
        "SIP/2.0\r\n",
        "SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=z9hG4bKx\r\n",
        1,
    );
    let what = inject(&mut world, UAS, cancel.as_bytes());
    assert_eq!(what, "request CANCEL");
    world.nothing_is_left();
}

#[test]
fn a_late_180_after_the_refusal_does_not_reach_the_tu() {
    let mut world = world();
    world.send(Transport::Udp, &request("INVITE", 1, ""));
    world.run_until(61);
    let ringing = world.uas().last.clone();
    world.run_until(2_000);
    assert_eq!(world.heard(UAC), ["180 INVITE", "486 INVITE"]);
    assert_eq!(inject(&mut world, UAC, &ringing), "Absorbed");
    world.nothing_is_left();
}

#[test]
fn malformed_messages_are_dropped_or_refused() {
    let mut world = world();
    let via = "Via: SIP/2.0/UDP a;branch=z9hG4bKx;rport\r\n";
    let good = text(&request("OPTIONS", 1, via));
    for (bytes, expected) in [
        (String::new(), "KeepAlive".to_owned()),
        ("\r\n\r\n".to_owned(), "KeepAlive".to_owned()),
        ("hello".to_owned(), dropped(DropReason::NotSip)),
        (
            "GET / HTTP/1.1\r\n\r\n".to_owned(),
            dropped(DropReason::NotSip),
        ),
        (
            text(&request("OPTIONS", 1, "")),
            dropped(DropReason::NoReturnPath),
        ),
        (
            good.replace("2 SIP/2.0", "2 SIP/7.0"),
            "Refused(505)".to_owned(),
        ),
        (
            good.replace("Length: 0", "Length: 9"),
            "Refused(400)".to_owned(),
        ),
        (
            good.replace("OPTIONS sip:bob@192.0.2.2", "ACK x y"),
            dropped(DropReason::BadAck),
        ),
    ] {
        let what = inject(&mut world, UAS, bytes.as_bytes());
        assert_eq!(what, expected, "{bytes}");
    }
    world.nothing_is_left();
}

#[test]
fn answers_go_to_the_source_with_rport_and_to_sent_by_without() {
    let mut world = world();
    let source = ([198, 51, 100, 7], 4_444).into();
    let mut to = |via: &str, number: u32| {
        let message = request("OPTIONS", number, &format!("Via: SIP/2.0/UDP {via}\r\n"));
        let node = &mut world.nodes[UAS];
        let flow = node.flow(source, None);
        node.receive(world.now, &flow, &message);
        let mut sent = None;
        while let Some(output) = node.engine.poll_output() {
            if let hairpin_sip::engine::Output::Send { to, bytes, .. } = output {
                let via = text(bytes)
                    .lines()
                    .find(|line| line.starts_with("Via"))
                    .map(str::to_owned);
                sent = Some((to, via.unwrap()));
            }
        }
        let (to, via) = sent.unwrap();
        match to {
            SendTo::Datagram { remote, local, .. } => {
                assert_eq!(local, Some(address(UAS)), "from where it came to");
                (remote.to_string(), via)
            }
            SendTo::Stream(_) => panic!("a stream"),
        }
    };
    let (remote, via) = to("a.example:5099;branch=z9hG4bK1;rport", 1);
    assert_eq!(remote, "198.51.100.7:4444");
    assert!(
        via.contains("rport=4444") && via.contains("received=198.51.100.7"),
        "{via}"
    );
    let (remote, via) = to("a.example:5099;branch=z9hG4bK2", 2);
    assert_eq!(remote, "198.51.100.7:5099");
    assert!(via.contains(";received=198.51.100.7"), "{via}");
    let (remote, _) = to("a.example;branch=z9hG4bK3;maddr=192.0.2.77", 3);
    assert_eq!(remote, "192.0.2.77:5060");
    let (remote, _) = to("a.example;branch=z9hG4bK4;maddr=224.0.1.75", 4);
    assert_eq!(remote, "198.51.100.7:5060", "never to many");
}
