//! What the server sends by itself: a BYE where its 200 is not acknowledged (RFC 3261 §13.3.1.4), to whom the caller's
//! Contact and route lead by the DNS, and to nobody else.

use crate::dns_server::{DnsServer, Manner, Zone};
use crate::sip_client::{Client, Stream, options, serve, status, test_uas};
use hairpin_server::Running;
use hairpin_server::policy::PeerRule;
use hairpin_server::sip::SipSettings;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A server that gives up soon: 64*T1 are 640 ms.
fn server_with(change: impl FnOnce(&mut SipSettings)) -> Running {
    let mut settings = test_uas();
    settings.t1 = Duration::from_millis(10);
    change(&mut settings);
    serve(settings, 2)
}

fn server() -> Running {
    server_with(|_| {})
}

fn asking(dns: &DnsServer) -> Running {
    let resolver = dns.address();
    server_with(|settings| settings.resolvers = vec![resolver])
}

/// A socket of a caller's.
fn socket(ip: &str) -> UdpSocket {
    let socket = UdpSocket::bind((ip, 0)).expect("a socket");
    socket
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("a timeout");
    socket
}

fn port(socket: &UdpSocket) -> u16 {
    socket.local_addr().expect("an address").port()
}

/// The zone of `caller.example`, which is served by these over UDP, the first one first.
fn servers(sockets: &[&UdpSocket]) -> Zone {
    let zone = Zone::new().host("h.caller.example", "127.0.0.1");
    (1..).zip(sockets).fold(zone, |zone, (priority, socket)| {
        let record = [priority, 0, port(socket)];
        zone.srv("_sip._udp.caller.example", record, "h.caller.example")
    })
}

fn invite(contact: &str, more: &str) -> String {
    format!(
        "INVITE sip:uas@127.0.0.1 SIP/2.0\r\n\
         Via: SIP/2.0/UDP 192.0.2.1:5060;rport;branch=z9hG4bKinvite\r\n{more}\
         From: \"A\" <sip:a@example.org>;tag=1\r\nTo: <sip:uas@127.0.0.1>\r\n\
         Call-ID: call@test\r\nCSeq: 7 INVITE\r\nMax-Forwards: 70\r\n\
         Contact: <{contact}>\r\nContent-Length: 0\r\n\r\n"
    )
}

fn call(caller: &UdpSocket, server: &Running, request: &str) {
    let to = server.sip_listeners()[0];
    caller.send_to(request.as_bytes(), to).expect("sent");
}

fn receive(socket: &UdpSocket) -> (String, SocketAddr) {
    let mut buffer = [0; 65536];
    let (length, from) = socket.recv_from(&mut buffer).expect("a message in time");
    (
        String::from_utf8_lossy(&buffer[..length]).into_owned(),
        from,
    )
}

/// The next BYE that comes; responses are passed over.
fn bye(socket: &UdpSocket) -> (String, SocketAddr) {
    loop {
        let (text, from) = receive(socket);
        if text.starts_with("BYE ") {
            return (text, from);
        }
        assert!(text.starts_with("SIP/2.0 "), "{text}");
    }
}

fn respond(socket: &UdpSocket, request: &str, to: SocketAddr, code: u16, more: &str) {
    let copied = ["Via:", "From:", "To:", "Call-ID:", "CSeq:"];
    let lines = request
        .lines()
        .filter(|line| copied.iter().any(|kind| line.starts_with(kind)));
    let lines: Vec<&str> = lines.collect();
    let text = format!(
        "SIP/2.0 {code} X\r\n{}\r\n{more}Content-Length: 0\r\n\r\n",
        lines.join("\r\n")
    );
    socket.send_to(text.as_bytes(), to).expect("sent");
}

fn field<'t>(text: &'t str, name: &str) -> &'t str {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
}

