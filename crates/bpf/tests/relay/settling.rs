//! A new flow is left to user space until what waits there cannot be overtaken.

use std::thread::sleep;
use std::time::{Duration, Instant};

use hairpin_bpf::relay::Verdict;

use crate::cases::{Case, Way};
use crate::rig::{Path, Rig};

/// Sends a packet of the case, and says whether it was relayed.
fn relayed(rig: &mut Rig, case: &Case, path: Path) -> bool {
    let before = rig.totals(path);
    let run = rig.run(path, &case.arriving_frame(), None);
    let grown = rig.grown(path, &before);
    match run.verdict {
        Verdict::Pass => assert_eq!(grown, [("pass_settling", 1)]),
        _ => assert!(grown.iter().all(|(name, _)| !name.starts_with("pass"))),
    }
    run.verdict != Verdict::Pass
}

fn each(mut check: impl FnMut(&mut Rig, &Case, Path)) {
    let Some(mut rig) = Rig::new() else { return };
    rig.settle_new_flows();
    for way in [Way::ToPeer, Way::ToClient, Way::Between] {
        for path in [Path::Xdp, Path::Tc] {
            let case = Case { way, ..Case::NEW };
            rig.enter(&case);
            check(&mut rig, &case, path);
            rig.leave(&case);
        }
    }
}

#[test]
fn the_first_packet_passes_and_the_next_after_a_pause_is_relayed() {
    each(|rig, case, path| {
        assert!(!relayed(rig, case, path), "the first, {path:?}: {case}");
        sleep(Duration::from_millis(5));
        assert!(relayed(rig, case, path), "the second, {path:?}: {case}");
        assert!(relayed(rig, case, path), "at once, {path:?}: {case}");
    });
}

#[test]
fn a_flow_without_a_pause_is_relayed_after_a_fifth_of_a_second() {
    each(|rig, case, path| {
        let start = Instant::now();
        let mut passed = 0;
        while !relayed(rig, case, path) {
            passed += 1;
            assert!(start.elapsed() < Duration::from_secs(5), "never relayed");
        }
        // On a machine that takes the processor away for 2 ms, that is a pause.
        let took = start.elapsed();
        assert!(passed > 0 && took < Duration::from_millis(700), "{took:?}");
        assert!(relayed(rig, case, path));
    });
}
