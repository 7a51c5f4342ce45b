//! During an upgrade, the kernel relays for both servers. Both are in this process, and in the server's namespace.

use std::sync::Arc;
use std::time::Duration;

use ::io::netlink::Netlink;
use hairpin_server::Running;
use hairpin_server::offload::{OffloadMethod, Totals};

use crate::call::{Call, Families, Way};
use crate::common::take_over::take_over;
use crate::common::{self, eventually};
use crate::network::{Network, within};
use crate::paths::Path;
use crate::process::builder;

/// The kernel's counts are never older.
const COUNTS_AGE: Duration = Duration::from_millis(1200);

/// Datagrams each way; one in 65,536 takes the other way by chance.
const DATAGRAMS: u32 = 50;

/// What the programs of a server have relayed.
fn by_kernel(server: &Running, path: Path) -> u64 {
    let Totals { xdp, tc, .. } = server.observer().offload().totals;
    let totals = if path == Path::Xdp { xdp } else { tc };
    totals.to_peer + totals.to_client
}

/// Data passes, from some moment on by this server's program alone.
fn goes_by(call: &mut Call, server: &Running, others: &[&Running], path: Path) {
    let mut last = (0, 0);
    for _ in 0..20 {
        let count = || {
            let foreign: u64 = others.iter().map(|other| by_kernel(other, path)).sum();
            (by_kernel(server, path), foreign)
        };
        let before = count();
        call.pass_short(Way::ToPeer, DATAGRAMS);
        call.pass_short(Way::ToClient, DATAGRAMS);
        std::thread::sleep(COUNTS_AGE);
        let after = count();
        last = (after.0 - before.0, after.1 - before.1);
        assert_eq!(last.1, 0, "another server's program has relayed");
        if last.0 == u64::from(2 * DATAGRAMS) {
            return;
        }
    }
    panic!("the kernel relays {} of {}", last.0, 2 * DATAGRAMS);
}

fn method(server: &Running) -> Vec<OffloadMethod> {
    let interfaces = server.observer().offload().interfaces;
    let wires = interfaces.iter().filter(|one| one.name != "lo");
    wires.map(|one| one.method).collect()
}

fn both_relay_in_the_kernel(path: Path, expected: OffloadMethod) {
    let network = match Network::build(path.checksums()) {
        Ok(network) => network,
        Err(reason) => return common::netns::skipped(&reason),
    };
    let here = |old: Option<&Arc<Running>>| {
        let start = || {
            Ok(match old {
                Some(old) => take_over(old, path.choose(builder())),
                None => path.choose(builder()).start(),
            })
        };
        let started = within(&network.server, start).expect("a namespace");
        started.unwrap_or_else(|error| panic!("{error}"))
    };
    let set_up = || Call::set_up(&network, Families::ALL[0]);
    let old = Arc::new(here(None));
    let mut first = set_up();
    goes_by(&mut first, &old, &[], path);

    let new = here(Some(&old));
    assert_eq!(method(&new), [expected; 2]);
    old.stop_listening().expect("every worker responds");
    goes_by(&mut first, &old, &[&new], path);
    let mut second = set_up();
    assert_eq!(new.stats().allocations(), 1);
    goes_by(&mut second, &new, &[&old], path);
    goes_by(&mut first, &old, &[&new], path);

    // The new server ends at once: the old one is as before.
    drop(new);
    old.resume().expect("every worker responds");
    goes_by(&mut first, &old, &[], path);
    let mut third = set_up();
    goes_by(&mut third, &old, &[], path);

    // Once more, and the old one ends.
    let new = here(Some(&old));
    old.stop_listening().expect("every worker responds");
    let mut fourth = set_up();
    goes_by(&mut fourth, &new, &[&old], path);
    goes_by(&mut third, &old, &[&new], path);
    first.client.release();
    third.client.release();
    new.predecessor_ended().expect("every worker responds");
    eventually("nobody else has the old server", || {
        Arc::strong_count(&old) == 1
    });
    let old = Arc::into_inner(old).expect("nobody else has it");
    old.shutdown().expect("no worker has failed");
    goes_by(&mut fourth, &new, &[], path);
    let mut fifth = set_up();
    goes_by(&mut fifth, &new, &[], path);
    drop(new);
    let interfaces = within(&network.server, || Netlink::open()?.interfaces()).expect("interfaces");
    assert!(
        interfaces.iter().all(|interface| interface.xdp.is_none()),
        "no program is left"
    );
    assert_eq!(network.damaged(), 0, "no checksum was wrong");
}

#[test]
fn xdp_relays_for_both_servers_during_an_upgrade() {
    both_relay_in_the_kernel(Path::Xdp, OffloadMethod::Xdp);
}

#[test]
fn tc_relays_for_both_servers_during_an_upgrade() {
    both_relay_in_the_kernel(Path::Tc, OffloadMethod::Tc);
}