fn until(server: &Running, what: &str, holds: impl Fn(&hairpin_server::sip::SipCounters) -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !holds(&server.stats().sip()) {
        assert!(
            Instant::now() < deadline,
            "{what}: {:?}",
            server.stats().sip()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_call_that_is_not_acknowledged_is_ended_with_a_bye_rfc3261_13_3_1_4() {
    let server = server();
    let caller = socket("127.0.0.1");
    let contact = format!("sip:a@127.0.0.1:{}", port(&caller));
    call(&caller, &server, &invite(&contact, ""));
    let tag = loop {
        let (text, _) = receive(&caller);
        if text.starts_with("SIP/2.0 200") {
            break field(&text, "To: ").to_owned();
        }
    };
    let (request, from) = bye(&caller);
    assert_eq!(from, server.sip_listeners()[0]);
    assert!(
        request.starts_with(&format!("BYE {contact} SIP/2.0\r\n")),
        "{request}"
    );
    assert_eq!(field(&request, "From: "), tag);
    assert_eq!(field(&request, "To: "), "\"A\" <sip:a@example.org>;tag=1");
    assert_eq!(field(&request, "Call-ID: "), "call@test");
    assert_eq!(
        field(&request, "Via: ").split(';').next(),
        Some(&*format!("SIP/2.0/UDP {from}"))
    );
    respond(&caller, &request, from, 200, "");
    until(&server, "all is done", |sip| {
        (
            sip.own_requests,
            sip.unacknowledged,
            sip.responses_received[1],
        ) == (1, 1, 1)
    });
    assert_eq!(server.stats().sip().own_forbidden, 0);
}

#[test]
fn a_call_that_is_acknowledged_gets_none() {
    // Time enough for the ACK, however busy the machine is.
    let server = server_with(|settings| settings.t1 = Duration::from_millis(100));
    let caller = socket("127.0.0.1");
    let contact = format!("sip:a@127.0.0.1:{}", port(&caller));
    let request = invite(&contact, "");
    call(&caller, &server, &request);
    let to = loop {
        let (text, _) = receive(&caller);
        if text.starts_with("SIP/2.0 200") {
            break field(&text, "To: ").to_owned();
        }
    };
    let ack = request
        .replace("INVITE", "ACK")
        .replace("z9hG4bKinvite", "z9hG4bKack")
        .replace("<sip:uas@127.0.0.1>", &to);
    call(&caller, &server, &ack);
    until(&server, "the transaction ends", |sip| sip.transactions == 0);
    assert_eq!(
        (
            server.stats().sip().own_requests,
            server.stats().sip().unacknowledged
        ),
        (0, 0)
    );
}

/// RFC 3261 §18.2.2, RFC 3263 §5: the connection that the call came by is gone, and nobody listens where it came from;
/// the caller's Via names another place.
#[test]
fn an_answer_whose_connection_is_gone_goes_to_where_the_via_leads_rfc3263_5() {
    let elsewhere = TcpListener::bind("127.0.0.2:0").expect("a listener");
    let port = elsewhere.local_addr().expect("an address").port();
    let zone = Zone::new().host("caller.example", "127.0.0.2");
    let dns = DnsServer::new(zone);
    let server = server_with(|settings| {
        settings.t1 = Duration::from_millis(100);
        settings.resolvers = vec![dns.address()];
        let network = "127.0.0.2/32".parse().expect("a network");
        settings.targets = vec![PeerRule::all_ports(network)];
    });
    let request = invite("sip:a@127.0.0.1:9", "").replace(
        "UDP 192.0.2.1:5060;rport",
        &format!("TCP caller.example:{port}"),
    );
    let mut stream = Stream::new(server.sip_listeners()[0]);
    stream.send(request.as_bytes());
    assert_eq!(status(&stream.answer()), 180);
    assert_eq!(status(&stream.answer()), 200);
    drop(stream);
    // The 200 is repeated until its ACK comes.
    let (mut stream, _) = elsewhere.accept().expect("a connection");
    stream
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("a timeout");
    let mut text = [0; 12];
    stream.read_exact(&mut text).expect("an answer");
    assert_eq!(&text, b"SIP/2.0 200 ");
    until(&server, "it is counted", |sip| sip.redirected >= 1);
}

#[test]
fn it_goes_nowhere_but_to_the_caller_unless_the_operator_says_so() {
    let victim = socket("127.0.0.2");
    let contact = format!("sip:a@127.0.0.2:{}", port(&victim));
    let caller = socket("127.0.0.1");
    let strict = server();
    call(&caller, &strict, &invite(&contact, ""));
    until(&strict, "it is withheld", |sip| sip.own_forbidden == 1);

    let open = server_with(|settings| {
        let network = "127.0.0.2/32".parse().expect("a network");
        settings.targets = vec![PeerRule::all_ports(network)];
    });
    call(&caller, &open, &invite(&contact, ""));
    let (request, from) = bye(&victim);
    assert_eq!(
        from,
        open.sip_listeners()[0],
        "the first one would have come from the other server"
    );
    respond(&victim, &request, from, 200, "");
    assert_eq!(strict.stats().sip().responses_received, [0; 6]);
}

#[test]
fn it_goes_along_the_route_set_rfc3261_12_2_1_1() {
    let server = server();
    let (caller, proxy) = (socket("127.0.0.1"), socket("127.0.0.1"));
    let route = format!("<sip:127.0.0.1:{};lr>", port(&proxy));
    let routes = format!("Record-Route: {route}, <sip:next.example;lr>\r\n");
    call(&caller, &server, &invite("sip:a@nowhere.example", &routes));
    let (request, from) = bye(&proxy);
    assert!(
        request.starts_with("BYE sip:a@nowhere.example SIP/2.0\r\n"),
        "{request}"
    );
    assert!(
        request.contains(&format!(
            "Route: {route}\r\nRoute: <sip:next.example;lr>\r\n"
        )),
        "{request}"
    );
    respond(&proxy, &request, from, 200, "");
}

#[test]
fn names_lead_by_naptr_and_srv_and_a_503_to_the_next_server_rfc3263_4_3() {
    let (first, second) = (socket("127.0.0.1"), socket("127.0.0.1"));
    let zone = servers(&[&first, &second]);
    let naptr = "_sip._udp.caller.example";
    let dns = DnsServer::new(zone.naptr("caller.example", 1, "SIP+D2U", naptr));
    let server = asking(&dns);
    let caller = socket("127.0.0.1");
    call(&caller, &server, &invite("sip:a@caller.example", ""));
    let (request, from) = bye(&first);
    respond(&first, &request, from, 503, "Retry-After: 9\r\n");
    let (again, from) = bye(&second);
    assert_ne!(
        field(&request, "Via: "),
        field(&again, "Via: "),
        "another branch"
    );
    respond(&second, &again, from, 200, "");
    until(&server, "all is counted", |sip| {
        (
            sip.own_failed_over,
            sip.responses_received[1],
            sip.dns_queries[0],
        ) == (1, 1, 3)
    });
    let sip = server.stats().sip();
    assert!(sip.dns_time_ns > 0 && sip.dns_cached == 3 && sip.dns_open == 0);
    assert!(
        !dns.asked().iter().any(|asked| asked.contains("AAAA")),
        "there is no IPv6 listener"
    );
}

#[test]
fn a_silent_server_is_passed_over_rfc3263_4_3() {
    let (silent, second) = (socket("127.0.0.1"), socket("127.0.0.1"));
    let dns = DnsServer::new(servers(&[&silent, &second]));
    let server = asking(&dns);
    let caller = socket("127.0.0.1");
    call(&caller, &server, &invite("sip:a@caller.example", ""));
    let (request, from) = bye(&second);
    respond(&second, &request, from, 200, "");
    assert_eq!(bye(&silent).0.lines().next(), request.lines().next());
    until(&server, "it is counted", |sip| sip.own_failed_over == 1);
}

#[test]
fn a_long_bye_goes_over_tcp_and_over_udp_where_nobody_listens_rfc3261_18_1_1() {
    let long = format!(
        "Record-Route: <sip:127.0.0.1:PORT;lr;x={}>\r\n",
        "x".repeat(1300)
    );
    let server = server();
    let (caller, proxy) = (socket("127.0.0.1"), socket("127.0.0.1"));
    let routes = long.replace("PORT", &port(&proxy).to_string());
    call(&caller, &server, &invite("sip:a@127.0.0.1", &routes));
    let (request, from) = bye(&proxy);
    assert!(request.len() > 1300 && field(&request, "Via: ").starts_with("SIP/2.0/UDP"));
    respond(&proxy, &request, from, 200, "");

    let proxy = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = proxy.local_addr().expect("an address").port();
    let routes = long.replace("PORT", &port.to_string());
    let request = invite("sip:a@127.0.0.1", &routes).replace("z9hG4bKinvite", "z9hG4bKother");
    call(
        &caller,
        &server,
        &request.replace("call@test", "other@test"),
    );
    let (mut stream, _) = proxy.accept().expect("a connection");
    stream
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("a timeout");
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains("\r\n\r\n") {
        let length = stream.read(&mut buffer).expect("bytes");
        assert_ne!(length, 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    assert!(
        text.starts_with("BYE ") && field(&text, "Via: ").starts_with("SIP/2.0/TCP"),
        "{text}"
    );
    let answer: String = text
        .lines()
        .filter(|line| !line.starts_with("BYE") && !line.is_empty())
        .map(|line| format!("{line}\r\n"))
        .collect();
    write!(stream, "SIP/2.0 200 OK\r\n{answer}\r\n").expect("written");
    until(&server, "both are answered", |sip| {
        sip.responses_received[1] == 2
    });
}

#[test]
fn a_failing_or_silent_dns_delays_no_other_request_and_gets_a_limited_number_of_queries() {
    let dns = DnsServer::new(
        Zone::new()
            .manner("fails.example", Manner::Failing)
            .manner("silent.example", Manner::Silent),
    );
    let server = asking(&dns);
    let caller = socket("127.0.0.1");
    for (number, contact) in ["sip:a@fails.example:5060", "sip:a@silent.example:5060"]
        .iter()
        .enumerate()
    {
        let request = invite(contact, "").replace("z9hG4bKinvite", &format!("z9hG4bK{number}"));
        call(
            &caller,
            &server,
            &request.replace("call@test", &format!("{number}@test")),
        );
    }
    until(&server, "questions are asked", |sip| sip.own_requests == 2);
    let started = Instant::now();
    let client = Client::new(server.sip_listeners()[0]);
    assert_eq!(status(&client.ask(&options("meanwhile", "UDP", ""))), 200);
    assert!(started.elapsed() < Duration::from_secs(2));
    until(&server, "both have failed", |sip| {
        (sip.own_failed, sip.dns_queries[2], sip.dns_queries[3]) == (2, 1, 1)
    });
    // More names than questions may be open.
    for number in 0..400 {
        let contact = format!("sip:a@n{number}.silent.example:5060");
        let request = invite(&contact, "").replace("z9hG4bKinvite", &format!("z9hG4bKn{number}"));
        call(
            &caller,
            &server,
            &request.replace("call@test", &format!("n{number}@test")),
        );
    }
    until(&server, "all have failed", |sip| sip.own_failed >= 300);
    assert!(server.stats().sip().dns_open <= 2 * 64);
}

#[test]
fn an_icmp_error_ends_the_wait_for_a_server_rfc3261_18_4() {
    let gone = socket("127.0.0.1");
    let second = socket("127.0.0.1");
    let dns = DnsServer::new(servers(&[&gone, &second]));
    let resolver = dns.address();
    // 64*T1 are 6.4 s: first without an ACK, then, without the error, without an answer.
    let server = server_with(|settings| {
        settings.resolvers = vec![resolver];
        settings.t1 = Duration::from_millis(100);
    });
    let caller = socket("127.0.0.1");
    call(&caller, &server, &invite("sip:a@caller.example", ""));
    drop(gone);
    until(&server, "no ACK came", |sip| sip.unacknowledged == 1);
    let begun = Instant::now();
    let (request, from) = bye(&second);
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    respond(&second, &request, from, 200, "");
    until(&server, "it is counted", |sip| sip.own_failed_over == 1);
}
