//! Where files are kept that can be made again.

use std::ffi::OsString;
use std::path::PathBuf;

use super::cache::CacheError;

/// The folder of files of tokens: `FALCON_CACHE`, or the user's folder for such files.
pub fn cache_folder() -> Result<PathBuf, CacheError> {
    choose(|name| std::env::var_os(name), std::env::home_dir()).ok_or(CacheError::NoFolder)
}

/// A name that all users share, such as one in `/tmp`, is never chosen: another user could have made it first.
fn choose(variable: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let of = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // A relative path there must be ignored, as its specification says.
    let user = || of("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    of("FALCON_CACHE")
        .or_else(|| user().map(|path| path.join("falcon")))
        .or_else(|| home.filter(|path| path.is_absolute()).map(|path| path.join(".cache/falcon")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_the_users_own() {
        let chosen = |variables: &[(&str, &str)], home: Option<&str>| {
            let value = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
            };
            choose(value, home.map(PathBuf::from)).map(|path| path.display().to_string())
        };
        let all = [("FALCON_CACHE", "here"), ("XDG_CACHE_HOME", "/x")];
        assert_eq!(chosen(&all, Some("/home/a")).as_deref(), Some("here"));
        assert_eq!(chosen(&all[1..], Some("/home/a")).as_deref(), Some("/x/falcon"));
        assert_eq!(chosen(&[("XDG_CACHE_HOME", "x")], Some("/home/a")).as_deref(), Some("/home/a/.cache/falcon"));
        assert_eq!(chosen(&[("FALCON_CACHE", "")], Some("")), None, "no shared name instead");
        assert_eq!(chosen(&[], None), None);
        assert!(CacheError::NoFolder.to_string().contains("FALCON_CACHE"));
    }
}
