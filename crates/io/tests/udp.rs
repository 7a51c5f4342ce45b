//! Sockets and receive batches on loopback, over both families.

#![allow(clippy::unwrap_used)] // a test may fail this way

mod common;

use std::io;
use std::net::{IpAddr, SocketAddr};

use common::{LOOPBACKS, Seen, bind, lengths, payload, plain, receive, send, without_gso};
use hairpin_io::{RecvBatch, SendOptions, SendQueue, SendTo, UdpOptions, UdpSocket};

#[test]
fn a_datagram_arrives_with_its_sender() {
    for address in LOOPBACKS {
        let (a, b) = (plain(address), plain(address));
        a.send_to(b"hello", b.local_addr(), None).unwrap();
        let seen = receive(&b, 1);
        assert_eq!(
            seen,
            [Seen {
                bytes: b"hello".into(),
                from: a.local_addr(),
                local_ip: None,
                tos: 0,
                tag: 7
            }]
        );
    }
}

#[test]
fn an_empty_socket_says_would_block_and_a_full_batch_takes_nothing() {
    let (a, b) = (plain(LOOPBACKS[0]), plain(LOOPBACKS[0]));
    let mut batch = RecvBatch::new(1, RecvBatch::SMALL);
    assert_eq!(
        b.recv(0, &mut batch).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    assert_eq!(
        b.recv_one(0, &mut batch).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    for _ in 0..2 {
        a.send_to(b"x", b.local_addr(), None).unwrap();
    }
    assert_eq!(b.recv(0, &mut batch).unwrap(), 1);
    assert!(batch.is_full());
    assert_eq!(b.recv(0, &mut batch).unwrap(), 0);
    assert_eq!(b.recv_one(0, &mut batch).unwrap(), 0);
    batch.clear();
    assert!(batch.is_empty());
    assert_eq!(b.recv_one(0, &mut batch).unwrap(), 1);
}

#[test]
fn one_batch_gathers_from_many_sockets() {
    for ancillary in [true, false] {
        let options = UdpOptions {
            tos: ancillary,
            ..UdpOptions::default()
        };
        let sockets: Vec<_> = (0..5).map(|_| bind(LOOPBACKS[0], &options)).collect();
        let sender = plain(LOOPBACKS[0]);
        let mut batch = RecvBatch::new(8, RecvBatch::SMALL);
        for round in 0..3u8 {
            for (number, socket) in sockets.iter().enumerate() {
                sender
                    .send_to(&[round, number as u8], socket.local_addr(), None)
                    .unwrap();
            }
            batch.clear();
            for (number, socket) in sockets.iter().enumerate() {
                assert_eq!(socket.recv_one(number as u64, &mut batch).unwrap(), 1);
            }
            let seen: Vec<_> = batch
                .iter()
                .map(|d| (d.tag, d.bytes.to_vec(), d.from))
                .collect();
            let expected: Vec<_> = (0..5)
                .map(|number| (number, vec![round, number as u8], sender.local_addr()))
                .collect();
            assert_eq!(seen, expected);
            assert_eq!(batch.get(4).unwrap().tag, 4);
            assert_eq!(batch.get(5), None);
        }
    }
}

#[test]
fn zero_length_datagrams_pass_in_every_way() {
    for address in LOOPBACKS {
        let (a, b) = (plain(address), plain(address));
        let to = SendTo::new(&a, b.local_addr());
        let flushed = send(&SendOptions::default(), |out| out.push(&to, b""));
        assert_eq!((flushed.sent, flushed.sent_bytes), (1, 0));
        let flushed = send(&SendOptions::default(), |out| {
            out.push(&to, b"ab");
            out.push_strided(&to, b"", 0, 0..10);
            out.push_copied(&to, b"");
            out.push(&to, b"cd");
        });
        assert_eq!((flushed.sent, flushed.dropped()), (4, 0));
        assert_eq!(lengths(&receive(&b, 5)), [0, 2, 0, 0, 2]);
    }
}

#[test]
fn truncation_is_flagged_by_either_receive() {
    for ancillary in [true, false] {
        let (a, b) = (
            plain(LOOPBACKS[0]),
            bind(
                LOOPBACKS[0],
                &UdpOptions {
                    tos: ancillary,
                    ..UdpOptions::default()
                },
            ),
        );
        let mut batch = RecvBatch::new(4, 100);
        for len in [100, 101, 99] {
            a.send_to(&payload(0, len), b.local_addr(), None).unwrap();
        }
        b.recv_one(0, &mut batch).unwrap();
        b.recv_one(0, &mut batch).unwrap();
        b.recv(0, &mut batch).unwrap();
        let seen: Vec<_> = batch
            .iter()
            .map(|d| (d.bytes.len(), d.stride, d.truncated))
            .collect();
        assert_eq!(seen, [(100, 100, false), (100, 100, true), (99, 99, false)]);
    }
}

#[test]
fn a_wildcard_listener_answers_from_the_address_that_was_asked() {
    let cases = [
        ("0.0.0.0:0", ["127.0.0.2", "127.9.9.9"].as_slice()),
        ("[::]:0", &["::1"]),
    ];
    for (wildcard, addresses) in cases {
        let server = bind(wildcard, &UdpOptions::listener());
        for &address in addresses {
            let ip: IpAddr = address.parse().unwrap();
            let client = UdpSocket::bind(
                (if ip.is_ipv4() { "127.0.0.1" } else { "::1" })
                    .parse::<IpAddr>()
                    .map(|ip| (ip, 0).into())
                    .unwrap(),
                &UdpOptions::default(),
            )
            .unwrap();
            let asked = SocketAddr::new(ip, server.local_addr().port());
            client.send_to(b"who?", asked, None).unwrap();
            let question = &receive(&server, 1)[0];
            assert_eq!(question.local_ip, Some(ip));
            let to = SendTo {
                from_ip: question.local_ip,
                ..SendTo::new(&server, question.from)
            };
            // Alone (sendmsg) and as one of several (sendmmsg), and by the simple call.
            send(&SendOptions::default(), |out| out.push(&to, b"me"));
            send(&without_gso(), |out| {
                (0..2).for_each(|_| out.push(&to, b"me"))
            });
            server
                .send_to(b"me", question.from, question.local_ip)
                .unwrap();
            let answers = receive(&client, 4);
            assert_eq!(answers.len(), 4);
            assert!(
                answers.iter().all(|answer| answer.from == asked),
                "{answers:?}"
            );
        }
    }
}

#[test]
fn tos_and_ttl_are_read_and_tos_is_written() {
    for address in LOOPBACKS {
        let a = plain(address);
        let b = bind(
            address,
            &UdpOptions {
                ttl: true,
                ..UdpOptions::default()
            },
        );
        let flushed = send(&SendOptions::default(), |out| {
            // One flow, so order is kept, though neighbours cannot share a GSO send.
            for tos in [0xb8, 0xb8, 0, 0x01, 0x03] {
                out.push(
                    &SendTo {
                        tos,
                        ..SendTo::new(&a, b.local_addr())
                    },
                    b"marked",
                );
            }
        });
        assert_eq!((flushed.sent, flushed.gso_segments), (5, 2));
        let mut batch = RecvBatch::new(8, RecvBatch::SMALL);
        while batch.len() < 5 {
            b.recv(0, &mut batch).unwrap();
        }
        let tos: Vec<_> = batch.iter().map(|d| d.tos).collect();
        assert_eq!(tos, [0xb8, 0xb8, 0, 0x01, 0x03]);
        assert!(batch.iter().all(|d| d.ttl == Some(64)));
    }
}

#[test]
fn dropped_datagrams_are_reported_by_the_socket() {
    let a = plain(LOOPBACKS[0]);
    let b = bind(
        LOOPBACKS[0],
        &UdpOptions {
            recv_buffer: Some(2048),
            ..UdpOptions::listener()
        },
    );
    let mut batch = RecvBatch::new(64, RecvBatch::LARGE);
    let mut received = 0;
    let mut overflow = 0;
    for round in 1..=2u64 {
        for _ in 0..100 {
            a.send_to(&[0; 500], b.local_addr(), None).unwrap();
        }
        drain(&b, &mut batch, &mut received, &mut overflow);
        // The count comes with the next datagram that finds room.
        a.send_to(b"x", b.local_addr(), None).unwrap();
        drain(&b, &mut batch, &mut received, &mut overflow);
        assert!(received < 100 * round);
        assert_eq!(received + overflow, 101 * round);
    }
    assert_eq!(u64::from(b.memory().unwrap().drops), overflow);
}

fn drain(socket: &UdpSocket, batch: &mut RecvBatch, received: &mut u64, overflow: &mut u64) {
    loop {
        batch.clear();
        let more = socket.recv(0, batch).is_ok();
        *received += batch
            .iter()
            .map(|datagrams| datagrams.segments().count() as u64)
            .sum::<u64>();
        *overflow += batch.overflow();
        if !more {
            return;
        }
    }
}

#[test]
fn port_unreachable_disturbs_nobody() {
    for address in LOOPBACKS {
        let a = plain(address);
        let closed = plain(address).local_addr();
        let open = plain(address);
        for _ in 0..3 {
            let flushed = send(&without_gso(), |out| {
                out.push(&SendTo::new(&a, closed), b"nobody home");
                out.push(&SendTo::new(&a, open.local_addr()), b"somebody home");
            });
            assert_eq!((flushed.sent, flushed.dropped()), (2, 0));
            let mut batch = RecvBatch::new(1, 100);
            assert_eq!(
                a.recv(0, &mut batch).unwrap_err().kind(),
                io::ErrorKind::WouldBlock
            );
        }
        assert_eq!(receive(&open, 3).len(), 3);
    }
}

#[test]
fn a_dual_stack_socket_reports_ipv4_addresses_as_ipv4() {
    let options = UdpOptions {
        v6_only: false,
        tos: true,
        ttl: true,
        ..UdpOptions::listener()
    };
    let server = bind("[::]:0", &options);
    let client = plain("127.0.0.1:0");
    let asked: SocketAddr = ([127, 0, 0, 3], server.local_addr().port()).into();
    let flushed = send(&without_gso(), |out| {
        out.push(
            &SendTo {
                tos: 0x88,
                ..SendTo::new(&client, asked)
            },
            b"?",
        )
    });
    assert_eq!(flushed.sent, 1);
    let question = &receive(&server, 1)[0];
    assert_eq!(
        (question.from, question.local_ip, question.tos),
        (client.local_addr(), Some(asked.ip()), 0x88)
    );
    let to = SendTo {
        from_ip: question.local_ip,
        tos: 0x44,
        ..SendTo::new(&server, question.from)
    };
    send(&without_gso(), |out| out.push(&to, b"!"));
    let answer = &receive(&client, 1)[0];
    assert_eq!((answer.from, answer.tos), (asked, 0x44));
}

#[test]
fn a_v6_only_socket_leaves_the_port_to_ipv4() {
    let v6 = plain("[::]:0");
    let v4 = plain(&format!("0.0.0.0:{}", v6.local_addr().port()));
    assert_eq!(v4.local_addr().port(), v6.local_addr().port());
}

#[test]
fn reuse_port_shares_and_its_absence_does_not() {
    let first = bind(LOOPBACKS[0], &UdpOptions::listener());
    let second = UdpSocket::bind(first.local_addr(), &UdpOptions::listener()).unwrap();
    assert_eq!(first.local_addr(), second.local_addr());
    let relay = bind(LOOPBACKS[0], &UdpOptions::relay());
    let error = UdpSocket::bind(relay.local_addr(), &UdpOptions::relay()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn buffers_memory_and_processor_can_be_asked_for() {
    let b = bind(
        LOOPBACKS[0],
        &UdpOptions {
            recv_buffer: Some(100_000),
            send_buffer: Some(50_000),
            ..UdpOptions::default()
        },
    );
    assert_eq!(
        (b.recv_buffer().unwrap(), b.send_buffer().unwrap()),
        (100_000, 50_000)
    );
    plain(LOOPBACKS[0])
        .send_to(&[0; 100], b.local_addr(), None)
        .unwrap();
    let memory = b.memory().unwrap();
    assert!(memory.recv_used >= 100 && memory.recv_limit == 200_000 && memory.drops == 0);
    b.set_incoming_cpu(0).unwrap();
    assert_eq!(b.incoming_cpu().unwrap(), 0);
    let not_a_program = std::fs::File::open("/dev/null").unwrap();
    assert!(
        b.attach_reuseport_program(std::os::fd::AsFd::as_fd(&not_a_program))
            .is_err()
    );
}

#[test]
fn a_limit_leaves_room_for_other_sockets() {
    let (a, b) = (plain(LOOPBACKS[0]), plain(LOOPBACKS[0]));
    for _ in 0..10 {
        a.send_to(b"x", b.local_addr(), None).unwrap();
    }
    let mut batch = RecvBatch::new(8, RecvBatch::SMALL);
    assert_eq!(b.recv_up_to(0, 0, &mut batch).unwrap(), 0);
    assert_eq!(b.recv_up_to(5, 1, &mut batch).unwrap(), 5);
    assert_eq!(b.recv_up_to(5, 2, &mut batch).unwrap(), 3);
    assert!(batch.iter().map(|d| d.tag).eq([1, 1, 1, 1, 1, 2, 2, 2]));
}

#[test]
fn busy_polling_is_asked_for_and_not_insisted_on() {
    let options = UdpOptions {
        busy_poll_us: 25,
        ..UdpOptions::default()
    };
    let granted = bind(LOOPBACKS[0], &options).busy_poll_us().unwrap();
    assert!([0, 25].contains(&granted));
}

#[test]
fn a_socket_moves_to_another_thread() {
    let (a, b) = (plain(LOOPBACKS[0]), plain(LOOPBACKS[0]));
    let to = b.local_addr();
    let mut queue = SendQueue::new(&SendOptions::default());
    let thread = std::thread::spawn(move || {
        queue.start().push(&SendTo::new(&a, to), b"from afar");
        receive(&b, 1).len()
    });
    assert_eq!(thread.join().unwrap(), 1);
}
