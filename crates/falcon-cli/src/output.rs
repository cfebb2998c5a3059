//! Files to be written when the work is done: whether they can be is known before it.

use std::io;
use std::path::Path;

use falcon_nn::aside_file;

/// The folder of a file.
fn folder(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Refuses a place that nothing can be written to.
pub(crate) fn check(file: &Path) -> io::Result<()> {
    let wrong = |what: String| Err(io::Error::other(what));
    // Replacing a device such as /dev/null by a file would surprise; so would replacing a folder.
    if file.file_name().is_none() || file.metadata().is_ok_and(|found| !found.is_file()) {
        return wrong("a folder or a device, not a file that can be replaced: give another name".into());
    }
    let folder = folder(file);
    if !folder.is_dir() {
        return wrong(format!("there is no folder {}: make it first", folder.display()));
    }
    // It vanishes again at once.
    aside_file(folder).map(drop)
}

/// What became of printing. A reader of stdout who has seen enough is no failure, and no reason to do less.
pub(crate) fn printed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
