//! The server between a client and a peer behind a gateway, on every path that a datagram can take: user space, XDP,
//! tc.
//!
//! Real sockets at both ends, every byte compared, checksums verified by the receiving kernels; and what ends a relay
//! in user space ends it in the kernel: Refresh 0, a lapsed permission or channel, the end of the process, also by
//! SIGKILL.
//!
//! These tests need root and Linux 6.6 or later; without, they say so and pass.

#[path = "../common/mod.rs"]
mod common;

mod call;
mod network;
mod paths;
mod process;
mod rates;
mod shared_ports;
mod upgrade;

use std::thread;
use std::time::{Duration, Instant};

use call::{Call, Families, Way};
use network::{Holder, Network};
use paths::Path;
use process::Process;

/// Datagrams each way, over all families together. `HAIRPIN_TEST_DATAGRAMS` sets another number: fewer for an emulated
/// machine.
const DATAGRAMS: u32 = 30_000;

fn datagrams() -> u32 {
    let set = std::env::var("HAIRPIN_TEST_DATAGRAMS").ok();
    set.map_or(DATAGRAMS, |number| number.parse().expect("a number"))
}

#[test]
#[ignore = "not a test: the server, run by the tests"]
fn entry_of_the_server() {
    process::serve();
}

#[test]
fn user_space_relays_every_byte_and_nothing_afterwards() {
    everything(Path::UserSpace);
}

#[test]
fn xdp_relays_every_byte_and_nothing_afterwards() {
    everything(Path::Xdp);
}

#[test]
fn tc_relays_every_byte_and_nothing_afterwards() {
    everything(Path::Tc);
}

#[test]
fn tc_relays_partial_checksums_that_the_kernel_completes() {
    everything(Path::TcCompleted);
}

fn everything(path: Path) {
    let network = match Network::build(path.checksums()) {
        Ok(network) => network,
        Err(reason) => return common::netns::skipped(&reason),
    };
    let server = Process::start(&network.server, path);
    for families in Families::ALL {
        let mut call = Call::set_up(&network, families);
        // The first datagrams may take the way through user space, until neighbours are known.
        call.pass(Way::ToPeer, 100);
        call.pass(Way::ToClient, 100);
        call.pass(Way::ToPeer, datagrams() / 4);
        call.pass(Way::ToClient, datagrams() / 4);
        takes_its_path(&mut call, &server, path);
        call.client.release();
        call.is_over();
    }
    assert_eq!(network.damaged(), 0, "no checksum was wrong");
    ends_with_the_process(&network, server, path, "TERM");
    let server = Process::start(&network.server, path);
    ends_with_the_process(&network, server, path, "KILL");
    let _server = Process::start(&network.server, path);
    let mut call = Call::set_up(&network, Families::ALL[0]);
    call.pass(Way::ToPeer, 100);
    call.pass(Way::ToClient, 100);
}

#[test]
fn a_bridge_relays_at_tc() {
    relays_with(Holder::Above("bridge"), &[Path::Tc]);
}

#[test]
fn a_bond_relays_in_xdp_and_at_tc() {
    relays_with(
        Holder::Above("bond mode active-backup miimon 100"),
        &[Path::Xdp, Path::Tc],
    );
}

#[test]
fn a_vlan_device_relays_at_tc() {
    relays_with(Holder::Vlan, &[Path::Tc]);
}

#[test]
fn addresses_on_loopback_are_relayed_where_their_packets_arrive() {
    relays_with(Holder::Host("lo"), &[Path::Xdp, Path::Tc]);
}

#[test]
fn addresses_on_dummies_are_relayed_where_their_packets_arrive() {
    relays_with(Holder::Host("dummy"), &[Path::Xdp, Path::Tc]);
}

/// The kernel relays, wherever the server's addresses are.
fn relays_with(holder: Holder, paths: &[Path]) {
    for path in paths {
        let network = match Network::build_with(path.checksums(), holder) {
            Ok(network) => network,
            Err(reason) => return common::netns::skipped(&reason),
        };
        let server = Process::start(&network.server, *path);
        for families in &Families::ALL[..2] {
            let mut call = Call::set_up(&network, *families);
            call.pass(Way::ToPeer, 100);
            call.pass(Way::ToClient, 100);
            takes_its_path(&mut call, &server, *path);
            call.client.release();
            call.is_over();
        }
        assert_eq!(
            network.damaged(),
            0,
            "{holder:?}, {path:?}: no checksum was wrong"
        );
    }
}

/// While its process is stopped, the server relays in the kernel or not at all.
fn takes_its_path(call: &mut Call, server: &Process, path: Path) {
    // Neighbours are found while user space relays, on a busy machine not at once.
    for _ in 0..10 {
        call.pass_short(Way::ToPeer, 1);
        call.pass_short(Way::ToClient, 1);
        thread::sleep(Duration::from_millis(200));
    }
    server.signal("STOP");
    // Its threads stop when they next leave the kernel.
    thread::sleep(Duration::from_millis(50));
    if path.in_kernel() {
        call.pass_without_process(Way::ToPeer, 200);
        call.pass_without_process(Way::ToClient, 200);
    } else {
        call.is_over();
    }
    server.signal("CONT");
    // What has waited for user space comes late.
    thread::sleep(Duration::from_millis(100));
    call.discard();
}

fn ends_with_the_process(network: &Network, server: Process, path: Path, signal: &str) {
    let mut call = Call::set_up(network, Families::ALL[0]);
    call.pass(Way::ToPeer, 100);
    call.pass(Way::ToClient, 100);
    server.signal(signal);
    let status = server.wait();
    assert_eq!(status.success(), signal == "TERM", "{status}");
    call.is_over();
    // The allocation is not there either when another process serves the same addresses.
    let _again = Process::start(&network.server, path);
    call.is_over();
}

#[test]
#[ignore = "takes ten minutes: permissions last 300 seconds, channels 600 (RFC 8656)"]
fn permissions_and_channels_lapse_alike_on_every_path() {
    let lapse = |path: Path| move || lapses(path);
    let threads = Path::ALL.map(|path| (path, thread::spawn(lapse(path))));
    for (path, thread) in threads {
        assert!(thread.join().is_ok(), "{path:?}");
    }
}

fn lapses(path: Path) {
    let network = match Network::build(path.checksums()) {
        Ok(network) => network,
        Err(reason) => return common::netns::skipped(&reason),
    };
    let server = Process::start(&network.server, path);
    let mut call = Call::set_up(&network, Families::ALL[0]);
    let bound = Instant::now();
    let at = |seconds| thread::sleep(Duration::from_secs(seconds).saturating_sub(bound.elapsed()));
    let both_ways = |call: &mut Call| {
        call.pass(Way::ToPeer, 50);
        call.pass(Way::ToClient, 50);
    };
    both_ways(&mut call);
    takes_its_path(&mut call, &server, path);
    // Data refreshes neither permission nor channel.
    for seconds in [100, 200, 295] {
        at(seconds);
        both_ways(&mut call);
    }
    at(302);
    call.is_over();
    call.permit();
    both_ways(&mut call);
    takes_its_path(&mut call, &server, path);
    at(500);
    call.refresh();
    call.permit();
    at(595);
    both_ways(&mut call);
    at(602);
    // The channel is gone; the permission is not.
    call.is_silent(Way::ToPeer);
    call.comes_as_indication();
    call.bind();
    both_ways(&mut call);
    takes_its_path(&mut call, &server, path);
}
