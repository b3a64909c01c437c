//! The YAML document by its paths: the keys that the file sets, with lines and columns.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, de};
use serde_saphyr::{Location, Spanned};

const MAX_DEPTH: usize = 32;
/// Longest key in a path, in characters, and most keys: a configuration has no longer ones.
const MAX_KEY: usize = 64;
const MAX_STEPS: usize = 8;

/// Returns the parser's options: no snippets, `yes` is no boolean, limited nesting.
pub(super) fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
    }
}

/// A place in the text: line and column from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextPosition {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl TextPosition {
    /// Converts the parser's location; `None` if the location is unknown.
    pub(super) fn of(location: Location) -> Option<Self> {
        if location.line() == 0 {
            return None;
        }
        Some(TextPosition {
            line: usize::try_from(location.line()).ok()?,
            column: usize::try_from(location.column()).ok()?.max(1),
        })
    }
}

/// A value of the text.
struct Node {
    /// Place of the value's key; `None` for an item of a list.
    key: Option<TextPosition>,
    value: Option<TextPosition>,
    /// Whether the value is a mapping or a list.
    is_block: bool,
    /// Line of a scalar, or of a list's first scalar.
    line: Option<usize>,
    /// Keys of a mapping.
    names: Vec<String>,
}

impl Node {
    /// Place of the value, or of the key if the value is a block or `of_key`.
    fn place(&self, of_key: bool) -> Option<TextPosition> {
        match self.is_block || of_key {
            true => self.key.or(self.value),
            false => self.value,
        }
    }
}

/// A parsed YAML text: each value by its path, such as `nics[0].slots`; empty if the text cannot be
/// parsed, which the decoder reports.
pub(super) struct Document(BTreeMap<String, Node>);

impl Document {
    pub(super) fn new(text: &str) -> Self {
        let mut nodes = BTreeMap::new();
        if let Ok(root) = serde_saphyr::from_str_with_options(text, options()) {
            add(String::new(), None, &root, &mut nodes);
        }
        Document(nodes)
    }

    pub(super) fn is_read(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns the place of `path`: the place of the value, or of the key if the value is a block.
    /// If the file does not set `path`, the place of the nearest ancestor.
    pub(super) fn locate(&self, path: &str) -> Option<TextPosition> {
        self.place(path, false)
    }

    /// As [`Self::locate`], but the place of the key.
    pub(super) fn locate_key(&self, path: &str) -> Option<TextPosition> {
        self.place(path, true)
    }

    fn place(&self, path: &str, of_key: bool) -> Option<TextPosition> {
        let place = self.0.get(path).and_then(|node| node.place(of_key));
        let parent = || path.rfind(['.', '[']).map_or("", |end| &path[..end]);
        match place {
            None if !path.is_empty() => self.place(parent(), false),
            place => place,
        }
    }

    /// Returns whether the file sets this key.
    pub(super) fn has(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// Returns the keys of the mapping at `path`.
    pub(super) fn keys<'a>(&'a self, path: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let names = self.0.get(path).into_iter().flat_map(|node| &node.names);
        names.map(String::as_str)
    }

    /// Returns the line of every scalar, and of every list of scalars, by its path.
    pub(super) fn value_lines(&self) -> BTreeMap<String, usize> {
        let lines = self.0.iter();
        let lines = lines.filter_map(|(path, node)| Some((path.clone(), node.line?)));
        lines.collect()
    }

    /// Returns the place of the value if `place` is the place of its key, otherwise `place`.
    pub(super) fn value_at(&self, place: TextPosition) -> TextPosition {
        let mut nodes = self.0.values();
        let of_key = nodes.find(|node| node.key == Some(place));
        of_key.and_then(|node| node.value).unwrap_or(place)
    }
}

fn add(
    path: String,
    key: Option<TextPosition>,
    value: &Spanned<Tree>,
    nodes: &mut BTreeMap<String, Node>,
) {
    if path.matches(['.', '[']).count() > MAX_STEPS {
        return;
    }
    let place = TextPosition::of(value.referenced);
    let mut names = Vec::new();
    let mut line = place.map(|place| place.line);
    match &value.value {
        Tree::Map(entries) => {
            line = None;
            for (name, value) in entries {
                let dot = if path.is_empty() { "" } else { "." };
                let short: String = name.value.chars().take(MAX_KEY).collect();
                let key = TextPosition::of(name.referenced);
                add(format!("{path}{dot}{short}"), key, value, nodes);
                names.push(name.value.clone());
            }
        }
        Tree::Seq(items) => {
            let first = items.first().filter(|i| matches!(i.value, Tree::Scalar));
            line = first.and_then(|i| Some(TextPosition::of(i.referenced)?.line));
            for (i, item) in items.iter().enumerate() {
                add(format!("{path}[{i}]"), None, item, nodes);
            }
        }
        Tree::Scalar => {}
    }
    let node = Node {
        key,
        value: place,
        is_block: !matches!(value.value, Tree::Scalar),
        line,
        names,
    };
    nodes.insert(path, node);
}

/// A document without the values of its scalars.
enum Tree {
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
    Seq(Vec<Spanned<Tree>>),
    Scalar,
}

/// Visitor methods for scalars, which drop the value.
macro_rules! scalars {
    ($($visit:ident($ty:ty))+) => {
        $(fn $visit<E>(self, _: $ty) -> Result<Tree, E> {
            Ok(Tree::Scalar)
        })+
    };
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Tree;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any YAML")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Tree::Map(entries))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Tree::Seq(items))
            }

            scalars! {
                visit_bool(bool) visit_i64(i64) visit_u64(u64) visit_i128(i128) visit_u128(u128)
                visit_f64(f64) visit_str(&str) visit_bytes(&[u8])
            }
            fn visit_unit<E>(self) -> Result<Tree, E> {
                Ok(Tree::Scalar)
            }
            fn visit_none<E>(self) -> Result<Tree, E> {
                Ok(Tree::Scalar)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
