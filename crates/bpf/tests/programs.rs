//! Every program of the tree, by itself: the kernel's verifier takes it.
//!
//! These tests need root (CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON); without, they say so and pass.

use hairpin_bpf::BpfError;
use hairpin_bpf::admission_filter::AdmissionFilter;
use hairpin_bpf::count::{Counter, Hook};
use hairpin_bpf::floor::{Floor, Kind};
use hairpin_bpf::inject::Injector;
use hairpin_bpf::relay::{BindingLimit, Relay, Settings};
use hairpin_bpf::steer::Steering;

/// Fails with the reason of the kernel; but for a process without privileges it is none.
fn loads<T>(loaded: Result<T, BpfError>) {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    match loaded {
        Err(error) if root => panic!("{error}"),
        Err(error) => eprintln!("skipped: {error}"),
        Ok(_) => {}
    }
}

fn relay() -> Result<Relay, BpfError> {
    Relay::load(&Settings {
        listener_ports: vec![3478],
        relay_ports: 49_152..=65_535,
        channels: 16,
        buckets: 4,
        next_hops: 4,
        binding: Some(BindingLimit::default()),
    })
}

#[test]
fn steer() {
    loads(Steering::load(2, 16));
}

#[test]
fn sip_admission_filter() {
    loads(AdmissionFilter::load());
}

#[test]
fn relay_maps() {
    loads(relay());
}

#[test]
fn relay_xdp() {
    loads(relay().and_then(|mut relay| relay.load_xdp()));
}

#[test]
fn relay_tc() {
    loads(relay().and_then(|mut relay| relay.load_tc()));
}

#[test]
fn relay_gate() {
    loads(relay().and_then(|mut relay| relay.load_gate()));
}

#[test]
fn inject() {
    loads(Injector::load(4));
}

#[test]
fn count_xdp() {
    loads(Counter::load(Hook::Xdp, 4));
}

#[test]
fn count_tc() {
    loads(Counter::load(Hook::Tc, 4));
}

#[test]
fn floor_relay_xdp() {
    loads(Floor::load(Kind::RelayXdp, 4));
}

#[test]
fn floor_relay_tc() {
    loads(Floor::load(Kind::RelayTc, 4));
}

#[test]
fn floor_stun_xdp() {
    loads(Floor::load(Kind::StunXdp, 4));
}
