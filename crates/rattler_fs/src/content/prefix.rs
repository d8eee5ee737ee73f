//! Prefix replacement as a list of edits, so that any range of a patched file is read without making the whole.
//!
//! Where the placeholder stands is found by rattler's own search, the one its installer uses; see
//! `rattler::install::link`. A file is looked at once, when its size (text) or its bytes are first asked for.

use std::{fs::File, io, os::unix::fs::FileExt};

use memchr::memmem::Finder;
use rattler::install::link::{
    OffsetReplaceError, copy_and_replace_placeholders_with_offsets, find_cstring_occurrences,
    find_text_occurrences, replace_shebang_region,
};
use rattler_conda_types::{
    Subdir,
    package::{FileMode, OffsetEncoding},
};

use super::{PatchedFile, ReadSink};

/// Why a file's placeholder cannot be replaced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PatchError {
    /// The prefix does not fit where the placeholder stands in a binary.
    #[error("the prefix is longer than the placeholder that it has to replace in a binary")]
    PrefixTooLong,
    /// The file could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Binaries above this size are searched piece by piece. Text is always read whole. Tests use small files.
const WHOLE_FILE_MAX: u64 = if cfg!(test) { 64 } else { 4 << 20 };

/// Larger files that would have to be read whole give an error: no package may take all memory.
const READ_WHOLE_MAX: u64 = 512 << 20;

/// Size of such a piece.
const CHUNK: usize = if cfg!(test) { 128 } else { 1 << 20 };

/// The difference between a file as stored and as it stands in the environment.
#[derive(Debug)]
pub(crate) struct Edits {
    edits: Vec<Edit>,
    /// The inserted bytes of all edits.
    data: Vec<u8>,
    source_size: u64,
}

#[derive(Debug, Clone, Copy)]
struct Edit {
    /// Where in the stored file.
    source: u64,
    /// How many stored bytes are left out there.
    removed: u64,
    /// Where in the patched file the insertion begins.
    target: u64,
    /// What is inserted, a range of [`Edits::data`].
    data: usize,
    inserted: usize,
}

impl Edits {
    fn new(source_size: u64) -> Self {
        Self {
            edits: Vec::new(),
            data: Vec::new(),
            source_size,
        }
    }

    /// Size of the patched file in bytes.
    pub(crate) fn size(&self) -> u64 {
        match self.edits.last() {
            Some(last) => {
                last.target + last.inserted as u64 + (self.source_size - last.source - last.removed)
            }
            None => self.source_size,
        }
    }

    /// Memory that the list takes, in bytes.
    pub(crate) fn weight(&self) -> usize {
        size_of::<Self>() + self.edits.capacity() * size_of::<Edit>() + self.data.capacity()
    }

    /// Gives the patched bytes `offset..offset + len`, or those of them that exist, to `sink`. Returns how many.
    pub(crate) fn read(
        &self,
        source: &mut File,
        offset: u64,
        len: usize,
        sink: &mut dyn ReadSink,
    ) -> io::Result<usize> {
        let end = self.size().min(offset.saturating_add(len as u64));
        let mut position = offset;
        let mut next = self
            .edits
            .partition_point(|edit| edit.target + edit.inserted as u64 <= offset);
        while position < end {
            let edit = self.edits.get(next);
            let until = edit.map_or(end, |edit| edit.target.min(end));
            if position < until {
                let source_offset = match next.checked_sub(1).map(|before| &self.edits[before]) {
                    Some(before) => {
                        before.source
                            + before.removed
                            + (position - before.target - before.inserted as u64)
                    }
                    None => position,
                };
                sink.copy_from(source, source_offset, (until - position) as usize)?;
                position = until;
            } else if let Some(edit) = edit {
                let from = (position - edit.target) as usize;
                let to = edit.inserted.min((end - edit.target) as usize);
                sink.put(&self.data[edit.data + from..edit.data + to])?;
                position = edit.target + to as u64;
                next += 1;
            }
        }
        Ok(end.saturating_sub(offset) as usize)
    }

    /// Bytes to be inserted by edits; the result is for [`Edits::push`].
    fn keep(&mut self, bytes: &[u8]) -> (usize, usize) {
        let start = self.data.len();
        self.data.extend_from_slice(bytes);
        (start, bytes.len())
    }

    /// Appends an edit; they come in order and do not overlap.
    fn push(&mut self, source: u64, removed: u64, (data, inserted): (usize, usize)) {
        let target = match self.edits.last() {
            Some(last) => {
                last.target + last.inserted as u64 + (source - last.source - last.removed)
            }
            None => source,
        };
        self.edits.push(Edit {
            source,
            removed,
            target,
            data,
            inserted,
        });
    }
}

