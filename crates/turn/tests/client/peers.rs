//! RFC 8656 §9 to §12: permissions, channels and data.

use std::net::{IpAddr, SocketAddr};

use stun::{
    AttributeType, Builder, ChannelNumber, Class, Data, Decode, INDICATION_HEADER_MAX, Icmp,
    Message, Method, TransactionId, XorPeerAddress, channel_data,
};
use turn::client::{
    CallError, ClientConfig, Event, Ignored, PeerError, Received, RequestError, SendError,
};

use crate::script::{PASSWORD, Script, USER, answer, get, has, method, parse, peer, relayed_v6};

fn peers_in(request: &[u8]) -> Vec<SocketAddr> {
    let message = parse(request);
    let of_peer = |attribute: &stun::RawAttribute<'_>| {
        attribute.attribute_type == AttributeType::XOR_PEER_ADDRESS
    };
    message
        .attributes()
        .filter(of_peer)
        .map(|attribute| {
            XorPeerAddress::decode(attribute.value, &message.transaction_id())
                .expect("well-formed")
                .0
        })
        .collect()
}

fn permitted(script: &mut Script, ips: &[IpAddr]) {
    script.client.permit(script.now, ips).expect("allocated");
    while let Some(request) = script.poll_request() {
        script.succeed(&request, |_| ());
    }
    while script.event().is_some() {}
}

fn bound(script: &mut Script, to: SocketAddr) -> ChannelNumber {
    let channel = script
        .client
        .bind_channel(script.now, to)
        .expect("allocated");
    let request = script.request();
    assert_eq!(method(&request), Method::CHANNEL_BIND);
    script.succeed(&request, |_| ());
    assert!(matches!(script.event(), Some(Event::ChannelBound { .. })));
    channel
}

fn data_indication(from: SocketAddr, fill: impl FnOnce(&mut Builder<'_>)) -> Vec<u8> {
    let mut buffer = [0; 256];
    let id = TransactionId([3; 12]);
    let mut message =
        Builder::new(&mut buffer, Class::Indication, Method::DATA, &id).expect("fits");
    message.push(&XorPeerAddress(from)).expect("fits");
    fill(&mut message);
    message.finish().to_vec()
}

fn channel_data(channel: ChannelNumber, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len()).expect("short");
    [&channel_data::header(channel, len), payload].concat()
}

#[test]
fn nothing_about_peers_works_without_an_allocation() {
    let mut script = Script::with_credentials();
    let ip = peer(1, 0).ip();
    assert_eq!(
        script.client.permit(script.now, &[ip]),
        Err(CallError::NoAllocation)
    );
    assert_eq!(
        script.client.bind_channel(script.now, peer(1, 1)),
        Err(CallError::NoAllocation)
    );
}

#[test]
fn a_peer_of_another_family_is_refused_at_once() {
    let mut script = Script::allocated();
    assert_eq!(
        script
            .client
            .permit(script.now, &[peer(1, 0).ip(), relayed_v6().ip()]),
        Err(CallError::PeerFamily)
    );
    assert_eq!(
        script.client.bind_channel(script.now, relayed_v6()),
        Err(CallError::PeerFamily)
    );
    script.no_request();
}

#[test]
fn many_permissions_share_a_request() {
    let mut script = Script::allocated();
    let ips: Vec<IpAddr> = (1..=20).map(|last| peer(last, 0).ip()).collect();
    script.client.permit(script.now, &ips).expect("allocated");
    let mut asked = Vec::new();
    while let Some(request) = script.poll_request() {
        assert_eq!(method(&request), Method::CREATE_PERMISSION);
        assert!(peers_in(&request).len() <= 8);
        // RFC 8489 §6.1: below 548 bytes where the path MTU is unknown.
        assert!(request.len() < 548);
        asked.extend(peers_in(&request).into_iter().map(|peer| peer.ip()));
        script.succeed(&request, |_| ());
    }
    assert_eq!(asked, ips);
    for ip in ips {
        assert!(matches!(script.event(), Some(Event::Permitted { peer, .. }) if peer == ip));
    }
}

