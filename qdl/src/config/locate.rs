//! Where in a YAML document a key or value stands: the document once more as a tree of positions, made
//! only when there is a problem to point at.

use std::fmt;

use serde::{Deserialize, Deserializer, de};
use serde_saphyr::{Location, Spanned};

/// A place in the text: line and column count from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Place {
    /// From the parser's; `None` where it knows none.
    pub(super) fn of(location: Location) -> Option<Self> {
        if location.line() == 0 {
            return None;
        }
        Some(Place {
            line: usize::try_from(location.line()).ok()?,
            column: usize::try_from(location.column()).ok()?.max(1),
        })
    }
}

/// Finds the place of `path`, as in `nics[0].slots`: its value, or where that is a block of its own the key
/// before it. Where the path leads to something that is not written, the nearest thing above it that is.
pub(super) fn locate(text: &str, path: &str) -> Option<Place> {
    let mut here: Spanned<Tree> =
        serde_saphyr::from_str_with_options(text, super::load::options()).ok()?;
    let mut place = Place::of(here.referenced)?;
    for step in steps(path) {
        let next = match (step, here.value) {
            (Step::Key(key), Tree::Map(entries)) => entries
                .into_iter()
                .find(|(k, _)| k.value == key)
                .map(|(k, v)| (Some(k.referenced), v)),
            (Step::Index(i), Tree::Seq(items)) => items.into_iter().nth(i).map(|v| (None, v)),
            _ => None,
        };
        let Some((key, value)) = next else { break };
        let best = match (key, &value.value) {
            (Some(key), Tree::Map(_) | Tree::Seq(_)) => key,
            _ => value.referenced,
        };
        place = Place::of(best).unwrap_or(place);
        here = value;
    }
    Some(place)
}

/// The place of the value where `place` is that of its key, else `place`.
pub(super) fn value_at(text: &str, place: Place) -> Place {
    fn search(tree: &Tree, wanted: Place) -> Option<Place> {
        match tree {
            Tree::Map(entries) => entries.iter().find_map(|(key, value)| {
                if Place::of(key.referenced) == Some(wanted) {
                    Place::of(value.referenced)
                } else {
                    search(&value.value, wanted)
                }
            }),
            Tree::Seq(items) => items.iter().find_map(|item| search(&item.value, wanted)),
            Tree::Scalar => None,
        }
    }
    serde_saphyr::from_str_with_options::<Tree>(text, super::load::options())
        .ok()
        .and_then(|tree| search(&tree, place))
        .unwrap_or(place)
}

enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    path.split(['.', '['])
        .filter(|part| !part.is_empty())
        .map(|part| match part.strip_suffix(']').map(str::parse) {
            Some(Ok(index)) => Step::Index(index),
            _ => Step::Key(part),
        })
}

/// A document without its scalars' values.
enum Tree {
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
    Seq(Vec<Spanned<Tree>>),
    Scalar,
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

            fn visit_bool<E>(self, _: bool) -> Result<Tree, E> {
                Ok(Tree::Scalar)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Tree, E> {
                Ok(Tree::Scalar)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Tree, E> {
                Ok(Tree::Scalar)
            }
            fn visit_i128<E>(self, _: i128) -> Result<Tree, E> {
                Ok(Tree::Scalar)
            }
            fn visit_u128<E>(self, _: u128) -> Result<Tree, E> {
                Ok(Tree::Scalar)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Tree, E> {
                Ok(Tree::Scalar)
            }
            fn visit_str<E>(self, _: &str) -> Result<Tree, E> {
                Ok(Tree::Scalar)
            }
            fn visit_bytes<E>(self, _: &[u8]) -> Result<Tree, E> {
                Ok(Tree::Scalar)
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