/// Finds what changes in `source` when the placeholder of `file` gives way to `prefix`.
pub(crate) fn find_edits(
    source: &File,
    file: &PatchedFile,
    prefix: &str,
    platform: Subdir,
) -> Result<Edits, PatchError> {
    let mut edits = if let Some(edits) = edits_by_offsets(source, file, prefix, platform)? {
        edits
    } else {
        match file.mode {
            FileMode::Text => text_edits(
                &read_whole(source, file.source_size)?,
                &file.placeholder,
                prefix,
                platform,
            ),
            // The installer leaves binaries alone there.
            FileMode::Binary if platform.is_windows() => Edits::new(file.source_size),
            FileMode::Binary => {
                BinaryEdits::new(&file.placeholder, prefix, file.source_size).find(source)?
            }
        }
    };
    edits.edits.shrink_to_fit();
    edits.data.shrink_to_fit();
    Ok(edits)
}

/// Offsets that a package carries win over a search where they agree with the file, as in the installer. They may name
/// fewer places than a search finds, and only rattler knows whether they agree: the patched file is kept whole.
fn edits_by_offsets(
    source: &File,
    file: &PatchedFile,
    prefix: &str,
    platform: Subdir,
) -> Result<Option<Edits>, PatchError> {
    let Some(offsets) = &file.offsets else {
        return Ok(None);
    };
    let bytes = read_whole(source, file.source_size)?;
    let mut patched = Vec::with_capacity(bytes.len());
    let outcome = copy_and_replace_placeholders_with_offsets(
        &bytes,
        &mut patched,
        &file.placeholder,
        prefix,
        &platform,
        file.mode,
        offsets,
    );
    match outcome {
        Ok(()) => {
            let mut edits = Edits::new(file.source_size);
            let data = edits.keep(&patched);
            edits.push(0, file.source_size, data);
            Ok(Some(edits))
        }
        Err(OffsetReplaceError::InconsistentMetadata(_)) => Ok(None),
        // Writing to memory fails for one reason only.
        Err(OffsetReplaceError::Io(_)) => Err(PatchError::PrefixTooLong),
    }
}

fn text_edits(bytes: &[u8], placeholder: &str, prefix: &str, platform: Subdir) -> Edits {
    let mut edits = Edits::new(bytes.len() as u64);
    let shebang_end = if platform.is_unix() && bytes.starts_with(b"#!") {
        memchr::memchr(b'\n', bytes).map_or(bytes.len(), |newline| newline + 1)
    } else {
        0
    };
    let shebang = &bytes[..shebang_end];
    let replaced = replace_shebang_region(shebang, placeholder, prefix, &platform);
    if replaced != shebang {
        let data = edits.keep(&replaced);
        edits.push(0, shebang_end as u64, data);
    }
    let mut targets = Targets::new(placeholder, prefix);
    for occurrence in find_text_occurrences(bytes, shebang_end, placeholder) {
        let target = targets.get(occurrence.encoding, &mut edits);
        edits.push(
            occurrence.offset as u64,
            target.placeholder_len as u64,
            target.data,
        );
    }
    edits
}

/// The prefix in the encodings that a file uses.
struct Targets<'p> {
    placeholder: &'p str,
    prefix: &'p str,
    known: Vec<(OffsetEncoding, Target)>,
}

#[derive(Clone, Copy)]
struct Target {
    placeholder_len: usize,
    data: (usize, usize),
}

impl<'p> Targets<'p> {
    fn new(placeholder: &'p str, prefix: &'p str) -> Self {
        Self {
            placeholder,
            prefix,
            known: Vec::new(),
        }
    }

    fn get(&mut self, encoding: OffsetEncoding, edits: &mut Edits) -> Target {
        if let Some((_, target)) = self.known.iter().find(|(known, _)| *known == encoding) {
            return *target;
        }
        let target = Target {
            placeholder_len: encoding.encode(self.placeholder).len(),
            data: edits.keep(&encoding.encode(self.prefix)),
        };
        self.known.push((encoding, target));
        target
    }
}

/// Search of a binary.
struct BinaryEdits<'p> {
    placeholder: &'p str,
    targets: Targets<'p>,
    edits: Edits,
    /// Where in [`Edits::data`] the zeros for padding are.
    zeros: (usize, usize),
}

