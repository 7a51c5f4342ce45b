//! Tests of the thread with a small server of the ng protocol.

use super::super::MediaOutcome;
use super::*;
use std::net::UdpSocket as Socket;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A test fails after this time. It is long enough for a busy machine.
const MAX_TEST_WAIT: Duration = Duration::from_secs(30);

/// The requests that the server of a test has received.
type ReceivedRequests = Receiver<(String, SocketAddr, String)>;

fn socket() -> (Socket, SocketAddr) {
    let socket = Socket::bind("127.0.0.1:0").expect("a socket");
    socket
        .set_read_timeout(Some(MAX_TEST_WAIT))
        .expect("a timeout");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}

/// Serves on a socket, and returns the received requests. `answers` gets the text of a request, and how often it has
/// arrived before. It returns the response, if there is one.
fn serve_with(
    socket: Socket,
    mut answers: impl FnMut(&str, usize) -> Option<&'static str> + Send + 'static,
) -> ReceivedRequests {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
        let mut seen: Vec<String> = Vec::new();
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
            let Some((cookie, rest)) = text.split_once(' ') else {
                continue;
            };
            let before = seen.iter().filter(|it| *it == cookie).count();
            seen.push(cookie.to_owned());
            if let Some(response) = answers(rest, before) {
                let _ = socket.send_to(format!("{cookie} {response}").as_bytes(), from);
            }
            if sender
                .send((rest.to_owned(), from, cookie.to_owned()))
                .is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn request(
    address: SocketAddr,
    (session, text): (&str, &str),
    has_sdp: bool,
    reply: &Sender<(String, MediaOutcome)>,
) -> RtpengineRequest {
    let mut datagram = vec![b'0'; COOKIE_BYTES];
    datagram.extend_from_slice(b" ");
    datagram.extend_from_slice(text.as_bytes());
    let (reply, name) = (reply.clone(), text.to_owned());
    RtpengineRequest {
        address,
        session: session.as_bytes().into(),
        datagram,
        has_sdp,
        ends_session: !has_sdp,
        since: Instant::now(),
        reply: Box::new(move |outcome| drop(reply.send((name, outcome)))),
    }
}

fn start() -> mpsc::Sender<RtpengineRequest> {
    let (sender, receiver) = mpsc::channel(64);
    spawn(receiver).expect("a thread");
    sender
}

const SDP_RESPONSE: &str = "d6:result2:ok3:sdp3:v=0e";
const OK_RESPONSE: &str = "d6:result2:oke";

fn rewritten() -> MediaOutcome {
    MediaOutcome::Done(b"v=0".as_slice().into())
}

#[test]
fn a_lost_datagram_does_not_let_later_requests_of_its_session_overtake() {
    let (socket, address) = socket();
    // The first copy of each offer is lost.
    let got = serve_with(socket, |text, before| match text {
        "offer" if before == 0 => None,
        "delete" => Some(OK_RESPONSE),
        _ => Some(SDP_RESPONSE),
    });
    let thread = start();
    let (reply, replies) = channel();
    for (session, text, has_sdp) in [
        ("one", "offer", true),
        ("one", "answer", true),
        ("two", "other", true),
    ] {
        let request = request(address, (session, text), has_sdp, &reply);
        assert!(thread.try_send(request).is_ok());
    }
    let mut names: Vec<String> = (0..4)
        .map(|_| got.recv_timeout(MAX_TEST_WAIT).expect("a request").0)
        .collect();
    // The other session does not wait.
    names[..2].sort();
    assert_eq!(names, ["offer", "other", "offer", "answer"]);
    let outcomes: Vec<_> = (0..3)
        .map(|_| replies.recv_timeout(MAX_TEST_WAIT).expect("an outcome"))
        .collect();
    let names: Vec<&str> = outcomes.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, ["other", "offer", "answer"]);
    assert!(outcomes.iter().all(|(_, outcome)| *outcome == rewritten()));
}

#[test]
fn the_deletion_of_a_session_supersedes_what_waits_and_comes_after_what_is_sent() {
    let (socket, address) = socket();
    let got = serve_with(socket, |text, before| match (text, before) {
        ("offer", 0) => None,
        ("delete", _) => Some(OK_RESPONSE),
        _ => Some(SDP_RESPONSE),
    });
    let thread = start();
    let (reply, replies) = channel();
    for (text, has_sdp) in [("offer", true), ("answer", true), ("delete", false)] {
        let request = request(address, ("one", text), has_sdp, &reply);
        assert!(thread.try_send(request).is_ok());
    }
    let names: Vec<String> = (0..3)
        .map(|_| got.recv_timeout(MAX_TEST_WAIT).expect("a request").0)
        .collect();
    assert_eq!(names, ["offer", "offer", "delete"]);
    let outcomes: Vec<_> = (0..3)
        .map(|_| replies.recv_timeout(MAX_TEST_WAIT).expect("an outcome"))
        .collect();
    let wanted = [
        ("answer".to_owned(), MediaOutcome::NoAnswer),
        ("offer".to_owned(), rewritten()),
        ("delete".to_owned(), MediaOutcome::Done(Box::default())),
    ];
    assert_eq!(outcomes, wanted);
}

