//! A network with a will of its own. The same seed gives the same weather.

use std::collections::BTreeMap;

use hairpin_sip::Mono;

/// How bad it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// How many of 1,000 datagrams are lost.
    pub(crate) loss: u64,
    /// How many of 1,000 arrive twice.
    pub(crate) repeated: u64,
    /// One-way delay, in milliseconds; each datagram has its own, so they overtake each other.
    pub(crate) delay_ms: (u64, u64),
}

impl Weather {
    pub(crate) const FINE: Weather = Weather {
        loss: 0,
        repeated: 0,
        delay_ms: (10, 10),
    };
    pub(crate) const FOUL: Weather = Weather {
        loss: 250,
        repeated: 150,
        delay_ms: (5, 700),
    };
    /// Nothing arrives.
    pub(crate) const DEAD: Weather = Weather {
        loss: 1000,
        repeated: 0,
        delay_ms: (1, 1),
    };
}

/// What is on its way.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Over a connection: both ends' keys, the receiver's second.
    pub(crate) stream: Option<(u64, u64)>,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct Network {
    pub(crate) weather: Weather,
    in_flight: BTreeMap<(Mono, u64), Packet>,
    count: u64,
    pub(crate) dice: Dice,
}

impl Network {
    pub(crate) fn new(weather: Weather, seed: u64) -> Network {
        Network {
            weather,
            in_flight: BTreeMap::new(),
            count: 0,
            dice: Dice(seed | 1),
        }
    }

    pub(crate) fn send(&mut self, now: Mono, packet: Packet) {
        let Weather {
            loss,
            repeated,
            delay_ms: (least, most),
        } = self.weather;
        if packet.stream.is_some() {
            // Streams lose and overtake nothing.
            self.put(now, least, packet);
            return;
        }
        if self.dice.below(1000) < loss {
            return;
        }
        let copies = 1 + u64::from(self.dice.below(1000) < repeated);
        for _ in 0..copies {
            let delay = least + self.dice.below(most - least + 1);
            self.put(now, delay, packet.clone());
        }
    }

    fn put(&mut self, now: Mono, delay_ms: u64, packet: Packet) {
        self.count += 1;
        let at = Mono(now.0 + delay_ms * 1_000_000);
        self.in_flight.insert((at, self.count), packet);
    }

    pub(crate) fn next_arrival(&self) -> Option<Mono> {
        self.in_flight.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn arrive(&mut self, now: Mono) -> Option<Packet> {
        let entry = self.in_flight.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

/// Numbers that look random (xorshift64*).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit.max(1)
    }
}
