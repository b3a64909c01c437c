//! Strings of JSON, written without an intermediate value.

/// Appends `text` as a JSON string.
pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escape(out, text);
    out.push(b'"');
}

/// For each byte: 0 if a JSON string holds it as it is, the letter of its escape, or `u`.
const ESCAPES: [u8; 256] = {
    let mut escapes = [0; 256];
    let mut control = 0;
    while control < 0x20 {
        escapes[control] = b'u';
        control += 1;
    }
    escapes[0x08] = b'b';
    escapes[b'\t' as usize] = b't';
    escapes[b'\n' as usize] = b'n';
    escapes[0x0C] = b'f';
    escapes[b'\r' as usize] = b'r';
    escapes[b'"' as usize] = b'"';
    escapes[b'\\' as usize] = b'\\';
    escapes
};

/// Appends `text` as it stands between the quotes of a JSON string.
pub(super) fn escape(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let mut begin = 0;
    for (i, &byte) in bytes.iter().enumerate() {
        let letter = ESCAPES[usize::from(byte)];
        if letter == 0 {
            continue;
        }
        out.extend_from_slice(&bytes[begin..i]);
        begin = i + 1;
        if letter == b'u' {
            let digits = b"0123456789abcdef";
            let [high, low] = [byte >> 4, byte & 15].map(|it| digits[usize::from(it)]);
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
        } else {
            out.extend_from_slice(&[b'\\', letter]);
        }
    }
    out.extend_from_slice(&bytes[begin..]);
}
