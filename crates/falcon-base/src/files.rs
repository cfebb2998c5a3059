//! Writes files atomically, and reads files only if they are regular files of at most a given size.

use std::fs::{self, File, FileType};
use std::io::{self, Read, Write};
use std::path::Path;

use crate::{AtPath, PathError};

/// Prefix of the names of temporary files and folders: those that are still being written. They are renamed when they
/// are complete, so whatever has this prefix after a crash can be deleted.
pub const ASIDE: &str = ".aside-";

/// Creates a temporary file in `folder`, to be renamed within that folder when it is complete.
pub fn aside_file(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(ASIDE);
    // The permissions of an ordinary new file, subject to the umask. The default of temporary files is private.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

/// Writes a file atomically: a temporary file is written, synced to the disk and renamed, so that a crash at any moment
/// leaves either the old file or the new one.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), PathError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || {
        let mut file = aside_file(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().at(path)
}

/// Opens a regular file. Reading a named pipe could wait forever, and a device may never end.
pub fn open_regular(path: &Path) -> Result<File, PathError> {
    let open = || match special_kind(fs::metadata(path)?.file_type()) {
        Some(kind) => Err(io::Error::other(format!("this is {kind}, and only a regular file can be read"))),
        None => File::open(path),
    };
    open().at(path)
}

/// Reads a whole regular file of at most `limit` bytes.
pub fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, PathError> {
    let file = open_regular(path)?;
    let read = || {
        let length = file.metadata()?.len();
        if length > limit {
            let what =
                format!("{length} bytes, where at most {limit} are expected; is it the file of something else?");
            return Err(io::Error::other(what));
        }
        let mut bytes = Vec::with_capacity(length as usize);
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().at(path)
}

/// Describes a file type other than a regular file, such as "a folder"; none for a regular file.
pub fn special_kind(file_type: FileType) -> Option<&'static str> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let special = [
            (file_type.is_fifo(), "a named pipe (FIFO)"),
            (file_type.is_char_device(), "a character device"),
            (file_type.is_block_device(), "a block device"),
            (file_type.is_socket(), "a socket"),
        ];
        if let Some((_, kind)) = special.into_iter().find(|(is, _)| *is) {
            return Some(kind);
        }
    }
    match (file_type.is_file(), file_type.is_dir()) {
        (true, _) => None,
        (false, true) => Some("a folder"),
        (false, false) => Some("neither a file nor a folder"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_file(&path, b"one").unwrap();
        write_file(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file may remain");
        let error = write_file(&folder.path().join("missing/a"), b"x").unwrap_err();
        assert_eq!(error.path, folder.path().join("missing/a"));
    }

    #[test]
    fn a_file_larger_than_allowed_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, [0; 3]).unwrap();
        assert_eq!(read_file(&path, 3).unwrap().len(), 3);
        let message = read_file(&path, 2).unwrap_err().to_string();
        assert!(message.contains("3 bytes, where at most 2 are expected"), "{message}");
        assert!(open_regular(folder.path()).unwrap_err().to_string().contains("this is a folder"));
    }
}
