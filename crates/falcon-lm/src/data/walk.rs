//! The text files of a folder and of the folders in it.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::compressed::plain_name;
use super::regular::{is_parquet, refused};
use super::source::{SourceError, at};

/// Entries of all folders together, at most. Twenty times the books of Project Gutenberg.
const ENTRIES: usize = 1_000_000;
/// Folders within folders, at most.
const DEPTH: usize = 64;
/// Entries between two questions whether to stop: some milliseconds on a slow disk.
const TURN: usize = 256;

/// Whether a file of this name in a folder is read as text.
pub fn is_text_name(name: &OsStr) -> bool {
    let kind = Path::new(plain_name(name)).extension();
    kind.is_some_and(|kind| ["txt", "md", "jsonl"].iter().any(|known| kind == *known))
}

/// The text files of a folder by name. Links to folders are followed, and every folder is read once.
pub(super) fn text_files(root: &Path, go_on: &mut dyn FnMut() -> bool) -> Result<Vec<PathBuf>, SourceError> {
    let limits = Limits { entries: ENTRIES, depth: DEPTH };
    let mut walk =
        Walk { root, limits, go_on, seen: HashSet::new(), entries: 0, files: Vec::new(), parquet: None };
    // Links wait until all folders under the root are read: what is there under its own name keeps that name.
    let mut links = Vec::new();
    walk.folder(root, 0, &mut links)?;
    while let Some((folder, depth)) = links.pop() {
        walk.folder(&folder, depth, &mut links)?;
    }
    match (walk.files.is_empty(), walk.parquet) {
        (true, Some(path)) => Err(SourceError::not_text(&path, &[]).expect("by its name")),
        (true, None) => Err(SourceError::Empty { path: root.into() }),
        (false, _) => {
            walk.files.sort();
            Ok(walk.files)
        }
    }
}

#[derive(Clone, Copy)]
struct Limits {
    entries: usize,
    depth: usize,
}

struct Walk<'a> {
    root: &'a Path,
    limits: Limits,
    go_on: &'a mut dyn FnMut() -> bool,
    /// Folders that are read, by where they really are.
    seen: HashSet<PathBuf>,
    entries: usize,
    files: Vec<PathBuf>,
    /// A file that somebody may have taken for text.
    parquet: Option<PathBuf>,
}

impl Walk<'_> {
    fn folder(
        &mut self,
        folder: &Path,
        depth: usize,
        links: &mut Vec<(PathBuf, usize)>,
    ) -> Result<(), SourceError> {
        if depth > self.limits.depth {
            return Err(SourceError::Deep { path: folder.into(), limit: self.limits.depth });
        }
        if !self.seen.insert(fs::canonicalize(folder).map_err(|error| at(folder, error))?) {
            return Ok(());
        }
        for entry in fs::read_dir(folder).map_err(|error| at(folder, error))? {
            self.entries += 1;
            if self.entries > self.limits.entries {
                return Err(SourceError::Many { path: self.root.into(), limit: self.limits.entries });
            }
            if self.entries.is_multiple_of(TURN) && !(self.go_on)() {
                return Err(SourceError::Interrupted);
            }
            let entry = entry.map_err(|error| at(folder, error))?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(|error| at(folder, error))?);
            if kind.is_dir() {
                self.folder(&path, depth + 1, links)?;
            } else if path.is_dir() {
                links.push((path, depth + 1));
            } else if is_text_name(&entry.file_name()) {
                // What a broken link leads to is said when it is read.
                if let Some(kind) = path.metadata().ok().and_then(|found| refused(found.file_type())) {
                    return Err(SourceError::Special { path, kind });
                }
                self.files.push(path);
            } else if is_parquet(&path) {
                self.parquet.get_or_insert(path);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(root: &Path) -> Vec<String> {
        let files = text_files(root, &mut || true).unwrap();
        files.iter().map(|path| path.strip_prefix(root).unwrap().display().to_string()).collect()
    }

    #[test]
    fn folders_are_read_by_name() {
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
    fn a_walk_has_limits_and_can_be_stopped() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b/c")).unwrap();
        (0..TURN).for_each(|i| fs::write(folder.path().join(format!("{i}.txt")), "x").unwrap());
        let walk = |entries, depth, go_on: &mut dyn FnMut() -> bool| {
            let (limits, seen) = (Limits { entries, depth }, HashSet::new());
            let root = folder.path();
            Walk { root, limits, go_on, seen, entries: 0, files: Vec::new(), parquet: None }
                .folder(root, 0, &mut Vec::new())
                .map_err(|error| error.to_string())
        };
        assert_eq!(walk(TURN + 3, 3, &mut || true), Ok(()));
        let said = walk(TURN + 2, 3, &mut || true).unwrap_err();
        assert!(said.contains("more than 258 entries") && said.contains("name a smaller folder"), "{said}");
        let said = walk(TURN + 3, 2, &mut || true).unwrap_err();
        assert!(said.contains("a/b/c") && said.contains("deeper than 2"), "{said}");
        assert!(walk(TURN + 3, 3, &mut || false).unwrap_err().contains("interrupted"));
    }

    #[test]
    fn a_folder_of_parquet_says_so() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("train-00.parquet"), "PAR1").unwrap();
        let said = text_files(folder.path(), &mut || true).unwrap_err().to_string();
        assert!(said.contains("train-00.parquet") && said.contains(".jsonl"), "{said}");
    }
}
