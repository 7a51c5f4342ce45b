//! By which method the kernel relays on which interface, in network namespaces: what `auto` chooses, what insisting
//! gets, that nobody's program is disturbed, and that nothing is left behind, however the server ends. Needs root.

#![allow(clippy::unwrap_used)] // a test may fail this way

use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bpf::BpfError;
use bpf::relay::{Attached, Relay};
use hairpin_server::offload::{InterfaceOffload, Obstacle, Offload, OffloadMethod, OffloadMode};
use hairpin_server::stun::Method;
use hairpin_server::{Running, Server, Settings, StartError};
use io::NetNs;
use io::netlink::{Netlink, NetworkInterface, VethEnd, interface_index};

/// Runs in a thread of its own, in a namespace where `near` (192.0.2.1) is wired to `far` in another.
fn wired(test: impl FnOnce() + Send + 'static) {
    let body = move || {
        let here = NetNs::unshare().unwrap_or_else(|error| panic!("this test needs root: {error}"));
        let mut netlink = Netlink::open().unwrap();
        let there = NetNs::unshare().unwrap();
        let end = |name, last, namespace| VethEnd {
            name,
            mac: [2, 0, 0, 0, 0, last],
            namespace,
        };
        netlink
            .create_veth(&end("near", 1, &here), &end("far", 2, &there))
            .unwrap();
        set_up("far", None);
        here.enter().unwrap();
        set_up("lo", None);
        set_up("near", Some("192.0.2.1"));
        test();
    };
    std::thread::spawn(body).join().unwrap();
}

fn set_up(name: &str, address: Option<&str>) {
    let mut netlink = Netlink::open().unwrap();
    let index = interface_index(name).unwrap();
    netlink.set_up(index).unwrap();
    if let Some(address) = address {
        let address: IpAddr = address.parse().unwrap();
        netlink.add_address(index, address, 24).unwrap();
    }
}

fn start_at(address: &str, mode: OffloadMode) -> Result<Running, StartError> {
    let mut offload = Offload::default();
    offload.mode = mode;
    offload.channels = 64;
    Server::builder()
        .listen(format!("{address}:3478").parse().unwrap())
        .relay_address(address.parse().unwrap())
        .user("ann", "secret")
        .workers(1)
        .kernel_relay(offload)
        .drop_privileges(true)
        .start()
}

fn of(running: &Running) -> InterfaceOffload {
    let interfaces = running.observer().offload().interfaces;
    assert_eq!(interfaces.len(), 1, "{interfaces:?}");
    interfaces.into_iter().next().unwrap()
}

fn interface_named(name: &str) -> NetworkInterface {
    let interfaces = Netlink::open().unwrap().interfaces().unwrap();
    interfaces
        .into_iter()
        .find(|interface| interface.name == name)
        .unwrap()
}

/// How many classifiers are at `near`: by TCX, and by clsact where the kernel has none.
fn classifiers() -> usize {
    if let Ok(by_tcx) = bpf::relay::classifiers_at("near") {
        return by_tcx;
    }
    let near = interface_index("near").unwrap();
    let filters = Netlink::open().unwrap().ingress_filters(near).unwrap();
    filters.iter().filter(|filter| filter.handle != 0).count()
}

/// Attaches somebody else's classifier to `near`, by the method that the kernel has.
fn attach_foreign(relay: &mut Relay) -> Option<Attached> {
    let near = interface_index("near").unwrap();
    if relay.has_tcx().unwrap() {
        return Some(relay.attach_tc(near).unwrap());
    }
    let gate = relay.load_gate().unwrap();
    let mut netlink = Netlink::open().unwrap();
    netlink.add_clsact(near).unwrap();
    let program = gate.as_fd();
    let added = netlink.add_bpf_filter(near, 1, 1, "foreign", program);
    added.unwrap();
    None
}

fn settings() -> bpf::relay::Settings {
    bpf::relay::Settings {
        listener_ports: vec![1],
        relay_ports: 2..=3,
        channels: 1,
        buckets: 1,
        next_hops: 1,
        binding: None,
    }
}

