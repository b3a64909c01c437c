//! Lists the files of weights beside an ONNX model, from the names in the model file.
//!
//! The model file is protobuf: a field's number and kind, then its bytes. The reader skips every
//! field without such names, so it does not read weights inside the model file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

/// Longest key or value that the reader takes from an entry, in bytes.
const LONGEST: u64 = 4096;
const DEEPEST: usize = 100;

/// A message type of `onnx.proto` that may contain tensors, or the entry with a tensor's file.
#[derive(Clone, Copy)]
enum Message {
    Model,
    Training,
    Function,
    Graph,
    Node,
    Attribute,
    Sparse,
    Tensor,
    Entry,
}

impl Message {
    /// The message type in field `number` of this message; `None` for a field to skip.
    fn field(self, number: u64) -> Option<Message> {
        use Message::*;
        Some(match (self, number) {
            (Model, 7) | (Training, 1 | 2) | (Attribute, 6 | 11) => Graph,
            (Model, 20) => Training,
            (Model, 25) => Function,
            (Graph, 1) | (Function, 7) => Node,
            (Node, 5) | (Function, 11) => Attribute,
            (Graph, 15) | (Attribute, 22 | 23) => Sparse,
            (Graph, 5) | (Attribute, 5 | 10) | (Sparse, 1 | 2) => Tensor,
            (Tensor, 13) => Entry,
            _ => return None,
        })
    }
}

struct Fields {
    from: BufReader<File>,
    at: u64,
}

impl Fields {
    fn varint(&mut self) -> io::Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.from.read_exact(&mut byte)?;
            self.at += 1;
            value |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(value);
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let odd = |_| io::Error::from(io::ErrorKind::InvalidData);
        self.from
            .seek_relative(i64::try_from(bytes).map_err(odd)?)?;
        self.at = self.at.saturating_add(bytes);
        Ok(())
    }

    /// Number and length of the next length-delimited field; skips other fields.
    fn next(&mut self, end: u64) -> io::Result<Option<(u64, u64)>> {
        while self.at < end {
            let tag = self.varint()?;
            match tag & 7 {
                0 => drop(self.varint()?),
                1 => self.skip(8)?,
                2 => return Ok(Some((tag >> 3, self.varint()?))),
                5 => self.skip(4)?,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(None)
    }

    fn text(&mut self, bytes: u64) -> io::Result<String> {
        let mut text = String::new();
        (&mut self.from)
            .take(bytes.min(LONGEST))
            .read_to_string(&mut text)?;
        self.at += text.len() as u64;
        self.skip(bytes - text.len() as u64)?;
        Ok(text)
    }

    fn message(
        &mut self,
        of: Message,
        depth: usize,
        end: u64,
        names: &mut BTreeSet<String>,
    ) -> io::Result<()> {
        if depth > DEEPEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut entries = BTreeMap::new();
        while let Some((field, bytes)) = self.next(end)? {
            let inner = self.at.saturating_add(bytes);
            match of.field(field) {
                Some(Message::Entry) => {
                    let mut pair = [String::new(), String::new()];
                    while let Some((field, bytes)) = self.next(inner)? {
                        match field {
                            1 | 2 => pair[field as usize - 1] = self.text(bytes)?,
                            _ => self.skip(bytes)?,
                        }
                    }
                    let [key, value] = pair;
                    entries.insert(key, value);
                }
                Some(message) => self.message(message, depth + 1, inner, names)?,
                None => self.skip(bytes)?,
            }
        }
        names.extend(entries.remove("location"));
        Ok(())
    }
}

/// The files of weights that a model names; fewer if the model is invalid.
pub(super) fn names(path: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut read = || -> io::Result<()> {
        let file = File::open(path)?;
        let end = file.metadata()?.len();
        let from = BufReader::new(file);
        Fields { from, at: 0 }.message(Message::Model, 0, end, &mut names)
    };
    // After an error, keep the files found so far.
    let _ = read();
    names
}

/// The files of weights that a model names, as paths beside the model.
pub fn files(path: &Path) -> Vec<PathBuf> {
    let names = names(path).into_iter();
    names.map(|name| path.with_file_name(name)).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut all = vec![number << 3 | 2, u8::try_from(bytes.len()).expect("short")];
        all.extend(bytes);
        all
    }

    /// A tensor in bytes 8 to 24 of `file`.
    fn tensor(file: &str) -> Vec<u8> {
        let pairs = [("location", file), ("offset", "8"), ("length", "16")];
        let pair = |(k, v): (&str, &str)| {
            let pair = [field(1, k.as_bytes()), field(2, v.as_bytes())].concat();
            field(13, &pair)
        };
        [field(8, b"w"), pairs.map(pair).concat()].concat()
    }

    /// A model whose weights are bytes 8 to 24 of `file`.
    pub(crate) fn model(file: &str) -> Vec<u8> {
        let graph = [field(2, b"g"), field(5, &tensor(file))].concat();
        [vec![8, 7], field(7, &graph)].concat()
    }

    #[test]
    fn tensors_are_found_wherever_a_model_may_hold_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.onnx");
        for way in [
            &[7, 5][..],
            &[7, 15, 1],
            &[7, 15, 2],
            &[7, 1, 5, 5],
            &[7, 1, 5, 10],
            &[7, 1, 5, 22, 1],
            &[7, 1, 5, 23, 2],
            &[7, 1, 5, 6, 5],
            &[7, 1, 5, 11, 1, 5, 5],
            &[20, 1, 5],
            &[20, 2, 1, 5, 5],
            &[25, 7, 5, 5],
            &[25, 11, 5],
        ] {
            let whole = way.iter().rev().fold(tensor("w"), |inner, number| {
                // Tags have two bytes from field 16 on.
                match *number {
                    number @ ..16 => field(number, &inner),
                    number => [
                        vec![(number & 15) << 3 | 0x82, number >> 4, inner.len() as u8],
                        inner,
                    ]
                    .concat(),
                }
            });
            fs::write(&path, whole).expect("written");
            assert_eq!(names(&path), ["w".to_owned()].into(), "{way:?}");
        }
    }

    #[test]
    fn a_file_that_is_no_model_or_ends_early_names_no_more_data() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.onnx");
        let whole = model("w.data");
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).expect("written");
            assert!(files(&path).len() <= 1);
        }
        fs::write(&path, [0xff; 64]).expect("written");
        assert!(files(&path).is_empty());
    }
}
