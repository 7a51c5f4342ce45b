//! The relay's programs, packet in and packet out: every case of the table through XDP and tc, without an interface.

use hairpin_bpf::relay::Verdict;

use crate::cases::reference::LEAVING;
use crate::cases::{Case, Checksum, Expect, Family, Hop, Way, cases};
use crate::rig::{Path, Rig};

#[test]
fn every_case_leaves_as_the_reference_says_or_untouched() {
    let Some(mut rig) = Rig::new() else { return };
    let mut seen = 0;
    for case in cases() {
        for path in [Path::Xdp, Path::Tc] {
            check(&mut rig, &case, path);
            seen += 1;
        }
    }
    assert!(seen > 500, "{seen} runs");
}

/// One case through one program.
fn check(rig: &mut Rig, case: &Case, path: Path) {
    let (entered, identification) = rig.enter(case);
    let frame = case.arriving_frame();
    let before = rig.totals(path);
    let run = rig.run(path, &frame, None);
    let grown = rig.grown(path, &before);
    match case.expect {
        Expect::Relayed => {
            let back = path == Path::Xdp && case.hop == Hop::Back;
            let verdict = if back {
                Verdict::Transmit
            } else {
                Verdict::Redirect
            };
            assert_eq!(run.verdict, verdict, "{path:?}: {case}: {grown:?}");
            let label = match run.frame[12] {
                8 => identification,
                // The flow label is a keyed hash: any will do, but always the same.
                _ => u32::from_be_bytes([0, run.frame[15] & 15, run.frame[16], run.frame[17]]),
            };
            let wanted = case.leaving(label).frame(LEAVING);
            assert_eq!(hex(&run.frame), hex(&wanted), "{path:?}: {case}");
            let bytes = case.payload as u64;
            let name = match case.way {
                Way::ToPeer => ["to_peer", "to_peer_bytes"],
                Way::ToClient => ["to_client", "to_client_bytes"],
                Way::Between => ["relay_to_relay", "relay_to_relay_bytes"],
            };
            let wanted = [(name[0], 1), (name[1], bytes)];
            let wanted = wanted.into_iter().filter(|(_, count)| *count > 0);
            assert_eq!(grown, wanted.collect::<Vec<_>>(), "{path:?}: {case}");
            for key in entered {
                let counts = rig.table.counts(&key).expect("entered");
                assert_eq!((counts.packets, counts.bytes), (1, bytes), "{case}");
                assert!(counts.last_seen_s > 0 && counts.last_seen_s <= rig.now_s());
            }
        }
        Expect::Passed(why) => {
            assert_eq!(run.verdict, Verdict::Pass, "{path:?}: {case}");
            assert_eq!(hex(&run.frame), hex(&frame), "{path:?}: {case}");
            let wanted = match why {
                "none" => vec![],
                why => vec![(why, 1)],
            };
            assert_eq!(grown, wanted, "{path:?}: {case}");
        }
        Expect::Dropped => {
            assert_eq!(run.verdict, Verdict::Drop, "{path:?}: {case}");
            assert_eq!(grown, [("rate_dropped", 1)], "{path:?}: {case}");
            assert_eq!(rig.dropped(), (1, case.payload as u64), "{path:?}: {case}");
        }
    }
    rig.leave(case);
}

