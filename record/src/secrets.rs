//! Masks values that look like keys in texts that a run keeps or sends: configurations, commands,
//! and lines of logs.
//!
//! A value is masked after a name of a secret (`HF_TOKEN=…`, `--api-key …`, `password: …`), with a
//! known prefix (`hf_…`, `sk-…`), as a long random text of hexadecimal or base64 digits, and as the
//! password in a URL. Numbers, paths and hashes (`--revision …`) stay.

/// The word in place of a masked value.
pub const MASK: &str = "(masked)";

/// Prefixes of well-known keys.
const PREFIXES: [&str; 11] = [
    "hf_",
    "sk-",
    "ghp_",
    "gho_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "nvapi-",
    "AKIA",
    "eyJ",
];
/// Fewest bytes behind a prefix.
const BEHIND_PREFIX: usize = 10;
/// Fewest digits of a long random text.
const LONG: usize = 32;

/// The secrecy of a value, by the name before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameKind {
    Plain,
    /// The value is no secret, although it may look like a key.
    Hash,
    /// A key or a token: any value but a number, a word of YAML or a path.
    Key,
    /// A secret or a password: any value.
    Secret,
}

impl NameKind {
    fn of(name: &str) -> Self {
        // A variable's name may have the word anywhere: `AWS_ACCESS_KEY_ID`.
        let is_variable = !name.contains(|c: char| c.is_ascii_lowercase() || c == '-');
        let name = name.to_ascii_uppercase();
        let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
        let is_key = |part: &&str| part.ends_with("KEY") || part.ends_with("TOKEN");
        let mut parts = name.split(|c: char| !c.is_ascii_alphanumeric());
        let last = parts.clone().rfind(|part| !part.is_empty());
        match last.unwrap_or_default() {
            "FILE" | "PATH" | "DIR" => NameKind::Plain,
            "REVISION" | "COMMIT" | "DIGEST" | "HASH" | "CHECKSUM" | "SHA256" => NameKind::Hash,
            _ if has(&["SECRET", "PASSWORD", "PASSWD"]) => NameKind::Secret,
            last if is_key(&last) || last == "BEARER" => NameKind::Key,
            _ if is_variable && parts.any(|part| is_key(&part)) => NameKind::Key,
            _ => NameKind::Plain,
        }
    }

    fn hides(self, value: &str) -> bool {
        let plain = ["true", "false", "null", "none", "~"].contains(&value);
        let is_path = value.starts_with(['/', '.', '~']);
        match self {
            NameKind::Hash => false,
            NameKind::Plain => is_key(value),
            NameKind::Key => !plain && !is_path && value.parse::<f64>().is_err() || is_key(value),
            NameKind::Secret => true,
        }
    }
}

/// Whether a value looks like a key by itself.
fn is_key(value: &str) -> bool {
    let known = PREFIXES.iter().any(|prefix| {
        let rest = value.strip_prefix(prefix).unwrap_or_default();
        rest.len() >= BEHIND_PREFIX
            && rest
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    });
    known || value.len() >= LONG && is_random(value)
}

/// Whether a text is hexadecimal digits, or base64 whose kinds of letters change as in random
/// bytes: at two of five places and more. Names of models and paths change at one of four.
fn is_random(value: &str) -> bool {
    let kind = |b: u8| (b.is_ascii_lowercase(), b.is_ascii_digit());
    let bytes = value.as_bytes();
    let hex = bytes.iter().all(u8::is_ascii_hexdigit);
    let mixed = bytes.iter().any(u8::is_ascii_digit) && bytes.iter().any(u8::is_ascii_alphabetic);
    let base64 = |b: &u8| b.is_ascii_alphanumeric() || b"+/-_=".contains(b);
    let changes = bytes.windows(2).filter(|pair| {
        let letters = pair.iter().all(u8::is_ascii_alphanumeric);
        letters && kind(pair[0]) != kind(pair[1])
    });
    // A UUID names a GPU: `GPU-8f3a2b1c-1d2e-3f40-5a6b-7c8d9e0f1a2b`.
    let is_uuid = || value.rsplit('-').map(str::len).take(5).eq([12, 4, 4, 4, 8]);
    let is_mixed_base64 = || bytes.iter().all(base64) && 5 * changes.count() >= 2 * bytes.len();
    hex && mixed || is_mixed_base64() && !is_uuid()
}

