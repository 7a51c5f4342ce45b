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

/// The programs' clock is up to a tick behind, which is 10 ms at most.
const CLOCK_TICKS: Duration = Duration::from_millis(20);

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
        assert!(!relayed(rig, case, path), "the first, {path:?}: {case}");
        // From here, however long this process waits for its processor: a packet sent so late must be relayed.
        let late = Instant::now() + Duration::from_millis(200) + CLOCK_TICKS;
        loop {
            let is_late = Instant::now() > late;
            // On a machine that takes the processor away for 2 ms, that is a pause.
            if relayed(rig, case, path) {
                break;
            }
            assert!(
                !is_late,
                "left to user space for too long, {path:?}: {case}"
            );
        }
        assert!(relayed(rig, case, path));
    });
}
