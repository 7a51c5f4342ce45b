//! The pipes and buffers of a worker. A connection holds one only while bytes wait in it.

use crate::descriptors::ForClients;
use io::Pipe;

/// Bytes in a pipe. All pipes of a user together are limited to `fs.pipe-user-pages-soft`, 64 MiB by default: 4 workers
/// with [`MAX_PIPES`] pipes reach it.
const PIPE_BYTES: usize = 256 << 10;

/// Pipes of one worker, those in use included. Beyond, bytes are copied.
const MAX_PIPES: usize = 64;

/// Empty pipes that are kept.
const MAX_SPARE_PIPES: usize = 8;

/// Bytes read at once where they are copied: four TLS records.
const BUFFER_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Pipes {
    spare: Vec<Pipe>,
    /// Pipes that exist.
    count: usize,
    descriptors: ForClients,
    /// Where received bytes go first. It is made when it is required.
    pub(super) buffer: Vec<u8>,
    /// An empty buffer for bytes that wait to be written.
    pending: Vec<u8>,
}

impl Pipes {
    pub(super) fn new() -> Pipes {
        Pipes {
            spare: Vec::new(),
            count: 0,
            descriptors: ForClients::new(),
            buffer: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// An empty pipe, if there may be one more.
    pub(super) fn take(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.spare.pop() {
            return Some(pipe);
        }
        if self.count >= MAX_PIPES {
            return None;
        }
        let pipe = Pipe::new(PIPE_BYTES).ok()?;
        if !self.descriptors.may_have(&pipe) {
            return None;
        }
        self.count += 1;
        Some(pipe)
    }

    /// Takes a pipe back. One with bytes inside is closed.
    pub(super) fn put(&mut self, pipe: Pipe) {
        if pipe.held() == 0 && self.spare.len() < MAX_SPARE_PIPES {
            self.spare.push(pipe);
        } else {
            self.count -= 1;
        }
    }

    /// Closes spare pipes and frees buffers, because nothing is relayed any more.
    pub(super) fn release_memory(&mut self) {
        self.count -= self.spare.len();
        self.spare = Vec::new();
        self.buffer = Vec::new();
        self.pending = Vec::new();
    }

    /// Makes the buffer that received bytes go to.
    pub(super) fn make_buffer(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER_BYTES];
        }
    }

    /// An empty buffer for bytes that wait.
    pub(super) fn take_pending(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending)
    }

    pub(super) fn put_pending(&mut self, mut pending: Vec<u8>) {
        if self.pending.capacity() == 0 && pending.capacity() <= 2 * BUFFER_BYTES {
            pending.clear();
            self.pending = pending;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_are_limited_and_used_again() {
        let mut pipes = Pipes::new();
        let taken: Vec<Pipe> = std::iter::from_fn(|| pipes.take()).collect();
        assert!(!taken.is_empty() && taken.len() <= MAX_PIPES);
        let most = taken.len();
        for pipe in taken {
            pipes.put(pipe);
        }
        assert_eq!(
            (pipes.spare.len(), pipes.count),
            (MAX_SPARE_PIPES.min(most), MAX_SPARE_PIPES.min(most))
        );
        let used = pipes.take().expect("there is a spare one");
        pipes.release_memory();
        assert_eq!((pipes.spare.len(), pipes.count), (0, 1));
        pipes.put(used);
    }
}
