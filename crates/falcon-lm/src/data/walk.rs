//! Finds the text files of a folder and its subfolders.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use falcon_base::files::special_kind;
use falcon_base::{AtPath, PathError};
use walkdir::WalkDir;

use super::compressed::plain_name;
use super::error::SourceError;
use super::not_text::is_parquet;
use crate::monitor::Monitor;

/// Limits of a search: enough for any collection of text, and low enough to notice that `/` was named by mistake.
const LIMITS: Limits = Limits { entries: 1_000_000, depth: 64 };
/// Entries that are read between two checks for cancellation: a few milliseconds of work on a slow disk.
const ENTRIES_PER_CHECK: usize = 256;

/// Whether a file of this name in a folder is read as text.
pub fn is_text_name(name: &OsStr) -> bool {
    let kind = Path::new(plain_name(name)).extension();
    kind.is_some_and(|kind| ["txt", "md", "jsonl"].iter().any(|text_kind| kind == *text_kind))
}

/// The text files of a folder and its subfolders, sorted by path. Links to folders are followed, and every folder is
/// read once.
pub(super) fn text_files(root: &Path, monitor: &mut dyn Monitor) -> Result<Vec<PathBuf>, SourceError> {
    search(root, LIMITS, monitor)
}

#[derive(Clone, Copy)]
struct Limits {
    /// Total number of entries, over all folders.
    entries: usize,
    /// How deeply folders may be nested.
    depth: usize,
}

fn search(root: &Path, limits: Limits, monitor: &mut dyn Monitor) -> Result<Vec<PathBuf>, SourceError> {
    let (mut files, mut parquet, mut entries) = (Vec::new(), None, 0);
    // Canonical paths of the folders that were read.
    let mut seen = HashSet::new();
    // Linked folders are read after real ones, so that a folder that is reachable both ways is listed under its real
    // path.
    let mut folders = vec![(root.to_path_buf(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        if !seen.insert(fs::canonicalize(&folder).at(&folder)?) {
            continue;
        }
        let mut walk = WalkDir::new(&folder).min_depth(1).into_iter();
        while let Some(entry) = walk.next() {
            let entry = entry.map_err(|error| unreadable(&folder, error))?;
            entries += 1;
            if entries > limits.entries {
                return Err(SourceError::Many { path: root.into(), limit: limits.entries });
            }
            if entries.is_multiple_of(ENTRIES_PER_CHECK) {
                monitor.check()?;
            }
            let (path, depth) = (entry.path(), depth + entry.depth());
            if entry.file_type().is_dir() || path.is_dir() {
                if depth > limits.depth {
                    return Err(SourceError::Deep { path: path.into(), limit: limits.depth });
                }
                if entry.path_is_symlink() {
                    folders.push((path.into(), depth));
                } else if !seen.insert(fs::canonicalize(path).at(path)?) {
                    walk.skip_current_dir();
                }
            } else if is_text_name(entry.file_name()) {
                // A broken link is reported when it is read.
                if let Some(kind) = path.metadata().ok().and_then(|found| special_kind(found.file_type())) {
                    return Err(SourceError::Special { path: path.into(), kind });
                }
                files.push(path.to_path_buf());
            } else if is_parquet(path) {
                parquet.get_or_insert_with(|| path.to_path_buf());
            }
        }
    }
    match (files.is_empty(), parquet) {
        (true, Some(path)) => Err(SourceError::not_text(&path, &path, &[]).expect("its name shows it")),
        (true, None) => Err(SourceError::Empty { path: root.into() }),
        (false, _) => {
            files.sort();
            Ok(files)
        }
    }
}

fn unreadable(folder: &Path, error: walkdir::Error) -> PathError {
    let path = error.path().unwrap_or(folder).to_path_buf();
    PathError::new(path, error.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::from_fn;

    fn names(root: &Path) -> Vec<String> {
        let files = text_files(root, &mut ()).unwrap();
        files.iter().map(|path| path.strip_prefix(root).unwrap().display().to_string()).collect()
    }

    #[test]
    fn text_files_are_found_and_sorted_by_path() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("b")).unwrap();
        for name in ["c.txt", "a.md", "b/x.txt", "picture.png", "d.jsonl.zst"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        assert_eq!(names(folder.path()), ["a.md", "b/x.txt", "c.txt", "d.jsonl.zst"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_to_folders_are_followed_once() {
        use std::os::unix::fs::symlink;
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(folder.path().join("real")).unwrap();
        fs::write(folder.path().join("real/a.txt"), "x").unwrap();
        fs::write(other.path().join("b.txt"), "x").unwrap();
        symlink(folder.path(), folder.path().join("again")).unwrap();
        symlink(folder.path().join("real"), folder.path().join("another name")).unwrap();
        symlink(other.path(), folder.path().join("elsewhere")).unwrap();
        symlink(folder.path(), other.path().join("back")).unwrap();
        assert_eq!(names(folder.path()), ["elsewhere/b.txt", "real/a.txt"]);
    }

    #[test]
    fn a_search_has_limits_and_can_be_cancelled() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b/c")).unwrap();
        (0..ENTRIES_PER_CHECK).for_each(|i| fs::write(folder.path().join(format!("{i}.txt")), "x").unwrap());
        let all = ENTRIES_PER_CHECK + 3;
        let walk = |entries, depth, monitor: &mut dyn Monitor| {
            search(folder.path(), Limits { entries, depth }, monitor).map_err(|error| error.to_string())
        };
        assert_eq!(walk(all, 3, &mut ()).map(|files| files.len()), Ok(ENTRIES_PER_CHECK));
        let error = walk(all - 1, 3, &mut ()).unwrap_err();
        assert!(error.contains("more than 258 entries") && error.contains("name a smaller folder"), "{error}");
        let error = walk(all, 2, &mut ()).unwrap_err();
        assert!(error.contains("a/b/c") && error.contains("deeper than 2"), "{error}");
        assert!(walk(all, 3, &mut from_fn(|_| false)).unwrap_err().contains("cancelled"));
    }

    #[test]
    fn a_folder_of_parquet_files_is_reported_as_such() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("train-00.parquet"), "PAR1").unwrap();
        let error = text_files(folder.path(), &mut ()).unwrap_err().to_string();
        assert!(error.contains("train-00.parquet") && error.contains(".jsonl"), "{error}");
    }
}
