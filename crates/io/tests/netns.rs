//! What loopback with its huge MTU and instant delivery never does: in a network namespace of our own.
//!
//! Without the privilege to make one, or without iproute2, these tests say so and pass.

#![allow(clippy::unwrap_used)] // a test may fail this way

use std::io::ErrorKind;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hairpin_io::{
    Flushed, NetNs, Outbox, RecvBatch, SendOptions, SendQueue, SendTo, UdpOptions, UdpSocket,
};

/// Says that a test does nothing, and why: to whoever reads what it prints, and to `cargo xtask test`, which counts
/// them.
fn skipped(reason: &dyn std::fmt::Display) {
    use std::io::Write;
    eprintln!("skipped: {reason}");
    let list = std::env::var_os("HAIRPIN_TESTS_SKIPPED");
    let file = list.map(|list| {
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(list)
    });
    if let Some(Ok(mut file)) = file {
        let of = std::env::args().next().unwrap_or_default();
        let of = of.rsplit('/').next().unwrap_or_default();
        // Then it has been said on stderr only.
        let _ = file.write_all(format!("{of}: {reason}\n").as_bytes());
    }
}

/// Runs `test` on a thread in a namespace with loopback up at MTU 1500 and an Ethernet-like link 10.9.9.1/24,
/// fd09::1/64 on which nobody answers.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        match NetNs::unshare() {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return skipped(&error);
            }
            Err(error) => panic!("{error}"),
        }
        let setup = [
            "link set lo mtu 1500 up",
            "link add silent type veth peer name listener",
            "link set silent up",
            "link set listener up",
            "address add 10.9.9.1/24 dev silent",
            "address add fd09::1/64 dev silent nodad",
            "address add fd08::1/128 dev lo",
            "address add fd08::5/128 dev lo",
        ];
        for command in setup {
            match Command::new("ip")
                .args(command.split(' '))
                .stderr(Stdio::null())
                .status()
            {
                Ok(status) if status.success() => {}
                result => return skipped(&format_args!("ip {command}: {result:?}")),
            }
        }
        wait_until_usable();
        test();
    });
    thread.join().unwrap();
}

/// The kernel tells a fresh link that its other end is up from a work queue, and until then discards IPv6.
fn wait_until_usable() {
    let end = Instant::now() + Duration::from_secs(5);
    let shown = || {
        Command::new("ip")
            .args(["link", "show", "silent"])
            .output()
            .unwrap()
    };
    while !String::from_utf8_lossy(&shown().stdout).contains("state UP") {
        assert!(Instant::now() < end, "the link did not come up");
        std::thread::sleep(Duration::from_millis(5));
    }
    for address in [
        "127.0.0.1:0",
        "[::1]:0",
        "10.9.9.1:0",
        "[fd08::1]:0",
        "[fd08::5]:0",
        "[fd09::1]:0",
    ] {
        let (a, b) = (
            bind(address, &UdpOptions::default()),
            bind(address, &UdpOptions::default()),
        );
        let mut batch = RecvBatch::new(1, RecvBatch::SMALL);
        while b.recv(0, &mut batch).is_err() {
            assert!(Instant::now() < end, "{address} stays mute");
            a.send_to(b"?", b.local_addr(), None).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn bind(address: &str, options: &UdpOptions) -> UdpSocket {
    UdpSocket::bind(address.parse().unwrap(), options).unwrap()
}

fn send<'buf>(queue: &mut SendQueue, push: impl FnOnce(&mut Outbox<'_, 'buf>)) -> Flushed {
    let mut out = queue.start();
    push(&mut out);
    out.flush()
}

fn lengths(socket: &UdpSocket, count: usize) -> Vec<usize> {
    let mut batch = RecvBatch::new(64, RecvBatch::LARGE);
    let end = Instant::now() + Duration::from_secs(2);
    while batch.len() < count && Instant::now() < end {
        match socket.recv(0, &mut batch) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1))
            }
            result => drop(result.unwrap()),
        }
    }
    batch
        .iter()
        .flat_map(|datagrams| datagrams.segments())
        .map(<[u8]>::len)
        .collect()
}

