//! A file of token ids, one row per sample (`docs/datasets.md`).

use std::{os::unix::fs::FileExt, path::Path};

use anyhow::Result;
use qdl::model::ForeignFormat;

use super::{Dataset, Lengths, Source, empty, failed, opened, wrong};

const MAGIC: &[u8; 8] = b"QDLTOKEN";
const VERSION: u32 = 1;
/// Bytes before the offsets: magic, version, zero, count.
const HEADER: usize = 24;
/// Bytes of an offset; [`ID`] is the bytes of a token id.
const OFFSET: u64 = 8;
const ID: u64 = 4;
const CONVERT: &str = "models/convert_tokens.py makes a file of tokens of an official data set";

impl Dataset {
    /// Opens a file of token ids. Checks all offsets; the engine checks the ids.
    pub(super) fn token_file(path: &Path) -> Result<Self> {
        let unreadable = |e| failed(path, "cannot read it", &e);
        let wrong = |why: String| wrong(path.display(), why);
        let (file, size) = opened(path)?;
        let format = ForeignFormat::of_file(&file).map_err(unreadable)?;
        if size < HEADER as u64 {
            return Err(wrong(format!("{size} bytes are too few for a header")));
        }
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0).map_err(unreadable)?;
        let count = count(&header, format).map_err(wrong)?;
        if count == 0 {
            return Err(empty(path.display()));
        }
        // The file's size bounds the count, so sums do not overflow and the allocation is bounded.
        if count >= (size - HEADER as u64) / OFFSET {
            return Err(wrong(format!(
                "it says that it has {count} samples, and {size} bytes have no room for them"
            )));
        }
        let mut offsets = vec![0; (count + 1) as usize * OFFSET as usize];
        file.read_exact_at(&mut offsets, HEADER as u64)
            .map_err(unreadable)?;
        let (offsets, _) = offsets.as_chunks::<{ OFFSET as usize }>();
        let ids_at = HEADER as u64 + (count + 1) * OFFSET;
        let (ids, rest) = ((size - ids_at) / ID, (size - ids_at) % ID);
        let (starts, lengths) = rows(offsets, ids_at, ids).map_err(wrong)?;
        if rest != 0 {
            return Err(wrong(format!("{rest} bytes behind its last id")));
        }
        let starts = Some(starts);
        let source = Source::File { file, starts };
        Ok(Dataset::in_file(path, Lengths::Each(lengths), source))
    }
}

fn count(header: &[u8; HEADER], format: Option<ForeignFormat>) -> Result<u64, String> {
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
    if header[..8] != *MAGIC {
        let what = format.map(|f| f.text(CONVERT));
        let what = what.unwrap_or_else(|| format!("no file of tokens: {CONVERT}"));
        return Err(format!("it is {what}"));
    }
    if (word(8), word(12)) != (VERSION, 0) {
        return Err(format!("version {}, {VERSION} is known here", word(8)));
    }
    Ok(u64::from(word(16)) | u64::from(word(20)) << 32)
}

/// For each row: byte offset in the file, and length in bytes.
type RowTable = (Box<[u64]>, Box<[u32]>);

