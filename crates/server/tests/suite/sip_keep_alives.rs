//! Keep-alives of phones on every transport (RFC 5626 §3.5, §5.4). These are STUN beside SIP on one UDP socket, and a
//! double CRLF between the messages of a connection.

use crate::sip_client::link::{Link, serve};
use crate::sip_client::{Client, options, status};
use hairpin_server::sip::SipSettings;
use sip::agent::{KeepAlive, KeepAliveStep};
use sip::flow::Transport;
use sip::frame::{Frame, Framer, Opened};
use sip::message::Limits;
use sip::{HashKey, Mono};
use stun::{Builder, Class, Message, Method, TransactionId, XorMappedAddress};

#[test]
fn stun_keep_alives_have_the_mapped_address_of_the_flow_of_sip_rfc5626_8() {
    let (server, _) = serve(SipSettings::default(), 2);
    let clients = [(); 4].map(|()| Client::new(server.sip_listeners()[0]));
    for number in 0..5 {
        for client in &clients {
            let id = TransactionId([number; 12]);
            let mut buffer = [0; 64];
            let binding = Builder::new(&mut buffer, Class::Request, Method::BINDING, &id);
            let answer = client.exchange(binding.expect("room").finish());
            let answer = Message::parse(&answer).expect("STUN");
            assert_eq!(
                (answer.class(), answer.transaction_id()),
                (Class::Success, id)
            );
            let mapped: Option<XorMappedAddress> = answer.get().expect("well formed");
            assert_eq!(mapped, Some(XorMappedAddress(client.local())));
            // The next one on the same socket is a SIP message.
            let answer = client.ask(&options("k", "UDP", ""));
            assert_eq!(status(&answer), 200, "{answer}");
        }
    }
}

/// Waits for so many bytes above TLS, and takes them.
fn bytes(link: &mut Link, count: usize) -> Vec<u8> {
    while link.unread.len() < count {
        assert!(link.read(), "{:?} and no more", link.unread);
    }
    link.unread.drain(..count).collect()
}

#[test]
fn a_double_crlf_gets_a_crlf_over_each_stream_rfc5626_5_4() {
    let (server, config) = serve(SipSettings::default(), 1);
    for transport in ["TCP", "TLS"] {
        let mut link = Link::of(transport, &server, &config);
        link.send_raw(b"\r\n\r\n");
        assert_eq!(bytes(&mut link, 2), b"\r\n", "{transport}");
        // In pieces, and two together: one CRLF for each.
        for piece in [&b"\r\n"[..], b"\r", b"\n\r\n\r\n"] {
            link.send_raw(piece);
        }
        assert_eq!(bytes(&mut link, 4), b"\r\n\r\n", "{transport}");
        // Between messages. The end of a header is no ping.
        let request = options(transport, transport, "");
        link.send_raw(format!("{request}\r\n\r\n{request}").as_bytes());
        let text = link.receive();
        assert_eq!(status(&text), 200, "{text}");
        assert_eq!(bytes(&mut link, 2), b"\r\n", "{transport}");
        let text = link.receive();
        assert_eq!(status(&text), 200, "{text}");
    }
    // RFC 7118 §6: also as a message of a WebSocket.
    for transport in ["WS", "WSS"] {
        let mut link = Link::of(transport, &server, &config);
        for _ in 0..2 {
            link.send("\r\n\r\n");
            assert_eq!(link.receive(), "\r\n", "{transport}");
        }
        link.send(&options(transport, transport, ""));
        assert_eq!(status(&link.receive()), 200);
    }
}

/// The keep-alive that is due, and its time.
fn keep_alive(flow: &mut KeepAlive) -> (Mono, Box<[u8]>) {
    let due = flow.poll_timeout().expect("the flow has not failed");
    match flow.handle_timeout(due) {
        Some(KeepAliveStep::Send(bytes)) => (due, bytes),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_keep_alives_of_the_library_get_their_responses_rfc5626_4_4() {
    let (server, config) = serve(SipSettings::default(), 1);
    let client = Client::new(server.sip_listeners()[0]);
    let key = HashKey::new([1; 16]);
    let mut flow = KeepAlive::new(Mono(0), Transport::Udp, None, key);
    for _ in 0..3 {
        let (due, request) = keep_alive(&mut flow);
        let answer = client.exchange(&request);
        assert_eq!(flow.handle_stun(due, &answer), Ok(()));
        // The next keep-alive, not a retransmission.
        assert!(flow.poll_timeout() >= Some(due.plus_secs(24)));
    }
    assert_eq!(flow.mapped(), Some(client.local()));
    for (name, transport) in [("TCP", Transport::Tcp), ("TLS", Transport::Tls)] {
        let mut link = Link::of(name, &server, &config);
        let mut flow = KeepAlive::new(Mono(0), transport, None, key);
        let mut framer = Framer::new(Opened::ByUs);
        for _ in 0..3 {
            let (due, ping) = keep_alive(&mut flow);
            link.send_raw(&ping);
            let answer = bytes(&mut link, 2);
            let frame = framer.next(&answer, &Limits::DEFAULT);
            assert_eq!(frame, Ok(Frame::LineEnd { len: 2 }));
            flow.handle_pong(due);
            assert!(flow.poll_timeout() >= Some(due.plus_secs(95)));
        }
    }
}
