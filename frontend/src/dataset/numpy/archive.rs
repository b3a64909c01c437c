//! The arrays of a `.npz`. What is stored is read where it lies, what is compressed is unpacked to
//! memory.

use std::{
    fs::File,
    io::{BufReader, Read},
};

use zip::{CompressionMethod, ZipArchive};

use super::{Array, Asked, Bytes, header::Header};

/// What NumPy puts behind the name of each array.
const END: &str = ".npy";

/// The arrays of an archive that are `asked` for; `None` where no file in it is one, so that it is
/// no `.npz`. The others are not looked at.
///
/// # Errors
/// In words: what is wrong with the archive or an array that is asked for, with its name.
pub(super) fn arrays(file: &File, asked: Asked<'_>) -> Result<Option<Vec<Array>>, String> {
    let again = || file.try_clone().map_err(|e| e.to_string());
    let odd = |e: zip::result::ZipError| format!("it is a broken zip archive ({e})");
    let mut archive = ZipArchive::new(BufReader::new(again()?)).map_err(odd)?;
    let mut names = Vec::new();
    for i in 0..archive.len() {
        let entry = archive.by_index_raw(i).map_err(odd)?;
        let name = entry.name().strip_suffix(END);
        names.extend(name.map(|name| (i, name.to_owned())));
    }
    if names.is_empty() {
        return Ok(None);
    }
    let all: Vec<&str> = names.iter().map(|(_, name)| &**name).collect();
    let wanted = all.iter().map(|name| asked(name, &all));
    let wanted: Vec<bool> = wanted.collect();
    let mut found = Vec::new();
    for ((i, name), _) in names.into_iter().zip(wanted).filter(|(_, wanted)| *wanted) {
        let refuse = |why: String| format!("array `{}`: {why}", name.escape_debug());
        if name.contains(char::is_control) {
            // It is shown in lines and chosen by its name in a configuration.
            return Err(refuse("its name has control characters".to_owned()));
        }
        let mut entry = archive.by_index(i).map_err(|e| refuse(e.to_string()))?;
        let size = entry.size();
        let (header, own) = Header::read(&mut entry, size).map_err(refuse)?;
        let bytes = match (entry.compression(), entry.data_start()) {
            (CompressionMethod::Stored, Some(at)) => Bytes::File(again()?, at + own),
            _ => {
                // It grows as it comes: what the archive says of its size may be a lie.
                let mut bytes = Vec::new();
                let read = entry.take(size).read_to_end(&mut bytes);
                read.map_err(|e| refuse(format!("it cannot be unpacked: {e}")))?;
                header.check_size(bytes.len() as u64).map_err(refuse)?;
                Bytes::Memory(bytes.into())
            }
        };
        found.push(Array {
            name,
            header,
            bytes,
        });
    }
    Ok(Some(found))
}
