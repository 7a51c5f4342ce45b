//! The table.

use super::{Case, Checksum, Expect, Family, Hop, Way};

/// Every case.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = relayed();
    cases.extend(not_relayed());
    cases
}

const FAMILIES: [(Family, Family); 4] = [
    (Family::V4, Family::V4),
    (Family::V6, Family::V6),
    (Family::V4, Family::V6),
    (Family::V6, Family::V4),
];

/// All that is relayed, between all families and in every direction.
fn relayed() -> Vec<Case> {
    let mut cases = Vec::new();
    for way in [Way::ToPeer, Way::ToClient, Way::Between] {
        for (client, peer) in FAMILIES {
            let plain = Case {
                way,
                client,
                peer,
                ..Case::NEW
            };
            cases.extend(variants(&plain));
            if way != Way::ToClient {
                cases.extend(padded(&plain));
            }
        }
    }
    cases
}

fn variants(plain: &Case) -> Vec<Case> {
    let mut cases = Vec::new();
    for payload in [0, 1, 2, 3, 31, 120, 1200, 1448] {
        cases.push(Case {
            payload,
            ..plain.clone()
        });
    }
    cases.push(Case {
        what: "TOS with Congestion Experienced",
        tos: 0xbb,
        ..plain.clone()
    });
    cases.push(Case {
        what: "TTL of 2",
        ttl: 2,
        ..plain.clone()
    });
    cases.push(Case {
        what: "TTL of 255, by another interface",
        ttl: 255,
        hop: Hop::Other,
        ..plain.clone()
    });
    cases.push(Case {
        what: "short frame with Ethernet's padding",
        payload: 5,
        trailer: &[0xee; 9],
        ..plain.clone()
    });
    let to_v6 = match plain.way {
        Way::ToPeer => plain.peer == Family::V6,
        Way::ToClient | Way::Between => plain.client == Family::V6,
    };
    let from_v4 = match plain.way {
        Way::ToClient => plain.peer == Family::V4,
        Way::ToPeer | Way::Between => plain.client == Family::V4,
    };
    if from_v4 {
        cases.push(Case {
            what: "no UDP checksum",
            checksum: Checksum::Absent,
            expect: match to_v6 {
                true => Expect::Passed("pass_checksum"),
                false => Expect::Relayed,
            },
            ..plain.clone()
        });
    }
    cases
}

/// Padding of zeroes, and of what is none.
fn padded(plain: &Case) -> Vec<Case> {
    let mut cases = Vec::new();
    for (payload, padding) in [
        (1, &[0, 0, 0][..]),
        (2, &[0, 0]),
        (3, &[0]),
        (120, &[0xa5, 0x5a, 0xff]),
        (121, &[0xa5, 0x5a, 0xff]),
        (121, &[1]),
        (0, &[9]),
    ] {
        cases.push(Case {
            what: "padded",
            payload,
            padding,
            ..plain.clone()
        });
        cases.push(Case {
            what: "padded, in a frame that is too",
            payload,
            padding,
            trailer: &[0xdd; 5],
            ..plain.clone()
        });
    }
    cases
}

