//! SHA-256 of files and of bytes in memory.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use sha2::{Digest, Sha256};

/// Bytes of each read.
const CHUNK: usize = 1 << 20;

/// The hash as 64 hexadecimal digits, and the file's length in bytes.
///
/// # Errors
/// The file does not exist, or a read fails.
pub fn sha256_of_file(path: &Path) -> io::Result<(String, u64)> {
    if !path.metadata()?.is_file() {
        // Reading a pipe may wait for ever.
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no plain file",
        ));
    }
    let mut file = File::open(path)?;
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut chunk = vec![0; CHUNK];
    loop {
        let n = match file.read(&mut chunk) {
            Ok(0) => return Ok((hex::encode(hash.finalize()), bytes)),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        hash.update(&chunk[..n]);
        bytes += n as u64;
    }
}

/// The hash of bytes in memory, as 64 hexadecimal digits.
pub fn sha256_of(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_sha256sum_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("abc");
        std::fs::write(&path, "abc").expect("written");
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let hashed = sha256_of_file(&path).expect("readable");
        assert_eq!(hashed, (abc.to_owned(), 3));
        assert_eq!(sha256_of(b"abc"), abc);
        let long = vec![7; 2 * CHUNK + 5];
        std::fs::write(&path, &long).expect("written");
        let (hash, bytes) = sha256_of_file(&path).expect("readable");
        assert_eq!((hash, bytes), (sha256_of(&long), long.len() as u64));
        assert!(sha256_of_file(&folder.path().join("none")).is_err());
    }
}
