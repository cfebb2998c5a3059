//! The folder of the cache.

use std::ffi::OsString;
use std::path::PathBuf;

use super::error::CacheError;

/// The folder of encoded text: `FALCON_CACHE`, or else a folder in the user's own cache folder. There is no default in
/// a folder that users share, such as `/tmp`, because another user could have created it first.
pub fn cache_folder() -> Result<PathBuf, CacheError> {
    choose(std::env::var_os("FALCON_CACHE"), dirs::cache_dir()).ok_or(CacheError::NoFolder)
}

fn choose(variable: Option<OsString>, user_cache: Option<PathBuf>) -> Option<PathBuf> {
    let named = variable.filter(|value| !value.is_empty()).map(PathBuf::from);
    named.or_else(|| user_cache.filter(|path| path.is_absolute()).map(|path| path.join("falcon")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_belongs_to_the_user() {
        let chosen = |variable: Option<&str>, user_cache: Option<&str>| {
            choose(variable.map(OsString::from), user_cache.map(PathBuf::from))
                .map(|path| path.display().to_string())
        };
        assert_eq!(chosen(Some("here"), Some("/home/a/.cache")).as_deref(), Some("here"));
        for variable in [None, Some("")] {
            assert_eq!(chosen(variable, Some("/home/a/.cache")).as_deref(), Some("/home/a/.cache/falcon"));
            assert_eq!(chosen(variable, Some(".cache")), None, "a relative path would be shared by accident");
            assert_eq!(chosen(variable, None), None);
        }
        assert!(CacheError::NoFolder.to_string().contains("FALCON_CACHE"));
    }
}
