//! A call of a script, and the slot of its keys.

use redis::ToRedisArgs;

use super::redis::Script;

/// A call of a script. All of its keys are in one slot.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) script: Script,
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) arguments: Vec<Vec<u8>>,
}

impl Call {
    pub(super) fn new(script: Script) -> Call {
        Call {
            script,
            keys: Vec::new(),
            arguments: Vec::new(),
        }
    }

    pub(super) fn key(mut self, key: impl Into<Vec<u8>>) -> Call {
        self.keys.push(key.into());
        self
    }

    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Call {
        self.arguments.extend(argument.to_redis_args());
        self
    }

    pub(super) fn slot(&self) -> u16 {
        self.keys.first().map_or(0, |key| slot(key))
    }
}

/// The slot of a key: CRC-16/XMODEM of its hash tag.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|from| {
        let rest = &key[from + 1..];
        let to = rest.iter().position(|byte| *byte == b'}')?;
        (to > 0).then(|| &rest[..to])
    });
    let crc = tag.unwrap_or(key).iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| match crc >> 15 {
            0 => crc << 1,
            _ => (crc << 1) ^ 0x1021,
        })
    });
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_one_hash_tag_are_in_one_slot() {
        // The check value of CRC-16/XMODEM.
        assert_eq!(slot(b"123456789"), 0x31C3);
        // As CLUSTER KEYSLOT of Redis 7.0 says.
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"{hairpin}:nodes"), slot(b"{hairpin}:state"));
        assert_eq!(slot(b"a{foo}b{bar}"), 12_182);
        // No tag: the whole key.
        assert_eq!(slot(b"foo{}{bar}"), 8_363);
        assert_ne!(slot(b"{foo"), 12_182);
    }
}