#[test]
fn one_forbidden_peer_does_not_spoil_the_others() {
    let mut script = Script::allocated();
    let ips = [1, 2, 3].map(|last| peer(last, 0).ip());
    script.client.permit(script.now, &ips).expect("allocated");
    let together = script.request();
    script.refuse(&together, 403);
    assert_eq!(script.event(), None);
    while let Some(request) = script.poll_request() {
        match peers_in(&request)[..] {
            [one] if one.ip() == ips[1] => script.refuse(&request, 403),
            [_] => script.succeed(&request, |_| ()),
            ref more => panic!("{more:?} in one request"),
        }
    }
    let mut failed = Vec::new();
    let mut granted = Vec::new();
    while let Some(event) = script.event() {
        match event {
            Event::PermissionFailed { peer, error } => failed.push((peer, error.code())),
            Event::Permitted { peer, .. } => granted.push(peer),
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(failed, [(ips[1], Some(403))]);
    assert_eq!(granted, [ips[0], ips[2]]);
}

#[test]
fn permissions_and_channels_are_kept_alive_for_an_hour() {
    let mut script = Script::allocated();
    permitted(&mut script, &[peer(1, 0).ip()]);
    let channel = bound(&mut script, peer(2, 9000));
    let mut requests = std::collections::BTreeMap::new();
    for _ in 0..3600 {
        for request in script.run_s(1) {
            *requests.entry(method(&request).number()).or_insert(0) += 1;
            script.succeed(&request, |response| {
                response.push(&stun::Lifetime(600)).expect("fits");
            });
        }
        let data = channel_data(channel, b"x");
        assert!(matches!(script.input(&data), Received::Data { .. }));
        let data = data_indication(peer(1, 1), |message| {
            message.push(&Data(b"x")).expect("fits");
        });
        assert!(matches!(script.input(&data), Received::Data { .. }));
    }
    assert_eq!(requests[&Method::REFRESH.number()], 6);
    assert_eq!(requests[&Method::CHANNEL_BIND.number()], 6);
    // Every four minutes; those of the channel's peer sometimes come with the channel instead.
    assert!((15..=30).contains(&requests[&Method::CREATE_PERMISSION.number()]));
}

#[test]
fn without_keep_alive_a_permission_lapses_before_its_channel() {
    let mut script = Script::allocated_with(ClientConfig {
        keep_alive: false,
        ..ClientConfig::with_credentials(USER, PASSWORD)
    });
    let channel = bound(&mut script, peer(1, 9000));
    let data = channel_data(channel, b"x");
    script.run_s(299);
    assert!(matches!(script.input(&data), Received::Data { .. }));
    script.run_s(1);
    assert_eq!(
        script.input(&data),
        Received::Ignored(Ignored::NotPermitted)
    );
    // The number still belongs to the peer, and asking again brings the permission back.
    assert_eq!(bound(&mut script, peer(1, 9000)), channel);
    assert!(matches!(script.input(&data), Received::Data { .. }));
}

#[test]
fn data_on_a_channel_is_found_without_copying() {
    let mut script = Script::allocated();
    let channel = bound(&mut script, peer(1, 9000));
    let datagram = channel_data(channel, b"hello");
    let expected = Received::Data {
        peer: peer(1, 9000),
        channel: Some(channel),
        payload: 4..9,
    };
    assert_eq!(script.input(&datagram), expected);
    // RFC 8656 §12.5: over UDP padding MAY be there.
    let padded = [&datagram[..], &[0; 3]].concat();
    assert_eq!(script.input(&padded), expected);
    let empty = channel_data(channel, b"");
    assert!(matches!(script.input(&empty), Received::Data { payload, .. } if payload == (4..4)));
}

#[test]
fn data_may_overtake_the_response_to_its_channel_bind() {
    let mut script = Script::allocated();
    let channel = script
        .client
        .bind_channel(script.now, peer(1, 9000))
        .expect("allocated");
    assert_eq!(
        script.client.channel_header(script.now, channel, 1),
        Err(SendError::NotBound)
    );
    let data = channel_data(channel, b"early");
    assert!(matches!(script.input(&data), Received::Data { .. }));
}

#[test]
fn useless_datagrams_are_ignored_by_name() {
    let mut script = Script::allocated();
    let bound_channel = bound(&mut script, peer(1, 9000));
    let other = ChannelNumber::new(0x4abc).expect("a channel");
    let short = &channel_data(bound_channel, b"hello")[..6];
    let stranger = data_indication(peer(77, 1), |message| {
        message.push(&Data(b"x")).expect("fits");
    });
    let neither = data_indication(peer(1, 1), |_| ());
    let unknown = data_indication(peer(1, 1), |message| {
        message
            .push(&Data(b"x"))
            .expect("fits")
            .push_raw(AttributeType(0x7ff0), b"what")
            .expect("fits");
    });
    script.client.binding(script.now);
    let request = script.request();
    let mut stray = answer(&request, Class::Success, |_| ());
    stray[19] ^= 1;
    for (datagram, expected) in [
        (
            channel_data(other, b"x"),
            Received::Ignored(Ignored::UnboundChannel),
        ),
        (short.to_vec(), Received::Ignored(Ignored::Malformed)),
        (stranger, Received::Ignored(Ignored::NotPermitted)),
        (neither, Received::Ignored(Ignored::Malformed)),
        (unknown, Received::Ignored(Ignored::Malformed)),
        (vec![0, 1, 0], Received::Ignored(Ignored::Malformed)),
        (stray, Received::Ignored(Ignored::UnknownTransaction)),
        (vec![0x80, 0, 0, 0], Received::NotMine),
        (vec![], Received::NotMine),
    ] {
        assert_eq!(script.input(&datagram), expected, "{datagram:02x?}");
        assert_eq!(script.event(), None);
    }
}

#[test]
fn a_data_indication_shows_peer_and_payload() {
    let mut script = Script::allocated();
    permitted(&mut script, &[peer(1, 0).ip()]);
    let datagram = data_indication(peer(1, 777), |message| {
        message.push(&Data(b"hello")).expect("fits");
    });
    let Received::Data {
        peer: from,
        channel,
        payload,
    } = script.input(&datagram)
    else {
        panic!("not data");
    };
    assert_eq!((from, channel), (peer(1, 777), None));
    assert_eq!(&datagram[payload], b"hello");
}

#[test]
fn an_icmp_error_is_passed_on() {
    let mut script = Script::allocated();
    permitted(&mut script, &[peer(1, 0).ip()]);
    let datagram = data_indication(peer(1, 777), |message| {
        let icmp = Icmp {
            icmp_type: 3,
            icmp_code: 4,
            error_data: 1280,
        };
        message.push(&icmp).expect("fits");
    });
    assert_eq!(script.input(&datagram), Received::Handled);
    assert_eq!(
        script.event(),
        Some(Event::PeerUnreachable(PeerError {
            peer: peer(1, 777),
            icmp_type: 3,
            icmp_code: 4,
            mtu: 1280,
        }))
    );
}

#[test]
fn data_for_peers_is_framed_in_the_callers_buffer() {
    let mut script = Script::allocated();
    let channel = bound(&mut script, peer(1, 9000));
    assert_eq!(
        script.client.channel_header(script.now, channel, 5),
        Ok([0x40, 0x00, 0, 5])
    );
    assert_eq!(script.client.channel_padding(5), 0);
    assert_eq!(
        script.client.channel_header(script.now, channel, 65_536),
        Err(SendError::TooLong)
    );

    let mut header = [0; INDICATION_HEADER_MAX];
    let len = script
        .client
        .send_indication_header(script.now, peer(1, 5), 3, &mut header)
        .expect("permitted by the channel");
    let datagram = [&header[..len], b"abc", &[0]].concat();
    let message = Message::parse(&datagram).expect("valid");
    assert_eq!(
        (message.class(), message.method()),
        (Class::Indication, Method::SEND)
    );
    assert_eq!(get::<XorPeerAddress>(&datagram).0, peer(1, 5));
    assert_eq!(get::<Data<'_>>(&datagram).0, b"abc");

    let mut out = [0; 128];
    let len = script
        .client
        .write_send_indication(script.now, peer(1, 5), b"abc", true, &mut out)
        .expect("permitted");
    assert!(has(&out[..len], AttributeType::DONT_FRAGMENT));
    assert_eq!(get::<Data<'_>>(&out[..len]).0, b"abc");
    assert_eq!(
        script
            .client
            .write_send_indication(script.now, peer(2, 5), b"abc", false, &mut out),
        Err(SendError::NotPermitted)
    );
    assert_eq!(
        script
            .client
            .write_send_indication(script.now, peer(1, 5), b"abc", false, &mut out[..30]),
        Err(SendError::TooLong)
    );
}

#[test]
fn a_refused_channel_is_reported_and_its_number_free() {
    let mut script = Script::allocated();
    let channel = script
        .client
        .bind_channel(script.now, peer(1, 9000))
        .expect("allocated");
    let request = script.request();
    script.refuse(&request, 403);
    let Some(Event::ChannelFailed {
        channel: failed,
        peer: to,
        error,
    }) = script.event()
    else {
        panic!("no failure");
    };
    assert_eq!(
        (failed, to, error.code()),
        (channel, peer(1, 9000), Some(403))
    );
    let data = channel_data(channel, b"x");
    assert_eq!(
        script.input(&data),
        Received::Ignored(Ignored::UnboundChannel)
    );
}

#[test]
fn a_server_error_while_refreshing_a_permission_is_not_the_end() {
    let mut script = Script::allocated();
    permitted(&mut script, &[peer(1, 0).ip()]);
    let requests = script.run_s(240);
    script.refuse(&requests[0], 500);
    assert_eq!(script.event(), None);
    let again = script.run_s(5);
    assert_eq!(method(&again[0]), Method::CREATE_PERMISSION);
    script.refuse(&again[0], 403);
    assert!(matches!(
        script.event(),
        Some(Event::PermissionFailed {
            error: RequestError::Refused(_),
            ..
        })
    ));
}
