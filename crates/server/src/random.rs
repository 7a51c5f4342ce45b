//! Unpredictable numbers for port choices, fetched from the kernel by the handful.

/// A buffer of kernel randomness: one system call serves a few hundred port choices.
///
/// Predictable relayed ports have been exploited (an off-path attacker sends to the next one). So this is never a
/// seeded generator whose state could leak.
#[derive(Debug)]
pub struct Entropy {
    bytes: [u8; Entropy::BUFFERED_BYTES],
    used: usize,
}

impl Entropy {
    const BUFFERED_BYTES: usize = 1024;

    /// An empty buffer; the first use fills it.
    #[must_use]
    pub fn new() -> Entropy {
        Entropy {
            bytes: [0; Entropy::BUFFERED_BYTES],
            used: Entropy::BUFFERED_BYTES,
        }
    }

    /// 32 unpredictable bits.
    ///
    /// # Panics
    /// If the kernel has no randomness to give. On Linux `getrandom` cannot fail once the system has booted; going on
    /// with predictable ports would be worse than stopping.
    pub fn next_u32(&mut self) -> u32 {
        if self.used + 4 > self.bytes.len() {
            getrandom::fill(&mut self.bytes).expect("getrandom works on a booted Linux system");
            self.used = 0;
        }
        let mut word = [0; 4];
        word.copy_from_slice(&self.bytes[self.used..self.used + 4]);
        self.bytes[self.used..self.used + 4].fill(0);
        self.used += 4;
        u32::from_ne_bytes(word)
    }

    /// A number below `bound`; 0 if `bound` is 0. The bias is at most `bound / 2^32`.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = u64::from(self.next_u32()) * bound as u64;
        usize::try_from(wide >> 32).unwrap_or(0)
    }
}

impl Default for Entropy {
    fn default() -> Self {
        Entropy::new()
    }
}

/// 32 bytes from the kernel, for the seed of an engine or a fresh secret.
///
/// # Errors
/// The kernel's error, if it has no randomness to give.
pub(crate) fn seed() -> std::io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_stays_below_and_reaches_everything() {
        let mut entropy = Entropy::new();
        let mut seen = [false; 10];
        for _ in 0..2_000 {
            seen[entropy.below(10)] = true;
        }
        assert!(seen.iter().all(|&hit| hit));
        assert_eq!(entropy.below(0), 0);
        assert_eq!(entropy.below(1), 0);
    }

    #[test]
    fn refills_are_fresh() {
        let mut entropy = Entropy::new();
        let first: Vec<u32> = (0..256).map(|_| entropy.next_u32()).collect();
        let second: Vec<u32> = (0..256).map(|_| entropy.next_u32()).collect();
        assert_ne!(first, second);
    }
}
