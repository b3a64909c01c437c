//! The file of a flight: little-endian, with its version. `docs/flight.md` is its page.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use super::ring::{RECORD_BYTES, Record};
use crate::clock::now_ns;

/// Version of the format.
pub const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"QDLFLITE";
/// Longest name in a file, in bytes.
const NAME: usize = 256;
/// Most names of connections, and threads.
const MOST: usize = 1 << 16;

/// What one node recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flight {
    /// The node's name.
    pub node: String,
    /// When it was written, on the node's clock of records, and in nanoseconds since 1970: by these
    /// two nodes' records are laid beside each other, as well as their clocks agree.
    pub dumped_ns: u64,
    /// See `dumped_ns`.
    pub dumped_unix_ns: u64,
    /// When the first query was issued; 0 where that is not known.
    pub first_ns: u64,
    /// Names of connections, by index; none at an accelerator, whose records have the numbers that
    /// the frontend gave.
    pub connections: Vec<String>,
    /// Each thread.
    pub threads: Vec<ThreadFlight>,
}

/// What one thread recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadFlight {
    /// Its name.
    pub name: String,
    /// The newest records, the oldest of them first.
    pub records: Vec<Record>,
    /// Older ones that were overwritten.
    pub overwritten: u64,
}

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FlightError {
    /// The file itself.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What is in it.
    #[error("{}: {problem}", path.display())]
    Format {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

impl Flight {
    /// Of now.
    pub(super) fn now(
        node: &str,
        first_ns: u64,
        connections: Vec<String>,
        threads: Vec<ThreadFlight>,
    ) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        Flight {
            node: node.to_owned(),
            dumped_ns: now_ns(),
            dumped_unix_ns: unix.map_or(0, |d| d.as_nanos() as u64),
            first_ns,
            connections,
            threads,
        }
    }

    /// As the bytes of a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let records: usize = self.threads.iter().map(|t| t.records.len()).sum();
        let mut out = Vec::with_capacity(records * RECORD_BYTES + 4096);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend((RECORD_BYTES as u32).to_le_bytes());
        for n in [self.dumped_ns, self.dumped_unix_ns, self.first_ns] {
            out.extend(n.to_le_bytes());
        }
        name(&mut out, &self.node);
        count(&mut out, self.connections.len());
        self.connections.iter().for_each(|c| name(&mut out, c));
        count(&mut out, self.threads.len());
        for t in &self.threads {
            name(&mut out, &t.name);
            out.extend(t.overwritten.to_le_bytes());
            out.extend((t.records.len() as u64).to_le_bytes());
            for word in t.records.iter().flat_map(Record::words) {
                out.extend(word.to_le_bytes());
            }
        }
        out
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let part = path.with_extension("bin.part");
        let mut file = fs::File::create(&part)?;
        file.write_all(&self.to_bytes())?;
        drop(file);
        fs::rename(&part, path)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`FlightError`] says what is wrong with which file.
    pub fn read(path: &Path) -> Result<Flight, FlightError> {
        let bytes = fs::read(path).map_err(|source| FlightError::Io {
            path: path.to_owned(),
            source,
        })?;
        Flight::from_bytes(&bytes).map_err(|problem| FlightError::Format {
            path: path.to_owned(),
            problem,
        })
    }

    /// From the bytes of a file.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Flight, String> {
        let mut from = Reader { bytes };
        if from.take(MAGIC.len())? != MAGIC {
            return Err("this is no flight recorder's file".to_owned());
        }
        let version = from.u32()?;
        if version != VERSION {
            return Err(format!("version {version}, this program reads {VERSION}"));
        }
        let record = from.u32()?;
        if record as usize != RECORD_BYTES {
            return Err(format!("records of {record} bytes, not of {RECORD_BYTES}"));
        }
        let (dumped_ns, dumped_unix_ns, first_ns) = (from.u64()?, from.u64()?, from.u64()?);
        let node = from.name()?;
        let connections = (0..from.count()?).map(|_| from.name());
        let connections = connections.collect::<Result<Vec<_>, _>>()?;
        let threads = (0..from.count()?).map(|_| from.thread());
        let threads = threads.collect::<Result<Vec<_>, _>>()?;
        if !from.bytes.is_empty() {
            return Err(format!("{} bytes too many", from.bytes.len()));
        }
        Ok(Flight {
            node,
            dumped_ns,
            dumped_unix_ns,
            first_ns,
            connections,
            threads,
        })
    }
}

