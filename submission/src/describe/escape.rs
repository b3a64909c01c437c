//! Escapes texts from elsewhere (machines, logs, the form) where a document is written.

/// Replaces control and format characters, which show nothing or reverse what follows.
pub(crate) fn visible(text: &str) -> String {
    text.replace(record::is_unprintable, "\u{fffd}")
}

/// Escapes text for XML and HTML, between tags and in quoted attributes.
pub(crate) fn xml(text: &str) -> String {
    let mut out = String::new();
    for c in visible(text).chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c => out.push(c),
        }
    }
    out
}

/// Escapes text for a line or a table cell of Markdown.
pub(crate) fn markdown(text: &str) -> String {
    let mut out = String::new();
    for c in xml(text).replace("&quot;", "\"").chars() {
        if "\\`*[]|~".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_says_becomes_text_and_nothing_else() {
        let odd = "a<script>|[x](y) `*\\\u{202e}\n\"&";
        let shown = "a&lt;script&gt;\\|\\[x\\](y) \\`\\*\\\\\u{fffd}\u{fffd}\"&amp;";
        assert_eq!(markdown(odd), shown);
        let shown = "a&lt;script&gt;|[x](y) `*\\\u{fffd}\u{fffd}&quot;&amp;";
        assert_eq!(xml(odd), shown);
    }
}
