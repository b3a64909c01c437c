//! Samples back to back in a file.

use std::path::Path;

use anyhow::Result;

use super::{Dataset, Lengths, Source, empty, failed, length, numpy, opened, wrong};

impl Dataset {
    /// Opens a file of samples of `sample` bytes each.
    pub(super) fn raw(path: &Path, sample: usize) -> Result<Self> {
        let len = length(sample)?;
        let (file, bytes) = opened(path)?;
        let whole = bytes.checked_div(u64::from(len)).filter(|_| bytes > 0);
        let whole = whole.ok_or_else(|| empty(path.display()))?;
        let rest = bytes % u64::from(len);
        if rest != 0 {
            return Err(wrong(
                path.display(),
                format_args!(
                    "{bytes} bytes are {whole} samples of {sample} bytes (the model's input) and \
                     {rest} bytes more; is it another model's?"
                ),
            ));
        }
        let count = whole as usize;
        let source = Source::File { file, starts: None };
        Ok(Dataset::in_file(
            path,
            Lengths::Equal { len, count },
            source,
        ))
    }

    /// Opens a file of samples back to back, and a file with the samples' lengths ([`lengths`]).
    pub(super) fn ragged(path: &Path, lengths: &Path) -> Result<Self> {
        let each = self::lengths(lengths)?;
        let (file, size) = opened(path)?;
        // Each length is below 2^32, and fewer than 2^62 fit in memory: the sum does not overflow.
        let sum: u64 = each.iter().map(|len| u64::from(*len)).sum();
        if sum != size {
            let other = path.display();
            return Err(wrong(
                lengths.display(),
                format_args!("its lengths add up to {sum} bytes, and {other} has {size}"),
            ));
        }
        let starts = each.iter().scan(0, |at, len| {
            let start = *at;
            *at += u64::from(*len);
            Some(start)
        });
        let starts = Some(starts.collect());
        let source = Source::File { file, starts };
        Ok(Dataset::in_file(path, Lengths::Each(each), source))
    }
}

/// Reads the length of each sample, none 0, from little-endian `u32` or a NumPy array.
pub(super) fn lengths(path: &Path) -> Result<Box<[u32]>> {
    let wrong = |why: String| wrong(path.display(), why);
    let arrays =
        numpy::open(path, numpy::RawBytes::Unnamed, &|_, all| all.len() == 1).map_err(wrong)?;
    let each: Box<[u32]> = match arrays.as_ref().map(|arrays| &arrays.opened[..]) {
        Some([array]) => {
            let all = array.integers().map_err(wrong)?;
            let each: Result<_, _> = all.into_iter().map(u32::try_from).collect();
            each.map_err(|_| wrong("a length is negative, or of 4 GiB and more".to_owned()))?
        }
        Some(_) => return Err(wrong("lengths are one array, in a .npy".to_owned())),
        None => {
            let bytes = std::fs::read(path).map_err(|e| failed(path, "cannot read it", &e))?;
            let (each, rest) = bytes.as_chunks::<4>();
            if !rest.is_empty() {
                let len = bytes.len();
                return Err(wrong(format!("{len} bytes are no whole number of u32")));
            }
            each.iter().map(|b| u32::from_le_bytes(*b)).collect()
        }
    };
    if each.is_empty() {
        return Err(empty(path.display()));
    }
    match each.iter().position(|len| *len == 0) {
        Some(index) => Err(wrong(format!("sample {index} has no bytes"))),
        None => Ok(each),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{bytes, file},
        *,
    };

    #[test]
    fn a_raw_file_is_samples_back_to_back() {
        let f = file(b"aaaabbbbcccc", "");
        let d = Dataset::raw(f.path(), 4).expect("three samples");
        assert_eq!((d.count(), d.len(2), d.len(3)), (3, Some(4), None));
        assert_eq!(bytes(&d, 1), b"bbbb");
    }

    #[test]
    fn an_empty_file_and_one_of_another_size_are_named() {
        let error = Dataset::raw(file(b"", "").path(), 4).expect_err("empty");
        assert!(error.to_string().contains("no samples"), "{error}");
        let f = file(b"aaaabb", "");
        let text = Dataset::raw(f.path(), 4).expect_err("uneven").to_string();
        assert!(text.contains("6 bytes are 1 samples of 4 bytes"), "{text}");
        assert!(text.contains(&f.path().display().to_string()), "{text}");
        let error = Dataset::raw(Path::new("/no/such/file"), 4).expect_err("absent");
        assert!(error.to_string().contains("/no/such/file: cannot open it"));
    }

    #[test]
    fn a_file_that_shrinks_is_an_error_and_no_panic() {
        let f = file(b"aaaabbbb", "");
        let d = Dataset::raw(f.path(), 4).expect("two samples");
        f.as_file().set_len(6).expect("cut");
        let error = d.read(1, &mut [0; 4]).expect_err("cut").to_string();
        assert!(error.contains("cannot read it"), "{error}");
    }

    #[test]
    fn a_ragged_file_is_samples_of_the_lengths_of_another() {
        let le = |lengths: &[u32]| -> Vec<u8> {
            lengths.iter().flat_map(|len| len.to_le_bytes()).collect()
        };
        let f = file(b"aabbbbc", "");
        let d = Dataset::ragged(f.path(), file(&le(&[2, 4, 1]), "").path()).expect("three");
        assert_eq!((d.count(), d.len(1), d.equal_len()), (3, Some(4), None));
        assert_eq!([0, 1, 2].map(|i| bytes(&d, i)), [&b"aa"[..], b"bbbb", b"c"]);
        let complaint = |lengths: &[u8]| {
            Dataset::ragged(f.path(), file(lengths, "").path())
                .expect_err("wrong")
                .to_string()
        };
        assert!(complaint(&le(&[2, 4])).contains("add up to 6 bytes"));
        assert!(complaint(&le(&[7, 0])).contains("sample 1 has no bytes"));
        assert!(complaint(&[1, 0, 0]).contains("3 bytes are no whole"));
        assert!(complaint(&[]).contains("no samples"));
    }
}
