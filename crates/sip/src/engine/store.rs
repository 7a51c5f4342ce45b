//! Memory for messages that transactions keep, in cells of a few sizes. When the pool has grown to the required size,
//! storing a message allocates nothing. The pool releases memory that it has not used for a while.

use super::index_set::IndexSet;

/// Cells up to this size come in steps of [`STEP`], larger ones double.
const FINE: usize = 2048;
const STEP: usize = 128;
const FINE_CLASSES: usize = FINE / STEP;
/// 4, 8, 16, 32 and 64 KiB.
const CLASSES: usize = FINE_CLASSES + 5;
/// Bytes allocated at once, at the least.
const CHUNK: usize = 32 * 1024;

/// The longest message that can be kept.
pub(super) const MAX_MESSAGE_BYTES: usize = FINE << 5;

/// Names a kept message. It is not `Copy`: who has it gives it back with [`Store::release`].
#[derive(Debug)]
pub(super) struct Cell {
    class: u8,
    index: u32,
    len: u32,
}

/// Cells of one size, side by side.
#[derive(Debug, Default)]
struct Chunk {
    /// Empty while it is returned.
    bytes: Box<[u8]>,
    /// A bit for each cell in use.
    used: [u64; WORDS],
    live: u32,
}

/// Bits of a chunk, as words: the smallest cells are the most.
const WORDS: usize = 4;
const _: () = assert!(CHUNK / STEP <= 64 * WORDS);
/// Empty chunks that are kept: [`KEPT`], and one for each [`SPARE`] chunks in use.
const KEPT: usize = 4;
const SPARE: usize = 4;

impl Chunk {
    /// Takes the first cell that is free.
    fn take(&mut self) -> Option<usize> {
        let (place, word) = (0..)
            .zip(&mut self.used)
            .find(|(_, word)| **word != u64::MAX)?;
        let bit = (!*word).trailing_zeros() as usize;
        *word |= 1 << bit;
        self.live += 1;
        Some(place * 64 + bit)
    }

    fn release(&mut self, cell: usize) {
        if let Some(word) = self.used.get_mut(cell / 64) {
            *word &= !(1 << (cell % 64));
        }
        self.live -= 1;
    }
}

#[derive(Debug)]
struct Class {
    chunks: Vec<Chunk>,
    room: IndexSet,
}

/// Chunks that hold messages, and that have memory.
#[derive(Debug, Default)]
struct Counts {
    in_use: usize,
    with_memory: usize,
}

impl Counts {
    /// Whether more are empty than are kept for what comes.
    const fn has_slack(&self) -> bool {
        self.with_memory - self.in_use > KEPT + self.in_use / SPARE
    }
}

impl Class {
    const fn new() -> Class {
        Class {
            chunks: Vec::new(),
            room: IndexSet::new(),
        }
    }

    /// Takes a cell of this class, the first that is free.
    fn take(&mut self, class: usize, counts: &mut Counts) -> Option<u32> {
        let number = match self.room.first() {
            Some(number) => number,
            None => {
                self.chunks.push(Chunk::default());
                self.room.insert(self.chunks.len() - 1);
                self.chunks.len() - 1
            }
        };
        let per_chunk = cells_per_chunk(class);
        let chunk = self.chunks.get_mut(number)?;
        if chunk.bytes.is_empty() {
            chunk.bytes = vec![0; per_chunk * size_of(class)].into();
            counts.with_memory += 1;
        }
        let cell = chunk.take()?;
        counts.in_use += usize::from(chunk.live == 1);
        if chunk.live as usize == per_chunk {
            self.room.remove(number);
        }
        Some((number * per_chunk + cell) as u32)
    }

    fn release(&mut self, class: usize, index: u32, counts: &mut Counts) {
        let per_chunk = cells_per_chunk(class);
        let number = index as usize / per_chunk;
        if let Some(chunk) = self.chunks.get_mut(number) {
            chunk.release(index as usize % per_chunk);
            counts.in_use -= usize::from(chunk.live == 0);
            self.room.insert(number);
        }
    }

    fn release_memory(&mut self, most: usize, counts: &mut Counts) -> usize {
        let mut bytes = 0;
        for chunk in self.chunks.iter_mut().rev() {
            if bytes >= most || !counts.has_slack() {
                break;
            }
            if chunk.live == 0 && !chunk.bytes.is_empty() {
                bytes += std::mem::take(&mut chunk.bytes).len();
                counts.with_memory -= 1;
            }
        }
        bytes
    }
}

/// The pool.
#[derive(Debug)]
pub(super) struct Store {
    classes: [Class; CLASSES],
    counts: Counts,
    bytes: usize,
}

fn class_of(len: usize) -> usize {
    if len <= FINE {
        len.max(1).div_ceil(STEP) - 1
    } else {
        let doubled = len.div_ceil(FINE).next_power_of_two();
        FINE_CLASSES - 1 + doubled.ilog2() as usize
    }
}

fn size_of(class: usize) -> usize {
    if class < FINE_CLASSES {
        (class + 1) * STEP
    } else {
        FINE << (class - FINE_CLASSES + 1)
    }
}

fn cells_per_chunk(class: usize) -> usize {
    (CHUNK / size_of(class)).max(1)
}

