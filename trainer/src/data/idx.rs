//! IDX files, the format of MNIST and its successors: a magic number, the size of each dimension (32 bits,
//! big endian), then the bytes. Plain or compressed by gzip. Every error names the file and the offset in
//! its uncompressed content.

use crate::task::DataError;
use flate2::read::GzDecoder;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// An array of unsigned bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idx {
    /// The file that it was read from.
    pub path: PathBuf,
    /// Size of each dimension.
    pub dimensions: Vec<usize>,
    /// The elements, row-major.
    pub bytes: Vec<u8>,
}

impl Idx {
    /// Offset of element `index` in the uncompressed file.
    #[must_use]
    pub fn offset(&self, index: usize) -> usize {
        header_bytes(self.dimensions.len()) + index
    }
}

/// The file `name` in `directory`, or `name.gz` if only that is there.
///
/// # Errors
/// When there is neither; `hint` says how to get it.
pub fn find(directory: &Path, name: &str, hint: &str) -> Result<PathBuf, DataError> {
    let plain = directory.join(name);
    let compressed = directory.join(format!("{name}.gz"));
    for path in [&plain, &compressed] {
        match std::fs::metadata(path) {
            Ok(_) => return Ok(path.clone()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => {
                return Err(DataError::Read {
                    path: path.clone(),
                    source,
                    hint: String::new(),
                });
            }
        }
    }
    Err(DataError::Read {
        path: plain,
        source: ErrorKind::NotFound.into(),
        hint: format!("{name}.gz is not there either; {hint}"),
    })
}

/// Reads an array of unsigned bytes with `dimensions` dimensions; gzip is recognised by its first bytes.
///
/// # Errors
/// When the file cannot be read, is no such array, is cut short, or goes on after its last element.
pub fn read(path: &Path, dimensions: u8) -> Result<Idx, DataError> {
    let file = || {
        File::open(path).map_err(|source| DataError::Read {
            path: path.to_owned(),
            source,
            hint: String::new(),
        })
    };
    let mut start = [0; 2];
    let gzip = file()?.read_exact(&mut start).is_ok() && start == [0x1f, 0x8b];
    let file = std::io::BufReader::with_capacity(1 << 16, file()?);
    if gzip {
        parse(path, dimensions, &mut GzDecoder::new(file))
    } else {
        parse(path, dimensions, &mut { file })
    }
}

fn parse(path: &Path, dimensions: u8, reader: &mut dyn Read) -> Result<Idx, DataError> {
    let content = |problem: String| DataError::Content {
        path: path.to_owned(),
        problem,
    };
    let header = read_up_to(path, reader, 0, header_bytes(usize::from(dimensions)))?;
    let expected = u32::from_be_bytes([0, 0, 0x08, dimensions]);
    let magic = header.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    if let Some(magic) = magic.filter(|magic| *magic != expected) {
        return Err(content(format!(
            "starts with {magic:#010x} at offset 0, not {expected:#010x} (IDX, unsigned bytes, {dimensions} dimensions)"
        )));
    }
    if header.len() < header_bytes(usize::from(dimensions)) {
        return Err(content(format!(
            "ends at offset {}, within its header of {} bytes; get the file again",
            header.len(),
            header_bytes(usize::from(dimensions))
        )));
    }
    let sizes: Vec<usize> = header[4..]
        .chunks_exact(4)
        .map(|size| {
            size.iter()
                .fold(0, |number, byte| (number << 8) | usize::from(*byte))
        })
        .collect();
    let shape = sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
    let length = sizes
        .iter()
        .try_fold(1usize, |product, size| product.checked_mul(*size))
        .filter(|length| *length < usize::MAX / 2)
        .ok_or_else(|| {
            content(format!(
                "announces {shape} elements at offset 4: no file is so long"
            ))
        })?;
    // One byte more than announced shows whether anything follows. Memory grows with what is really there.
    let bytes = read_up_to(path, reader, header.len(), length + 1)?;
    if bytes.len() < length {
        return Err(content(format!(
            "is cut short: it announces {shape} = {length} elements and ends after {} of them, at offset {}; get the file again",
            bytes.len(),
            header.len() + bytes.len()
        )));
    }
    if bytes.len() > length {
        return Err(content(format!(
            "goes on after its {shape} = {length} elements, at offset {}; get the file again",
            header.len() + length
        )));
    }
    Ok(Idx {
        path: path.to_owned(),
        dimensions: sizes,
        bytes,
    })
}

fn header_bytes(dimensions: usize) -> usize {
    4 + 4 * dimensions
}

/// Reads `length` bytes, or fewer at the end of the file.
fn read_up_to(
    path: &Path,
    reader: &mut dyn Read,
    offset: usize,
    length: usize,
) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    match reader.take(length as u64).read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        // What gzip calls an unexpected end or invalid data is the content's fault.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput
            ) =>
        {
            Err(DataError::Content {
                path: path.to_owned(),
                problem: format!(
                    "its compression is damaged after offset {} of the content ({error}); get the file again",
                    offset + bytes.len()
                ),
            })
        }
        Err(source) => Err(DataError::Read {
            path: path.to_owned(),
            source,
            hint: String::new(),
        }),
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    //! Small IDX files for tests.

    use std::io::Write;
    use std::path::Path;

    /// Writes an array of unsigned bytes; compressed if `path` ends in `.gz`.
    pub(crate) fn write(path: &Path, dimensions: &[usize], bytes: &[u8]) {
        let mut content = vec![0, 0, 8, dimensions.len() as u8];
        for size in dimensions {
            content.extend((*size as u32).to_be_bytes());
        }
        content.extend(bytes);
        write_raw(path, &content);
    }

    /// Writes any content; compressed if `path` ends in `.gz`.
    pub(crate) fn write_raw(path: &Path, content: &[u8]) {
        if path.extension().is_some_and(|extension| extension == "gz") {
            let file = std::fs::File::create(path).unwrap();
            let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap();
        } else {
            std::fs::write(path, content).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::{write, write_raw};
    use super::*;

    #[test]
    fn plain_and_compressed_files_read_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..24).collect();
        for name in ["a", "b.gz"] {
            let path = folder.path().join(name);
            write(&path, &[2, 3, 4], &bytes);
            let idx = read(&path, 3).unwrap();
            assert_eq!((idx.dimensions, idx.bytes), (vec![2, 3, 4], bytes.clone()));
        }
        assert_eq!(find(folder.path(), "a", "").unwrap(), folder.path().join("a"));
        assert_eq!(find(folder.path(), "b", "").unwrap(), folder.path().join("b.gz"));
    }

    #[test]
    fn each_damage_is_named_with_file_and_offset() {
        let folder = tempfile::tempdir().unwrap();
        let whole = [&[0, 0, 8, 1, 0, 0, 0, 5][..], b"abcde"].concat();
        let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut content = whole.clone();
            change(&mut content);
            ["plain", "packed.gz"].map(|name| {
                let path = folder.path().join(name);
                write_raw(&path, &content);
                let error = read(&path, 1).unwrap_err().to_string();
                let prefix = format!("read {}: ", path.display());
                error
                    .strip_prefix(&prefix)
                    .unwrap_or_else(|| panic!("{error}"))
                    .to_owned()
            })
        };
        for (errors, expected) in [
            (
                damaged(&|c| c[3] = 3),
                "starts with 0x00000803 at offset 0, not 0x00000801 (IDX, unsigned bytes, 1 dimensions)",
            ),
            (
                damaged(&|c| c.truncate(6)),
                "ends at offset 6, within its header of 8 bytes; get the file again",
            ),
            (
                damaged(&|c| c.truncate(0)),
                "ends at offset 0, within its header of 8 bytes; get the file again",
            ),
            (
                damaged(&|c| c.truncate(11)),
                "is cut short: it announces 5 = 5 elements and ends after 3 of them, at offset 11; get the file again",
            ),
            (
                damaged(&|c| c.push(1)),
                "goes on after its 5 = 5 elements, at offset 13; get the file again",
            ),
        ] {
            assert_eq!(errors, [expected, expected]);
        }
    }

    #[test]
    fn damaged_compression_is_told_from_a_short_array() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.gz");
        write(
            &path,
            &[50_000],
            &(0..50_000u32)
                .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
                .collect::<Vec<_>>(),
        );
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let error = read(&path, 1).unwrap_err().to_string();
        assert!(error.contains("compression is damaged after offset"), "{error}");
        let mut flipped = whole.clone();
        let last = flipped.len() - 6;
        flipped[last] ^= 1;
        std::fs::write(&path, &flipped).unwrap();
        let error = read(&path, 1).unwrap_err().to_string();
        assert!(error.contains("compression is damaged after offset"), "{error}");
    }

    #[test]
    fn a_missing_file_says_where_it_was_looked_for_and_how_to_get_it() {
        let error = find(Path::new("/nowhere"), "train-labels", "install it")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("read /nowhere/train-labels: ")
                && error.ends_with("; train-labels.gz is not there either; install it"),
            "{error}"
        );
    }

    #[test]
    fn a_huge_announcement_takes_no_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        write_raw(&path, &[&[0, 0, 8, 3][..], &[0xff; 12], b"abc"].concat());
        assert!(
            read(&path, 3)
                .unwrap_err()
                .to_string()
                .contains("no file is so long")
        );
        write_raw(&path, &[&[0, 0, 8, 1][..], &[0xff; 4], b"abc"].concat());
        assert!(
            read(&path, 1)
                .unwrap_err()
                .to_string()
                .contains("ends after 3 of them")
        );
    }
}
