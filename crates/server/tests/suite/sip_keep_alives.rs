//! Keep-alives of phones on every transport (RFC 5626 §3.5, §5.4). These are STUN beside SIP on one UDP socket, and a
//! double CRLF between the messages of a connection.

use crate::sip_client::link::{Link, serve};
use crate::sip_client::{Client, options, status};
use hairpin_server::sip::SipSettings;
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
