//! The YAML document as a tree: the keys that the file sets, with lines and columns.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned},
};
use serde_saphyr::{Location, Spanned};

const MAX_DEPTH: usize = 32;

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

/// A parsed YAML text; empty if it cannot be parsed, which the decoder reports.
pub(super) struct Document {
    root: Option<Spanned<Tree>>,
}

impl Document {
    pub(super) fn new(text: &str) -> Self {
        Document {
            root: serde_saphyr::from_str_with_options(text, options()).ok(),
        }
    }

    pub(super) fn is_read(&self) -> bool {
        self.root.is_some()
    }

    /// Returns the place of `path`, such as `nics[0].slots`: the place of the value, or of the key
    /// if the value is a block. If the file does not set `path`, the place of the nearest ancestor.
    pub(super) fn locate(&self, path: &str) -> Option<TextPosition> {
        self.walk(path, false).1
    }

    /// As [`Self::locate`], but the place of the key.
    pub(super) fn locate_key(&self, path: &str) -> Option<TextPosition> {
        self.walk(path, true).1
    }

    /// Returns whether the file sets this key.
    pub(super) fn has(&self, path: &str) -> bool {
        self.walk(path, false).0.is_some()
    }

    pub(super) fn keys(&self, path: &str) -> impl Iterator<Item = &str> {
        let entries = match self.walk(path, false).0 {
            Some(Tree::Map(entries)) => &entries[..],
            _ => &[],
        };
        entries.iter().map(|(key, _)| &key.value[..])
    }

    /// Returns every scalar's path and line, in the order of the text.
    pub(super) fn value_lines(&self) -> Vec<(String, usize)> {
        fn walk(tree: &Spanned<Tree>, path: &str, out: &mut Vec<(String, usize)>) {
            match &tree.value {
                Tree::Map(entries) => entries.iter().for_each(|(key, value)| {
                    let dot = if path.is_empty() { "" } else { "." };
                    walk(value, &format!("{path}{dot}{}", key.value), out);
                }),
                Tree::Seq(items) => {
                    // A list of scalars counts as one value: `cpus: [2, 3]`.
                    if let Some(first) = items.first()
                        && matches!(first.value, Tree::Scalar)
                    {
                        out.extend(
                            TextPosition::of(first.referenced).map(|p| (path.to_owned(), p.line)),
                        );
                        return;
                    }
                    for (i, item) in items.iter().enumerate() {
                        walk(item, &format!("{path}[{i}]"), out);
                    }
                }
                Tree::Scalar => {
                    out.extend(
                        TextPosition::of(tree.referenced).map(|p| (path.to_owned(), p.line)),
                    );
                }
            }
        }
        let mut out = Vec::new();
        if let Some(root) = &self.root {
            walk(root, "", &mut out);
        }
        out
    }

    /// Returns the value at `path`, and the place as [`Self::locate`] does or, with `of_key`,
    /// [`Self::locate_key`].
    fn walk(&self, path: &str, of_key: bool) -> (Option<&Tree>, Option<TextPosition>) {
        let Some(root) = &self.root else {
            return (None, None);
        };
        let mut here = &root.value;
        let mut place = TextPosition::of(root.referenced);
        for step in steps(path) {
            let next = match (step, here) {
                (PathStep::Key(key), Tree::Map(entries)) => entries
                    .iter()
                    .find(|(k, _)| k.value == key)
                    .map(|(k, v)| (Some(k.referenced), v)),
                (PathStep::Index(i), Tree::Seq(items)) => items.get(i).map(|v| (None, v)),
                _ => None,
            };
            let Some((key, value)) = next else {
                return (None, place);
            };
            let best = match (key, &value.value) {
                (Some(key), Tree::Scalar) if of_key => key,
                (Some(key), Tree::Map(_) | Tree::Seq(_)) => key,
                _ => value.referenced,
            };
            place = TextPosition::of(best).or(place);
            here = &value.value;
        }
        (Some(here), place)
    }

    /// Returns the place of the value if `place` is the place of its key, otherwise `place`.
    pub(super) fn value_at(&self, place: TextPosition) -> TextPosition {
        fn search(tree: &Tree, wanted: TextPosition) -> Option<TextPosition> {
            match tree {
                Tree::Map(entries) => entries.iter().find_map(|(key, value)| {
                    if TextPosition::of(key.referenced) == Some(wanted) {
                        TextPosition::of(value.referenced)
                    } else {
                        search(&value.value, wanted)
                    }
                }),
                Tree::Seq(items) => items.iter().find_map(|item| search(&item.value, wanted)),
                Tree::Scalar => None,
            }
        }
        let root = self.root.as_ref();
        root.and_then(|root| search(&root.value, place))
            .unwrap_or(place)
    }
}

enum PathStep<'a> {
    Key(&'a str),
    Index(usize),
}

fn steps(path: &str) -> impl Iterator<Item = PathStep<'_>> {
    path.split(['.', '['])
        .filter(|part| !part.is_empty())
        .map(|part| match part.strip_suffix(']').map(str::parse) {
            Some(Ok(index)) => PathStep::Index(index),
            _ => PathStep::Key(part),
        })
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

/// Returns the names of the fields of `T`.
pub fn keys_of<T: DeserializeOwned>() -> &'static [&'static str] {
    T::deserialize(Keys(&[])).err().map_or(&[], |keys| keys.0)
}

/// A deserializer that fails with the names of the struct's fields, taken from serde's first call.
#[derive(Debug)]
struct Keys(&'static [&'static str]);

impl<'de> Deserializer<'de> for Keys {
    type Error = Keys;

    fn deserialize_struct<V: de::Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Keys> {
        Err(Keys(fields))
    }

    fn deserialize_any<V: de::Visitor<'de>>(self, _: V) -> Result<V::Value, Keys> {
        Err(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl de::Error for Keys {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Keys(&[])
    }
}

impl std::error::Error for Keys {}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}
