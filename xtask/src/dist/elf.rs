//! The sections of a 64-bit ELF file, to say where two programs differ.

/// A section: its name, and where its bytes are in the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) start: usize,
    pub(super) len: usize,
}

/// A section without bytes in the file, such as `.bss`.
const NO_BYTES: u64 = 8;

/// All sections with bytes; nothing if the file is of another kind.
pub(super) fn sections(file: &[u8]) -> Vec<Section> {
    read(file).unwrap_or_default()
}

fn read(file: &[u8]) -> Option<Vec<Section>> {
    // 64 bits, the least byte first.
    if file.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size) = (number(file, 0x28, 8)?, number(file, 0x3A, 2)?);
    let (count, names) = (number(file, 0x3C, 2)?, number(file, 0x3E, 2)?);
    let header = |index: u64| usize::try_from(table + index * size).ok();
    let field = |index: u64, at: usize, len: usize| number(file, header(index)? + at, len);
    let names = usize::try_from(field(names, 0x18, 8)?).ok()?;
    let mut sections = Vec::new();
    for index in 0..count {
        if field(index, 4, 4)? == NO_BYTES {
            continue;
        }
        let name = file.get(names + usize::try_from(field(index, 0, 4)?).ok()?..)?;
        let end = name.iter().position(|byte| *byte == 0)?;
        sections.push(Section {
            name: String::from_utf8_lossy(&name[..end]).into_owned(),
            start: usize::try_from(field(index, 0x18, 8)?).ok()?,
            len: usize::try_from(field(index, 0x20, 8)?).ok()?,
        });
    }
    Some(sections)
}

/// The number of so many bytes at this place.
fn number(file: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = file.get(at..at.checked_add(len)?)?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |sum, byte| (sum << 8) | u64::from(*byte)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_has_sections_within_its_file() {
        let own = std::env::current_exe().expect("this program");
        let file = std::fs::read(own).expect("its file");
        let all = sections(&file);
        for name in [".text", ".rodata", ".dynsym"] {
            let section = all.iter().find(|it| it.name == name).expect(name);
            assert!(section.len > 0 && section.start + section.len <= file.len());
        }
        assert!(all.iter().all(|it| it.name != ".bss"));
        assert_eq!(sections(b"#!/bin/sh\n"), []);
        assert_eq!(sections(&file[..0x100]), []);
    }
}