impl Store {
    pub(super) fn new() -> Store {
        Store {
            classes: std::array::from_fn(|_| Class::new()),
            counts: Counts::default(),
            bytes: 0,
        }
    }

    /// Bytes of the cells in use.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a message; `None` if it is longer than [`MAX_MESSAGE_BYTES`].
    pub(super) fn keep(&mut self, message: &[u8]) -> Option<Cell> {
        if message.len() > MAX_MESSAGE_BYTES {
            return None;
        }
        let number = class_of(message.len());
        let class = self.classes.get_mut(number)?;
        let index = class.take(number, &mut self.counts)?;
        self.bytes += size_of(number);
        let cell = Cell {
            class: number as u8,
            index,
            len: message.len() as u32,
        };
        self.get_mut(&cell).copy_from_slice(message);
        Some(cell)
    }

    /// The message.
    pub(super) fn get(&self, cell: &Cell) -> &[u8] {
        let (chunk, range) = place(cell);
        self.classes
            .get(usize::from(cell.class))
            .and_then(|class| class.chunks.get(chunk)?.bytes.get(range))
            .unwrap_or_default()
    }

    /// The message, to be changed in place.
    pub(super) fn get_mut(&mut self, cell: &Cell) -> &mut [u8] {
        let (chunk, range) = place(cell);
        self.classes
            .get_mut(usize::from(cell.class))
            .and_then(|class| class.chunks.get_mut(chunk)?.bytes.get_mut(range))
            .unwrap_or_default()
    }

    /// Gives the cell back to the pool.
    pub(super) fn release(&mut self, cell: Cell) {
        let number = usize::from(cell.class);
        self.bytes -= size_of(number);
        if let Some(class) = self.classes.get_mut(number) {
            class.release(number, cell.index, &mut self.counts);
        }
    }

    /// Whether [`Store::release_memory`] would free memory.
    pub(super) const fn has_slack(&self) -> bool {
        self.counts.has_slack()
    }

    /// Gives back chunks without a message, but for some that are kept for what comes: not much more than this many
    /// bytes. Returns how many it were.
    pub(super) fn release_memory(&mut self, most: usize) -> usize {
        let mut bytes = 0;
        for class in &mut self.classes {
            bytes += class.release_memory(most.saturating_sub(bytes), &mut self.counts);
        }
        bytes
    }
}

fn place(cell: &Cell) -> (usize, std::ops::Range<usize>) {
    let class = usize::from(cell.class);
    let per_chunk = cells_per_chunk(class);
    let index = cell.index as usize;
    let start = index % per_chunk * size_of(class);
    (index / per_chunk, start..start + cell.len as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_length_fits_its_class_and_wastes_less_than_half() {
        for len in (0..=MAX_MESSAGE_BYTES)
            .step_by(7)
            .chain([MAX_MESSAGE_BYTES])
        {
            let size = size_of(class_of(len));
            assert!(size >= len, "{len} in {size}");
            assert!(len < STEP || len * 2 > size, "{len} in {size}");
        }
    }

    #[test]
    fn oversized_messages_are_refused() {
        let mut store = Store::new();
        assert!(store.keep(&vec![1; MAX_MESSAGE_BYTES + 1]).is_none());
        assert!(store.keep(&vec![1; MAX_MESSAGE_BYTES]).is_some());
    }

    #[test]
    fn unused_memory_is_released_and_used_memory_stays() {
        let mut store = Store::new();
        let message = |number: usize| vec![number as u8; 400];
        let mut kept: Vec<_> = (0..10_000)
            .map(|number| store.keep(&message(number)))
            .collect();
        assert!(!store.has_slack());
        for cell in kept.drain(100..).flatten() {
            store.release(cell);
        }
        let size = size_of(class_of(400));
        let chunk = CHUNK / size * size;
        let (chunks, in_use) = (
            10_000usize.div_ceil(CHUNK / size),
            100usize.div_ceil(CHUNK / size),
        );
        assert!(store.has_slack());
        assert_eq!(store.release_memory(1), chunk, "as much as may be");
        assert_eq!(
            store.release_memory(usize::MAX),
            (chunks - in_use - KEPT - 1 - in_use / SPARE) * chunk
        );
        for (number, cell) in kept.iter().flatten().enumerate() {
            assert_eq!(store.get(cell), message(number));
        }
    }

    proptest! {
        #[test]
        fn messages_come_back_as_they_were(lens in prop::collection::vec(0usize..5000, 1..100)) {
            let mut store = Store::new();
            let mut kept = Vec::new();
            for (number, len) in lens.iter().enumerate() {
                let message = vec![number as u8; *len];
                kept.push((store.keep(&message).unwrap(), message));
                if number % 3 == 2 {
                    let (cell, message) = kept.swap_remove(number % kept.len());
                    prop_assert_eq!(store.get(&cell), &message[..]);
                    store.release(cell);
                }
            }
            for (cell, message) in kept {
                prop_assert_eq!(store.get(&cell), &message[..]);
                store.release(cell);
            }
            prop_assert_eq!(store.bytes(), 0);
            let _ = store.release_memory(usize::MAX);
            prop_assert!(!store.has_slack());
            prop_assert!(store.counts.in_use == 0 && store.counts.with_memory <= KEPT);
        }
    }
}
