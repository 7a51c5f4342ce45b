//! The datagrams of a flood: made once from a seed, sent in rotation.

/// What a datagram of the flood pretends to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Random bytes of random length.
    Noise,
    /// A STUN message with a wrong length or wrong attributes.
    Malformed,
    /// A request of TURN without credentials: the server responds with 401.
    Unauthenticated,
    /// A request with a USERNAME, a NONCE and an integrity that are made up.
    Forged,
    /// A Send indication or ChannelData without an allocation.
    Stray,
    /// A Binding request, which servers answer without credentials.
    Binding,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::Noise,
        Kind::Malformed,
        Kind::Unauthenticated,
        Kind::Forged,
        Kind::Stray,
        Kind::Binding,
    ];
}

/// A fixed set of datagrams, the kinds in equal parts.
#[derive(Clone, Debug)]
pub struct Corpus {
    datagrams: Vec<Vec<u8>>,
}

impl Corpus {
    /// `size` datagrams from `seed`; the same seed gives the same ones.
    #[must_use]
    pub fn new(seed: u64, size: usize) -> Corpus {
        let mut random = SplitMix(seed);
        let datagrams = (0..size.max(1))
            .map(|n| make(Kind::ALL[n % Kind::ALL.len()], &mut random))
            .collect();
        Corpus { datagrams }
    }

    /// The datagram to send as the `n`th.
    #[must_use]
    pub fn datagram(&self, n: u64) -> &[u8] {
        &self.datagrams[(n % self.datagrams.len() as u64) as usize]
    }
}

/// SplitMix64: a full-period generator in three lines. Nothing here needs to be unpredictable.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Methods that a TURN server takes as requests: Binding, Allocate, Refresh, CreatePermission, ChannelBind.
const REQUESTS: [u16; 4] = [0x003, 0x004, 0x008, 0x009];

fn make(kind: Kind, random: &mut SplitMix) -> Vec<u8> {
    match kind {
        Kind::Noise => {
            let length = random.below(600);
            random.bytes(length)
        }
        Kind::Malformed => malformed(random),
        Kind::Unauthenticated => message(request(random), &[requested_transport()], random),
        Kind::Forged => forged(random),
        Kind::Stray => stray(random),
        Kind::Binding => message(0x001, &[], random),
    }
}

fn request(random: &mut SplitMix) -> u16 {
    REQUESTS[random.below(REQUESTS.len())]
}

// These are written by hand, not with the `stun` builder: it refuses to build what is wrong.
fn message(kind: u16, attributes: &[Vec<u8>], random: &mut SplitMix) -> Vec<u8> {
    let body: Vec<u8> = attributes.concat();
    let mut datagram = Vec::with_capacity(20 + body.len());
    datagram.extend(kind.to_be_bytes());
    datagram.extend((body.len() as u16).to_be_bytes());
    datagram.extend(0x2112_A442u32.to_be_bytes());
    datagram.extend(random.bytes(12));
    datagram.extend(body);
    datagram
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(value.len() + 7);
    bytes.extend(kind.to_be_bytes());
    bytes.extend((value.len() as u16).to_be_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn requested_transport() -> Vec<u8> {
    attribute(0x0019, &[17, 0, 0, 0])
}

fn forged(random: &mut SplitMix) -> Vec<u8> {
    let name = format!("user-{}", random.below(1_000_000));
    let attributes = [
        requested_transport(),
        attribute(0x0006, name.as_bytes()),
        attribute(0x0014, b"hairpin"),
        attribute(0x0015, format!("{:040x}", random.next()).as_bytes()),
        attribute(0x0008, &random.bytes(20)),
    ];
    message(request(random), &attributes, random)
}

fn malformed(random: &mut SplitMix) -> Vec<u8> {
    let mut datagram = forged(random);
    match random.below(5) {
        // The length lies about the datagram.
        0 => datagram[2..4].copy_from_slice(&(random.next() as u16).to_be_bytes()),
        // It ends early.
        1 => datagram.truncate(random.below(datagram.len())),
        // An attribute claims more than there is.
        2 => datagram[22..24].copy_from_slice(&0xFFFFu16.to_be_bytes()),
        // A cookie of no server.
        3 => datagram[4] ^= 0xFF,
        // A response to no request.
        _ => datagram[0] |= 0x01,
    }
    datagram
}

fn stray(random: &mut SplitMix) -> Vec<u8> {
    if random.below(2) == 0 {
        let payload = random.bytes(120);
        let mut datagram = vec![0x40, random.next() as u8, 0, 120];
        datagram.extend(payload);
        return datagram;
    }
    let peer = [0, 1, 0x21, 0x12, 0x21, 0x12, 0xA4, random.next() as u8];
    let attributes = [
        attribute(0x0012, &peer),
        attribute(0x0013, &random.bytes(100)),
    ];
    message(0x016, &attributes, random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_flood_twice() {
        let (a, b) = (Corpus::new(7, 300), Corpus::new(7, 300));
        assert!((0..300).all(|n| a.datagram(n) == b.datagram(n)));
        assert!((0..300).any(|n| Corpus::new(8, 300).datagram(n) != a.datagram(n)));
    }

    #[test]
    fn generated_messages_are_well_formed() {
        let mut random = SplitMix(3);
        for kind in [Kind::Unauthenticated, Kind::Forged, Kind::Binding] {
            let datagram = make(kind, &mut random);
            let length = u16::from_be_bytes([datagram[2], datagram[3]]) as usize;
            assert_eq!(length + 20, datagram.len(), "{kind:?}");
            assert_eq!(length % 4, 0, "{kind:?}");
        }
    }
}