/// Writes a 16-bit field of the frame.
fn put(frame: &mut [u8], offset: usize, value: u16) {
    frame[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
}

/// Where the UDP header of a frame starts.
fn udp_at(frame: &[u8]) -> usize {
    if frame[12] == 8 { 34 } else { 54 }
}

/// Makes the IPv4 header checksum right again.
fn repair(frame: &mut [u8]) {
    put(frame, 24, 0);
    let sum = super::reference::sum(&frame[14..34]);
    put(frame, 24, !sum);
}

fn case(what: &'static str, why: &'static str) -> Case {
    Case {
        what,
        expect: Expect::Passed(why),
        ..Case::NEW
    }
}

/// All that is not, each for both directions and in the families where it can be.
fn not_relayed() -> Vec<Case> {
    let mut cases = Vec::new();
    for (client, peer) in FAMILIES {
        for way in [Way::ToPeer, Way::ToClient, Way::Between] {
            let general = conditions().into_iter().chain(any_family());
            cases.extend(general.map(|case| Case {
                way,
                client,
                peer,
                ..case
            }));
            let arrives = match way {
                Way::ToClient => peer,
                Way::ToPeer | Way::Between => client,
            };
            let special = match arrives {
                Family::V4 => ipv4_only(),
                Family::V6 => ipv6_only(),
            };
            cases.extend(special.into_iter().map(|case| Case {
                way,
                client,
                peer,
                ..case
            }));
        }
        cases.extend(framing().into_iter().map(|case| Case {
            client,
            peer,
            ..case
        }));
    }
    cases
}

/// What stands in the tables.
fn conditions() -> Vec<Case> {
    vec![
        Case {
            expired: true,
            ..case("the deadline has come", "pass_expired")
        },
        Case {
            hop: Hop::None,
            ..case("no next hop", "pass_next_hop")
        },
        Case {
            hop: Hop::Stale,
            ..case("a stale next hop", "pass_next_hop")
        },
        Case {
            hop: Hop::Unusable,
            ..case("a next hop that takes nothing", "pass_next_hop")
        },
        Case {
            mtu: 140,
            ..case("longer than the next hop takes", "pass_mtu")
        },
        Case {
            ttl: 1,
            ..case("TTL of 1", "pass_ttl")
        },
        Case {
            ttl: 0,
            ..case("TTL of 0", "pass_ttl")
        },
        Case {
            over_rate: true,
            expect: Expect::Dropped,
            ..case("over the rate", "")
        },
        Case {
            group_over_rate: true,
            expect: Expect::Dropped,
            ..case("over the rate of its group", "")
        },
    ]
}

/// What the frame is, in either family.
fn any_family() -> Vec<Case> {
    vec![
        Case {
            damage: |frame| frame[0] = 2,
            ..case("to another link-layer address", "pass_link")
        },
        Case {
            damage: |frame| frame[0..6].fill(0xff),
            ..case("broadcast", "pass_link")
        },
        Case {
            damage: |frame| {
                let at = udp_at(frame);
                put(frame, at, 39_999);
            },
            ..case("from an unknown port", "pass_miss")
        },
        Case {
            damage: |frame| {
                let at = udp_at(frame);
                frame[at - 1] ^= 1;
                if at == 34 {
                    repair(frame);
                }
            },
            ..case("to a foreign address", "pass_miss")
        },
        Case {
            damage: |frame| {
                let at = udp_at(frame) + 4;
                let length = u16::from_be_bytes([frame[at], frame[at + 1]]);
                put(frame, at, length - 1);
            },
            ..case("UDP length that is not IP's", "pass_length")
        },
        Case {
            damage: |frame| frame.truncate(frame.len() - 1),
            ..case("cut short", "pass_length")
        },
        Case {
            damage: |frame| {
                let at = udp_at(frame);
                put(frame, at + 2, 1234);
            },
            ..case("to a port of somebody else", "none")
        },
    ]
}

fn ipv4_only() -> Vec<Case> {
    vec![
        Case {
            damage: |frame| {
                frame[14] = 0x46;
                let options = [1, 1, 1, 1];
                frame.splice(34..34, options);
                let total = frame.len() - 14;
                put(frame, 16, total as u16);
            },
            ..case("IPv4 options", "pass_options")
        },
        Case {
            damage: |frame| {
                frame[20] = 0x20;
                repair(frame);
            },
            ..case("first fragment", "pass_fragment")
        },
        Case {
            damage: |frame| {
                frame[21] = 5;
                repair(frame);
            },
            ..case("later fragment", "pass_fragment")
        },
        Case {
            damage: |frame| {
                frame[20] |= 0x80;
                repair(frame);
            },
            ..case("the reserved bit", "pass_fragment")
        },
        Case {
            damage: |frame| frame[24] ^= 1,
            ..case("wrong header checksum", "pass_checksum")
        },
        Case {
            damage: |frame| {
                frame[23] = 6;
                repair(frame);
            },
            ..case("TCP", "none")
        },
        Case {
            damage: |frame| frame.truncate(41),
            ..case("not even a UDP header", "none")
        },
    ]
}

fn ipv6_only() -> Vec<Case> {
    vec![
        Case {
            damage: |frame| frame[20] = 44,
            ..case("fragment header", "pass_fragment")
        },
        Case {
            damage: |frame| frame[20] = 0,
            ..case("hop-by-hop options", "none")
        },
        Case {
            damage: |frame| frame[14] = 0x50,
            ..case("version 5", "none")
        },
        Case {
            damage: |frame| put(frame, 60, 0),
            ..case("no UDP checksum in IPv6", "pass_checksum")
        },
        Case {
            damage: |frame| frame.truncate(61),
            ..case("not even a UDP header", "none")
        },
    ]
}

/// What only ChannelData can be.
fn framing() -> Vec<Case> {
    vec![
        Case {
            damage: |frame| {
                let at = udp_at(frame) + 8;
                put(frame, at, 0x4abd);
            },
            ..case("a channel that is not bound", "pass_miss")
        },
        Case {
            padding: &[0; 4],
            ..case("more behind the payload than padding", "pass_length")
        },
        Case {
            damage: |frame| {
                let at = udp_at(frame) + 10;
                put(frame, at, 121);
            },
            ..case("less payload than it says", "pass_length")
        },
        Case {
            damage: |frame| {
                let at = udp_at(frame) + 8;
                frame[at] = 0x80;
            },
            ..case("neither ChannelData nor STUN", "pass_neither")
        },
        Case {
            damage: |frame| {
                let at = udp_at(frame);
                put(frame, at + 4, 11);
                match at {
                    34 => {
                        put(frame, 16, 31);
                        repair(frame);
                    }
                    _ => put(frame, 18, 11),
                }
            },
            ..case("three bytes", "pass_length")
        },
        Case {
            way: Way::Between,
            answered: false,
            ..case("the other relay has no channel for this one", "pass_miss")
        },
    ]
}
