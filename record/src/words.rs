//! Characters that must not reach a terminal or a page from elsewhere.

/// Ranges of Unicode's category Cf (format), with the separators of lines and paragraphs: they
/// reorder a text, hide a part of it or break its line.
const FORMAT: [(u32, u32); 20] = [
    (0xad, 0xad),
    (0x600, 0x605),
    (0x61c, 0x61c),
    (0x6dd, 0x6dd),
    (0x70f, 0x70f),
    (0x890, 0x891),
    (0x8e2, 0x8e2),
    (0x180e, 0x180e),
    (0x200b, 0x200f),
    (0x2028, 0x202e),
    (0x2060, 0x206f),
    (0xfeff, 0xfeff),
    (0xfff9, 0xfffb),
    (0x110bd, 0x110bd),
    (0x110cd, 0x110cd),
    (0x13430, 0x1343f),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0001, 0xe0001),
    (0xe0020, 0xe007f),
];

/// Whether a character is a control or a format character: it is not shown, and a terminal or a
/// page obeys it.
pub fn is_unprintable(c: char) -> bool {
    let code = u32::from(c);
    c.is_control()
        || FORMAT
            .iter()
            .any(|(from, to)| (*from..=*to).contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_not_printed() {
        for c in
            "\0\t\n\x1b\x7f\u{85}\u{ad}\u{200b}\u{2028}\u{202e}\u{2066}\u{feff}\u{e0041}".chars()
        {
            assert!(is_unprintable(c), "{c:?}");
        }
        for c in " ~äß…中🙂\u{a0}\u{301}".chars() {
            assert!(!is_unprintable(c), "{c:?}");
        }
    }
}
