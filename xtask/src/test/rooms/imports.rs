//! The paths that a file names, in `use` declarations and elsewhere, and the modules it declares.

use crate::test::source::code;

/// What a file says.
#[derive(Debug, Default)]
pub struct Source {
    /// Paths that begin in this workspace, tests' left out.
    pub names: Vec<Named>,
    /// Modules in files of their own, tests' left out.
    pub modules: Vec<String>,
}

/// A path.
#[derive(Debug, PartialEq, Eq)]
pub struct Named {
    pub line: usize,
    /// Inline modules around it.
    pub inline: Vec<String>,
    /// Its first word is `crate`, `self`, `super`, a module that the file declares, or a crate.
    pub path: Vec<String>,
    /// It is passed on, by `pub use`.
    pub public: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

impl Source {
    /// Reads a file. `crates` are other crates by the names that paths have for them.
    pub fn read(text: &str, crates: &[String]) -> Self {
        let code = code(text);
        let tokens = without_tests(&tokens(&code));
        let mut source = Source {
            modules: modules(&tokens),
            names: Vec::new(),
        };
        let mut inline: Vec<(String, usize)> = Vec::new();
        let (mut depth, mut public) = (0_usize, false);
        let mut at = 0;
        while at < tokens.len() {
            let word = |i: usize| tokens.get(i).map_or("", |token: &Token| token.text);
            let before = |n: usize| at.checked_sub(n).map_or("", word);
            match word(at) {
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    inline.pop_if(|(_, outside)| *outside == depth);
                }
                ";" => public = false,
                "mod" if word(at + 2) == "{" => {
                    inline.push((word(at + 1).to_owned(), depth));
                }
                "use" => public = matches!(before(1), "pub" | ")"),
                first if word(at + 1) == "::" && !matches!(before(1), "::" | "in") => {
                    let ours = matches!(first, "crate" | "self" | "super")
                        || source.modules.iter().any(|module| module == first)
                        || crates.iter().any(|name| name == first);
                    if ours {
                        let mut found = Vec::new();
                        let end = tree(&tokens, at, &[], &mut found);
                        source
                            .names
                            .extend(found.into_iter().map(|(line, path)| Named {
                                line,
                                inline: inline.iter().map(|(name, _)| name.clone()).collect(),
                                path,
                                public,
                            }));
                        at = end;
                        continue;
                    }
                }
                _ => {}
            }
            at += 1;
        }
        source
    }
}

/// A path or a tree of paths that begins at a token:
/// each leaf with its line. Returns where it ends.
fn tree(
    tokens: &[Token],
    mut at: usize,
    prefix: &[String],
    found: &mut Vec<(usize, Vec<String>)>,
) -> usize {
    let word = |i: usize| tokens.get(i).map_or("", |token: &Token| token.text);
    let mut path = prefix.to_vec();
    let line = tokens.get(at).map_or(0, |token| token.line);
    loop {
        if word(at) == "{" {
            at += 1;
            while at < tokens.len() && word(at) != "}" {
                let end = tree(tokens, at, &path, found);
                // Something that is no path must not keep this from moving on.
                at = end.max(at + usize::from(end == at));
                if word(at) == "," {
                    at += 1;
                }
            }
            return at + 1;
        }
        if is_name(word(at)) {
            // `self` in a group is what the group is of.
            if path.is_empty() || word(at) != "self" {
                path.push(word(at).to_owned());
            }
            at += 1;
        } else if word(at) == "*" {
            at += 1;
        } else {
            break;
        }
        if word(at) != "::" {
            break;
        }
        at += 1;
    }
    if word(at) == "as" {
        at += 2;
    }
    if path.len() > prefix.len() || !prefix.is_empty() {
        found.push((line, path));
    }
    at
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (index, text) in code.lines().enumerate() {
        let line = index + 1;
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = if first.is_ascii_alphanumeric() || first == '_' {
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            let (text, behind) = rest.split_at(length);
            tokens.push(Token { text, line });
            rest = behind.trim_start();
        }
    }
    tokens
}

fn modules(tokens: &[Token]) -> Vec<String> {
    tokens
        .windows(3)
        .filter(|three| three[0].text == "mod" && three[2].text == ";")
        .map(|three| three[1].text.to_owned())
        .collect()
}

