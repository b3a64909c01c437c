//! Characters that must not reach a terminal or a page from elsewhere.

/// Whether a terminal or a page obeys a character and does not show it: controls, and Unicode's
/// category Cf (format) with the separators of lines and paragraphs, which reorder, hide or break a
/// text.
pub fn is_unprintable(c: char) -> bool {
    let format = matches!(
        u32::from(c),
        0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890..=0x891 | 0x8e2 | 0x180e
            | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb
            | 0x110bd | 0x110cd | 0x13430..=0x1343f | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a
            | 0xe0001..=0xe007f
    );
    c.is_control() || format
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
