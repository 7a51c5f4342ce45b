//! Memory for messages that transactions keep: cells of a few sizes, so that keeping one allocates nothing once the pool
//! has grown to what is in use.

/// Cells up to this size come in steps of [`STEP`], larger ones double.
const FINE: usize = 2048;
const STEP: usize = 128;
const FINE_CLASSES: usize = FINE / STEP;
/// 4, 8, 16, 32 and 64 KiB.
const CLASSES: usize = FINE_CLASSES + 5;
/// Bytes allocated at once, at the least.
const CHUNK: usize = 32 * 1024;

/// The longest message that can be kept.
pub(super) const LONGEST: usize = FINE << 5;

/// Names a kept message. It is not `Copy`: who has it gives it back with [`Store::release`].
#[derive(Debug)]
pub(super) struct Cell {
    class: u8,
    index: u32,
    len: u32,
}

#[derive(Debug, Default)]
struct Class {
    chunks: Vec<Box<[u8]>>,
    free: Vec<u32>,
    live: u32,
}

/// The pool.
#[derive(Debug)]
pub(super) struct Store {
    classes: [Class; CLASSES],
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
            classes: std::array::from_fn(|_| Class::default()),
            bytes: 0,
        }
    }

    /// Bytes of the cells in use.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a message; `None` if it is longer than [`LONGEST`].
    pub(super) fn keep(&mut self, message: &[u8]) -> Option<Cell> {
        if message.len() > LONGEST {
            return None;
        }
        let number = class_of(message.len());
        let size = size_of(number);
        let per_chunk = cells_per_chunk(number);
        let class = self.classes.get_mut(number)?;
        if class.free.is_empty() {
            let first = (class.chunks.len() * per_chunk) as u32;
            class.chunks.push(vec![0; per_chunk * size].into());
            class.free.extend((first..first + per_chunk as u32).rev());
        }
        let index = class.free.pop()?;
        class.live += 1;
        self.bytes += size;
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
            .and_then(|class| class.chunks.get(chunk)?.get(range))
            .unwrap_or_default()
    }

    /// The message, to be changed in place.
    pub(super) fn get_mut(&mut self, cell: &Cell) -> &mut [u8] {
        let (chunk, range) = place(cell);
        self.classes
            .get_mut(usize::from(cell.class))
            .and_then(|class| class.chunks.get_mut(chunk)?.get_mut(range))
            .unwrap_or_default()
    }

    /// Gives the cell back. When a size is not used any more, all its memory but one chunk goes back to the system.
    pub(super) fn release(&mut self, cell: Cell) {
        let number = usize::from(cell.class);
        self.bytes -= size_of(number);
        let Some(class) = self.classes.get_mut(number) else {
            return;
        };
        class.live -= 1;
        class.free.push(cell.index);
        if class.live == 0 && class.chunks.len() > 1 {
            class.chunks.truncate(1);
            class.free = (0..cells_per_chunk(number) as u32).rev().collect();
        }
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
        for len in (0..=LONGEST).step_by(7).chain([LONGEST]) {
            let size = size_of(class_of(len));
            assert!(size >= len, "{len} in {size}");
            assert!(len < STEP || len * 2 > size, "{len} in {size}");
        }
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let mut store = Store::new();
        assert!(store.keep(&vec![1; LONGEST + 1]).is_none());
        assert!(store.keep(&vec![1; LONGEST]).is_some());
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
        }
    }
}
