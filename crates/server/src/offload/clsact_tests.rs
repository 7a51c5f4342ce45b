//! tc by clsact, in network namespaces, on any kernel: that it relays, what a killed process leaves, and what a start
//! removes. Needs root.

use super::attach::{Attachments, OffloadConfig};
use super::choice::OffloadMethod;
use super::{KernelBinding, Offload, OffloadMode};
use crate::ports::PortRange;
use crate::rates::TableSize;
use bpf::relay::Relay;
use io::NetNs;
use io::netlink::{Filter, Netlink, VethEnd, interface_index};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LISTENER: &str = "192.0.2.1:3478";
/// A name that no process owns.
const DEAD: &str = "hairpin-0123456789abcdef";

/// Runs in a separate thread, in a namespace whose `near` (192.0.2.1) is wired to `far` (192.0.2.2) in the other.
fn wired(test: impl FnOnce(&NetNs, &NetNs) + Send + 'static) {
    let body = move || {
        let here = NetNs::unshare().unwrap_or_else(|error| panic!("this test needs root: {error}"));
        let mut netlink = Netlink::open().unwrap();
        let there = NetNs::unshare().unwrap();
        let end = |name, last, namespace| VethEnd {
            name,
            mac: [2, 0, 0, 0, 0, last],
            namespace,
        };
        let ends = [end("near", 1, &here), end("far", 2, &there)];
        netlink.create_veth(&ends[0], &ends[1]).unwrap();
        for (namespace, name, last) in [(&there, "far", 2), (&here, "near", 1)] {
            namespace.enter().unwrap();
            let mut netlink = Netlink::open().unwrap();
            let index = interface_index(name).unwrap();
            netlink.set_up(index).unwrap();
            let address = IpAddr::from([192, 0, 2, last]);
            netlink.add_address(index, address, 24).unwrap();
        }
        test(&here, &there);
    };
    std::thread::spawn(body).join().unwrap();
}

/// Attaches by clsact to `near` what answers Binding requests to the listener.
fn attach() -> Attachments {
    let listeners = [LISTENER.parse().unwrap()];
    let wanted = OffloadConfig {
        offload: Offload {
            mode: OffloadMode::Tc,
            channels: 64,
        },
        binding: Some(KernelBinding::default()),
        listeners: &listeners,
        relays: &[],
        ports: PortRange::DYNAMIC,
        rates: TableSize {
            allocations: 64,
            ..TableSize::default()
        },
        tcx: false,
        other: None,
    };
    let mut attachments = wanted.attach().unwrap();
    let relay = attachments.relay.as_mut().unwrap();
    relay.set_listener(listeners[0], true).unwrap();
    attachments
}

fn filters() -> Vec<Filter> {
    let near = interface_index("near").unwrap();
    let mut filters = Netlink::open().unwrap().ingress_filters(near).unwrap();
    // One per priority is only its head.
    filters.retain(|filter| filter.handle != 0);
    filters
}

fn names() -> Vec<String> {
    let named = filters().into_iter().filter_map(|filter| filter.name);
    named.collect()
}

fn count_of_ours() -> usize {
    let is_ours = |name: &&String| name.starts_with("hairpin-");
    names().iter().filter(is_ours).count()
}

/// Adds a filter that passes everything. It does not end with the process of the test.
fn add_filter(priority: u16, name: &str) {
    let mut relay = Relay::load(&bpf::relay::Settings {
        listener_ports: vec![1],
        relay_ports: 2..=3,
        channels: 1,
        buckets: 1,
        next_hops: 1,
        binding: None,
    })
    .unwrap();
    let gate = relay.load_gate().unwrap();
    let near = interface_index("near").unwrap();
    let mut netlink = Netlink::open().unwrap();
    netlink.add_clsact(near).unwrap();
    netlink
        .add_bpf_filter(near, priority, 7, name, gate.as_fd())
        .unwrap();
}

/// RFC 8489 §5: a Binding request without attributes.
fn request() -> [u8; 20] {
    let mut request = [0; 20];
    request[..8].copy_from_slice(&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42]);
    request
}