#[test]
fn auto_takes_tc_on_a_veth_and_on_loopback_and_says_why() {
    wired(|| {
        let running = start_at("192.0.2.1", OffloadMode::Auto).unwrap();
        let veth = of(&running);
        assert_eq!(
            (veth.name.as_str(), veth.method),
            ("near", OffloadMethod::Tc)
        );
        assert_eq!(veth.reason(), Some(&Obstacle::Virtual("veth".to_owned())));
        assert!(
            veth.to_string()
                .contains("near: the kernel relays, by a classifier")
        );
        assert_eq!(classifiers(), 1);
        let observer = running.observer();
        let listener = &observer.features().listeners[0];
        assert!(
            !listener.gro,
            "the classifier is to see datagrams one by one"
        );
        running.shutdown().unwrap();
        assert_eq!(classifiers(), 0);

        let running = start_at("127.0.0.1", OffloadMode::Auto).unwrap();
        let lo = of(&running);
        assert_eq!(
            (lo.method, lo.reason()),
            (OffloadMethod::Tc, Some(&Obstacle::Loopback))
        );
    });
}

#[test]
fn a_required_mode_is_in_use_or_the_server_does_not_start() {
    wired(|| {
        let running = start_at("192.0.2.1", OffloadMode::Xdp).unwrap();
        assert_eq!(of(&running).method, OffloadMethod::Xdp);
        assert!(interface_named("near").xdp.is_some());
        let twice = start_at("192.0.2.1", OffloadMode::Tc);
        assert!(twice.is_err(), "the port is taken");
        running.shutdown().unwrap();
        assert!(
            interface_named("near").xdp.is_none(),
            "detached with the server"
        );

        let running = start_at("127.0.0.1", OffloadMode::Xdp).unwrap();
        assert_eq!(
            of(&running).method,
            OffloadMethod::User,
            "loopback is left alone"
        );
        let mut netlink = Netlink::open().unwrap();
        netlink.create_link("bridge0", "bridge").unwrap();
        set_up("bridge0", Some("198.51.100.1"));
        let error = start_at("198.51.100.1", OffloadMode::Xdp).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, StartError::Offload { .. }), "{text}");
        assert!(
            text.contains("bridge0") && text.contains("no native XDP"),
            "{text}"
        );
        let running = start_at("198.51.100.1", OffloadMode::Tc).unwrap();
        assert_eq!(of(&running).method, OffloadMethod::Tc);
    });
}

#[test]
fn nobody_s_program_is_disturbed() {
    wired(|| {
        let near = interface_named("near");
        let mut foreign = Relay::load(&settings()).unwrap();
        let _attached = foreign.attach_xdp(near.index, near.mac.unwrap()).unwrap();
        let _classifier = attach_foreign(&mut foreign);
        let number = interface_named("near").xdp.unwrap();
        let error = start_at("192.0.2.1", OffloadMode::Xdp).unwrap_err();
        assert!(error.to_string().contains("another XDP program"), "{error}");
        let running = start_at("192.0.2.1", OffloadMode::Auto).unwrap();
        let interface = of(&running);
        assert_eq!(interface.method, OffloadMethod::Tc);
        assert_eq!(interface.reason(), Some(&Obstacle::ForeignProgram(number)));
        assert_eq!(classifiers(), 2, "side by side");
        running.shutdown().unwrap();
        assert_eq!(interface_named("near").xdp, Some(number));
        assert_eq!(classifiers(), 1);
    });
}

#[test]
#[ignore = "loads 64 programs, which takes ten seconds"]
fn where_no_more_classifiers_fit_user_space_relays() {
    wired(|| {
        let near = interface_named("near");
        let mut attached = Vec::new();
        // The kernel takes 63.
        while let Ok(one) = foreign_one(near.index) {
            attached.push(one);
            assert!(attached.len() < 100);
        }
        let running = start_at("192.0.2.1", OffloadMode::Auto).unwrap();
        assert_eq!(of(&running).method, OffloadMethod::User);
        assert!(start_at("127.0.0.1", OffloadMode::Tc).is_ok());
    });
}