impl<'p> BinaryEdits<'p> {
    fn new(placeholder: &'p str, prefix: &'p str, source_size: u64) -> Self {
        Self {
            placeholder,
            targets: Targets::new(placeholder, prefix),
            edits: Edits::new(source_size),
            zeros: (0, 0),
        }
    }

    fn find(mut self, source: &File) -> Result<Edits, PatchError> {
        let size = self.edits.source_size;
        if size <= WHOLE_FILE_MAX {
            self.add(&read_whole(source, size)?, 0)?;
            return Ok(self.edits);
        }
        let Some(places) = self.utf8_places(source)? else {
            self.add(&read_whole(source, size)?, 0)?;
            return Ok(self.edits);
        };
        let mut covered = 0;
        for place in places {
            if place < covered {
                continue;
            }
            // Rattler prefers strings that are aligned in the file, so the piece is aligned too.
            let start = place & !3;
            let bytes = read_string(source, start, place + self.placeholder.len() as u64, size)?;
            covered = start + bytes.len() as u64;
            self.add(&bytes, start)?;
        }
        Ok(self.edits)
    }

    /// Where the placeholder stands in UTF-8. `None` where it occurs in another encoding too: such strings may overlap
    /// in ways that only a search of the whole file resolves.
    fn utf8_places(&self, source: &File) -> io::Result<Option<Vec<u64>>> {
        let encoded: Vec<_> = OffsetEncoding::DEFINED
            .iter()
            .map(|encoding| encoding.encode(self.placeholder))
            .collect();
        let finders: Vec<_> = encoded.iter().map(Finder::new).collect();
        let overlap = encoded.iter().map(Vec::len).max().unwrap_or(1) - 1;
        let mut places = Vec::new();
        let mut buffer = vec![0; CHUNK + overlap];
        let mut start = 0;
        let size = self.edits.source_size;
        while start < size {
            let len = (buffer.len() as u64).min(size - start) as usize;
            let chunk = &mut buffer[..len];
            source.read_exact_at(chunk, start)?;
            for (finder, needle) in finders.iter().zip(&encoded) {
                // Each occurrence belongs to the piece in which it begins.
                let searched = &chunk[..len.min(CHUNK + needle.len() - 1)];
                for found in finder.find_iter(searched) {
                    if needle.len() != self.placeholder.len() {
                        return Ok(None);
                    }
                    places.push(start + found as u64);
                }
            }
            start += CHUNK as u64;
        }
        places.sort_unstable();
        Ok(Some(places))
    }

    /// Adds the edits of `bytes`, which stand at `start` in the file and hold whole strings.
    fn add(&mut self, bytes: &[u8], start: u64) -> Result<(), PatchError> {
        for string in find_cstring_occurrences(bytes, self.placeholder) {
            let target = self.targets.get(string.encoding, &mut self.edits);
            let shrinks_by = target
                .placeholder_len
                .checked_sub(target.data.1)
                .ok_or(PatchError::PrefixTooLong)?;
            for offset in &string.offsets {
                self.edits.push(
                    start + *offset as u64,
                    target.placeholder_len as u64,
                    target.data,
                );
            }
            // What follows moves to the front; zeros before the terminator keep the length.
            let padding = string.offsets.len() * shrinks_by;
            if padding > 0 {
                if self.zeros.1 < padding {
                    self.zeros = self.edits.keep(&vec![0; padding.next_power_of_two()]);
                }
                self.edits
                    .push(start + string.nul_pos as u64, 0, (self.zeros.0, padding));
            }
        }
        Ok(())
    }
}

/// Reads from `start` to the first zero byte at or after `from`, that byte included, or to the end of the file.
fn read_string(source: &File, start: u64, from: u64, size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut searched = (from - start) as usize;
    loop {
        let old = bytes.len();
        let len = ((searched + 4096).max(2 * old) as u64).min(size - start) as usize;
        bytes.resize(len, 0);
        source.read_exact_at(&mut bytes[old..], start + old as u64)?;
        if let Some(nul) = memchr::memchr(0, &bytes[searched..]) {
            bytes.truncate(searched + nul + 1);
            return Ok(bytes);
        }
        if start + len as u64 == size {
            return Ok(bytes);
        }
        searched = len;
    }
}

