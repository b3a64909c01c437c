//! Files that hold a model's weights beside it, from the model file's own list of them.
//!
//! The file is protobuf: a field's number and kind, then its bytes. What is of no use here is
//! skipped, so a large model is not read.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

/// The way from a model to its weights' entries: graph, initializer, entry.
const WAY: [u64; 3] = [7, 5, 13];
/// Longest key or value that is read of an entry.
const LONGEST: u64 = 4096;

/// A model file's cursor.
struct Fields {
    from: BufReader<File>,
    at: u64,
}

/// Where each file that the model names ends at least, by its name.
type Ends = BTreeMap<String, u64>;

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

    /// The next field that has bytes, with their number; the others are skipped.
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

    /// Reads a message that is `depth` steps on the way, up to `end`.
    fn message(&mut self, depth: usize, end: u64, ends: &mut Ends) -> io::Result<()> {
        let mut entries = BTreeMap::new();
        while let Some((field, bytes)) = self.next(end)? {
            let inner = self.at.saturating_add(bytes);
            match WAY.get(depth) {
                Some(step) if *step == field && depth + 1 == WAY.len() => {
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
                Some(step) if *step == field => self.message(depth + 1, inner, ends)?,
                _ => self.skip(bytes)?,
            }
        }
        let number = |key: &str| entries.get(key).and_then(|v| v.parse::<u64>().ok());
        if let Some(name) = entries.get("location") {
            let least = number("offset")
                .unwrap_or(0)
                .saturating_add(number("length").unwrap_or(0));
            let end = ends.entry(name.clone()).or_default();
            *end = least.max(*end);
        }
        Ok(())
    }
}

/// The files that a model names, and where their last bytes are; none of one that is no model.
fn ends(path: &Path) -> Ends {
    let mut ends = Ends::new();
    let mut read = || -> io::Result<()> {
        let file = File::open(path)?;
        let end = file.metadata()?.len();
        let from = BufReader::new(file);
        Fields { from, at: 0 }.message(0, end, &mut ends)
    };
    // What is broken has no more of them.
    let _ = read();
    ends
}

/// The files of weights that a model names, as paths beside it.
pub fn files(path: &Path) -> Vec<PathBuf> {
    let beside = |name: &String| path.with_file_name(name);
    ends(path).keys().map(beside).collect()
}

/// What is wrong with a model's files of weights, in words; `None` where that is nothing.
pub(super) fn wrong(path: &Path) -> Option<String> {
    let target = fs::canonicalize(path).ok()?;
    ends(path).into_iter().find_map(|(name, least)| {
        let data = path.with_file_name(&name);
        match fs::metadata(&data) {
            Ok(meta) if meta.len() < least => Some(format!(
                "its data {} has {} bytes and must have {least}: copy it again",
                data.display(),
                meta.len()
            )),
            Ok(_) => None,
            Err(_) if target.with_file_name(&name).exists() => Some(format!(
                "it is a link to {}, and its data {name} is not beside the link: give the target's \
                 path, or link the data too",
                target.display()
            )),
            Err(error) => Some(format!(
                "its data {}: {error}; it must lie beside the model, {least} bytes or more",
                data.display()
            )),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut all = vec![number << 3 | 2, u8::try_from(bytes.len()).expect("short")];
        all.extend(bytes);
        all
    }

    /// A model whose weights are bytes 8 to 24 of `w.data`.
    fn model() -> Vec<u8> {
        let pairs = [("location", "w.data"), ("offset", "8"), ("length", "16")];
        let pair = |(k, v): (&str, &str)| {
            let pair = [field(1, k.as_bytes()), field(2, v.as_bytes())].concat();
            field(13, &pair)
        };
        let tensor = [field(8, b"w"), pairs.map(pair).concat()].concat();
        let graph = [field(2, b"g"), field(5, &tensor)].concat();
        [vec![8, 7], field(7, &graph)].concat()
    }

    #[test]
    fn a_missing_a_short_and_a_linked_models_data_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let (real, model_at) = (folder.path().join("real"), folder.path().join("m.onnx"));
        fs::create_dir(&real).expect("made");
        let target = real.join("net.onnx");
        fs::write(&target, model()).expect("written");
        assert_eq!(files(&target), [real.join("w.data")]);
        let said = wrong(&target).expect("missing");
        assert!(
            said.contains("w.data: No such file") && said.contains("24 bytes"),
            "{said}"
        );
        fs::write(real.join("w.data"), [0; 20]).expect("written");
        let said = wrong(&target).expect("short");
        assert!(said.contains("has 20 bytes and must have 24"), "{said}");
        fs::write(real.join("w.data"), [0; 24]).expect("written");
        assert_eq!(wrong(&target), None);
        std::os::unix::fs::symlink(&target, &model_at).expect("a link");
        let said = wrong(&model_at).expect("elsewhere");
        assert!(
            said.contains("net.onnx, and its data w.data is not beside the link"),
            "{said}"
        );
    }

    #[test]
    fn a_file_that_is_no_model_or_ends_early_names_no_more_data() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.onnx");
        let whole = model();
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).expect("written");
            assert!(files(&path).len() <= 1);
        }
        fs::write(&path, [0xff; 64]).expect("written");
        assert!(files(&path).is_empty());
    }
}