/// Whether the kernel answers a Binding request from `far`, where no socket would.
fn kernel_answers(here: &NetNs, there: &NetNs) -> bool {
    there.enter().unwrap();
    let client = UdpSocket::bind("192.0.2.2:0").unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    client.send_to(&request(), LISTENER).unwrap();
    let answered = client.recv(&mut [0; 100]).is_ok();
    here.enter().unwrap();
    answered
}

fn until(what: &str, mut good: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !good() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process in this thread's namespace that attaches, until it is killed.
fn child() -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "offload::clsact_tests_needs_root::attach_until_killed",
        ])
        .env("HAIRPIN_TEST_ATTACH", "1")
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// What other tests start and kill; by itself it does nothing.
#[test]
#[ignore = "a part of other tests"]
fn attach_until_killed() {
    if std::env::var_os("HAIRPIN_TEST_ATTACH").is_some() {
        let _attachments = attach();
        std::thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn tc_by_clsact_answers_and_goes_with_its_qdisc() {
    wired(|here, there| {
        let attachments = attach();
        let about = &attachments.interfaces[0].about;
        assert_eq!((about.method, about.clsact), (OffloadMethod::Tc, true));
        assert!(about.to_string().contains("clsact"), "{about}");
        assert_eq!(filters().len(), 1);
        assert_eq!(filters()[0].priority, u16::MAX, "after all others");
        until("the kernel answers", || kernel_answers(here, there));
        drop(attachments);
        assert_eq!(filters(), []);
        let near = interface_index("near").unwrap();
        let is_new = Netlink::open().unwrap().add_clsact(near).unwrap();
        assert!(is_new, "clsact was not there before, and is not there now");
        assert!(!kernel_answers(here, there));
    });
}

#[test]
fn a_killed_process_leaves_a_filter_that_passes_everything_and_the_next_start_removes_it() {
    wired(|here, there| {
        let killed = child();
        until("the kernel answers", || kernel_answers(here, there));
        kill(killed);
        let listener = UdpSocket::bind(LISTENER).unwrap();
        listener
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let since = Instant::now();
        until("the request reaches the socket", || {
            assert!(since.elapsed() < Duration::from_secs(1));
            !kernel_answers(here, there) && listener.recv(&mut [0; 100]).is_ok()
        });
        let left = names();
        assert_eq!(left.len(), 1, "the kernel keeps the filter");
        let attachments = attach();
        assert_eq!(count_of_ours(), 1);
        assert_ne!(names(), left, "the old one is gone");
        until("the kernel answers again", || kernel_answers(here, there));
        drop(attachments);
        assert_eq!(filters(), []);
    });
}

#[test]
fn filters_of_others_and_of_the_living_stay() {
    wired(|_, _| {
        // Names of others, one of them nearly ours.
        add_filter(1, "cilium");
        add_filter(2, "hairpin-short");
        add_filter(u16::MAX, "last");
        add_filter(3, DEAD);
        let living = child();
        until("the other process attaches", || {
            !names().contains(&DEAD.to_owned()) && names().len() == 4
        });
        let before = filters();
        let attachments = attach();
        assert_eq!(filters().len(), 5);
        let first = |name: &str| {
            filters()
                .iter()
                .any(|one| one.name.as_deref() == Some(name))
        };
        assert!(first("cilium") && first("hairpin-short") && first("last"));
        drop(attachments);
        assert_eq!(filters(), before);
        kill(living);
        drop(attach());
        let mut left = names();
        left.sort();
        assert_eq!(left, ["cilium", "hairpin-short", "last"]);
    });
}

#[test]
fn a_thread_without_cap_bpf_attaches_what_was_loaded_before() {
    wired(|here, there| {
        let mut attachments = attach();
        let mut relay = attachments.relay.take().unwrap();
        let gate = relay.load_gate().unwrap();
        let attachment = &mut attachments.interfaces[0];
        attachment.detach(&mut relay);
        assert_eq!(filters(), []);
        std::thread::scope(|scope| {
            let attached = scope.spawn(|| {
                use io::capabilities::{Capability, keep_only};
                keep_only(&[Capability::NetAdmin]).unwrap();
                super::attach::attach_tc(&mut relay, Some(gate), attachment.about.index)
            });
            let attached = attached.join().unwrap();
            assert!(attached.is_ok(), "{attached:?}");
            until("the kernel answers", || kernel_answers(here, there));
        });
    });
}
