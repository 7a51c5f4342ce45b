//! How numbers and vectors are written (RFC 5246 §4).

pub(crate) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn vector(out: &mut Vec<u8>, width: usize, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.resize(start + width, 0);
    write(out);
    let length = ((out.len() - start - width) as u64).to_be_bytes();
    debug_assert!(length[..8 - width].iter().all(|byte| *byte == 0));
    out[start..start + width].copy_from_slice(&length[8 - width..]);
}

/// Appends a vector of TLS: its length in one byte, then what `write` appends.
pub(crate) fn vector8(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    vector(out, 1, write);
}

/// Appends a vector of TLS: its length in two bytes, then what `write` appends.
pub(crate) fn vector16(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    vector(out, 2, write);
}

/// The same with a length of three bytes.
pub(crate) fn vector24(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    vector(out, 3, write);
}
