//! Whatever is done to a valid frame, it passes untouched or leaves as the reference says of what the frame then is.

use hairpin_bpf::relay::Verdict;

use crate::cases::reference::{ARRIVING, LEAVING, Packet, sum};
use crate::cases::{Case, Expect, cases};
use crate::rig::{Path, Rig};

/// xorshift64*: the same sequence in every run.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let mixed = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        mixed as usize % below
    }
}

/// Some of: a bit, a byte, a header byte, more bytes, fewer bytes; now and then with the header checksum put right.
fn mutate(frame: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.next(3) {
        let headers = frame.len().min(70);
        match random.next(6) {
            0 => {
                let at = random.next(frame.len());
                frame[at] ^= 1 << random.next(8);
            }
            1 => {
                let at = random.next(frame.len());
                frame[at] = random.next(256) as u8;
            }
            2 | 3 => {
                let at = random.next(headers);
                frame[at] ^= 1 << random.next(8);
            }
            4 => frame.resize(frame.len() + random.next(9), 0x5a),
            _ => frame.truncate(frame.len() - random.next(9).min(frame.len() - 14)),
        }
    }
    if random.next(2) == 0 && frame.len() >= 34 && frame[12..14] == [8, 0] {
        frame[24..26].fill(0);
        let right = !sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&right.to_be_bytes());
    }
}

/// What `frame` is, if it is one whole UDP datagram of the case between the right addresses: the case that it then is.
fn understood(frame: &[u8], case: &Case) -> Option<(Case, Packet)> {
    let original = case.arriving();
    let v4 = original.source.is_ipv4();
    let udp = if v4 { 34 } else { 54 };
    let valid = frame.len() >= udp + 8
        && frame[..6] == ARRIVING[0]
        && frame[12..14] == if v4 { [8, 0] } else { [0x86, 0xdd] };
    if !valid {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([frame[udp + 4], frame[udp + 5]]));
    let payload = frame.get(udp + 8..udp + length.max(8))?.to_vec();
    let (tos, ttl) = match v4 {
        true => (frame[15], frame[22]),
        false => (frame[14] << 4 | frame[15] >> 4, frame[21]),
    };
    let packet = Packet {
        tos,
        ttl,
        label: match v4 {
            true => u32::from(u16::from_be_bytes([frame[18], frame[19]])),
            false => u32::from_be_bytes([0, frame[15] & 15, frame[16], frame[17]]),
        },
        dont_fragment: v4 && frame[20] & 0x40 != 0,
        without_checksum: v4 && frame[udp + 6..udp + 8] == [0, 0],
        payload,
        ..original
    };
    let case = Case {
        tos,
        ttl,
        ..case.clone()
    };
    Some((case, packet))
}

/// The frame must be what the reference makes of it; a payload that was damaged leaves with a checksum that is as
/// wrong.
fn assert_right(frame: &[u8], left: &[u8], case: &Case, identification: u32) {
    let (case, packet) = understood(frame, case).expect("only what is understood is relayed");
    assert!(packet.ttl > 1, "{case}");
    // All but the Ethernet source, the checksum and what is behind the packet must be as in a frame made anew.
    let again = packet.frame(ARRIVING);
    let udp = if packet.source.is_ipv4() { 34 } else { 54 };
    let checksum = udp + 6..udp + 8;
    let mut seen = frame[..again.len()].to_vec();
    let was = u16::from_be_bytes([seen[udp + 6], seen[udp + 7]]);
    let right = u16::from_be_bytes([again[udp + 6], again[udp + 7]]);
    seen[checksum.clone()].copy_from_slice(&again[checksum]);
    seen[6..12].copy_from_slice(&again[6..12]);
    assert_eq!(
        seen, again,
        "{case}: accepted, and not what the reference would send"
    );
    let mut framed = packet.payload.clone();
    if case.way != crate::cases::Way::ToClient {
        let length = usize::from(u16::from_be_bytes([framed[2], framed[3]]));
        framed = framed[4..4 + length].to_vec();
    }
    let label = match left[12] {
        8 => identification,
        _ => u32::from_be_bytes([0, left[15] & 15, left[16], left[17]]),
    };
    let wanted = Packet {
        without_checksum: packet.without_checksum,
        ..case.leaving_with(&framed, label)
    };
    let mut wanted = wanted.frame(LEAVING);
    let out = if wanted[12] == 8 { 34 } else { 54 };
    if !packet.without_checksum {
        // RFC 1624: the error of the sum stays what it was.
        let is = u16::from_be_bytes([wanted[out + 6], wanted[out + 7]]);
        let sum = u32::from(is) + u32::from(was) + u32::from(!right);
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = ((folded & 0xffff) + (folded >> 16)) as u16;
        let got = u16::from_be_bytes([left[out + 6], left[out + 7]]);
        assert!(
            got == folded || (got == 0xffff && folded == 0),
            "{case}: {got:04x} {folded:04x}"
        );
        wanted[out + 6..out + 8].copy_from_slice(&got.to_be_bytes());
    }
    assert_eq!(left, wanted, "{case}");
}

#[test]
fn mutated_frames_pass_untouched_or_leave_as_the_reference_says() {
    let Some(mut rig) = Rig::new() else { return };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut relayed, mut passed) = (0, 0);
    let valid = cases()
        .into_iter()
        .filter(|case| case.expect == Expect::Relayed);
    for case in valid {
        let (keys, _) = rig.enter(&case);
        for _ in 0..60 {
            let mut frame = case.arriving_frame();
            mutate(&mut frame, &mut random);
            for path in [Path::Xdp, Path::Tc] {
                // The kernel refuses to run tc on less than an IP header.
                if frame.len() < 34 || (frame[12] == 0x86 && frame.len() < 54) {
                    continue;
                }
                let run = rig.run(path, &frame, None);
                match run.verdict {
                    Verdict::Pass => {
                        assert_eq!(run.frame, frame, "{path:?}: {case}");
                        passed += 1;
                    }
                    Verdict::Transmit | Verdict::Redirect => {
                        let number = u32::from(u16::from_be_bytes([run.frame[18], run.frame[19]]));
                        assert_right(&frame, &run.frame, &case, number);
                        relayed += 1;
                    }
                    other => panic!("{path:?}: {other:?}: {case}"),
                }
            }
        }
        let packets: u32 = keys
            .iter()
            .filter_map(|key| rig.table.counts(key))
            .map(|counts| counts.packets)
            .sum();
        assert!(packets as usize <= 240);
        rig.leave(&case);
    }
    assert!(
        relayed > 1000 && passed > 10_000,
        "{relayed} relayed, {passed} passed"
    );
}
