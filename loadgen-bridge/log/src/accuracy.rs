//! Reads LoadGen's accuracy log one record at a time, since the log may exceed memory.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Maximum length of a record's line in bytes: two hexadecimal digits for each response byte.
const RECORD_AT_MOST: u64 = 1 << 30;

/// A defect of an accuracy log.
#[derive(Debug, thiserror::Error)]
#[error("{path}:{line}: {why}")]
pub struct LogError {
    /// The file.
    pub path: PathBuf,
    /// Number of the line, from 1; 0 if the file cannot be opened.
    pub line: usize,
    /// What is wrong with the line.
    pub why: String,
}

/// A logged response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccuracyRecord {
    /// The sample's position in the order of issue.
    pub seq_id: u64,
    /// Index of the sample in the QSL.
    pub qsl_idx: u64,
    /// The response's bytes.
    pub data: Vec<u8>,
    /// The first token's bytes, if LoadGen measured tokens.
    pub token_data: Option<Vec<u8>>,
    /// Number of tokens, if LoadGen measured tokens.
    pub token_count: Option<i64>,
}

/// The fields of a record's line; hexadecimal text borrows from the line.
#[derive(Deserialize)]
struct RecordLine<'a> {
    seq_id: u64,
    qsl_idx: u64,
    data: &'a str,
    token_data: Option<&'a str>,
    token_count: Option<i64>,
}

/// Iterates over the records of a log in their order. The iteration ends after the first error.
#[derive(Debug)]
pub struct AccuracyLog<R> {
    path: PathBuf,
    reader: R,
    buffer: Vec<u8>,
    line: usize,
    place: LogPosition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogPosition {
    Start,
    Records { comma: bool },
    End,
}

impl AccuracyLog<BufReader<File>> {
    /// Opens a log.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        let opened = crate::open_file(path);
        let file = opened.map_err(|error| LogError {
            path: path.to_owned(),
            line: 0,
            why: format!("cannot open it: {error}"),
        })?;
        Ok(Self::new(BufReader::with_capacity(1 << 20, file), path))
    }
}

impl<R: BufRead> AccuracyLog<R> {
    /// Reads a log from any reader; `path` is for errors.
    pub fn new(reader: R, path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            reader,
            buffer: Vec::new(),
            line: 0,
            place: LogPosition::Start,
        }
    }

    fn error(&self, why: String) -> LogError {
        LogError {
            path: self.path.clone(),
            line: self.line,
            why,
        }
    }

    /// The next non-empty line, trimmed; empty at the end of the file.
    fn next_line(&mut self) -> Result<&[u8], LogError> {
        loop {
            self.buffer.clear();
            self.line += 1;
            let read = (&mut self.reader)
                .take(RECORD_AT_MOST)
                .read_until(b'\n', &mut self.buffer);
            let read = read.map_err(|error| self.error(error.to_string()))?;
            if read as u64 == RECORD_AT_MOST {
                return Err(self.error("a record of 1 GiB or more".to_owned()));
            }
            if read == 0 || !self.buffer.trim_ascii().is_empty() {
                return Ok(self.buffer.trim_ascii());
            }
        }
    }

    fn record(&mut self) -> Result<Option<AccuracyRecord>, LogError> {
        if self.place == LogPosition::Start {
            match self.next_line()? {
                b"[" => self.place = LogPosition::Records { comma: true },
                b"" => return Err(self.error("it is empty".to_owned())),
                _ => return Err(self.error("it does not begin with [".to_owned())),
            }
        }
        let LogPosition::Records { comma } = self.place else {
            return Ok(None);
        };
        let line = match self.next_line()? {
            b"]" => {
                self.place = LogPosition::End;
                return Ok(None);
            }
            b"" => {
                return Err(self.error("it ends before its ]; was the run cut short?".to_owned()));
            }
            line => line,
        };
        let (record, followed) = match line.strip_suffix(b",") {
            Some(record) => (record, true),
            None => (line, false),
        };
        let decoded = decode(record);
        self.place = LogPosition::Records { comma: followed };
        if !comma {
            return Err(self.error("there is no comma before this record".to_owned()));
        }
        decoded.map(Some).map_err(|why| self.error(why))
    }
}

fn decode(record: &[u8]) -> Result<AccuracyRecord, String> {
    let line: RecordLine<'_> = serde_json::from_slice(record).map_err(|error| error.to_string())?;
    let bytes =
        |what: &str, text: &str| hex::decode(text).map_err(|error| format!("{what}: {error}"));
    Ok(AccuracyRecord {
        seq_id: line.seq_id,
        qsl_idx: line.qsl_idx,
        data: bytes("data", line.data)?,
        token_data: line
            .token_data
            .map(|text| bytes("token_data", text))
            .transpose()?,
        token_count: line.token_count,
    })
}

impl<R: BufRead> Iterator for AccuracyLog<R> {
    type Item = Result<AccuracyRecord, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.record();
        if record.is_err() {
            self.place = LogPosition::End;
        }
        record.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Result<AccuracyRecord, String>> {
        let log = AccuracyLog::new(text.as_bytes(), Path::new("accuracy.json"));
        log.map(|record| record.map_err(|error| error.to_string()))
            .collect()
    }

    const FIRST: &str = "{ \"seq_id\" : 0, \"qsl_idx\" : 7, \"data\" : \"00FF1a\" }";

    #[test]
    fn records_are_read() {
        let tokens = "{ \"seq_id\" : 1, \"qsl_idx\" : 2, \"data\" : \"\", \"token_data\" : \"0B\", \"token_count\" : 5 }";
        let records = read(&format!("[\n{FIRST},\n{tokens}\n]\n"));
        let records: Vec<_> = records.into_iter().map(Result::unwrap).collect();
        let [first, second] = &records[..] else {
            panic!("{records:?}")
        };
        assert_eq!(
            (first.seq_id, first.qsl_idx, &first.data[..]),
            (0, 7, &[0, 255, 26][..])
        );
        assert_eq!(
            (second.token_data.as_deref(), second.token_count),
            (Some(&[11][..]), Some(5))
        );
    }

    #[test]
    fn a_log_without_records_is_fine() {
        assert_eq!(read("[\n]\n"), []);
    }

    #[test]
    fn broken_logs_give_one_error_with_its_line() {
        for (text, part) in [
            ("", "accuracy.json:1: it is empty"),
            ("{}", "accuracy.json:1: it does not begin"),
            ("[\nFIRST", "accuracy.json:3: it ends before"),
            ("[\nFIRST\nFIRST\n]\n", "accuracy.json:3: there is no comma"),
            ("[\n{ \"seq_id\" : 0, \"qsl_i", "accuracy.json:2: EOF"),
            ("[\nODD\n]", "accuracy.json:2: data: Odd"),
            ("[\nNEGATIVE\n]", "accuracy.json:2: invalid value"),
        ] {
            let text = text.replace("FIRST", FIRST);
            let text = text.replace("ODD", &FIRST.replace("00FF1a", "0"));
            let text = text.replace("NEGATIVE", &FIRST.replace("7", "-1"));
            let records = read(&text);
            let Some(Err(error)) = records.last() else {
                panic!("{text}: {records:?}")
            };
            assert!(error.contains(part), "{text}: {error}");
            assert_eq!(records.iter().filter(|record| record.is_err()).count(), 1);
        }
    }
}