/// A text without values that look like keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaskedText {
    /// The text, with [`MASK`] in place of each such value.
    pub text: String,
    /// Number of masked values.
    pub count: usize,
}

impl MaskedText {
    /// The text with a last line, a comment of YAML, that says how many values are masked.
    pub fn with_count(mut self) -> String {
        if self.count > 0 {
            if !self.text.ends_with('\n') {
                self.text.push('\n');
            }
            self.text += &format!("# values that look like keys, masked: {}\n", self.count);
        }
        self.text
    }

    fn value(&mut self, value: &str, kind: NameKind) {
        if value.is_empty() || value == MASK || !kind.hides(value) {
            return self.text.push_str(value);
        }
        self.text.push_str(MASK);
        self.count += 1;
    }

    /// Appends a word that follows a name of this kind; returns the kind of the word as a name.
    fn word(&mut self, word: &str, behind: NameKind) -> NameKind {
        let is_name = word.ends_with([':', '=']) || word.starts_with("--");
        if let Some((scheme, rest)) = word.split_once("://")
            && let Some((user, host)) = rest.rsplit_once('@')
            && let Some((user, password)) = user.split_once(':')
        {
            self.text += &format!("{scheme}://{user}:");
            self.value(password, NameKind::Secret);
            self.text += &format!("@{host}");
            NameKind::Plain
        } else if behind != NameKind::Plain && !is_name || is_key(word) {
            self.value(word, behind);
            NameKind::Plain
        } else {
            let value = word.find(['=', ':']).map_or("", |at| &word[at + 1..]);
            let value = if value.starts_with("//") { "" } else { value };
            let name = &word[..word.len() - value.len()];
            let kind = NameKind::of(name);
            self.text.push_str(name);
            self.value(value, kind);
            kind
        }
    }
}

/// Characters between words; words of a command line are joined by zero bytes.
const BETWEEN: &[char] = &[
    ' ', '\t', '\r', '\n', '\0', ',', '[', ']', '{', '}', '"', '\'',
];

/// Masks the values in `text` that look like keys. A masked text stays as it is.
pub fn mask(text: &str) -> MaskedText {
    let mut masked = MaskedText::default();
    // The last name, and whether the next word is its value.
    let (mut kind, mut is_awaited) = (NameKind::Plain, false);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let may_have_spaces = is_awaited && kind == NameKind::Secret && ['"', '\''].contains(&c);
        if may_have_spaces && let Some((value, behind)) = rest[1..].split_once(c) {
            masked.text.push(c);
            masked.value(value, kind);
            masked.text.push(c);
            (rest, is_awaited) = (behind, false);
            continue;
        }
        if BETWEEN.contains(&c) {
            masked.text.push(c);
            rest = &rest[1..];
            continue;
        }
        let (word, behind) = rest.split_at(rest.find(BETWEEN).unwrap_or(rest.len()));
        rest = behind;
        match word {
            // An item of a list.
            "-" => masked.text.push_str(word),
            // `"name": value`, `name = value`
            ":" | "=" => {
                masked.text.push_str(word);
                is_awaited = true;
            }
            _ => {
                kind = masked.word(word, if is_awaited { kind } else { NameKind::Plain });
                is_awaited = word.ends_with([':', '='])
                    || word.starts_with("--") && !word.contains('=')
                    || word.eq_ignore_ascii_case("bearer");
            }
        }
    }
    masked
}