/// The tokens without items that are compiled for tests alone.
fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let word = |i: usize| tokens.get(i).map_or("", |token| token.text);
        if word(at) == "#" && word(at + 1) == "!" && for_tests(&tokens[at + 2..]) {
            return Vec::new();
        }
        if word(at) == "#" && for_tests(&tokens[at + 1..]) {
            at = item_end(tokens, at);
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// Whether `[cfg(test)]` or `[cfg(all(..., test, ...))]` comes next.
fn for_tests(tokens: &[Token]) -> bool {
    let words: Vec<&str> = tokens.iter().take(40).map(|token| token.text).collect();
    match &words[..] {
        ["[", "cfg", "(", "test", ")", ..] => true,
        ["[", "cfg", "(", "all", "(", rest @ ..] => {
            let mut depth = 0_i32;
            for word in rest {
                match *word {
                    "(" => depth += 1,
                    ")" if depth == 0 => return false,
                    ")" => depth -= 1,
                    "test" if depth == 0 => return true,
                    _ => {}
                }
            }
            false
        }
        _ => false,
    }
}

/// Where the item with an attribute at `at` ends.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    let word = |i: usize| tokens.get(i).map_or("", |token: &Token| token.text);
    while word(at) == "#" {
        at = balanced(tokens, at + 1);
    }
    if word(at) == "pub" {
        at += 1;
        if word(at) == "(" {
            at = balanced(tokens, at);
        }
    }
    let with_block = match word(at) {
        "const" => matches!(word(at + 1), "fn" | "unsafe" | "async" | "extern"),
        "use" | "static" | "type" | "let" => false,
        "mod" | "fn" | "struct" | "enum" | "union" | "trait" | "impl" | "unsafe" | "async"
        | "extern" | "macro_rules" | "{" => true,
        // A field, an arm, an argument or a statement.
        _ => {
            while at < tokens.len() {
                match word(at) {
                    "," | ";" => return at + 1,
                    ")" | "]" | "}" => return at,
                    "(" | "[" | "{" => at = balanced(tokens, at),
                    _ => at += 1,
                }
            }
            return at;
        }
    };
    while at < tokens.len() {
        match word(at) {
            ";" => return at + 1,
            "{" if with_block => return balanced(tokens, at),
            "(" | "[" | "{" => at = balanced(tokens, at),
            _ => at += 1,
        }
    }
    at
}

/// Behind the bracket that closes the one at `at`.
fn balanced(tokens: &[Token], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while at < tokens.len() {
        match tokens[at].text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        let source = Source::read(text, &["verbs".to_owned()]);
        let mut paths: Vec<_> = source.names.iter().map(|n| n.path.join("::")).collect();
        paths.sort();
        paths
    }

    #[test]
    fn trees_over_several_lines() {
        let text = "use crate::{\n    a::{self, B},\n    c, d::*,\n    super_::E as F,\n};\n\
                    use {crate::g, std::h};\npub(in crate::no) fn f() {}\nuse super::super::i;\n\
                    use verbs::{j};\nuse std::crate_::k;";
        assert_eq!(
            paths(text),
            [
                "crate::a",
                "crate::a::B",
                "crate::c",
                "crate::d",
                "crate::g",
                "crate::super_::E",
                "super::super::i",
                "verbs::j"
            ]
        );
        let source = Source::read(text, &[]);
        assert_eq!(source.names[2].line, 3);
    }

    #[test]
    fn paths_in_code_and_in_macros() {
        let text = "mod child;\nfn f(x: &crate::a::B<u8>) -> Vec<super::C> {\n    \
                    child::run(crate::d::E::<u8>::new());\n    other::child::run()\n}\n\
                    macro_rules! m { () => { $crate::e::f() } }";
        assert_eq!(
            paths(text),
            [
                "child::run",
                "crate::a::B",
                "crate::d::E",
                "crate::e::f",
                "super::C"
            ]
        );
    }

    #[test]
    fn what_is_for_tests_alone_is_left_out() {
        let text = "#[cfg(test)]\nuse crate::a::{B};\n#[cfg(test)]\nmod tests {\n use crate::c; }\n\
            #[cfg(all(test, qdl_loom))]\n#[allow(x)]\npub(crate) fn f<A, B>(a: [u8; 2]) { crate::d::e() }\n\
            struct S { #[cfg(test)] field: crate::f::G, other: crate::h::I }\n\
            #[cfg(test)]\nconst J: [u8; 2] = crate::k::L;\n#[cfg(test)]\nmod more;\nmod kept;\n\
            #[cfg(not(test))]\nuse crate::m;\n#[cfg(any(test, x))]\nuse crate::n;\n\
            fn o() { match p { #[cfg(test)] crate::Q => {}, r => crate::s::t() } }";
        assert_eq!(
            paths(text),
            ["crate::h::I", "crate::m", "crate::n", "crate::s::t"]
        );
        assert_eq!(Source::read(text, &[]).modules, ["kept"]);
        assert_eq!(paths("#![cfg(test)]\nuse crate::a;"), [""; 0]);
    }

    #[test]
    fn inline_modules_and_what_is_passed_on() {
        let text = "mod a { use super::b; mod c { use super::d; } }\nuse self::e;\n\
                    pub use crate::f;\npub(crate) use crate::g;\nuse crate::h;";
        let source = Source::read(text, &[]);
        let facts: Vec<_> = source
            .names
            .iter()
            .map(|n| (n.inline.join("::"), n.path.join("::"), n.public))
            .collect();
        let fact = |inline: &str, path: &str, public| (inline.to_owned(), path.to_owned(), public);
        assert_eq!(
            facts,
            [
                fact("a", "super::b", false),
                fact("a::c", "super::d", false),
                fact("", "self::e", false),
                fact("", "crate::f", true),
                fact("", "crate::g", true),
                fact("", "crate::h", false),
            ]
        );
    }

    #[test]
    fn text_that_is_no_rust_ends() {
        for text in [
            "use crate::{",
            "use crate::{{;",
            "crate::",
            "#[cfg(test)]",
            "}}} mod x {",
        ] {
            Source::read(text, &[]);
        }
    }
}