fn hex(bytes: &[u8]) -> String {
    let halves: Vec<String> = bytes
        .chunks(2)
        .map(|half| half.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    halves.join(" ")
}

#[test]
fn a_vlan_tag_passes() {
    let Some(mut rig) = Rig::new() else { return };
    let case = Case::NEW;
    rig.enter(&case);
    for tag in [[0x81, 0], [0x88, 0xa8]] {
        let mut frame = case.arriving_frame();
        frame.splice(12..12, [tag[0], tag[1], 0, 5]);
        let run = rig.run(Path::Xdp, &frame, None);
        assert_eq!((run.verdict, run.frame), (Verdict::Pass, frame));
    }
    assert_eq!(rig.totals(Path::Xdp).pass_vlan, 2);
}

#[test]
fn several_datagrams_in_a_packet_pass() {
    let Some(mut rig) = Rig::new() else { return };
    let case = Case::NEW;
    rig.enter(&case);
    let frame = case.arriving_frame();
    let run = rig.run(Path::Tc, &frame, Some(3));
    assert_eq!((run.verdict, run.frame), (Verdict::Pass, frame));
    assert_eq!(rig.totals(Path::Tc).pass_gso, 1);
}

#[test]
fn a_checksum_that_looks_partial_passes_xdp_and_is_right_after_tc() {
    let Some(mut rig) = Rig::new() else { return };
    for (client, peer) in [
        (Family::V4, Family::V4),
        (Family::V4, Family::V6),
        (Family::V6, Family::V4),
        (Family::V6, Family::V6),
    ] {
        for way in [Way::ToPeer, Way::ToClient, Way::Between] {
            for padding in [&[][..], &[0, 0]] {
                if way == Way::ToClient && !padding.is_empty() {
                    continue;
                }
                let case = Case {
                    what: "looks partial",
                    checksum: Checksum::LooksPartial,
                    way,
                    client,
                    peer,
                    padding,
                    ..Case::NEW
                };
                let frame = case.arriving_frame();
                rig.enter(&case);
                let before = rig.totals(Path::Xdp);
                let run = rig.run(Path::Xdp, &frame, None);
                assert_eq!((run.verdict, run.frame), (Verdict::Pass, frame), "{case}");
                assert_eq!(rig.grown(Path::Xdp, &before), [("pass_partial", 1)]);
                rig.leave(&case);
                check(&mut rig, &case, Path::Tc);
            }
        }
    }
    assert!(rig.relay.partial_checksums(1) > 0);
}

#[test]
fn nothing_is_relayed_while_relaying_is_off() {
    let Some(mut rig) = Rig::new() else { return };
    let case = Case::NEW;
    rig.enter(&case);
    let frame = case.arriving_frame();
    rig.relay.set_relaying(false).expect("writable");
    for path in [Path::Xdp, Path::Tc] {
        let run = rig.run(path, &frame, None);
        assert_eq!((run.verdict, &run.frame), (Verdict::Pass, &frame));
        assert_eq!(rig.totals(path).pass_off, 1);
    }
    rig.relay.set_relaying(true).expect("writable");
    let run = rig.run(Path::Xdp, &frame, None);
    assert_eq!(run.verdict, Verdict::Transmit);
}

#[test]
fn identifications_of_a_flow_follow_each_other() {
    let Some(mut rig) = Rig::new() else { return };
    let case = Case::NEW;
    let (_, first) = rig.enter(&case);
    let frame = case.arriving_frame();
    let mut seen = Vec::new();
    for _ in 0..8 {
        let run = rig.run(Path::Xdp, &frame, None);
        seen.push(u32::from(u16::from_be_bytes([
            run.frame[18],
            run.frame[19],
        ])));
    }
    // Each processor counts for itself, and the thread may move between them.
    seen.dedup();
    assert!(
        seen.iter().all(|id| (first..first + 8).contains(id)),
        "{seen:?}"
    );
    assert!(seen.len() >= 4, "{seen:?}");
}

#[test]
fn xdp_sends_to_another_interface_only_if_its_driver_takes_frames() {
    let Some(mut rig) = Rig::new() else { return };
    let case = Case {
        hop: Hop::OtherWithoutXmit,
        ..Case::NEW
    };
    rig.enter(&case);
    let frame = case.arriving_frame();
    let before = rig.totals(Path::Xdp);
    let run = rig.run(Path::Xdp, &frame, None);
    assert_eq!((run.verdict, &run.frame), (Verdict::Pass, &frame));
    assert_eq!(rig.grown(Path::Xdp, &before), [("pass_next_hop", 1)]);
    // Out of a bond a frame of its lower device goes back.
    let [mac, _] = crate::cases::reference::ARRIVING;
    rig.relay.set_interface(1, 77, mac).expect("a slot");
    assert_eq!(rig.run(Path::Xdp, &frame, None).verdict, Verdict::Transmit);
    assert_eq!(rig.run(Path::Tc, &frame, None).verdict, Verdict::Redirect);
}

#[test]
fn a_frame_from_a_lower_device_leaves_by_the_device_above() {
    let Some(mut rig) = Rig::new() else { return };
    let above = 77;
    let [mac, _] = crate::cases::reference::ARRIVING;
    let case = Case {
        hop: Hop::Other,
        ..Case::NEW
    };
    rig.enter(&case);
    let frame = case.arriving_frame();
    assert_eq!(rig.run(Path::Xdp, &frame, None).verdict, Verdict::Redirect);
    rig.relay.set_interface(1, above, mac).expect("a slot");
    assert_eq!(rig.run(Path::Xdp, &frame, None).verdict, Verdict::Transmit);
    rig.relay.forget_interface(1).expect("writable");
    let before = rig.totals(Path::Xdp);
    let run = rig.run(Path::Xdp, &frame, None);
    assert_eq!((run.verdict, run.frame), (Verdict::Pass, frame));
    assert_eq!(rig.grown(Path::Xdp, &before), [("pass_interface", 1)]);
}
