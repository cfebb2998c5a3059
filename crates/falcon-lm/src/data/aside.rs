//! Files that are written aside in a cache folder that several processes share, and moved to their place when they are
//! complete.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use falcon_base::files::{ASIDE, aside_file};
use falcon_base::{AtPath, hex};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::error::CacheError;

/// Bytes of a disk that must stay free.
const LEFT_FREE: u64 = 1 << 30;

/// Copies text that can be read only once, such as standard input, to a file that is named by a hash of the text.
pub fn keep_text(mut input: impl io::Read, folder: &Path) -> Result<PathBuf, CacheError> {
    fs::create_dir_all(folder).at(folder)?;
    sweep(folder);
    let aside = locked_aside(folder).at(folder)?;
    let (mut out, mut hash, mut block) = (aside.as_file(), Sha256::new(), vec![0; 4 << 20]);
    loop {
        let read = input.read(&mut block).at(folder)?;
        if read == 0 {
            break;
        }
        require_room(aside.as_file()).at(folder)?;
        hash.update(&block[..read]);
        out.write_all(&block[..read]).at(folder)?;
    }
    aside.as_file().sync_all().at(folder)?;
    let path = folder.join(format!("stdin-{}.txt", hex(&hash.finalize()[..12])));
    // The same text keeps its file, so that its times do not change either.
    if !path.exists() {
        aside.persist(&path).map_err(|error| error.error).at(folder)?;
    }
    Ok(path)
}

/// Creates a temporary file that is locked while it is written.
pub(super) fn locked_aside(folder: &Path) -> io::Result<NamedTempFile> {
    loop {
        let aside = aside_file(folder)?;
        aside.as_file().lock()?;
        // Another process may have removed it before it was locked.
        if aside.path().exists() {
            return Ok(aside);
        }
    }
}

/// Removes temporary files that a killed process left behind: those that no process has locked.
pub(super) fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(ASIDE)
            && entry.file_type().is_ok_and(|kind| kind.is_file())
            && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Fails if the disk of a file is nearly full.
pub(super) fn require_room(file: &File) -> io::Result<()> {
    #[cfg(unix)]
    {
        let disk = rustix::fs::fstatvfs(file)?;
        check_free(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        Ok(())
    }
}

fn check_free(free: u64) -> io::Result<()> {
    if free >= LEFT_FREE {
        return Ok(());
    }
    let (free, left) = (free >> 20, LEFT_FREE >> 20);
    Err(io::Error::other(format!("the disk has {free} MiB free, and {left} MiB must stay free")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::FileStamp;

    #[test]
    fn temporary_files_that_no_process_has_locked_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(format!("{ASIDE}left"));
        fs::write(&left, "half").unwrap();
        fs::write(folder.path().join("other"), "whole").unwrap();
        let held = locked_aside(folder.path()).unwrap();
        sweep(folder.path());
        assert!(!left.exists() && held.path().exists());
        drop(held);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_nearly_full_disk_is_refused() {
        assert!(check_free(LEFT_FREE).is_ok());
        let error = check_free(5 << 20).unwrap_err().to_string();
        assert!(error.contains("5 MiB free") && error.contains("1024 MiB"), "{error}");
    }

    /// The same text keeps its file with the same times, so that a run with this text can resume.
    #[test]
    fn equal_texts_from_standard_input_have_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let keep = |text: &str| keep_text(text.as_bytes(), folder.path()).unwrap();
        let first = keep("one two");
        assert_eq!(fs::read_to_string(&first).unwrap(), "one two");
        let stamp = FileStamp::of(&first).unwrap();
        assert_eq!((keep("one two"), FileStamp::of(&first).unwrap()), (first.clone(), stamp));
        assert_ne!(keep("one three"), first);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
