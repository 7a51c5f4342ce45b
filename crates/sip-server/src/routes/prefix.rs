//! Which prefixes a number begins with, the longest one first.
//!
//! The prefixes are sorted. Each one has a link to its longest proper prefix in the list. All entries between a prefix
//! and a number that begins with it also begin with this prefix. So one binary search finds the entry before the
//! number, and the links from there lead to all its prefixes. There is no hash that a sender could attack.

/// One prefix.
#[derive(Debug)]
struct Entry {
    /// The first eight bytes, which decide most comparisons.
    head: u64,
    /// Where its bytes begin in [`PrefixIndex::bytes`].
    start: u32,
    len: u16,
    /// The index of the longest shorter entry that this prefix begins with.
    parent: Option<u32>,
    /// The first of its routes in [`PrefixIndex::routes`]. They end where those of the next entry begin.
    routes: u32,
}

/// All prefixes of a table, and which routes have each.
#[derive(Debug, Default)]
pub(super) struct PrefixIndex {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    routes: Vec<u32>,
}

/// The first eight bytes as a big-endian number, filled with zeros. So two numbers compare as the bytes do.
fn head_of(bytes: &[u8]) -> u64 {
    let mut head = [0; 8];
    let len = bytes.len().min(8);
    if let (Some(to), Some(from)) = (head.get_mut(..len), bytes.get(..len)) {
        to.copy_from_slice(from);
    }
    u64::from_be_bytes(head)
}

impl PrefixIndex {
    /// An index of these pairs of a prefix and the number of a route.
    pub(super) fn new(mut pairs: Vec<(&[u8], u32)>) -> PrefixIndex {
        pairs.sort_unstable();
        pairs.dedup();
        let mut index = PrefixIndex::default();
        for (prefix, route) in pairs {
            let last = index.entries.len().checked_sub(1);
            if last.is_none_or(|last| index.bytes_of(last) != prefix) {
                let parent = last.and_then(|last| index.ancestor(last as u32, prefix));
                index.entries.push(Entry {
                    head: head_of(prefix),
                    start: index.bytes.len() as u32,
                    len: prefix.len() as u16,
                    parent,
                    routes: index.routes.len() as u32,
                });
                index.bytes.extend_from_slice(prefix);
            }
            index.routes.push(route);
        }
        index
    }

    fn bytes_of(&self, entry: usize) -> &[u8] {
        let Some(entry) = self.entries.get(entry) else {
            return &[];
        };
        let start = entry.start as usize;
        let bytes = self.bytes.get(start..start + usize::from(entry.len));
        bytes.unwrap_or_default()
    }

    fn routes_of(&self, entry: usize) -> &[u32] {
        let begin = self.entries.get(entry).map_or(0, |entry| entry.routes);
        let end = self.entries.get(entry + 1);
        let end = end.map_or(self.routes.len(), |next| next.routes as usize);
        self.routes.get(begin as usize..end).unwrap_or_default()
    }

    /// The longest entry that `text` begins with, among the entry `from` and those that its `parent` links lead to.
    fn ancestor(&self, from: u32, text: &[u8]) -> Option<u32> {
        let mut at = Some(from);
        while let Some(entry) = at {
            if text.starts_with(self.bytes_of(entry as usize)) {
                return Some(entry);
            }
            at = self.entries.get(entry as usize)?.parent;
        }
        None
    }

    /// The prefixes that `text` begins with, the longest first. Each comes with the numbers of the routes that have it.
    pub(super) fn matches<'p>(
        &'p self,
        text: &[u8],
    ) -> impl Iterator<Item = (&'p [u8], &'p [u32])> + use<'p> {
        let head = head_of(text);
        let mut place = 0;
        let mut end = self.entries.len();
        while place < end {
            let middle = place + (end - place) / 2;
            let is_before = self.entries.get(middle).is_some_and(|entry| {
                entry.head < head || entry.head == head && self.bytes_of(middle) <= text
            });
            match is_before {
                true => place = middle + 1,
                false => end = middle,
            }
        }
        let before = place.checked_sub(1).map(|at| at as u32);
        let mut at = before.and_then(|before| self.ancestor(before, text));
        std::iter::from_fn(move || {
            let entry = at?;
            at = self.entries.get(entry as usize)?.parent;
            Some((
                self.bytes_of(entry as usize),
                self.routes_of(entry as usize),
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found<'p>(index: &'p PrefixIndex, text: &str) -> Vec<(&'p str, Vec<u32>)> {
        let all = index.matches(text.as_bytes());
        all.map(|(prefix, routes)| (std::str::from_utf8(prefix).unwrap(), routes.to_vec()))
            .collect()
    }

    #[test]
    fn the_longest_prefix_comes_first() {
        let pairs: Vec<(&[u8], u32)> = vec![
            (b"+49", 0),
            (b"+4930", 1),
            (b"+4912", 2),
            (b"+49", 3),
            (b"", 4),
        ];
        let index = PrefixIndex::new(pairs);
        let all = found(&index, "+49301234");
        assert_eq!(
            all,
            [("+4930", vec![1]), ("+49", vec![0, 3]), ("", vec![4])]
        );
        assert_eq!(found(&index, "+4"), [("", vec![4])]);
        assert_eq!(found(&index, "+4913"), [("+49", vec![0, 3]), ("", vec![4])]);
        assert_eq!(found(&index, "+4912").first().unwrap().0, "+4912");
        assert_eq!(found(&PrefixIndex::default(), "1"), []);
    }

    proptest! {
        #[test]
        fn a_plain_search_finds_the_same(
            prefixes in prop::collection::vec("[a-c]{0,12}", 0..60),
            text in "[a-c]{0,14}",
        ) {
            let pairs = prefixes.iter().map(|it| it.as_bytes()).zip(0..).collect();
            let index = PrefixIndex::new(pairs);
            let mut plain: Vec<&str> = prefixes.iter().map(|it| &it[..]).collect();
            plain.retain(|prefix| text.starts_with(prefix));
            plain.sort_unstable_by_key(|prefix| std::cmp::Reverse(prefix.len()));
            plain.dedup();
            let found: Vec<&str> = found(&index, &text).iter().map(|(prefix, _)| *prefix).collect();
            prop_assert_eq!(found, plain);
        }
    }
}
