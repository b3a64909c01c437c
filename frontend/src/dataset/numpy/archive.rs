//! The arrays of a `.npz`. Stored arrays are read in place, compressed arrays are decompressed into
//! memory.

use std::{
    fs::File,
    io::{BufReader, Read},
};

use zip::{CompressionMethod, ZipArchive};

use super::{Array, Arrays, ElementBytes, Selector, header::Header};

/// Suffix that NumPy adds to each array's name.
const END: &str = ".npy";

/// Reads only the arrays of an archive that `select` chooses. Returns `None` if no file in the
/// archive is an array: then the archive is no `.npz`.
pub(super) fn arrays(file: &File, select: Selector<'_>) -> Result<Option<Arrays>, String> {
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
    let mut opened = Vec::new();
    for (i, name) in names.iter().filter(|(_, name)| select(name, &all)) {
        let refuse = |why: String| format!("array `{}`: {why}", name.escape_debug());
        if name.contains(char::is_control) {
            // The name appears in one-line messages and in configurations.
            return Err(refuse("its name has control characters".to_owned()));
        }
        let mut entry = archive.by_index(*i).map_err(|e| refuse(e.to_string()))?;
        let size = entry.size();
        let (header, own) = Header::read(&mut entry, size).map_err(refuse)?;
        let bytes = match (entry.compression(), entry.data_start()) {
            (CompressionMethod::Stored, Some(at)) => ElementBytes::File(again()?, at + own),
            _ => {
                // Let the buffer grow with the data: the size in the archive may be wrong.
                let mut bytes = Vec::new();
                let read = entry.take(size).read_to_end(&mut bytes);
                read.map_err(|e| refuse(format!("it cannot be unpacked: {e}")))?;
                header.check_size(bytes.len() as u64).map_err(refuse)?;
                ElementBytes::Memory(bytes.into())
            }
        };
        opened.push(Array {
            name: name.clone(),
            header,
            bytes,
        });
    }
    let names = names.into_iter().map(|(_, name)| name).collect();
    Ok(Some(Arrays { opened, names }))
}