fn name(out: &mut Vec<u8>, name: &str) {
    let mut end = name.len().min(NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    count(out, end);
    out.extend(&name.as_bytes()[..end]);
}

fn count(out: &mut Vec<u8>, n: usize) {
    out.extend((n as u32).to_le_bytes());
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let split = self.bytes.split_at_checked(n);
        let (taken, rest) = split.ok_or_else(|| "it ends too soon".to_owned())?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| "it ends too soon".to_owned())
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    fn count(&mut self) -> Result<usize, String> {
        let n = self.u32()? as usize;
        match n <= MOST {
            true => Ok(n),
            false => Err(format!("{n} names, at most {MOST} can be")),
        }
    }

    fn name(&mut self) -> Result<String, String> {
        let n = self.count()?.min(NAME);
        let name = String::from_utf8_lossy(self.take(n)?);
        Ok(name.chars().filter(|c| !c.is_control()).collect())
    }

    fn thread(&mut self) -> Result<ThreadFlight, String> {
        let name = self.name()?;
        let overwritten = self.u64()?;
        let n = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        let bytes = self.take(n.saturating_mul(RECORD_BYTES))?;
        let word = |b: &[u8]| b.iter().rev().fold(0u64, |w, b| w << 8 | u64::from(*b));
        let record = |r: &[u8]| {
            let at = |i: usize| r.get(8 * i..8 * i + 8).map_or(0, word);
            Record::from_words([at(0), at(1), at(2), at(3)])
        };
        Ok(ThreadFlight {
            name,
            records: bytes.chunks_exact(RECORD_BYTES).map(record).collect(),
            overwritten,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight() -> Flight {
        let record = |n: u64| Record {
            at_ns: 1_000 + n,
            kind: 5,
            connection: 2,
            slot: n as u16,
            count: 1,
            size: 150_528,
            aux: n << 40,
        };
        let thread = |name: &str, n| ThreadFlight {
            name: name.to_owned(),
            records: (0..n).map(record).collect(),
            overwritten: n,
        };
        Flight {
            node: "fe".to_owned(),
            dumped_ns: 99,
            dumped_unix_ns: 1_700_000_000_000_000_000,
            first_ns: 7,
            connections: vec!["acc/0".to_owned(), "acc/1".to_owned()],
            threads: vec![thread("nic-0", 50), thread("issue", 0)],
        }
    }

    #[test]
    fn a_file_reads_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("flight-fe.bin");
        flight().write(&path).expect("written");
        assert_eq!(Flight::read(&path).expect("reads"), flight());
        // A record is where the page says: behind names and counts, 32 bytes each.
        let bytes = flight().to_bytes();
        assert_eq!(bytes[8..12], [1, 0, 0, 0]);
        let first = bytes.windows(8).position(|w| w == 1_000u64.to_le_bytes());
        let first = first.expect("the first record's time");
        assert_eq!(bytes[first + 8], 5);
        assert_eq!(bytes[first + RECORD_BYTES..][..8], 1_001u64.to_le_bytes());
    }

    #[test]
    fn files_that_are_none_are_refused_in_words_and_never_panic() {
        let bytes = flight().to_bytes();
        for cut in 0..bytes.len() {
            assert!(Flight::from_bytes(&bytes[..cut]).is_err(), "{cut}");
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Flight::from_bytes(&bytes)
        };
        assert!(with(0, b'X').is_err_and(|e| e.contains("no flight")));
        assert!(with(8, 9).is_err_and(|e| e.contains("version 9")));
        assert!(with(12, 31).is_err_and(|e| e.contains("31 bytes")));
        for at in 16..bytes.len().min(400) {
            let _ = with(at, 0xff);
        }
        let mut long = bytes.clone();
        long.push(0);
        assert!(Flight::from_bytes(&long).is_err_and(|e| e.contains("too many")));
        let missing = Flight::read(Path::new("/nowhere/flight-x.bin")).expect_err("no file");
        assert!(missing.to_string().contains("/nowhere/flight-x.bin"));
    }
}