#[test]
fn requests_are_repeated_while_rtpengine_restarts() {
    let (socket, address) = socket();
    drop(socket);
    let thread = start();
    let (reply, replies) = channel();
    for session in ["one", "two"] {
        let request = request(address, (session, "offer"), true, &reply);
        assert!(thread.try_send(request).is_ok());
    }
    // No program listens. The ICMP errors must not end the requests.
    assert!(
        replies.recv_timeout(Duration::from_millis(200)).is_err(),
        "a request has failed at once"
    );
    let socket = Socket::bind(address).expect("the address again");
    let got = serve_with(socket, |_, _| Some(SDP_RESPONSE));
    for _ in 0..2 {
        let (_, outcome) = replies.recv_timeout(MAX_TEST_WAIT).expect("an outcome");
        assert_eq!(outcome, rewritten());
    }
    assert!(got.recv_timeout(MAX_TEST_WAIT).is_ok());
}

#[test]
fn a_request_that_is_too_long_for_a_datagram_fails_at_once() {
    let (socket, address) = socket();
    let got = serve_with(socket, |_, _| Some(SDP_RESPONSE));
    let thread = start();
    let (reply, replies) = channel();
    let long = "x".repeat(MAX_DATAGRAM_BYTES);
    let begun = Instant::now();
    for text in [&long[..], "offer"] {
        let request = request(address, ("one", text), true, &reply);
        assert!(thread.try_send(request).is_ok());
    }
    let (_, outcome) = replies.recv_timeout(MAX_TEST_WAIT).expect("an outcome");
    assert_eq!(outcome, MediaOutcome::NotSent);
    let (_, outcome) = replies.recv_timeout(MAX_TEST_WAIT).expect("an outcome");
    assert_eq!(outcome, rewritten());
    assert_eq!(got.recv_timeout(MAX_TEST_WAIT).expect("one").0, "offer");
    assert!(begun.elapsed() < MAX_TEST_WAIT);
}

#[test]
fn a_request_that_has_waited_too_long_for_an_earlier_one_is_not_sent() {
    let (socket, address) = socket();
    let got = serve_with(socket, |_, _| Some(SDP_RESPONSE));
    let thread = start();
    let (reply, replies) = channel();
    let mut late = request(address, ("one", "late"), true, &reply);
    late.since = Instant::now()
        .checked_sub(MAX_WAIT)
        .expect("a machine that is up for seconds");
    assert!(thread.try_send(late).is_ok());
    let next = request(address, ("one", "offer"), true, &reply);
    assert!(thread.try_send(next).is_ok());
    assert_eq!(
        replies.recv_timeout(MAX_TEST_WAIT).expect("an outcome"),
        ("late".to_owned(), MediaOutcome::NoAnswer)
    );
    assert_eq!(got.recv_timeout(MAX_TEST_WAIT).expect("one").0, "offer");
}

#[test]
fn requests_above_the_limits_are_refused_at_once() {
    let (socket, address) = socket();
    // The server never responds.
    let got = serve_with(socket, |_, _| None);
    let (sender, receiver) = mpsc::channel(MAX_REQUESTS + 1);
    let (reply, replies) = channel();
    for _ in 0..=MAX_REQUESTS {
        let request = request(address, ("one", "offer"), true, &reply);
        assert!(sender.try_send(request).is_ok());
    }
    spawn(receiver).expect("a thread");
    let (_, outcome) = replies.recv_timeout(MAX_TEST_WAIT).expect("an outcome");
    assert_eq!(outcome, MediaOutcome::Full);
    assert!(got.recv_timeout(MAX_TEST_WAIT).is_ok());
}

#[test]
fn two_addresses_work_at_the_same_time() {
    let (first, second) = (socket(), socket());
    let addresses = [first.1, second.1];
    let answer = |_: &str, before: usize| (before > 0).then_some(SDP_RESPONSE);
    let got = [serve_with(first.0, answer), serve_with(second.0, answer)];
    let thread = start();
    let (reply, replies) = channel();
    for address in [addresses[0], addresses[1], addresses[0]] {
        let session = format!("{address}");
        let request = request(address, (&session, "offer"), true, &reply);
        assert!(thread.try_send(request).is_ok());
    }
    for _ in 0..3 {
        let (_, outcome) = replies.recv_timeout(MAX_TEST_WAIT).expect("an outcome");
        assert_eq!(outcome, rewritten());
    }
    assert!(
        got.iter()
            .all(|got| got.recv_timeout(MAX_TEST_WAIT).is_ok())
    );
}

/// The log of this thread.
#[derive(Clone, Default)]
struct Log(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("the log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_address_without_a_socket_is_logged_once_in_ten_seconds() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let mut clients = RunningClients::default();
        for _ in 0..20 {
            // Only a socket with SO_BROADCAST may send to this address.
            assert!(clients.client_for(([255; 4], 22_222).into()).is_none());
        }
    });
    let text = log.0.lock().expect("the log").clone();
    let text = String::from_utf8(text).expect("text");
    assert_eq!(text.matches("no socket for rtpengine").count(), 1, "{text}");
}