#[test]
fn jumbo_runs_are_resent_as_singles_and_cost_others_nothing() {
    in_namespace(|| {
        for (address, another) in [
            ("127.0.0.1:0", "127.0.0.2:0"),
            ("[fd08::1]:0", "[fd08::5]:0"),
        ] {
            let (a, b) = (
                bind(address, &UdpOptions::default()),
                bind(address, &UdpOptions::default()),
            );
            let other = bind(another, &UdpOptions::default());
            let mut queue = SendQueue::new(&SendOptions::default());
            let (jumbo, small) = (vec![1; 2000], vec![2; 1000]);
            let (to_b, to_other) = (
                SendTo::new(&a, b.local_addr()),
                SendTo::new(&a, other.local_addr()),
            );
            for round in 0..3 {
                let flushed = send(&mut queue, |out| {
                    for _ in 0..3 {
                        out.push(&to_b, &jumbo);
                        out.push(&to_other, &small);
                    }
                    out.push(&to_b, &small);
                });
                assert_eq!((flushed.sent, flushed.dropped()), (7, 0), "{flushed:?}");
                // Refused once, then remembered; the other destination keeps its run.
                assert_eq!(flushed.gso_refused, u64::from(round == 0), "{flushed:?}");
                assert_eq!(
                    (flushed.gso_runs, flushed.gso_segments),
                    (1, 3),
                    "{flushed:?}"
                );
                assert_eq!(
                    lengths(&b, 4),
                    [2000, 2000, 2000, 1000],
                    "{address} {round}"
                );
                assert_eq!(lengths(&other, 3), [1000; 3], "{address} {round}");
            }
            // Smaller datagrams to the same destination still leave as a run.
            let flushed = send(&mut queue, |out| {
                out.push_strided(&to_b, &small, 100, 0..100)
            });
            assert_eq!(flushed.gso_segments, 10);
            assert_eq!(lengths(&b, 10), [100; 10]);
        }
    });
}

#[test]
fn only_datagrams_with_df_are_too_big_for_the_link() {
    in_namespace(|| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            for gso in [true, false] {
                let (a, b) = (
                    bind(address, &UdpOptions::default()),
                    bind(address, &UdpOptions::default()),
                );
                let mut queue = SendQueue::new(&SendOptions {
                    gso,
                    ..SendOptions::default()
                });
                let jumbo = vec![0; 3000];
                let loose = SendTo::new(&a, b.local_addr());
                let strict = SendTo {
                    dont_fragment: true,
                    ..loose
                };
                let flushed = send(&mut queue, |out| {
                    for to in [loose, strict, strict, loose, loose] {
                        out.push(&to, &jumbo);
                    }
                    out.push(&strict, &jumbo[..1000]);
                });
                assert_eq!(
                    (flushed.sent, flushed.too_big, flushed.dropped()),
                    (4, 2, 2),
                    "{flushed:?}"
                );
                assert_eq!(lengths(&b, 4), [3000, 3000, 3000, 1000]);
                // Alone in its lane: the plain sendto.
                let flushed = send(&mut queue, |out| out.push(&strict, &jumbo));
                assert_eq!((flushed.sent, flushed.too_big), (0, 1));
                let flushed = send(&mut queue, |out| out.push(&loose, &jumbo));
                assert_eq!((flushed.sent, flushed.too_big), (1, 0));
            }
        }
    });
}

#[test]
fn df_can_be_the_sockets_own_habit() {
    in_namespace(|| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let strict = bind(
                address,
                &UdpOptions {
                    dont_fragment: true,
                    ..UdpOptions::default()
                },
            );
            let loose = bind(address, &UdpOptions::default());
            let error = strict
                .send_to(&[0; 3000], loose.local_addr(), None)
                .unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
            loose
                .send_to(&[0; 3000], strict.local_addr(), None)
                .unwrap();
        }
    });
}

#[test]
fn a_full_send_buffer_drops_and_counts_and_spares_other_sockets() {
    in_namespace(|| {
        for (own, silent) in [("10.9.9.1:0", "10.9.9.2:9"), ("[fd09::1]:0", "[fd09::2]:9")] {
            // Datagrams to a neighbour that does not answer stay in the send buffer.
            let full = bind(
                own,
                &UdpOptions {
                    send_buffer: Some(1),
                    ..UdpOptions::default()
                },
            );
            let (fine, receiver) = (
                bind(own, &UdpOptions::default()),
                bind(own, &UdpOptions::default()),
            );
            let mut queue = SendQueue::new(&SendOptions {
                gso: false,
                ..SendOptions::default()
            });
            let bytes = vec![0; 1000];
            let flushed = send(&mut queue, |out| {
                for _ in 0..100 {
                    out.push(&SendTo::new(&full, silent.parse().unwrap()), &bytes);
                    out.push(&SendTo::new(&fine, receiver.local_addr()), b"x");
                }
            });
            assert_eq!(flushed.sent + flushed.dropped(), 200);
            assert!(
                flushed.would_block > 50 && flushed.would_block == flushed.dropped(),
                "{flushed:?}"
            );
            assert!(
                flushed.syscalls < 10,
                "one failing call is enough: {flushed:?}"
            );
            assert_eq!(lengths(&receiver, 64).len(), 64);
            // Alone in its lane.
            let flushed = send(&mut queue, |out| {
                out.push(&SendTo::new(&full, silent.parse().unwrap()), &bytes)
            });
            assert_eq!((flushed.sent, flushed.would_block), (0, 1));
        }
    });
}