fn read_whole(source: &File, size: u64) -> io::Result<Vec<u8>> {
    if size > READ_WHOLE_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let size = usize::try_from(size).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let mut bytes = vec![0; size];
    source.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        sync::{Arc, OnceLock},
    };

    use proptest::prelude::*;
    use rattler::install::link::copy_and_replace_placeholders;

    use super::*;

    const PLACEHOLDER: &str = "/placeh/placeh";

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// What rattler's installer would write.
    fn installed(bytes: &[u8], mode: FileMode, prefix: &str) -> io::Result<Vec<u8>> {
        let mut patched = Vec::new();
        copy_and_replace_placeholders(
            bytes,
            &mut patched,
            PLACEHOLDER,
            prefix,
            &Subdir::Linux64,
            mode,
        )?;
        Ok(patched)
    }

    fn edits(bytes: &[u8], mode: FileMode, prefix: &str) -> Result<(File, Edits), PatchError> {
        let file = file_of(bytes);
        let patched = PatchedFile {
            mode,
            placeholder: Arc::from(PLACEHOLDER),
            offsets: None,
            source_size: bytes.len() as u64,
            source_mtime: crate::tree::Timestamp {
                seconds: 0,
                nanoseconds: 0,
            },
            sha256: OnceLock::new(),
        };
        let edits = find_edits(&file, &patched, prefix, Subdir::Linux64)?;
        Ok((file, edits))
    }

    /// Pieces that files are made of: text, strings, the placeholder in each encoding, and halves of it.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let placeholder = |encoding: OffsetEncoding| encoding.encode(PLACEHOLDER);
        prop_oneof![
            4 => prop::collection::vec(any::<u8>(), 0..40),
            3 => Just(vec![0]),
            2 => Just(vec![0; 5]),
            5 => Just(placeholder(OffsetEncoding::Utf8)),
            1 => prop::sample::select(&OffsetEncoding::DEFINED[..]).prop_map(placeholder),
            2 => Just(PLACEHOLDER.as_bytes()[..7].to_vec()),
            2 => Just(b"/bin/tool --flag\n".to_vec()),
        ]
    }

    fn contents() -> impl Strategy<Value = Vec<u8>> {
        let start = prop_oneof![3 => Just(Vec::new()), 1 => Just(b"#!".to_vec()), 1 => Just(b"#!/placeh/placeh/bin/sh -e\n".to_vec())];
        (start, prop::collection::vec(piece(), 0..40))
            .prop_map(|(start, pieces)| [start, pieces.concat()].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_range_is_what_the_installer_writes(
            bytes in contents(),
            text in any::<bool>(),
            prefix in prop::sample::select(&["/p", "/placeh/placeh", "/a/prefix/that/is/longer/than/its/placeholder"][..]),
            ranges in prop::collection::vec((0u64..2000, 0usize..300), 1..8),
        ) {
            let mode = if text { FileMode::Text } else { FileMode::Binary };
            match (installed(&bytes, mode, prefix), edits(&bytes, mode, prefix)) {
                (Ok(expected), Ok((mut file, edits))) => {
                    prop_assert_eq!(edits.size(), expected.len() as u64);
                    for &(offset, len) in ranges.iter().chain([&(0, expected.len())]) {
                        let mut read = Vec::new();
                        let count = edits.read(&mut file, offset, len, &mut read).unwrap();
                        prop_assert_eq!(count, read.len());
                        let start = (offset as usize).min(expected.len());
                        let end = (start + len).min(expected.len());
                        prop_assert_eq!(&read[..], &expected[start..end]);
                    }
                }
                (Err(_), Err(PatchError::PrefixTooLong)) => {}
                (Err(_), Ok(_)) => return Err(TestCaseError::fail("the installer refuses what we accept")),
                (_, Err(error)) => return Err(TestCaseError::fail(error.to_string())),
            }
        }
    }

    #[test]
    fn a_long_shebang_is_rewritten_as_by_the_installer() {
        let prefix = format!("/{}", "long/".repeat(120));
        let script = format!("#!{PLACEHOLDER}/bin/python3.11 -E\nprint('{PLACEHOLDER}')\n");
        let expected = installed(script.as_bytes(), FileMode::Text, &prefix).unwrap();
        assert!(!expected.starts_with(format!("#!{prefix}").as_bytes()));
        let (mut file, edits) = edits(script.as_bytes(), FileMode::Text, &prefix).unwrap();
        let mut read = Vec::new();
        edits.read(&mut file, 0, usize::MAX, &mut read).unwrap();
        assert_eq!(read, expected);
    }

    #[test]
    fn a_file_that_shrank_is_an_error() {
        let (mut file, edits) = edits(&[b'x'; 300], FileMode::Binary, "/p").unwrap();
        file.set_len(10).unwrap();
        let error = edits.read(&mut file, 0, 300, &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