/// A program can be attached to an interface but once: each is one of its own.
fn foreign_one(index: u32) -> Result<(Relay, Attached), BpfError> {
    let mut one = Relay::load(&settings())?;
    let attached = one.attach_tc(index)?;
    Ok((one, attached))
}

#[test]
fn every_thread_gives_up_what_it_does_not_need() {
    /// CAP_NET_ADMIN, to have neighbours confirmed.
    const NET_ADMIN: u64 = 1 << 12;
    wired(|| {
        let running = start_at("192.0.2.1", OffloadMode::Auto).unwrap();
        until("all threads run", || {
            running.observer().threads().iter().all(Option::is_some)
        });
        let mut seen = Vec::new();
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            // Other tests' threads end while this looks at them.
            let task = task.unwrap().path();
            let read = |name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
            let (name, status) = (read("comm"), read("status"));
            let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
            let Some(effective) = effective else { continue };
            let effective = u64::from_str_radix(effective.trim(), 16).unwrap();
            match name.trim() {
                "hairpin-0" => seen.push(("worker", effective)),
                "hairpin-offload" => seen.push(("control", effective)),
                _ => {}
            }
        }
        assert!(seen.contains(&("worker", 0)), "{seen:x?}");
        assert!(seen.contains(&("control", NET_ADMIN)), "{seen:x?}");
    });
}

#[test]
fn which_binding_requests_the_kernel_answers_changes_while_it_runs() {
    wired(|| {
        let running = start_at("127.0.0.1", OffloadMode::Tc).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect("127.0.0.1:3478").unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let ask = || {
            // RFC 8489 §5: a Binding request without attributes.
            let mut request = [0; 20];
            request[..8].copy_from_slice(&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42]);
            client.send(&request).unwrap();
            assert!(client.recv(&mut [0; 100]).unwrap() > 20);
        };
        let by_user_space = || {
            running
                .stats()
                .sum(|worker| worker.engine.requests(Method::BINDING).packets)
        };
        let by_kernel = || running.observer().offload().totals.tc.binding;
        // The control thread says which addresses are the server's once it runs.
        until("the kernel answers", || {
            ask();
            by_kernel() > 0
        });
        let mut settings = Settings::default();
        settings.users.push(("ann".to_owned(), "secret".to_owned()));
        settings.kernel_binding.rate = 0;
        running.reload(settings.clone()).unwrap();
        let before = by_user_space();
        until("user space answers", || {
            ask();
            by_user_space() > before
        });
        settings.kernel_binding.rate = 1000;
        running.reload(settings).unwrap();
        until("the kernel answers again", || {
            let before = by_user_space();
            ask();
            by_user_space() == before
        });
    });
}

/// What the next test starts and kills; by itself it does nothing.
#[test]
#[ignore = "a part of `nothing_is_left_of_a_killed_server`"]
fn serve_until_killed() {
    if std::env::var_os("HAIRPIN_TEST_SERVE").is_some() {
        let mode = match std::env::var("HAIRPIN_TEST_SERVE").unwrap().as_str() {
            "xdp" => OffloadMode::Xdp,
            _ => OffloadMode::Tc,
        };
        let _running = start_at("192.0.2.1", mode).unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn nothing_is_left_of_a_killed_server() {
    wired(|| {
        for mode in ["xdp", "tc"] {
            let attached = || match mode {
                "xdp" => interface_named("near").xdp.is_some(),
                _ => classifiers() > 0,
            };
            assert!(!attached());
            // It is started by this thread, and so in its namespace.
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "serve_until_killed"])
                .env("HAIRPIN_TEST_SERVE", mode)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            until(&format!("{mode} is attached"), attached);
            child.kill().unwrap();
            child.wait().unwrap();
            if mode == "tc" && bpf::relay::classifiers_at("near").is_err() {
                // A clsact filter stays, and passes everything: see `offload/clsact_tests.rs`.
                continue;
            }
            // The kernel lets go of the last descriptor a moment later.
            until(&format!("{mode} is gone"), || !attached());
        }
    });
}

fn until(what: &str, mut good: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !good() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
