//! An XDP program in front of another one, as during an upgrade.

use std::os::fd::AsFd;

use hairpin_bpf::relay::Verdict;

use crate::cases::Case;
use crate::rig::{Path, Rig};

/// What XDP programs have counted since.
fn grown(
    rigs: [&Rig; 2],
    before: &[hairpin_bpf::relay::PathTotals; 2],
) -> [Vec<(&'static str, u64)>; 2] {
    let [front, behind] = rigs;
    [
        front.grown(Path::Xdp, &before[0]),
        behind.grown(Path::Xdp, &before[1]),
    ]
}

#[test]
fn each_of_two_programs_relays_its_own_flows() {
    let (Some(mut front), Some(mut behind)) = (Rig::in_front(), Rig::new()) else {
        return;
    };
    let case = Case::NEW;
    let frame = case.arriving_frame();
    let relayed = vec![("to_peer", 1), ("to_peer_bytes", case.payload as u64)];
    let passed = vec![("pass_miss", 1)];
    behind.enter(&case);
    let run = |front: &mut Rig, behind: &Rig| {
        let before = [front.totals(Path::Xdp), behind.totals(Path::Xdp)];
        let verdict = front.run(Path::Xdp, &frame, None).verdict;
        (verdict, grown([front, behind], &before))
    };
    let outcome = run(&mut front, &behind);
    assert_eq!(
        outcome,
        (Verdict::Pass, [passed.clone(), vec![]]),
        "nothing is behind"
    );
    let program = behind.relay.xdp_program().expect("it is loaded");
    let set = front.relay.set_behind(Some(program.as_fd()));
    set.expect("a program of the same type");
    let outcome = run(&mut front, &behind);
    assert_eq!(outcome, (Verdict::Transmit, [vec![], relayed.clone()]));
    behind.leave(&case);
    front.enter(&case);
    let outcome = run(&mut front, &behind);
    assert_eq!(outcome, (Verdict::Transmit, [relayed, vec![]]));
    front.leave(&case);
    let outcome = run(&mut front, &behind);
    assert_eq!(outcome, (Verdict::Pass, [vec![], passed.clone()]));
    behind.enter(&case);
    front.relay.set_behind(None).expect("it can be emptied");
    let outcome = run(&mut front, &behind);
    assert_eq!(outcome, (Verdict::Pass, [passed, vec![]]));
}