/// Masks words of a command line.
pub fn mask_words(words: &[String]) -> (Vec<String>, usize) {
    let masked = mask(&words.join("\0"));
    let words = masked.text.split('\0').map(str::to_owned);
    (words.collect(), masked.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANDOM: &str = "kT3vQ9bX0mZr7LwYc2Ns8HdF5jGaP1uE";

    #[test]
    fn values_that_look_like_keys_are_masked() {
        for (text, masked) in [
            ("HF_TOKEN=abc", "HF_TOKEN=(masked)"),
            ("# OPENAI_API_KEY: abc", "# OPENAI_API_KEY: (masked)"),
            (
                "args: [--api-key, abc, x]",
                "args: [--api-key, (masked), x]",
            ),
            (
                "args:\n  - --api-key\n  - abc\n",
                "args:\n  - --api-key\n  - (masked)\n",
            ),
            ("--api-key=abc def", "--api-key=(masked) def"),
            (
                "{\"password\": \"my own 1\", \"a\": 1}",
                "{\"password\": \"(masked)\", \"a\": 1}",
            ),
            ("password: 12345", "password: (masked)"),
            ("DB_PASSWORD='a b' c", "DB_PASSWORD='(masked)' c"),
            (
                "-H 'Authorization: Bearer abc'",
                "-H 'Authorization: Bearer (masked)'",
            ),
            ("see hf_abcdefghijkl.", "see (masked)"),
            ("--x sk-abcd-efgh-0123", "--x (masked)"),
            ("http://me:word@host/a", "http://me:(masked)@host/a"),
            ("SECRET_OF_US = /a/b", "SECRET_OF_US = (masked)"),
            ("AWS_ACCESS_KEY_ID=abc", "AWS_ACCESS_KEY_ID=(masked)"),
            ("X=hf_abcdefghijkl", "X=(masked)"),
            ("x-api-key:abc", "x-api-key:(masked)"),
        ] {
            let found = mask(text);
            assert_eq!((found.text.as_str(), found.count), (masked, 1), "{text}");
            assert_eq!(mask(&found.text).text, masked, "masked twice");
        }
        for random in [
            RANDOM,
            "0123456789abcdef0123456789abcdef",
            "pG/3xQ+9bX0mZr7LwYc2Ns8HdF5jGaP1uE0qW4rT6yU=",
        ] {
            assert_eq!(mask(&format!("a {random}, b")).text, "a (masked), b");
        }
    }

    #[test]
    fn other_values_stay() {
        for text in [
            "token_file: /etc/qdl/token",
            "  next_token_s: 30\n  max_tokens: 128\nuse_token_latencies: true",
            "kind: tokens",
            "tokens: true, first_token: 3.5, key: 7",
            "model: /mnt/Data1/models/Meta-Llama-3-8B-Instruct-FP8-w4a16",
            "--revision 06a6d97e0944882a1f5254980dc9e39db0d93048",
            "sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "url: http://127.0.0.1:8000",
            "listen: \"[::1]:7410\"",
            "--tokenizer-mode auto --no-enable-prefix-caching",
            "CUDA_VISIBLE_DEVICES=GPU-8f3a2b1c-1d2e-3f40-5a6b-7c8d9e0f1a2b",
            "it ended (exit status: 7)",
        ] {
            let found = mask(text);
            assert_eq!((found.text.as_str(), found.count), (text, 0));
        }
    }

    #[test]
    fn a_command_keeps_its_words() {
        let words = ["frontend", "--config", "a b.yaml", "--api-key", RANDOM].map(str::to_owned);
        let (masked, count) = mask_words(&words);
        let mut expected = words.to_vec();
        expected[4] = MASK.to_owned();
        assert_eq!((masked, count), (expected, 1));
        let text = mask("HF_TOKEN=abc").with_count();
        let counted = "HF_TOKEN=(masked)\n# values that look like keys, masked: 1\n";
        assert_eq!(text, counted);
        assert_eq!(mask(&text).with_count(), text);
        assert_eq!(mask("a: 1").with_count(), "a: 1");
    }
}