/// Makes the table of rows from the file's offsets. The file has `ids` ids, the first at byte
/// `ids_at`.
fn rows(offsets: &[[u8; OFFSET as usize]], ids_at: u64, ids: u64) -> Result<RowTable, String> {
    let mut ends = offsets.iter().map(|b| u64::from_le_bytes(*b));
    let mut from = ends.next().unwrap_or_default();
    if from != 0 {
        return Err(format!("sample 0 begins at id {from}, not at 0"));
    }
    let (mut starts, mut lengths) = (Vec::new(), Vec::new());
    for (index, to) in ends.enumerate() {
        if to <= from || to > ids {
            return Err(format!(
                "sample {index} is ids {from} to {to}, and there are {ids}: each must have one, \
                 behind those before it"
            ));
        }
        let bytes = u32::try_from((to - from) * ID).map_err(|_| {
            format!(
                "sample {index} has {} ids: too many for a request",
                to - from
            )
        })?;
        starts.push(ids_at + from * ID);
        lengths.push(bytes);
        from = to;
    }
    match from == ids {
        true => Ok((starts.into(), lengths.into())),
        false => Err(format!("{} ids behind the last sample", ids - from)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{bytes, file},
        *,
    };

    fn written(rows: &[Vec<i32>]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend((rows.len() as u64).to_le_bytes());
        let mut at = 0u64;
        out.extend(at.to_le_bytes());
        for row in rows {
            at += row.len() as u64;
            out.extend(at.to_le_bytes());
        }
        out.extend(rows.iter().flatten().flat_map(|id| id.to_le_bytes()));
        out
    }

    fn open(content: &[u8]) -> Result<Dataset> {
        Dataset::token_file(file(content, "").path())
    }

    fn complaint(content: &[u8]) -> String {
        let error = open(content).expect_err("it is wrong").to_string();
        assert!(
            error.starts_with("data set /") && !error.contains('\n'),
            "{error}"
        );
        error
    }

    proptest! {
        #[test]
        fn rows_come_back_as_they_were_written(
            rows in prop::collection::vec(prop::collection::vec(any::<i32>(), 1..40), 1..20),
        ) {
            let d = open(&written(&rows)).expect("sound");
            prop_assert_eq!(d.count(), rows.len());
            for (i, row) in rows.iter().enumerate() {
                let le: Vec<u8> = row.iter().flat_map(|id| id.to_le_bytes()).collect();
                prop_assert_eq!(bytes(&d, i), le);
            }
        }

        /// Any bytes are accepted or refused; every sample of an accepted file can be read.
        #[test]
        fn any_bytes_are_taken_or_refused(
            rows in prop::collection::vec(prop::collection::vec(any::<i32>(), 1..9), 1..9),
            spoilt in prop::collection::vec((0usize..200, any::<u8>()), 0..4),
            cut in 0usize..300,
        ) {
            let mut content = written(&rows);
            for (at, byte) in spoilt {
                if let Some(b) = content.get_mut(at) {
                    *b = byte;
                }
            }
            content.truncate(cut);
            if let Ok(d) = open(&content) {
                let sum: usize = (0..d.count()).map(|i| bytes(&d, i).len()).sum();
                prop_assert_eq!(HEADER + 8 * (d.count() + 1) + sum, content.len());
            }
        }

        #[test]
        fn foreign_bytes_are_refused(content in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(open(&content).is_err());
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = written(&[vec![1, 2], vec![3]]);
        let with = |at: usize, byte: u8| {
            let mut content = good.clone();
            content[at] = byte;
            complaint(&content)
        };
        assert!(complaint(&good[..9]).contains("9 bytes are too few"));
        assert!(with(0, b'q').contains("no file of tokens"));
        let pointer = complaint(b"version https://git-lfs.github.com/spec/v1\noid sha256:59\n");
        assert!(pointer.contains("git lfs pull"), "{pointer}");
        let json = complaint(b"{\"prompts\": [[1, 2, 3], [4, 5, 6]]}");
        assert!(json.contains("JSON") && json.contains(CONVERT), "{json}");
        assert!(with(8, 2).contains("version 2, 1 is known"));
        assert!(with(16, 0).contains("no samples"));
        assert!(with(23, 9).contains("have no room for them"));
        assert!(with(24, 1).contains("sample 0 begins at id 1"));
        assert!(with(32, 0).contains("sample 0 is ids 0 to 0"));
        assert!(with(40, 9).contains("sample 1 is ids 2 to 9, and there are 3"));
        assert!(with(40, 2).contains("sample 1 is ids 2 to 2"));
        let more = [&good[..], &[0; 4]].concat();
        assert!(complaint(&more).contains("1 ids behind the last sample"));
        let odd = [&good[..], &[0; 3]].concat();
        assert!(complaint(&odd).contains("3 bytes behind its last id"));
        let none = Dataset::token_file(Path::new("/no/such/file")).expect_err("absent");
        assert!(none.to_string().contains("/no/such/file: cannot open it"));
    }
}
